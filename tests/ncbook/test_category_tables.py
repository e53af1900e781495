"""The paper's tables beside measured runs: every printed row is accounted for."""

import pandas as pd
import pytest
from ncbook.chapters import category_baselines as tables

from nclib import label_noise


@pytest.mark.parametrize(("table", "dataset"), [("I", "NUS-WIDE"), ("I", "XMediaNet"), ("II", "Wikipedia")])
def test_every_printed_row_is_a_method_or_has_a_reason(table, dataset):
    names = set(tables.printed_map(table, dataset).index)
    assert names == set(tables.printed_methods()) | set(tables.PRINTED_ONLY)
    known = set(label_noise.available())
    assert set(tables.printed_methods().values()) <= known
    stand_ins = {stand_in for _, stand_in in tables.PRINTED_ONLY.values() if stand_in}
    assert stand_ins <= known
    assert not stand_ins & set(
        tables.printed_methods().values()
    )  # a stand-in never fills the row of the method
    labelled = {
        name
        for name in tables.printed_methods().values()
        if getattr(label_noise.METHODS[name].factory, "supervised", True)
    }
    assert set(tables.UNLABELLED) - {"dcca", "dccae"} == set(tables.printed_methods().values()) - labelled


def test_printed_values():
    wiki = tables.printed_map("II", "Wikipedia")
    assert wiki.shape == (16, 8)
    assert wiki.loc["deep-SM", ("image → text", 0.2)] == 0.441
    assert tables.printed_map("IV", "Wikipedia").index.tolist() == list(tables.ABLATIONS)
    assert len(tables.printed_map("III", "XMediaNet")) == 9
    with pytest.raises(ValueError, match="no values for 'Wikipedia' in Table 'I'"):
        tables.printed_map("I", "Wikipedia")


def runs():
    rows = []
    for method, shift in (("mcca", 0.0), ("dscmr", 0.1), ("mrl", 0.3)):
        for seed in (0, 1):
            rows.append({
                "method": method, "row": method, "noise_rate": 0.2, "seed": seed,
                "map_i2t": 0.3 + shift + seed / 10, "map_t2i": 0.2 + shift, "map_avg": 0.25 + shift,
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_measured_values_of():
    table = tables.measured_map(runs(), {"mcca": "MCCA", "sdml": "SDML"})
    assert table.loc["MCCA", ("image → text", 0.2)] == "0.350 ± 0.071 (2)"
    assert table.loc["MCCA", ("text → image", 0.2)] == "0.200 ± 0.000 (2)"
    assert set(table.loc["SDML"]) == {"no record"}
    assert set(tables.measured_map(pd.DataFrame(), {"mcca": "MCCA"}).loc["MCCA"]) == {"no record"}


def test_rank_agreement():
    agree = tables.rank_agreement(runs(), "Wikipedia", "II")
    assert agree.to_dict("records") == [{"noise": 0.2, "rank correlation": 1.0, "methods": 3}]
    worse = runs()
    worse["map_avg"] = 1 - worse["map_avg"]
    assert tables.rank_agreement(worse, "Wikipedia", "II")["rank correlation"].tolist() == [-1.0]
    assert tables.rank_agreement(pd.DataFrame(), "Wikipedia", "II").empty


def test_ablation_rows_are_recorded_under_their_options():
    runs = pd.DataFrame([
        {"method": "uot_rcl", "variant": variant, "noise_rate": 0.2, "map_i2t": k / 10, "map_t2i": 0.0}
        for k, variant in enumerate(["", "plc=off", "lam=0", "confident=random", "gamma=0.1"])
    ])  # fmt: skip
    other = runs.assign(method="mrl")
    html = tables.ablation(pd.concat([runs, other])).to_html()
    assert [f">{k / 10:.3f}</td>" in html for k in range(5)] == [True, True, True, True, False]
    for row in tables.ABLATIONS.values():
        label_noise.build("uot_rcl", **row)
