"""The data without the pairs that are judged wrong, as a table in parquet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from nclib.auditing.result import COLUMNS, Findings
from nclib.common.checks import check_rows
from nclib.common.extras import require
from nclib.common.files import replacing
from nclib.readers.listing import caption_columns

KINDS = ("parquet",)


def check_keep(kind: str | None) -> None:
    """Raise an error where :func:`write_kept` could not write a kind for want of a package."""
    if kind == "parquet":
        require("--keep parquet", "pyarrow")


def kept(audit: Findings) -> pd.DataFrame:
    """Return the pairs that are not judged wrong, with the columns of their source.

    A pair whose caption was edited has the new one, and is kept whatever the given one was.

    Returns
    -------
    DataFrame
        ``id``, ``image``, ``caption``, the source's own columns, ``p_wrong`` of the given caption; the index
        is the row of the pair.
    """
    table = audit.table.reset_index(drop=True)
    new = table["new_caption"] if "new_caption" in table else pd.Series("", table.index)
    table["caption"] = table["caption"].where(new == "", new)
    own = [name for name in table.columns if name not in (*COLUMNS, "new_caption")]
    rows = audit.kept | (audit.pairs.usable & (new != "").to_numpy())
    return table.loc[rows, ["id", "image", "caption", *own, "p_wrong"]]


def write_kept(audit: Findings, folder: str | Path, kind: str) -> Path:
    """Write :func:`kept` pairs, and return the file.

    Parameters
    ----------
    audit : Findings
    folder : path
    kind : {"parquet"}
        ``kept.parquet``, whose pictures are named by absolute paths.

    Raises
    ------
    ImportError
        When pyarrow is missing.
    ValueError
        When no pair is kept.
    """
    check_keep(kind)
    folder, found = Path(folder), kept(audit)
    if not len(found):
        raise ValueError("no pair is kept: all that can be judged are judged wrong")
    there = {name: os.path.abspath(name) for name in found["image"].unique() if os.path.isfile(name)}
    found["image"] = found["image"].map(lambda name: there.get(name, name))
    with replacing(folder / "kept.parquet") as file:
        found.to_parquet(file, index=False)
    return folder / "kept.parquet"


def kept_rows(audit: Findings, dataset: Any) -> Any:
    """Return the rows of the data set that was audited, without those judged wrong.

    Parameters
    ----------
    audit : Findings
    dataset : datasets.Dataset
        With one pair in each row.

    Returns
    -------
    datasets.Dataset
        With the column ``p_wrong``, and with edited captions in place of those given.

    Raises
    ------
    ValueError
        When rows and pairs are not as many.
    """
    check_rows("the data set", len(dataset), pairs=len(audit.pairs))
    found = kept(audit)
    chosen = dataset.select(found.index.tolist())
    (caption,) = caption_columns(dataset.column_names)
    texts = [audit.edits.get(name, text) for name, text in zip(found["id"], chosen[caption], strict=True)]
    new = {"p_wrong": found["p_wrong"].tolist(), **({caption: texts} if audit.edits else {})}
    for name, values in new.items():
        left = chosen.remove_columns(name) if name in chosen.column_names else chosen
        chosen = left.add_column(name, values)
    return chosen
