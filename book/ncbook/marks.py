"""Marks behind a number: what its reader has to know of at least one of its runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from ncbook.runs import outdated

WARMUP, OUTDATED, REMARKED, COLLAPSED = "†", "‡", "*", "§"
MARKS = {
    WARMUP: "a run was tested at an epoch of its warm-up",
    OUTDATED: "a run was made before the numbers of its method, model or solver last moved",
    REMARKED: "a run never left its warm-up, or a network took no step in some epochs",
    COLLAPSED: "a run collapsed: it fell far below its warm-up, or kept one batch of pairs or fewer",
}
SELECTED = re.compile(
    r"(folded\.|folds\.|val\.|test_dsl\.|single\.)?"
    r"(rsum|value|one_network|lost|won_back|map|i2t|t2i|relevant_|people|test)"
)
"""Names of metrics at the epoch that validation selects, or that compare with it."""


def in_warmup(runs: pd.DataFrame) -> pd.Series:
    """Tell which runs were tested at an epoch of their warm-up although they trained on after it.

    Plain training has no warm-up: its loss is the same in every epoch.

    Parameters
    ----------
    runs : DataFrame
        One row per run, as from :func:`ncbook.recorded`; where it has the column ``early``, that says it.

    Returns
    -------
    Series of bool
    """
    if "early" in runs:
        return runs["early"].astype(bool)
    needed = ("best_epoch", "warmup_epochs", "epochs")
    best, warmup, epochs = (runs.get(name, runs.index.to_series() * 0) for name in needed)
    early = (best <= warmup) & (epochs > 0)
    return early & (runs["method"] != "plain") if "method" in runs else early


def remarked(runs: pd.DataFrame) -> pd.Series:
    """Tell which records carry a remark on how their run went."""
    return runs.get("remarks", pd.Series("", index=runs.index)).fillna("") != ""


def collapsed(runs: pd.DataFrame) -> pd.Series:
    """Tell which runs collapsed, see :func:`nclib.runs.collapse.collapse`; they are ranked like others."""
    return runs.get("collapsed", pd.Series(0.0, index=runs.index)).fillna(0.0) > 0


def explained(marks: Iterable[str], end: str = "; ") -> str:
    """Say what marks mean, each once and in their order."""
    there = set(marks)
    return end.join(f"{mark} {words}" for mark, words in MARKS.items() if mark in there)


def marks_of(runs: pd.DataFrame, value: str = "rsum") -> tuple[str, ...]:
    """Return the marks of a number that these runs make; a metric of another epoch has no :data:`WARMUP`."""
    tested = SELECTED.match(value)
    marks = {
        WARMUP: tested is not None and in_warmup(runs).any(),
        OUTDATED: outdated(runs).any(),
        REMARKED: remarked(runs).any(),
        COLLAPSED: collapsed(runs).any(),
    }
    return tuple(mark for mark, holds in marks.items() if holds)
