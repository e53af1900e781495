"""Sources of feature rows: one file per image, bottom-up-attention TSV files, a float32 file to be halved."""

from __future__ import annotations

import base64
import binascii
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.row_writer import ConvertError, RowSource, some
from nclib.data.feature_files import open_features, sentence
from nclib.data.rows import RowFile

COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
#: Errors of reading a damaged .npy or .npz file.
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
LARGEST = float(np.finfo(np.float16).max)
SAMPLED_ROWS = 64  # rows per split in which a float16 copy is compared with its original


def read_ids(path: Path) -> list[str]:
    """Read image ids, one per line.

    A ConvertError when the file cannot be read or is empty, an id occurs twice, or cannot be a file name.
    """
    try:
        ids = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConvertError(f"{path} cannot be read ({error})") from error
    bad = [f"line {i}: {name!r}" for i, name in enumerate(ids, 1) if not name or set(name) & set("/\\\t\0")]
    twice = [name for name, n in Counter(ids).items() if n > 1]
    if bad or not ids:
        raise ConvertError(f"{path} must hold an image id per line; {some(bad) or 'it is empty'}")
    if twice:
        raise ConvertError(f"{path} names these ids more than once: {some(twice)}")
    return ids


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of a file."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _check_finite(rows: np.ndarray, names: Sequence[Any], what: str) -> None:
    good = np.isfinite(rows).reshape(len(rows), -1).all(1)
    if not good.all():
        bad = [names[i] for i in np.flatnonzero(~good).tolist()]
        raise ConvertError(f"{what} of these holds NaN or infinite values: {some(bad)}")


def folder_rows(folder: Path, ids: Sequence[str], key: str = "features") -> RowSource:
    """Return rows from one file per image, ``<id>.npy`` or ``<id>.npz``, float32 (regions, features)."""
    there = set(os.listdir(folder))
    missing = [name for name in ids if f"{name}.npy" not in there and f"{name}.npz" not in there]
    if missing:
        raise ConvertError(f"{folder} has no .npy or .npz file for {some(missing)}")
    paths = [folder / f"{name}{'.npy' if f'{name}.npy' in there else '.npz'}" for name in ids]
    problems: list[str] = []
    shapes: dict[tuple[int, ...], str] = {}
    for path in paths:
        try:
            found = RowFile(path) if path.suffix == ".npy" else _array(path, key)
        except UNREADABLE as error:
            problems.append(f"{path.name} ({error})")
            continue
        if found.dtype != np.float32 or found.ndim != 2 or 0 in found.shape:
            problems.append(f"{path.name} ({found.dtype} {found.shape})")
        shapes.setdefault(found.shape, path.name)
    if problems:
        raise ConvertError(f"these are not float32 (regions, features): {some(problems)}")
    if len(shapes) > 1:
        raise ConvertError(f"images differ in shape: {some(f'{v} {k}' for k, v in shapes.items())}")
    (shape,) = shapes

    def one(path: Path) -> np.ndarray:
        try:
            found = _array(path, key)
        except UNREADABLE as error:
            raise ConvertError(f"{path} cannot be read ({error})") from error
        if found.shape != shape or found.dtype != np.float32:
            raise ConvertError(f"{path} was changed meanwhile: now {found.dtype} {found.shape}")
        return found

    def read(first: int, last: int) -> np.ndarray:
        rows = np.stack([one(path) for path in paths[first:last]])
        _check_finite(rows, paths[first:last], "the features file")
        return rows

    return RowSource((len(ids), *shape), np.float32, read, [(p.name, _state(p)) for p in paths])


def _array(path: Path, key: str) -> np.ndarray:
    with open(path, "rb") as file:  # NumPy leaves a damaged archive open
        found = np.load(file, allow_pickle=False)
        if path.suffix == ".npy":
            return found
        if key not in found.files:
            raise KeyError(f"has {some(found.files)}; choose one with --key")
        return found[key]


