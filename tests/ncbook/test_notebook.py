"""Tables of a notebook."""

import pandas as pd
from ncbook.notebook import means, show


def test_runs_tested_in_warmup_are_marked():
    runs = pd.DataFrame(
        {
            "method": ["ncr", "ncr", "l2rm", "warm-up alone", "plain"],
            "mrate": [0.6] * 5,
            "rsum": [100.0, 102.0, 200.0, 300.0, 400.0],
            "best_epoch": [2, 3, 3, 1, 1],
            "warmup_epochs": [2] * 5,
            "epochs": [3, 3, 3, 0, 3],
        }
    )
    table = means(runs, "method", "mrate")
    assert table.loc["ncr", "0.6"] == "101.0 ± 1.4 (2) †"
    assert "†" not in "".join(table.loc[["l2rm", "warm-up alone", "plain"], "0.6"])
    assert "tested at an epoch of its warm-up" in show(table, "marked", "rSum").to_html()
    assert "warm-up" not in show(table.drop("ncr"), "plain", "rSum").to_html().replace("warm-up alone", "")
