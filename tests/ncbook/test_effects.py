"""Gains beside the printed ones: shares of the loss, rows of ablations, and both in one row."""

import re

import ncbook
import pytest
from ncbook import effects, load_runs
from ncbook.match import printed_sums
from ncbook.papers import printed
from records_made import collect, lines, save

PLACE = {"dataset": "f8k", "model": "bow", "preset": "standard", "data_options": {"root": "."}}


def loaded(folder):
    collect(folder)
    return load_runs(folder)


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
    (row,) = effects.measured_effects("L2RM", runs := loaded(tmp_path)).itertuples()
    assert (row.method, row.place, row.rate) == ("l2rm", "Flickr8K, standard, bow", 0.6)
    assert row.share.values == pytest.approx((0.25, 0.5, 0.4))
    assert "0.38 [[0.07, 0.70] (3)]" in effects.effects_table("L2RM", runs).text()
    assert len(effects.effects_figure("L2RM", runs).axes) == 2


def test_a_share_of_a_run_tested_in_its_warm_up_carries_its_mark(tmp_path):
    for method, rate, total, best in (("plain", 0.0, 300, 0), ("plain", 0.6, 100, 0), ("l2rm", 0.6, 150, 1)):
        save(tmp_path, method, total, **PLACE, mrate=rate, best=best)
    sheet, figure = (f("L2RM", loaded(tmp_path)) for f in (effects.effects_table, effects.effects_figure))
    assert "0.25 [(1) †]" in sheet.text()
    for words in (sheet.lines[-1], figure.get_suptitle()):
        assert words == "† a run was tested at an epoch of its warm-up"
    assert [text.get_text() for axis in figure.axes for text in axis.texts if text.get_text()] == ["†"]


def test_without_records_the_printed_shares_stand_alone(tmp_path):
    runs = load_runs(tmp_path)
    assert effects.measured_effects("REPAIR", runs).empty
    assert len(effects.printed_effects("REPAIR"))
    assert effects.effects_figure("REPAIR", runs).axes[0].lines


def test_rows_of_omit_are_compared_with_one_row_printed_and_by_seed(tmp_path):
    place = {"dataset": "emoji", "model": "omit", "preset": "quick", "mrate": 0.0}
    for seed, (cam, partial) in enumerate([(500, 510), (505, 511)]):
        save(tmp_path, "plain", cam, **place, seed=seed, model_options={"matching": "cam"})
        save(tmp_path, "plain", partial, **place, seed=seed)
    found = effects.row_gains("OMIT", "4", "CAM", loaded(tmp_path)).set_index(["method", "kind"])["gain"]
    assert found["Partial OT", "measured"].values == (10.0, 6.0)
    where = {"paper": "OMIT", "table": "4", "metric": "rsum"}
    sums = [printed("retrieval", method=m, **where)["value"].iloc[0] for m in ("CAM", "Partial OT")]
    (first, *_) = found["Partial OT", "printed"]
    assert first.mean == pytest.approx(float(sums[1]) - float(sums[0]))


def test_short_runs_of_omit_are_left_out_once_there_are_longer_ones(tmp_path):
    for preset in ("quick", "standard"):
        for matching, total in (("cam", 500), ("ot", 510)):
            options = {"model_options": {"matching": matching}, "preset": preset, "mrate": 0.0}
            save(tmp_path, "plain", total, dataset="emoji", model="omit", **options)
        found = effects.row_gains("OMIT", "4", "CAM", load_runs(tmp_path))
        assert set(found.loc[found["kind"] == "measured", "place"]) == {f"drawn scenes, {preset}"}


def printed_sum(method, rate):
    table = printed_sums("L2RM", "6")
    row = table[(table["dataset"] == "Flickr30K") & (table["model"] == "sgr") & (table["rate"] == rate)]
    return float(row.loc[row["method"] == method, "value"].item())


def test_a_row_holds_print_measure_and_the_difference_of_gains(tmp_path):
    for seed, (low, own) in enumerate([(100, 150), (110, 170), (105, 160)]):
        save(tmp_path, "plain", low, **PLACE, mrate=0.6, seed=seed)
        save(tmp_path, "l2rm", own, **PLACE, mrate=0.6, seed=seed)
    sheet = ncbook.compared_table("L2RM", "6", loaded(tmp_path))
    rows = {(line["rate"], line["row"]): line for line in lines(sheet)}
    assert set(rows) == {("0.6", "triplet"), ("0.6", "L2RM")}
    row, gain = rows["0.6", "L2RM"], printed_sum("l2rm", 0.6) - printed_sum("plain", 0.6)
    assert float(row["printed rSum"]) == printed_sum("l2rm", 0.6)
    assert float(row["printed − plain"]) == pytest.approx(gain)
    assert (row["measured rSum"], row["measured − plain"].split()[0]) == ("160.0", "+55.0")
    assert float(row["difference of effects"]) == pytest.approx(55 - gain)
    assert rows["0.6", "triplet"]["printed − plain"] == "reference"
    (alone,) = [line for line in sheet.lines if line.startswith("Printed, without a run here:")]
    assert "NCR" in alone
    assert "L2RM (0.2,0.4,0.8)" in alone
    assert "not run" not in sheet.text()


def test_a_table_without_any_run_has_no_rows(nothing):
    assert ncbook.compared_table("L2RM", "2", nothing) is None
    assert ncbook.compared_table("L2RM", "6", nothing) is None


@pytest.mark.parametrize("key", [("L2RM", "3"), ("OMIT", "4"), ("UOT-RCL", "IV")])
def test_ablations_have_the_printed_names_of_their_rows(key):
    sheet = ncbook.compared_table(*key, ncbook.load_runs())
    named = {name for _, names in ncbook.regime.groups_of(ncbook.LAYOUTS[key]).values() for name in names}
    assert {line["row"] for line in lines(sheet)} <= named


def test_a_citation_names_the_table_and_changes_with_its_values(tmp_path):
    cited = []
    for total in (150, 151):
        (folder := tmp_path / str(total)).mkdir()
        for method, rsum in (("plain", 100), ("l2rm", total)):
            save(folder, method, rsum, **PLACE, mrate=0.6)
        cited.append(ncbook.compared_table("L2RM", "6", loaded(folder)).citation)
    assert cited[0] != cited[1]
    (same,) = {re.sub("CSV [0-9a-f]{8}", "", text) for text in cited}
    assert same.startswith("@misc{nclib-l2rm-table-6-rows,")


def test_simple_rows_have_shares_and_their_losses_no_warm_up_mark(tmp_path):
    save(tmp_path, "plain", 300, **PLACE, mrate=0.0)
    save(tmp_path, "plain", 100, **PLACE, mrate=0.6)
    save(tmp_path, "plain", 200, **PLACE, mrate=0.6, loss="gce", best=1)
    save(tmp_path, "plain", 250, **PLACE, mrate=0.6, loss="gce", tau=0.2)
    (row,) = effects.measured_effects("L2RM", loaded(tmp_path)).itertuples()
    assert (row.method, row.share.values, row.share.marks) == ("plain (gce)", (0.5,), ())
    assert row.method in effects.STUDIES["L2RM"].rows
