"""Read ``.npy`` files of numbers after a check of their header: no pickle, no size but the file's own."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

#: Readers of the header, by version of the file format; 3 differs from 2 in the encoding of field names only.
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}


class RowFileError(OSError, ValueError):
    """A features file that cannot be used: cut short, changed while in use, or of another kind."""


def npy_header(
    path: str | os.PathLike[str], *, any_order: bool = False
) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, type and byte of the first number of a ``.npy`` file, after a check of the file's size.

    Raises
    ------
    RowFileError
        When it is another kind of file, holds anything but real numbers, stands in Fortran order (unless in
        ``any_order``), or has more or fewer bytes than its header says.
    OSError
        When it cannot be opened.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            shape, fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        except Exception as error:  # whatever a damaged header leads the parser to
            # NumPy goes on to advise loading with less care.
            raise RowFileError(f"it is not a .npy file ({str(error).splitlines()[0]:.200})") from None
        offset = file.tell()
    if dtype.kind not in "biuf":
        what = "pickled objects, which are never loaded" if dtype.hasobject else f"{dtype}, not real numbers"
        raise RowFileError(f"it holds {what}")
    if fortran and len(shape) > 1 and not any_order:
        raise RowFileError("it is stored in Fortran order; write it with np.ascontiguousarray")
    expected = offset + math.prod(shape) * dtype.itemsize
    if size != expected:
        what = "cut short" if size < expected else "longer than its header says"
        raise RowFileError(f"it is {what}: {size:,} bytes instead of {expected:,} for {dtype} {shape}")
    return shape, dtype, offset


def read_npy(path: str | os.PathLike[str], *, mapped: bool = False) -> np.ndarray:
    """Return the array of a ``.npy`` file, in memory or ``mapped``.

    Raises
    ------
    ValueError
        Naming the file, when it is damaged, of another kind, or cannot be read.
    """
    try:
        npy_header(path, any_order=True)
        array: np.ndarray = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read as a .npy file of numbers: {error.strerror or error}"
        ) from None
    return array
