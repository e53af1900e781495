"""Tables of pairs: text, parquet and DataFrames, and folders of pictures with captions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nclib.common.checks import check_rows
from nclib.common.extras import needed_by
from nclib.readers import captions_table
from nclib.readers.arrays import open_arrays
from nclib.readers.listing import (
    EMBEDDING_NAMES,
    Hints,
    Listing,
    Rows,
    embeddings_in,
    join_rows,
    known_columns,
    plain_name,
    rows_of,
)
from nclib.readers.pictures import SUFFIXES, Files

TABLES = (".csv", ".tsv", ".txt", ".token", ".parquet", ".json", ".jsonl")
IN_FOLDER = (".csv", ".tsv", ".parquet", ".jsonl")  # tables that a folder of pictures may hold
TARS = (
    "the library datasets reads tars: "
    "nclib.audit(datasets.load_dataset('webdataset', data_files=..., split='train'))"
)
BLOCK, BUFFER = 8192, 1 << 20  # rows and bytes of a parquet file that are read together


def kind_of(path: Path) -> str:
    """Return the suffix of a file in lower case, without the ``.gz`` of a compressed one."""
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    return "" if plain != name and plain.endswith(".parquet") else Path(plain).suffix


def is_table(source: Any) -> bool:
    """Whether a source is a table, or a folder of parquet files."""
    if not isinstance(source, Path):
        return isinstance(source, pd.DataFrame)
    if source.is_dir():
        return any(source.glob("*.parquet"))
    return kind_of(source) in TABLES and source.is_file()


def read_table(source: Any, hints: Hints) -> Listing:
    """List the pairs of a table, or of all parquet files in a folder."""
    unread = isinstance(source, pd.DataFrame) or source.is_dir() or kind_of(source) == ".parquet"
    if hints.encoding is not None and unread:
        where = "a DataFrame" if isinstance(source, pd.DataFrame) else source
        raise ValueError(
            f"encoding={hints.encoding!r}: not read from {where}, whose texts are Unicode; leave it out"
        )
    if isinstance(source, pd.DataFrame):
        captions_table.check_columns(map(str, source.columns), "the table")
        rows, home = rows_of({str(n): source[n].tolist() for n in source}, "the table", hints), Path()
    else:
        paths = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
        home = source if source.is_dir() else source.parent
        readers = {".parquet": _parquet, ".json": _json, ".jsonl": _json_lines}
        rows = join_rows([readers.get(kind_of(path), _text)(path, hints) for path in paths])
    files = hints.files(home)
    return rows.listing(files.file, show=files.show)


def _text(path: Path, hints: Hints) -> Rows:
    table = captions_table.read_table(path, hints.encoding, hints.named)
    return rows_of(table.columns, path, hints, table.problems)


def _json(path: Path, hints: Hints) -> Rows:
    """Return the pairs of COCO captions, of Karpathy's splits, or of a list of objects."""
    try:
        content = json.loads(captions_table.read_text(path, hints.encoding)[0])
    except (ValueError, RecursionError) as error:
        hint = "; let the name of a file with an object in every line end in .jsonl"
        raise ValueError(f"{path} is not readable JSON ({error}){hint}") from error
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        pictures = [one for one in content.get("images") or [] if isinstance(one, dict)]
        names = {one.get("id"): one.get("file_name") for one in pictures}
        content = [
            {**one, "image": names.get(one.get("image_id")) or ""} if isinstance(one, dict) else one
            for one in content["annotations"]
        ]
    elif isinstance(content, dict) and isinstance(content.get("images"), list):  # dataset_*.json of Karpathy
        content = [_karpathy(one) if isinstance(one, dict) else one for one in content["images"]]
    if not isinstance(content, list):
        raise ValueError(
            f"{path} holds neither COCO's lists images and annotations, nor Karpathy's images with "
            "sentences, nor a list of objects"
        )
    return _objects(content, path, hints, "object")


def _karpathy(one: dict[str, Any]) -> dict[str, Any]:
    """Return a picture of ``dataset_coco.json`` and its like with its name and captions."""
    sentences = [s for s in one.get("sentences") or () if isinstance(s, dict)]
    place = [str(one[key]) for key in ("filepath", "filename") if one.get(key)]
    captions = [s.get("raw") or " ".join(map(str, s.get("tokens") or ())) for s in sentences]
    return {"image": "/".join(place), "caption": captions, "split": one.get("split")}


def _answered(one: dict[str, Any]) -> dict[str, Any]:
    """Return an object of LLaVA with the first answer of its conversation as caption."""
    if not isinstance(turns := one.get("conversations"), list):
        return one
    answers = (t.get("value") for t in turns if isinstance(t, dict) and t.get("from") in ("gpt", "assistant"))
    return {**{k: v for k, v in one.items() if k != "conversations"}, "caption": next(answers, "")}


def _json_lines(path: Path, hints: Hints) -> Rows:
    """Return the pairs of a file with a JSON object in every line, such as an image folder's metadata."""
    objects: list[Any] = []
    for line in captions_table.read_text(path, hints.encoding)[0].split("\n"):  # not at U+2028
        try:
            objects.append(json.loads(line) if line.strip() else {})
        except (ValueError, RecursionError):
            objects.append(None)
    return _objects(objects, path, hints, "line")


