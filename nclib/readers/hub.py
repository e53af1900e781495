"""Data sets of the library ``datasets``, which is imported only when one is named by a path."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nclib.common.checks import check_choice
from nclib.common.extras import needs
from nclib.common.files import digest
from nclib.readers.captions_table import one_line
from nclib.readers.listing import (
    SPLIT_COLUMNS,
    Hints,
    Listing,
    Rows,
    find_column,
    join_rows,
    picture_column,
    rows_of,
)
from nclib.readers.pictures import MISSING, UnreadableError
from nclib.readers.tables import BLOCK, TABLES, columns_of, kind_of, wanted_columns

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # of a data set on the hub
FILES = (*TABLES, ".npy", ".npz", ".tar")


def is_hub(source: Any) -> bool:
    """Whether a source is an object of the library, a folder that it saved, or may be a name in its cache."""
    if not isinstance(source, Path):
        return hasattr(source, "column_names")
    if source.exists():
        return (source / "dataset_info.json").is_file() or (source / "dataset_dict.json").is_file()
    return NAME.fullmatch(source.as_posix()) is not None and kind_of(source) not in FILES


def no_package() -> bool:
    """Whether the library is missing."""
    return importlib.util.find_spec("datasets") is None


def read_hub(source: Any, hints: Hints) -> Listing:
    """List the pairs of a data set; of one with several splits, those of the split that the hints name."""
    parts = _splits(_load(source, hints.split) if isinstance(source, Path) else source, hints)
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


def _splits(found: Any, hints: Hints) -> dict[str, Any]:
    """Return the splits to read by name; one without others is called ""."""
    if not isinstance(found, Mapping):
        return {"": found}
    if hints.every_split:
        return dict(found)
    if hints.split is None and len(found) > 1:
        raise ValueError(f"the data set has the splits {', '.join(found)}; choose one as split")
    split = next(iter(found)) if hints.split is None else check_choice("split", hints.split, tuple(found))
    return {"": found[split]}


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
    if split and find_column(names, SPLIT_COLUMNS) is None:
        columns["split"] = [split] * len(part)
    return rows_of(columns, "the data set", hints)


def _load(source: Path, split: str | None) -> Any:
    """Load a data set from a folder that the library saved, or by name from its cache."""
    if no_package():
        raise needs(str(source), "datasets")
    import datasets

    if int(datasets.__version__.split(".")[0]) < 4:  # older ones run the script that a data set brings
        raise ImportError(f"{source} needs datasets 4 or later, {datasets.__version__} is installed")
    if source.exists():
        return datasets.load_from_disk(str(source))
    was, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        return datasets.load_dataset(source.as_posix(), split=split)
    except Exception as error:  # the library has many of its own
        raise FileNotFoundError(
            f"{source} is neither a file or folder nor a data set in the cache of the library datasets "
            f"({one_line(str(error))[:120]}); nothing is downloaded here"
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = was
