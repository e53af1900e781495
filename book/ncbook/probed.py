"""Measurements of the book's probes (``book/probes``) as rows, one per seed and condition, for claims."""

from __future__ import annotations

import json

import pandas as pd

from ncbook.evidence import CONDITIONS
from ncbook.runs import RECORDED


def probed(name: str) -> pd.DataFrame:
    """Return what a probe measured.

    Parameters
    ----------
    name : str
        Of its part, which is that of its file in ``book/results/diagnosis``: ``"plans"``, ``"labels"``, ...

    Returns
    -------
    DataFrame
        Columns ``dataset``, ``preset``, ``model``, ``mrate``, ``protocol``, ``seed``, ``commit`` and the
        measured values; no rows where nothing was measured.
    """
    path = RECORDED / "diagnosis" / f"{name}.json"
    rows = json.loads(path.read_text("utf8"))["rows"] if path.is_file() else []
    return pd.DataFrame(rows, columns=None if rows else [*CONDITIONS, "seed"]).drop(
        columns="runs", errors="ignore"
    )
