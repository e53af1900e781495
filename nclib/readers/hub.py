"""Data sets of the library ``datasets``, which is imported only for a folder that it saved."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nclib.common.checks import check_choice
from nclib.common.extras import needed_by
from nclib.common.files import digest
from nclib.readers.captions_table import one_line
from nclib.readers.listing import Hints, Listing, Rows, join_rows, picture_column, rows_of, split_column
from nclib.readers.pictures import MISSING, UnreadableError
from nclib.readers.tables import BLOCK, columns_of, wanted_columns


def is_hub(source: Any) -> bool:
    """Whether a source is an object of the library, or a folder that it saved."""
    if not isinstance(source, Path):
        return hasattr(source, "column_names")
    return any((source / f"dataset_{name}.json").is_file() for name in ("info", "dict"))


def read_hub(source: Any, hints: Hints) -> Listing:
    """List the pairs of a data set; of one with several splits, those of the split that the hints name."""
    if isinstance(source, Path):
        with needed_by(str(source)):
            import datasets
        source = datasets.load_from_disk(str(source))
    parts = _splits(source, hints)
    first = next(iter(parts.values()))
    if not hasattr(first, "__len__"):
        raise ValueError("a streamed data set cannot be read; load it without streaming=True")
    names = first.column_names
    picture = picture_column(names, hints, "the data set")
    parts = {split: _undecoded(part, picture) for split, part in parts.items()}
    files, named = hints.files(Path()), False

    def cell(name: str) -> Any:
        split, _, row = name.rpartition("/")
        try:
            value = parts[split][int(row)][picture]
            if hasattr(value, "convert"):  # decoded by a transform of the caller's
                value.convert("RGB").save(buffer := io.BytesIO(), "PNG")
                return {"bytes": buffer.getvalue()}
        except Exception as error:  # whatever that transform or a decoder raises
            raise UnreadableError(f"the picture cannot be read ({one_line(str(error))[:80]})") from error
        return value

    def file(name: str) -> Path | io.BytesIO:
        value = cell(name)
        if isinstance(value, Mapping):
            value = value.get("bytes") or value.get("path")
        if not isinstance(value, (bytes, str)):
            raise UnreadableError(MISSING)
        return io.BytesIO(value) if isinstance(value, bytes) else files.file(value)

    if picture is not None and len(first):
        with contextlib.suppress(UnreadableError):  # paths or URLs in place of pictures
            named = isinstance(cell(f"{next(iter(parts))}/0"), str)
    rows = join_rows([_rows(part, split, picture, named, hints) for split, part in parts.items()])
    origin = digest([str(getattr(part, "_fingerprint", "")) for part in parts.values()])
    return rows.listing(files.file, origin, files.show) if named else rows.listing(file, origin)


def _undecoded(part: Any, column: str | None) -> Any:
    """Return a data set whose pictures the library does not decode: it would try every format."""
    if type((getattr(part, "features", None) or {}).get(column)).__name__ != "Image":
        return part
    import datasets

    return part.cast_column(column, datasets.Image(decode=False))


def _splits(loaded: Any, hints: Hints) -> dict[str, Any]:
    """Return the splits to read by name; one without others is called ""."""
    if not isinstance(loaded, Mapping):
        return {"": loaded}
    if hints.every_split:
        return dict(loaded)
    if hints.split is None and len(loaded) > 1:
        raise ValueError(f"the data set has the splits {', '.join(loaded)}; choose one as split")
    split = next(iter(loaded)) if hints.split is None else check_choice("split", hints.split, tuple(loaded))
    return {"": loaded[split]}


def _rows(part: Any, split: str, picture: str | None, named: bool, hints: Hints) -> Rows:
    arrow = hasattr(part, "with_format")
    names = wanted_columns(part.features.arrow_schema, hints) if arrow else part.column_names
    wanted = [name for name in names if name != picture or named]
    if arrow:
        tables = part.select_columns(wanted).with_format("arrow").iter(BLOCK)
        blocks = (block for table in tables for block in table.to_batches())
        columns = columns_of(blocks, wanted, len(part), "the data set", hints)
    else:
        columns = {name: list(part[name]) for name in wanted}
    if picture is not None and not named:
        columns[picture] = [f"{split}/{row}" for row in range(len(part))]
    if split and split_column(names) is None:
        columns["split"] = [split] * len(part)
    return rows_of(columns, "the data set", hints)
