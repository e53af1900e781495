"""The paper's tables beside measured runs: every printed row is accounted for."""

import pandas as pd
from ncbook.chapters import category_baselines as tables


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
