"""The field's printed rows: newer papers, repositories and re-runs, beside those of the four papers.

Nothing here was measured by this project. A row says which kind of noise it was made under, because the same
rate means different problems: ``images`` moves all captions of a picture together, ``captions`` moves them
one by one. Rows of different kinds, data, test protocols or features are never ranked against each other.
"""

from __future__ import annotations

import functools

import pandas as pd

from ncbook.papers import printed
from nclib.runs.record import RECALLS

NOT_STATED = "not stated"
ROUNDING = 0.1  # a sum that was made before rounding may differ from its rounded recalls by this
LEVELS = {"images": "images exchanged", "captions": "captions exchanged", "": "kind not stated"}
TESTS = {
    "test-1k": "",
    "5fold-1k": " 1K, five folds",
    "5fold-1k (assumed)": " 1K, five folds",
    "full-5k": " 5K",
}
FEATURES = {"region": "regions", "pixels": "CLIP"}
NETWORKS = {"true": "several", "false": "one", "": NOT_STATED}
SOURCES = {"measured": "measured there", "reported": "reported from elsewhere", "": NOT_STATED}
OLDER = {
    "L2RM": ("2", "6", "8"),
    "REPAIR": ("I", "II", "IV"),
}  # tables of the four papers with mismatched pairs
OLDER_LEVEL = {"L2RM": ("images", "stated"), "REPAIR": ("captions", "inferred from its wording")}
GROUP = ["data", "features", "noise"]  # never crossed


@functools.cache
def field_rows() -> pd.DataFrame:
    """Return every printed row with six recalls under wrong pairs, one line per row.

    Returns
    -------
    DataFrame
        ``data`` (with the test protocol), ``features``, ``noise`` (kind), ``rate`` (text, ``natural`` for web
        data), ``method``, ``backbone``, ``networks``, ``paper``, ``table``, ``source``, ``level_from``,
        ``selection``, ``setting``, the six recalls and ``rsum`` as printed, ``total``: the sum of the six
        recalls, ``value``: ``rsum``, or the total where no sum is printed, and ``off``: ``rsum - total``
        where they differ by more than rounding, else 0.
    """
    table = pd.concat([printed("field"), _older()], ignore_index=True).fillna("")
    complete = (table[list(RECALLS)] != "").all(axis=1) & (table["noise_kind"] != "none")
    table = table[complete & ~table["setting"].str.contains("ablation|trained on clean")].copy()
    places = ["dataset", "protocol", "noise_rate", *RECALLS]
    keys = table[places].agg(" ".join, axis=1)
    copied = (table["noise_kind"] == "mismatch") & keys.isin(set(keys[table["paper"] == "L2RM"]))
    copied &= table["paper"] != "L2RM"
    table.loc[copied, ["level", "level_from"]] = ["images", "equals a row of L2RM"]
    recalls = table[list(RECALLS)].astype(float)
    table["total"] = recalls.sum(axis=1).round(1)
    table["value"] = pd.to_numeric(table["rsum"]).fillna(table["total"])
    off = (table["value"] - table["total"]).round(1)
    table["off"] = off.where(off.abs() > ROUNDING + 1e-9, 0.0)
    table["data"] = table["dataset"] + table["protocol"].map(TESTS)
    table["features"] = table["features"].str.extract("^(region|pixels)")[0].map(FEATURES).fillna("regions")
    web = table["noise_kind"] == "natural"
    table["noise"] = table["level"].map(LEVELS).where(~web, "web pairs")
    table["rate"] = table["noise_rate"].where(~web, "natural")
    table["networks"] = table["ensemble"].map(NETWORKS)
    table["source"] = table["source"].map(SOURCES)
    return table.sort_values([*GROUP, "rate", "value"], ascending=[True] * 4 + [False]).reset_index(drop=True)


def _older() -> pd.DataFrame:
    """Return the rows of the four papers in the columns of ``field.csv``."""
    parts = []
    for paper, tables in OLDER.items():
        rows = printed("retrieval", paper=paper)
        rows = rows[rows["table"].isin(tables)]
        keys = [c for c in rows if c not in ("metric", "value")]
        wide = rows.pivot_table(index=keys, columns="metric", values="value", aggfunc="first", sort=False)
        wide = wide.reset_index()
        mismatch = wide["noise_kind"] == "mismatch"
        level, origin = OLDER_LEVEL[paper]
        wide["level"] = mismatch.map({True: level, False: ""})
        wide["level_from"] = mismatch.map({True: origin, False: ""})
        sources = {"measured by that paper": "measured", "reported there from elsewhere": "reported"}
        wide["source"] = wide["source"].map(sources).fillna("")
        parts.append(wide)
    return pd.concat(parts, ignore_index=True)
