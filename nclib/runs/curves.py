"""Curves of many runs in one NumPy file, to the last bit.

``name`` and ``epochs`` list the runs and their numbers of epochs, all of which follow each other. For every
curve ``kind.NAME`` tells what stands at each epoch (0 nothing, 1 a float, 2 a whole number, 3 null, 4 other),
``value.NAME`` has the numbers, and ``text.NAME`` the JSON of all that is neither a number nor null, a line
each. ``table`` is the digest of the table whose rows have these curves.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

ABSENT, FLOAT, WHOLE, NULL, OTHER = range(5)
EXACT = 2**53  # the largest whole number up to which float64 has all of them

Epochs = list[dict[str, Any]]


def pack_curves(curves: Mapping[str, Epochs], table: str) -> bytes:
    """Return the content of a NumPy file with the curves of runs by name, and the digest of their table."""
    epochs = [row for rows in curves.values() for row in rows]
    arrays = {"name": _lines(list(curves)), "epochs": np.array([len(rows) for rows in curves.values()], int)}
    arrays["table"] = _lines([table])
    for curve in dict.fromkeys(name for row in epochs for name in row):
        kinds = np.array([_kind(row[curve]) if curve in row else ABSENT for row in epochs], np.uint8)
        there = [row[curve] for row in epochs if curve in row]
        arrays[f"kind.{curve}"] = kinds
        arrays[f"value.{curve}"] = np.array([v for v in there if _kind(v) in (FLOAT, WHOLE)], float)
        if others := [json.dumps(v) for v in there if _kind(v) == OTHER]:
            arrays[f"text.{curve}"] = _lines(others)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _kind(value: Any) -> int:
    if value is None:
        return NULL
    if type(value) is float:
        return FLOAT
    return WHOLE if type(value) is int and abs(value) <= EXACT else OTHER


def _lines(texts: Sequence[str]) -> np.ndarray:
    return np.frombuffer("\n".join(texts).encode("utf8"), np.uint8)


def _texts(lines: np.ndarray) -> list[str]:
    return lines.tobytes().decode("utf8").split("\n") if len(lines) else []


def table_digest(data: bytes) -> str:
    """Return the digest of the table to which a file of :func:`pack_curves` belongs; empty in older files."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return "".join(_texts(file["table"])) if "table" in file.files else ""


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
                        row[curve] = None if kind == NULL else json.loads(next(texts))
            every = iter(rows)
            names = zip(_texts(file["name"]), file["epochs"].tolist(), strict=True)
            self.rows = {name: list(islice(every, epochs)) for name, epochs in names}

    def of(self, name: str, only: Collection[str] = ()) -> Epochs:
        """Return the curves of a run, or those with the names in ``only``: a mapping for each epoch."""
        return [{k: v for k, v in row.items() if not only or k in only} for row in self.rows[name]]
