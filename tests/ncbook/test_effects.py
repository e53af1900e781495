import pandas as pd
import pytest
from ncbook import effects, load_runs
from ncbook.papers import printed
from ncbook.regime import ONLY_SHORT
from records_made import collect, save

PLACE = {"dataset": "f8k", "model": "bow", "preset": "standard", "data_options": {"root": "."}}


def value(paper, table, method, rate):
    where = {"method": method, "metric": "rsum", "dataset": "Flickr30K", "noise_rate": rate}
    (found,) = printed("retrieval", paper=paper, table=table, **where)["value"]
    return float(found)


def test_a_printed_share_is_that_of_the_printed_numbers():
    shares = effects.printed_effects("L2RM").set_index(["dataset", "method", "rate"])["share"]
    low, high = value("L2RM", "6", "SGR", "0.6"), value("L2RM", "7", "SGR", "0")
    own = value("L2RM", "6", "L2RM-SGR", "0.6")
    assert shares["Flickr30K", "l2rm", 0.6] == pytest.approx((own - low) / (high - low))


def test_measured_shares_are_paired_by_seed_and_leave_out_quick_runs_and_ablations(tmp_path):
    for seed, (clean, low, own) in enumerate([(300, 100, 150), (320, 120, 220), (310, 110, 190)]):
        save(tmp_path, "plain", clean, **PLACE, mrate=0.0, seed=seed)
        save(tmp_path, "plain", low, **PLACE, mrate=0.6, seed=seed)
        save(tmp_path, "l2rm", own, **PLACE, mrate=0.6, seed=seed)
        save(tmp_path, "l2rm", 0, **PLACE, mrate=0.6, seed=seed, rematch_weight=0.0)
    save(tmp_path, "l2rm", 300, **PLACE, mrate=0.6, seed=7)  # no other row of this seed
    for method, rate in (("plain", 0.0), ("plain", 0.6), ("l2rm", 0.6)):
        save(tmp_path, method, 100 - 50 * rate, mrate=rate, model="vse", preset="quick")
    (row,) = effects.measured_effects("L2RM", runs := _loaded(tmp_path)).itertuples()
    assert (row.method, row.place, row.rate) == ("l2rm", "Flickr8K, standard, bow", 0.6)
    assert row.share.values == pytest.approx((0.25, 0.5, 0.4))
    assert "0.38 [[0.07, 0.70] (3)]" in effects.effects_table("L2RM", runs).text()
    assert len(effects.effects_figure("L2RM", runs).axes) == 2


def test_a_share_of_a_run_tested_in_its_warm_up_carries_its_mark(tmp_path):
    for method, rate, total, best in (("plain", 0.0, 300, 0), ("plain", 0.6, 100, 0), ("l2rm", 0.6, 150, 1)):
        save(tmp_path, method, total, **PLACE, mrate=rate, best=best)
    sheet, figure = (f("L2RM", _loaded(tmp_path)) for f in (effects.effects_table, effects.effects_figure))
    assert "0.25 [(1) †]" in sheet.text()
    for words in (sheet.lines[-1], figure.get_suptitle()):
        assert words == "† a run was tested at an epoch of its warm-up"
    assert [text.get_text() for axis in figure.axes for text in axis.texts if text.get_text()] == ["†"]


def test_without_records_the_printed_shares_stand_alone(tmp_path):
    runs = load_runs(tmp_path)
    assert effects.measured_effects("REPAIR", runs).empty
    assert isinstance(effects.printed_effects("REPAIR"), pd.DataFrame)
    assert effects.effects_figure("REPAIR", runs).axes[0].lines


def test_rows_of_omit_are_compared_with_one_row_printed_and_by_seed(tmp_path):
    place = {"dataset": "emoji", "model": "omit", "preset": "quick", "mrate": 0.0}
    for seed, (cam, partial) in enumerate([(500, 510), (505, 511)]):
        save(tmp_path, "plain", cam, **place, seed=seed, model_options={"matching": "cam"})
        save(tmp_path, "plain", partial, **place, seed=seed)
    found = effects.row_gains("OMIT", "4", "CAM", _loaded(tmp_path)).set_index(["method", "kind"])["gain"]
    assert found["Partial OT", "measured"].values == (10.0, 6.0)
    low, high = (
        printed("retrieval", paper="OMIT", table="4", method=m, metric="rsum") for m in ("CAM", "Partial OT")
    )
    (first, *_) = found["Partial OT", "printed"]
    assert first.mean == pytest.approx(float(high["value"].iloc[0]) - float(low["value"].iloc[0]))
    assert len(effects.row_gains_figure("OMIT", "4", "CAM", load_runs(tmp_path)).axes[0].get_yticks()) == 5


def test_short_runs_of_omit_are_left_out_once_there_are_longer_ones(tmp_path):
    place = {"dataset": "emoji", "model": "omit", "mrate": 0.0}
    for preset, gains in (("quick", (500, 510)), ("standard", (590, 595))):
        for matching, total in zip(("cam", "ot"), gains, strict=True):
            save(tmp_path, "plain", total, **place, preset=preset, model_options={"matching": matching})
        runs = load_runs(tmp_path)
        found = effects.row_gains("OMIT", "4", "CAM", runs)
        assert set(found.loc[found["kind"] == "measured", "place"]) == {f"drawn scenes, {preset}"}
        said = effects.row_gains_figure("OMIT", "4", "CAM", runs).get_suptitle()
        assert said == (ONLY_SHORT if preset == "quick" else "")


def _loaded(folder):
    collect(folder)
    return load_runs(folder)