def bottom_up_rows(
    paths: Sequence[Path], ids: Sequence[str], *, regions: int = 36, take_first: bool = False
) -> RowSource:
    """Return rows from TSV files of bottom-up attention: a line per image, numbers as base64 of float32.

    Every image must have ``regions`` boxes. Files with 10 to 100 boxes per image are refused: no rule says
    which boxes to keep, and the papers use files made with 36.
    """
    if regions < 1:
        raise ConvertError(f"regions must be 1 or more, got {regions}")
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in ids}  # file, byte
    counts, broken = [], []
    widths: dict[float, str] = {}
    for k, path in enumerate(paths):
        for at, line in _lines(path):
            cells = line.rstrip(b"\r\n").split(b"\t")
            name = cells[0].decode("utf8", "replace").strip()
            if name not in found:
                continue
            if len(cells) != len(COLUMNS) or not cells[3].strip().isdigit():
                broken.append(f"{name} ({path.name}, byte {at:,})")
            elif int(cells[3]) != regions:
                counts.append(f"{name}: {int(cells[3])}")
            else:
                found[name].append((k, at))
                size = len(cells[5]) * 3 / 4 - cells[5][-2:].count(b"=")
                widths.setdefault(size / 4 / regions, name)
    missing = [name for name, places in found.items() if not places]
    twice = [name for name, places in found.items() if len(places) > 1]
    if broken:
        raise ConvertError(f"these lines lack columns ({', '.join(COLUMNS)}): {some(broken)}")
    if counts:
        raise ConvertError(
            f"every image must have {regions} boxes; other counts: {some(counts)}. Take the features "
            f"that were made with {regions} boxes, or say --regions if all have another number"
        )
    if missing:
        raise ConvertError(f"{some(p.name for p in paths)}: no line for {some(missing)}")
    if twice and not take_first:
        raise ConvertError(f"several lines for {some(twice)}; --take-first takes the first of each")
    width = next(iter(widths))
    if len(widths) > 1 or not width.is_integer() or width == 0:
        said = some(f"{name}: {width:g}" for width, name in widths.items())
        raise ConvertError(f"numbers per box must be whole and equal in all lines; found {said}")
    shape, places = (regions, int(width)), [places[0] for places in found.values()]

    def read(first: int, last: int) -> np.ndarray:
        rows = np.empty((last - first, *shape), np.float32)
        with ExitStack() as stack:
            files = {k: stack.enter_context(open(paths[k], "rb")) for k in {k for k, _ in places[first:last]}}
            for i, (k, at) in enumerate(places[first:last], first):
                files[k].seek(at)
                cells = files[k].readline().rstrip(b"\r\n").split(b"\t")
                try:
                    numbers = np.frombuffer(base64.b64decode(cells[5], validate=True), "<f4")
                    rows[i - first] = numbers.reshape(shape)
                except (ValueError, IndexError, binascii.Error) as error:
                    where = f"{paths[k].name}, byte {at:,}"
                    raise ConvertError(f"image {ids[i]} cannot be decoded ({where}: {error})") from error
        _check_finite(rows, ids[first:last], "the line")
        return rows

    content = [*((path.name, _state(path)) for path in paths), places, *ids]
    return RowSource((len(ids), *shape), np.float32, read, content)


def _lines(path: Path) -> Iterable[tuple[int, bytes]]:
    """Yield the first byte and the content of every line that is not empty."""
    at = 0
    with open(path, "rb") as file:
        for line in file:
            if line.strip():
                yield at, line
            at += len(line)


def half_rows(path: Path) -> RowSource:
    """Return the float16 numbers of a float32 features file."""
    try:
        array = open_features(path, np.float32)
    except (OSError, ValueError) as error:
        raise ConvertError(f"{path} {sentence(error)}") from error

    def read(first: int, last: int) -> np.ndarray:
        names = [f"row {i:,}" for i in range(first, last)]
        rows = np.asarray(array[first:last])
        _check_finite(rows, names, path.name)
        large = np.abs(rows).max(axis=(1, 2)) > LARGEST
        if large.any():
            bad = some(names[i] for i in np.flatnonzero(large))
            raise ConvertError(f"{path} has numbers beyond {LARGEST:,.0f}, the largest of float16, in {bad}")
        return rows.astype(np.float16)

    return RowSource(array.shape, np.float16, read, [path.name, _state(path)])


def check_copy(half: RowFile, original: Path) -> None:
    """Raise a ValueError when a float16 copy differs from its float32 original in sampled rows.

    An original that is not a features file is left alone: it has its own message.
    """
    try:
        array = open_features(original, np.float32)
    except (OSError, ValueError):
        return
    again = f"make it again with: python tools/data_convert.py half {original} --replace"
    if array.shape != half.shape:
        raise ValueError(f"has shape {half.shape}, its original {original.name} {array.shape}; {again}")
    rows = sample_rows(len(half), SAMPLED_ROWS)
    with np.errstate(over="ignore", invalid="ignore"):
        same = (array[rows].astype(np.float16) == half[rows]).all(axis=(1, 2))
    if not same.all():
        row = rows[int(np.argmin(same))]
        raise ValueError(f"is not a copy of {original.name}: row {row} differs; {again}")


def sample_rows(n: int, most: int) -> np.ndarray:
    """Return evenly spaced rows of ``n``, the first and last included, at most ``most`` of them, int64."""
    return np.unique(np.linspace(0, n - 1, most).astype(np.int64))
