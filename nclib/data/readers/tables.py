"""Tables of pairs: text, parquet and DataFrames, and folders of pictures with captions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nclib.common.checks import check_rows
from nclib.data import captions_table
from nclib.data.pictures import SUFFIXES, Files
from nclib.data.readers.arrays import open_arrays
from nclib.data.readers.listing import (
    EMBEDDING_NAMES,
    Hints,
    Listing,
    Rows,
    embeddings_in,
    joined,
    known_columns,
    plain_name,
    rows_of,
)

TABLES = (".csv", ".tsv", ".txt", ".parquet")
BLOCK, BUFFER = 8192, 1 << 20  # rows and bytes of a parquet file that are read together


def is_table(source: Any) -> bool:
    """Whether a source is a table, or a folder of parquet files."""
    if not isinstance(source, Path):
        return isinstance(source, pd.DataFrame)
    if source.is_dir():
        return any(source.glob("*.parquet")) and not any(source.glob("*.tar"))
    return source.suffix.lower() in TABLES and source.is_file()


def read_table(source: Any, hints: Hints) -> Listing:
    """List the pairs of a table, or of all parquet files in a folder."""
    if isinstance(source, pd.DataFrame):
        rows, home = rows_of({str(n): source[n].tolist() for n in source}, "the table"), Path()
    else:
        paths = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
        home = source if source.is_dir() else source.parent
        rows = joined([(_parquet if p.suffix.lower() == ".parquet" else _text)(p) for p in paths])
    return rows.listing(Files(hints.folder or home, only=hints.folder is not None, follow=hints.follow))


def _text(path: Path) -> Rows:
    table = captions_table.read_table(path)
    if not table.lines:
        raise ValueError(f"{path} holds no pairs")
    return rows_of(table.columns, path, table.problems)


def _parquet(path: Path) -> Rows:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{path} needs the package pyarrow: pip install -e '.[audit]' in the source folder of nclib"
        ) from error
    try:
        with parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            names = file.schema_arrow.names
            wanted, n = known_columns(names), file.metadata.num_rows
            columns = columns_of(file.iter_batches(BLOCK, columns=wanted), wanted, n, path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file ({error})") from error
    beside = path.with_suffix(".npz")
    rows = rows_of(columns, path)
    if rows.images is None and beside.is_file() and (both := embeddings_in(open_arrays(beside))):
        for array in both:
            check_rows(f"{beside}: each array", len(array), **{f"pairs of {path.name}": len(rows.texts)})
        rows = replace(rows, images=both[0], captions=both[1])
    return rows


def columns_of(blocks: Iterable[Any], names: Iterable[str], n: int, where: Path | str) -> dict[str, Any]:
    """Return the columns of Arrow record batches of ``n`` rows together, embeddings as float32 (n, D)."""
    columns: dict[str, Any] = {name: [] for name in names}
    start = 0
    for block in blocks:
        for name, column in zip(block.schema.names, block.columns, strict=True):
            if plain_name(name) not in EMBEDDING_NAMES or not hasattr(column, "flatten"):
                columns[name] += column.to_pylist()
            else:
                columns[name] = _filled(columns[name], column, start, n, f"{where}, column {name}")
        start += block.num_rows
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


def is_folder(source: Any) -> bool:
    """Whether a source is a folder."""
    return isinstance(source, Path) and source.is_dir()


def read_folder(source: Path, hints: Hints) -> Listing:
    """List the pairs of a folder of pictures with a table, or with a text beside each picture."""
    tables = sorted(
        p for p in source.iterdir() if p.suffix.lower() in (".csv", ".tsv", ".parquet") and p.is_file()
    )
    chosen = [p for p in tables if p.stem.lower() in ("captions", "metadata")] or tables
    if len(chosen) > 1:
        raise ValueError(
            f"{source} holds several tables, {', '.join(p.name for p in chosen)}; give one of them"
        )
    if chosen:
        return read_table(chosen[0], replace(hints, folder=hints.folder or source))
    pictures = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not pictures:
        raise ValueError(f"{source} holds neither a table of captions nor pictures")
    texts: list[str] = []
    problems: dict[int, str] = {}
    for row, picture in enumerate(pictures):
        beside = picture.with_suffix(".txt")
        try:
            texts.append(beside.read_text("utf-8-sig") if beside.is_file() else "")
        except (OSError, UnicodeDecodeError):
            texts.append("")
            problems[row] = "the caption is not UTF-8"
    if not any(texts):
        raise ValueError(
            f"{source} holds {len(pictures):,} pictures and no captions: neither a table (captions.csv with "
            "the columns image and caption) nor a .txt beside each picture; give the table, and the folder "
            "as --images"
        )
    names = [p.relative_to(source).as_posix() for p in pictures]
    return Rows(texts, names, problems=problems).listing(Files(source, only=True, follow=hints.follow))
