"""The data without the pairs that are judged wrong: a table in parquet, or WebDataset tars."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from nclib.auditing.result import COLUMNS, Findings
from nclib.common.checks import check_rows
from nclib.common.extras import needs
from nclib.common.files import replacing
from nclib.data.readers import Listing, UnreadableError
from nclib.data.readers.listing import caption_columns

KINDS = ("parquet", "tars")
PICTURES = 1000  # in a tar


def check_keep(kind: str | None, listing: Listing) -> None:
    """Raise an error where :func:`write_kept` could not write a kind for want of a package or of pictures."""
    if kind == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise needs("--keep parquet", "pyarrow")
    if kind == "tars" and listing.file is None:
        raise ValueError("--keep tars: there are no pictures to write, only embeddings")


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
    """Write :func:`kept` pairs, and return the file or the folder.

    Parameters
    ----------
    audit : Findings
    folder : path
    kind : {"parquet", "tars"}
        ``kept.parquet``, whose pictures are named by absolute paths; or tars in ``kept/``, each with 1,000
        pictures, their captions as ``.txt`` (several of a picture in its ``.json``) and own columns as
        ``.json``.

    Raises
    ------
    ImportError
        When pyarrow is missing.
    ValueError
        When no pair is kept, or there are no pictures for the tars.
    """
    folder, found = Path(folder), kept(audit)
    if not len(found):
        raise ValueError("no pair is kept: all that can be judged are judged wrong")
    if kind == "tars":
        return _write_tars(audit, folder / "kept", found)
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


def _write_tars(audit: Findings, folder: Path, found: pd.DataFrame) -> Path:
    picture_of = audit.pairs.image_of[found.index]
    pictures = pd.unique(picture_of)
    rows_of = found.groupby(picture_of, sort=False)
    unread: list[str] = []
    tars = []
    for start in range(0, len(pictures), PICTURES):
        tars.append(folder / f"{start // PICTURES:05d}.tar")
        with replacing(tars[-1]) as file, tarfile.open(fileobj=file, mode="w") as tar:
            for number, picture in enumerate(pictures[start : start + PICTURES].tolist(), start):
                try:
                    content, suffix = audit.pairs.content(picture)
                except UnreadableError as error:
                    unread.append(f"{rows_of.get_group(picture)['image'].iloc[0]}: {error}")
                    continue
                texts, facts = _words(rows_of.get_group(picture))
                for end, data in {suffix: content, **texts, ".json": json.dumps(facts).encode()}.items():
                    info = tarfile.TarInfo(f"{number:08d}{end}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    if len(unread) == len(pictures):
        raise ValueError(f"there are no tars to write, as no picture can be read; the first: {unread[0]}")
    if unread:
        warnings.warn(
            f"{len(unread):,} pictures cannot be read and are not in the tars; the first: {unread[0]}",
            UserWarning,
            stacklevel=2,
        )
    for left in set(folder.glob("[0-9][0-9][0-9][0-9][0-9].tar")) - set(tars):
        left.unlink()  # of an earlier audit
    return folder


def _words(rows: pd.DataFrame) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the caption of a picture as a file of text, and all else; several captions are in the latter."""
    first, *_ = json.loads(rows.head(1).drop(columns=["image", "caption"]).to_json(orient="records"))
    if len(rows) == 1:
        return {".txt": str(rows["caption"].iloc[0]).encode()}, first
    return {}, {**first, "captions": rows["caption"].tolist(), "ids": rows["id"].tolist()}
