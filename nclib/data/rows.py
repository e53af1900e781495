"""Rows of a large ``.npy`` file, read on demand and never kept.

A memory map keeps every page that was touched in the resident set of the process, so that random batches of a
33 GB file make the process grow towards 33 GB. Here a batch is read into one buffer, which the caller owns;
the file cache of the system belongs to no process and shrinks when memory is short.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.checks import check_within
from nclib.common.npy import RowFileError, npy_header


class _Source:
    """An open file of rows; several views share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shape, self.dtype, self.offset = npy_header(path)
        if not self.shape:
            raise RowFileError(f"{path.name} holds one number, not rows")
        self.row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        self._file, self._lock = io.FileIO(path), threading.Lock()
        self.close = weakref.finalize(self, self._file.close)
        self.fd = self._file.fileno()
        self.stamp = os.fstat(self.fd)

    def check(self) -> None:
        now = os.fstat(self.fd)
        if (now.st_size, now.st_mtime_ns) != (self.stamp.st_size, self.stamp.st_mtime_ns):
            raise RowFileError(
                f"{self.path} was changed while it was in use; rows read before and after would not belong "
                "together. Load the data again"
            )

    def read(self, row: int, view: memoryview) -> None:
        """Read a row into a buffer of its size; one call of the system may give a part of it only."""
        at = self.offset + row * self.row_bytes
        while view:
            try:
                got = self._some(view, at)
            except OSError as error:
                raise RowFileError(f"{self.path} cannot be read at byte {at:,} ({error.strerror})") from error
            if got == 0:
                self.check()  # the usual reason has a message of its own
                raise RowFileError(f"{self.path} ends at byte {at:,}; it was cut short while it was in use")
            at, view = at + got, view[got:]

    def _some(self, view: memoryview, at: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.fd, [view], at)
        with self._lock:  # Windows
            self._file.seek(at)
            return int(self._file.readinto(view) or 0)


class RowFile:
    """A read-only array whose rows stay in a ``.npy`` file until they are indexed.

    Parameters
    ----------
    path : path
        A C-ordered ``.npy`` file with at least one axis.

    Attributes
    ----------
    path, dtype, shape, ndim, nbytes
        The file, and type, shape and bytes of this view of it as an array.

    Raises
    ------
    RowFileError
        When the file is damaged or of another kind (see :func:`nclib.common.npy.npy_header`); also while
        reading, when it was changed or cut short meanwhile.

    Notes
    -----
    A slice is a view and reads nothing: ``rows[::5]``, ``rows[:1000]``. One row number gives that row, a
    list of row numbers or booleans gives a new array, ``np.asarray`` reads everything. Threads and forked
    processes may read the same object at the same time; one that gets it pickled opens the file again.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", np.arange(12.0).reshape(6, 2))
    ...     rows = RowFile(f"{folder}/x.npy")
    ...     every_second = rows[::2]  # reads nothing
    ...     every_second.shape, every_second[[2, 0]]
    ((3, 2), array([[8., 9.],
           [0., 1.]]))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        source = _Source(Path(path))
        self._view(source, range(source.shape[0]))

    def _view(self, source: _Source, rows: range) -> RowFile:
        self._source, self._rows = source, rows
        self.path, self.dtype = source.path, source.dtype
        self.shape = (len(rows), *source.shape[1:])
        self.ndim, self.nbytes = len(self.shape), len(rows) * source.row_bytes
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, not the rows: another process opens the file, which must be the same."""
        stamp = self._source.stamp
        return _open_again, (self.path.absolute(), self._rows, stamp.st_size, stamp.st_mtime_ns)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"RowFile({str(self.path)!r}: {self.dtype} {self.shape})"

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return RowFile.__new__(RowFile)._view(self._source, self._rows[key])
        index = np.asarray(key)
        if index.dtype == bool and index.shape == (len(self),):
            index = np.flatnonzero(index)
        whole = np.issubdtype(index.dtype, np.integer) or index.size == 0
        if isinstance(key, tuple) or index.ndim > 1 or not whole:
            raise IndexError(
                f"rows of {self.path.name} are chosen by a slice, a row number, a list of row numbers, or "
                f"{len(self)} booleans, got {key!r:.60}"
            )
        rows = self.take(np.where(index < 0, index + len(self), index).reshape(-1))
        return rows[0] if index.ndim == 0 else rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.path.name} stays on disk: reading it makes a copy")
        return self.take(np.arange(len(self))).astype(self.dtype if dtype is None else dtype, copy=False)

    def take(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Read rows, from the front of the file to its back.

        Parameters
        ----------
        rows : ndarray of int, (B,)
            In [0, len(self)), in any order.
        out : ndarray, (B, ...), optional
            Where to put them, C-ordered, of the file's type; default: a new array.

        Returns
        -------
        ndarray, (B, ...)

        Raises
        ------
        IndexError, ValueError
            When a row number is out of range, or ``out`` has another shape or type.
        RowFileError
            When the file was changed or cut short since it was opened, or the disk fails.
        """
        rows = np.asarray(rows, np.int64)
        check_within("rows", rows, len(self), IndexError)
        shape = (len(rows), *self.shape[1:])
        if out is None:
            out = np.empty(shape, self.dtype)
        elif out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(f"out must be C-ordered {self.dtype} {shape}, got {out.dtype} {out.shape}")
        source = self._source
        source.check()
        if out.size == 0:
            return out
        place = rows * self._rows.step + self._rows.start  # in the file
        order = np.argsort(place, kind="stable")
        if hasattr(os, "posix_fadvise"):  # announce all, so that the disk works on many at a time
            for at in (source.offset + place[order] * source.row_bytes).tolist():
                os.posix_fadvise(source.fd, at, source.row_bytes, os.POSIX_FADV_WILLNEED)
        flat = out.reshape(len(rows), -1).view(np.uint8)
        for i in order.tolist():
            source.read(int(place[i]), flat[i].data)
        return out


def _open_again(path: Path, rows: range, size: int, mtime_ns: int) -> RowFile:
    source = _Source(path)
    if (source.stamp.st_size, source.stamp.st_mtime_ns) != (size, mtime_ns):
        raise RowFileError(f"{path} is not the file that it was; load the data again")
    return RowFile.__new__(RowFile)._view(source, rows)
