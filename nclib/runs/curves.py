"""Curves of many runs in one NumPy file, to the last bit.

``name`` and ``epochs`` list the runs and their numbers of epochs, all of which follow each other. For every
curve ``kind.NAME`` tells what stands at each epoch (0 nothing, 1 a float, 2 a whole number, 3 null, 4 other,
5 a float that follows from others, see :data:`FOLLOWING`), ``value.NAME`` has the numbers, and ``text.NAME``
the JSON of all that is neither a number nor null, a line each. ``table`` is the digest of the table whose
rows have these curves. The file is packed with LZMA, which :func:`numpy.load` reads.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

ABSENT, FLOAT, WHOLE, NULL, OTHER, FOLLOWS = range(6)
#: Curves that are the sum of others, divided by a number.
FOLLOWING = {
    "val_map_avg": (("val_map_i2t", "val_map_t2i"), 2),
    "val_rsum": (tuple(f"val_{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)), 1),
}
EXACT = 2**53  # the largest whole number up to which float64 has all of them

Epochs = list[dict[str, Any]]


def pack_curves(curves: Mapping[str, Epochs], table: str) -> bytes:
    """Return the content of a NumPy file with the curves of runs by name, and the digest of their table."""
    epochs = [row for rows in curves.values() for row in rows]
    arrays = {"name": _lines(list(curves)), "epochs": np.array([len(rows) for rows in curves.values()], int)}
    arrays["table"] = _lines([table])
    for curve in dict.fromkeys(name for row in epochs for name in row):
        kinds = [_kind(row, curve) for row in epochs]
        there = [(kind, row[curve]) for kind, row in zip(kinds, epochs, strict=True) if kind]
        arrays[f"kind.{curve}"] = np.array(kinds, np.uint8)
        arrays[f"value.{curve}"] = np.array([v for kind, v in there if kind in (FLOAT, WHOLE)], float)
        if others := [json.dumps(v) for kind, v in there if kind == OTHER]:
            arrays[f"text.{curve}"] = _lines(others)
    return pack_arrays(arrays)


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the content of an ``.npz`` file with these arrays, packed with LZMA."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name, array in arrays.items():
            one = io.BytesIO()
            np.save(one, array, allow_pickle=False)
            packed.writestr(zipfile.ZipInfo(f"{name}.npy"), one.getvalue(), zipfile.ZIP_LZMA)
    return file.getvalue()


def _kind(row: Mapping[str, Any], curve: str) -> int:
    if curve not in row:
        return ABSENT
    value = row[curve]
    if value is None:
        return NULL
    if type(value) is float:
        return FOLLOWS if value and _following(row, curve) == value else FLOAT
    return WHOLE if type(value) is int and abs(value) <= EXACT else OTHER


def _following(row: Mapping[str, Any], curve: str) -> float | None:
    """Return the value of a curve by the others of an epoch, where all of them are floats there."""
    others, divisor = FOLLOWING.get(curve, ((), 1))
    values: list[Any] = [row.get(name) for name in others]
    return sum(values) / divisor if values and all(type(v) is float for v in values) else None


def _lines(texts: Sequence[str]) -> np.ndarray:
    return np.frombuffer("\n".join(texts).encode("utf8"), np.uint8)


def _texts(lines: np.ndarray) -> list[str]:
    return lines.tobytes().decode("utf8").split("\n") if len(lines) else []


def table_digest(data: bytes) -> str:
    """Return the digest of the table to which a file of :func:`pack_curves` belongs; empty in older files."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return "".join(_texts(file["table"])) if "table" in file else ""


class Curves:
    """The curves in the content of a file of :func:`pack_curves`.

    Parameters
    ----------
    data : bytes

    Raises
    ------
    ValueError, KeyError, OSError
        When it is no such content.
    """

    def __init__(self, data: bytes) -> None:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            rows: Epochs = [{} for _ in range(file["epochs"].sum())]
            for curve in (key[5:] for key in file.files if key.startswith("kind.")):
                numbers = iter(file[f"value.{curve}"].tolist())
                texts = iter(_texts(file[f"text.{curve}"]) if f"text.{curve}" in file.files else [])
                for row, kind in zip(rows, file[f"kind.{curve}"].tolist(), strict=True):
                    if kind == FLOAT:
                        row[curve] = next(numbers)
                    elif kind == WHOLE:
                        row[curve] = int(next(numbers))
                    elif kind:
                        row[curve] = json.loads(next(texts)) if kind == OTHER else None
            for curve in FOLLOWING:
                if f"kind.{curve}" in file.files:
                    for row, kind in zip(rows, file[f"kind.{curve}"].tolist(), strict=True):
                        if kind == FOLLOWS:
                            row[curve] = _following(row, curve)
            every = iter(rows)
            names = zip(_texts(file["name"]), file["epochs"].tolist(), strict=True)
            self.rows = {name: list(islice(every, epochs)) for name, epochs in names}

    def of(self, name: str, only: Collection[str] = ()) -> Epochs:
        """Return the curves of a run, or those with the names in ``only``: a mapping for each epoch."""
        return [{k: v for k, v in row.items() if not only or k in only} for row in self.rows[name]]