def _objects(given: list[Any], path: Path, hints: Hints, what: str) -> Rows:
    """Return the pairs of objects, of which empty ones do not count and others than objects are problems."""
    kept = [(number, one) for number, one in enumerate(given, 1) if one != {}]
    problems = {
        r: f"{what} {n} is not a JSON object" for r, (n, one) in enumerate(kept) if not isinstance(one, dict)
    }
    objects = [_answered(one) if isinstance(one, dict) else {} for _, one in kept]
    names = dict.fromkeys(str(name) for one in objects for name in one)
    if not names:
        raise ValueError(f"{path} holds no pairs: no {what} is a JSON object with names")
    return rows_of({name: [one.get(name) for one in objects] for name in names}, path, hints, problems)


def _parquet(path: Path, hints: Hints) -> Rows:
    with needed_by(str(path)):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            wanted, n = wanted_columns(file.schema_arrow, hints), file.metadata.num_rows
            columns = columns_of(file.iter_batches(BLOCK, columns=wanted), wanted, n, path, hints)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file ({error})") from error
    beside = path.with_suffix(".npz")
    rows = rows_of(columns, path, hints)
    if rows.images is None and beside.is_file() and (both := embeddings_in(open_arrays(beside))):
        for array in both:
            check_rows(f"{beside}: each array", len(array), **{f"pairs of {path.name}": len(rows.texts)})
        rows = replace(rows, images=both[0], captions=both[1])
    return rows


def wanted_columns(schema: Any, hints: Hints) -> list[str]:
    """Return the columns of an Arrow schema that readers look at, and those of numbers or text."""
    from pyarrow import types

    captions_table.check_columns(schema.names, "the table")
    known = known_columns(schema.names, hints)
    others = (types.is_nested, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return [one.name for one in schema if one.name in known or not any(kind(one.type) for kind in others)]


def columns_of(
    blocks: Iterable[Any], names: Sequence[str], n: int, where: Path | str, hints: Hints
) -> dict[str, Any]:
    """Return the columns of Arrow record batches of ``n`` rows together, embeddings as float32 (n, D)."""
    import pyarrow

    known = known_columns(names, hints)
    columns: dict[str, Any] = {name: [] for name in names}
    start = 0
    for block in blocks:
        for name, column in zip(block.schema.names, block.columns, strict=True):
            if name not in known:
                columns[name].append(column)
            elif plain_name(name) not in EMBEDDING_NAMES or not hasattr(column, "flatten"):
                columns[name] += column.to_pylist()
            else:
                columns[name] = _filled(columns[name], column, start, n, f"{where}, column {name}")
        start += block.num_rows
    for name in (name for name in names if name not in known and columns[name]):
        columns[name] = pyarrow.chunked_array(columns[name]).to_pandas(integer_object_nulls=True)
    return columns


def _filled(result: Any, column: Any, start: int, n: int, where: str) -> Any:
    """Write a block of lists of numbers into rows from ``start``; missing lists leave a row of NaN."""
    from pyarrow import compute

    lengths = np.asarray(compute.fill_null(compute.list_value_length(column), 0))
    rows = np.flatnonzero(lengths)
    if isinstance(result, list):
        result = np.empty((n, 0), np.float32)
    if len(rows) and not result.shape[1]:
        result = np.empty((n, lengths[rows[0]]), np.float32)
        result[:start] = np.nan
    if len(wrong := rows[lengths[rows] != result.shape[1]]):
        raise ValueError(
            f"{where}, row {start + wrong[0] + 1}: {lengths[wrong[0]]} numbers, the first row has "
            f"{result.shape[1]}"
        )
    block = result[start : start + len(lengths)]
    if len(rows) < len(block):
        block[:] = np.nan
    if len(rows):
        block[rows] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), -1)
    return result


# -- a folder of pictures -----------------------------------------------------------------------------------


def read_folder(source: Path, hints: Hints) -> Listing:
    """List the pairs of a folder of pictures with a table, or with a text beside each picture."""
    tables = sorted(p for p in source.iterdir() if kind_of(p) in IN_FOLDER and p.is_file())
    chosen = [p for p in tables if p.name.lower().split(".")[0] in ("captions", "metadata")] or tables
    if len(chosen) > 1:
        raise ValueError(
            f"{source} holds several tables, {', '.join(p.name for p in chosen)}; give one of them"
        )
    if chosen:
        return read_table(chosen[0], replace(hints, folder=hints.folder or source))
    pictures = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not pictures:
        hint = TARS if any(source.glob("*.tar")) else "give the folder or the table that has them"
        raise ValueError(f"{source} holds neither a table of captions nor pictures; {hint}")
    texts: list[str] = []
    problems: dict[int, str] = {}
    for row, picture in enumerate(pictures):
        beside = picture.with_suffix(".txt")
        try:
            texts.append(beside.read_text(hints.encoding or "utf-8-sig") if beside.is_file() else "")
        except (OSError, UnicodeDecodeError):
            texts.append("")
            problems[row] = f"the caption is not {hints.encoding or 'UTF-8'}"
    if not any(texts):
        raise ValueError(
            f"{source} holds {len(pictures):,} pictures and no captions: neither a table (captions.csv with "
            "the columns image and caption) nor a .txt beside each picture; give the table, and the folder "
            "as --images"
        )
    names = [p.relative_to(source).as_posix() for p in pictures]
    files = Files(source, only=True, follow=hints.follow)
    return Rows(texts, names, problems=problems).listing(files.file, show=files.show)
