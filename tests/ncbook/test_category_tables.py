"""The paper's tables beside measured runs: every printed row is accounted for."""

import pandas as pd
from ncbook.chapters import category_baselines as tables

from nclib import label_noise


def runs():
    rows = []
    for method, shift in (("mcca", 0.0), ("dscmr", 0.1), ("mrl", 0.3)):
        for seed in (0, 1):
            rows.append({
                "method": method, "row": method, "noise_rate": 0.2, "seed": seed,
                "map_i2t": 0.3 + shift + seed / 10, "map_t2i": 0.2 + shift, "map_avg": 0.25 + shift,
            })  # fmt: skip
    return pd.DataFrame(rows)


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
