"""Files of an audit: the table and its facts, and by wish the pairs that are kept in the layout of a tool."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.belief import WRONG_FROM
from nclib.auditing.result import Findings
from nclib.auditing.spreadsheet import to_csv
from nclib.common.checks import check_rows
from nclib.common.extras import require
from nclib.common.files import digest, replacing, write_atomically
from nclib.common.version import VERSION
from nclib.readers.listing import text_of

Array = NDArray[Any]
#: File of each kind of :func:`write_kept`.
KINDS = {
    "parquet": "kept.parquet",
    "txt": "keep.txt",
    "ids": "ids.npy",
    "cleanlab": "cleanlab.csv",
    "fiftyone": "fiftyone.json",
}


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
    own = table.loc[:, "caption_duplicate_of":].columns[1:].drop("new_caption", errors="ignore")
    rows = audit.kept | (audit.pairs.usable & (new != "").to_numpy())
    return table.loc[rows, ["id", "image", "caption", *own, "p_wrong"]]


def write_kept(audit: Findings, folder: str | Path, kind: str) -> Path:
    """Write what a tool reads to leave out the pairs judged wrong, and return the file.

    Parameters
    ----------
    audit : Findings
    folder : path
    kind : str
        "parquet": ``kept.parquet``, the :func:`kept` pairs, whose pictures have absolute paths; "txt":
        ``keep.txt``, their ids, one a line; "ids": ``ids.npy``, their sorted ids, those of 32 hexadecimal
        digits as pairs of 64-bit numbers, DataComp's layout; "cleanlab" and "fiftyone": ``cleanlab.csv`` and
        ``fiftyone.json``, all pairs in the columns of these tools.

    Raises
    ------
    ImportError
        When pyarrow is missing.
    ValueError
        When no pair is kept.
    """
    check_keep(kind)
    path, table, found = Path(folder) / KINDS[kind], audit.table, kept(audit)
    if not len(found):
        raise ValueError("no pair is kept: all that can be judged are judged wrong")
    if kind == "parquet":
        there = {name: os.path.abspath(name) for name in found["image"].unique() if os.path.isfile(name)}
        found["image"] = found["image"].map(lambda name: there.get(name, name))
        with replacing(path) as file:
            found.to_parquet(file, index=False)
    elif kind == "ids":
        with replacing(path) as file:
            np.save(file, _sorted_ids(found["id"].tolist()), allow_pickle=False)
    elif kind == "txt":
        write_atomically(path, "".join(f"{name}\n" for name in found["id"]))
    elif kind == "cleanlab":
        p = table["p_wrong"].to_numpy()
        copies = (table["image_duplicate_of"] != "") | (table["caption_duplicate_of"] != "")
        issues = {"is_image_caption_issue": p >= WRONG_FROM, "image_caption_score": 1 - p}
        write_atomically(path, to_csv(table[["id"]].assign(**issues, is_near_duplicate_issue=copies)))
    else:
        samples = table[["id", "image", "caption", "p_wrong", "rank", "reason", "partner_id"]]
        samples = samples.rename(columns={"image": "filepath"})
        write_atomically(path, samples.to_json(orient="records", force_ascii=False) + "\n")
    return path


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
    ValueError, TypeError
        When it is no such data set, or its rows are not the pairs that were audited, in their order.
    """
    if not hasattr(dataset, "features"):
        raise TypeError(f"select needs a data set of the library datasets, got a {type(dataset).__name__}")
    check_rows("the data set", len(dataset), pairs=len(audit.pairs))
    found, new = kept(audit), {}
    if (texts := audit.pairs.texts) is not None:
        columns = [name for name, kind in dataset.features.items() if "string" in getattr(kind, "dtype", "")]
        caption = next((name for name in columns if [*map(text_of, dataset[name])] == texts), None)
        if caption is None:
            raise ValueError(
                "the rows of the data set are not the pairs that were audited, in their order: no column of "
                "text has their captions; give the data set as it was audited, neither shuffled nor filtered"
            )
        new = {caption: found["caption"].tolist()} if audit.edits else {}
    chosen = dataset.select(found.index.tolist())
    new["p_wrong"] = found["p_wrong"].tolist()
    for name, values in new.items():
        left = chosen.remove_columns(name) if name in chosen.column_names else chosen
        chosen = left.add_column(name, values)
    return chosen


def save(audit: Findings, folder: Path) -> Path:
    """Write the table and what is known about it, each atomically, and return the folder.

    ``pairs.csv``: the table; text that a spreadsheet would run as a formula begins with ``'``.
    ``audit.json``: settings, share, patterns, checksums, versions.
    """
    facts = json.dumps(_plain(_facts(audit)), indent=1, ensure_ascii=False, allow_nan=False)
    for name, text in (("pairs.csv", to_csv(audit.table)), ("audit.json", facts + "\n")):
        write_atomically(folder / name, text)
    return folder


def _facts(audit: Findings) -> dict[str, Any]:
    pairs, kinds = audit.pairs, [one["kind"] for one in audit.patterns]
    shifts = [one for one in audit.patterns if one["kind"] == "shift"]
    versions = {"python": platform.python_version(), "numpy": np.__version__, "pandas": pd.__version__}
    return {
        "nclib": VERSION,
        "versions": versions,
        "settings": audit.settings,
        "seed": audit.settings["seed"],
        "score": audit.score,
        "pairs": len(pairs),
        "pictures": pairs.n_images,
        "not_judged": len(pairs.problems),
        "share": audit.share._asdict(),
        "second_share": audit.second_share and audit.second_share._asdict(),
        "blind_spot": (spot := audit.blind_spot)
        and {"near": spot.near, "random": spot.random, "most": spot.most},
        "by": audit.by.to_dict("records"),
        "inside": audit.inside and {"of": audit.inside.of, "values": audit.inside.table.to_dict("records")},
        "warnings": audit.warnings,
        "findings": audit.findings,
        "assumption": audit.assumption,
        "threshold": audit.curves["threshold"],
        "reliability": audit.curves["reliability"],
        "patterns": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "shifts": [{**one, "ids": [one["ids"][0], one["ids"][-1]]} for one in shifts],
        "sha256": {k: digest(getattr(pairs, k)) for k in ("images", "captions", "image_of", "ids")},
    }


def _sorted_ids(ids: list[str]) -> Array:
    if ids and all(re.fullmatch("[0-9a-f]{32}", i) for i in ids):
        halves = [(int(i[:16], 16), int(i[16:], 16)) for i in ids]
        return np.sort(np.array(halves, np.dtype("u8,u8")))
    return np.sort(np.array(ids, dtype=np.str_))


def _plain(value: Any) -> Any:
    """Return plain data with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
