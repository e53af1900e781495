"""The temperature of the softmax over a batch: one choice for each method, for all data and rates."""

from __future__ import annotations

import pandas as pd

from ncbook.runs import Runs, select

TEMPERATURES = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28)
WITH_SOFTMAX = {
    **{f"plain ({loss})": ("plain", loss) for loss in ("infonce", "infonce_rce", "gce")},
    **{m: (m, "") for m in ("rcl", "crcl", "gsc", "l2rm", "crank")},
    **{m: (m, "") for m in ("sps", "gsc_plus", "cream", "in2r", "pcsr", "crank_plus")},
}
"""Method and loss of the rows whose softmax over the pairs of a batch has a temperature, by label."""
WHERE = {  # the choice is made
    "dataset": "f8k",
    "preset": "standard",
    "model": "bow",
    "protocol": "images",
    "mrate": 0.6,
    "seed": 0,
}


def temperatures(runs: Runs, method: str = "plain", loss: str = "gce") -> pd.DataFrame:
    """Return rSum on validation and test, :data:`WHERE` the choice is made, one row a temperature."""
    table = select(runs.retrieval, **WHERE, method=method, networks=1)
    if table.empty or "option.tau" not in table:
        return pd.DataFrame(columns=["validation", "test"])
    if method == "plain":
        table = select(table, **{"option.loss": loss})
        table = table[table["variant"].str.fullmatch(r"loss=\w+(, tau=[\d.]+)?")]
    else:
        table = table[table["variant"].str.fullmatch(r"(tau=[\d.]+)?")]
    by = table[table["option.tau"].isin(TEMPERATURES)].groupby("option.tau")
    return pd.DataFrame({"validation": by["val.rsum"].mean(), "test": by["rsum"].mean()})


def chosen(runs: Runs) -> dict[str, float]:
    """Return the temperature with the best validation by label, where all :data:`TEMPERATURES` are recorded.

    The choice is made on the validation photographs of Flickr8K at rate 0.6 with seed 0.
    """
    by_label = {label: temperatures(runs, *which)["validation"] for label, which in WITH_SOFTMAX.items()}
    return {label: float(v.idxmax()) for label, v in by_label.items() if len(v) == len(TEMPERATURES)}
