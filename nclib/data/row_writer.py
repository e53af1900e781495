"""Resumable writing of a large ``.npy`` file.

The rows grow in ``NAME.part``, and ``NAME.progress`` counts the finished ones. A conversion that was stopped,
in whatever way, goes on behind them; the file gets its name when the last row is on disk.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from tqdm import tqdm

from nclib.common.files import digest, write_atomically

NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
BLOCK = 64  # rows that are written together: 19 MB at the papers' sizes


class ConvertError(RuntimeError):
    """A conversion that cannot go on; the rows written so far are kept for the next attempt."""


class RowSource(Protocol):
    """Rows to be written: their shape and type, and a function that reads some of them."""

    shape: tuple[int, ...]
    dtype: Any

    def read(self, first: int, last: int) -> np.ndarray:
        """Return rows ``first`` to ``last - 1``, checked; raises ConvertError for bad ones."""

    def stamp(self) -> str:
        """Return a digest that changes when the origin of the rows changes."""


def counter_of(path: Path) -> Path:
    """Return ``NAME.progress`` beside a ``.npy`` file, which counts its finished rows."""
    return path.with_name(path.name + ".progress")


def write_rows(
    path: Path,
    source: RowSource,
    *,
    beside: Mapping[Path, str] | None = None,
    replace: bool = False,
    title: str = "",
) -> None:
    """Write all rows of ``source`` into ``path``, or those that an earlier attempt did not reach.

    Parameters
    ----------
    path : Path
        Ends in ``.npy``; appears when all rows are on disk. ``replace`` allows one that is there already.
    beside : mapping of Path to str, optional
        Text files that belong to the rows. They are written when all rows are on disk; where they change, an
        older ``path`` is removed first, so that it never stands beside files that are not its own.
    title : str
        What is being done, at the head of the bar; the name of the file by default.

    Raises
    ------
    ConvertError
        When the file is there already, another process writes it, the disk is full or refuses to be written,
        or the source finds bad rows.
    """
    # 1. lock the counter; 2. cut the growing file to the rows that the counter names; 3. append blocks, each
    # on disk before it is counted; 4. write the files beside, and give the file its name.
    part, counter = path.with_name(path.name + ".part"), counter_of(path)
    stream, descr = io.BytesIO(), np.dtype(source.dtype).newbyteorder("<").str
    kind = {"descr": descr, "fortran_order": False, "shape": source.shape}
    np.lib.format.write_array_header_1_0(stream, kind)
    header = stream.getvalue()
    row = int(np.prod(source.shape[1:])) * np.dtype(source.dtype).itemsize
    n, stamp = source.shape[0], digest([source.stamp(), header])
    if path.exists() and not replace:
        if counter.exists() and not part.exists() and _counted(counter.read_text("utf8"), stamp) == n:
            counter.unlink()  # stopped between the last two steps: the file is whole
            return
        raise ConvertError(f"{path} is there already; remove it, or give --replace")
    with _locked(counter, path) as notes:
        whole = max(0, part.stat().st_size - len(header)) // row if part.exists() else 0
        done = min(_counted(notes.read(), stamp), whole)
        if done:
            print(
                f"{title or path.name}: {done:,} of {n:,} rows are there from an earlier attempt",
                file=sys.stderr,
            )
        needed, free = (n - done) * row, shutil.disk_usage(path.parent).free
        if needed > free:
            raise ConvertError(
                f"{path} needs {needed / 1e9:.2f} GB more, {path.parent} has {free / 1e9:.2f} GB free; "
                "make room, or choose another folder"
            )
        try:
            with open(part, "r+b" if done else "wb") as file:
                if not done:
                    file.write(header)
                file.truncate(len(header) + done * row)
                file.seek(0, os.SEEK_END)
                # A bar in a terminal, a line every half minute elsewhere.
                wait = 0.1 if sys.stderr.isatty() else 30.0
                with tqdm(
                    total=n, initial=done, desc=title or path.name, unit="row", mininterval=wait
                ) as bar:
                    for first in range(done, n, BLOCK):
                        rows = source.read(first, min(first + BLOCK, n))
                        file.write(np.ascontiguousarray(rows, source.dtype).data)
                        file.flush()
                        os.fsync(file.fileno())
                        done = first + len(rows)
                        _count(notes, done, stamp)
                        bar.update(len(rows))
            changed = {p: text for p, text in (beside or {}).items() if not holds(p, text)}
            if changed:
                path.unlink(missing_ok=True)
            for other, text in changed.items():
                write_atomically(other, text)
            os.replace(part, path)
        except OSError as error:
            raise ConvertError(
                f"{path}: writing stopped after {done:,} of {n:,} rows ({error.strerror or error}; "
                f"{shutil.disk_usage(path.parent).free / 1e9:.1f} GB are free). They are kept in "
                f"{part.name}; when the cause is gone, the same command continues there"
            ) from error
    counter.unlink(missing_ok=True)


@contextmanager
def _locked(counter: Path, path: Path) -> Iterator[IO[str]]:
    """Open the counter so that no other process writes the rows meanwhile."""
    try:
        counter.parent.mkdir(parents=True, exist_ok=True)
        file = open_kept(counter)
    except OSError as error:
        raise ConvertError(f"{counter} cannot be written ({error.strerror})") from error
    with file:
        try:
            alone = take(file) and os.path.samestat(os.fstat(file.fileno()), counter.stat())
        except FileNotFoundError:
            alone = False  # removed by the process that has just finished
        if not alone:
            raise ConvertError(f"another process is writing {path}; wait for it, or end it")
        yield file


def _counted(text: str, stamp: str) -> int:
    """Return the finished rows of an earlier attempt from the same source."""
    try:
        note = json.loads(text)
        return int(note["rows"]) if note["source"] == stamp else 0
    except (ValueError, KeyError, TypeError):
        return 0


def _count(notes: IO[str], done: int, stamp: str) -> None:
    notes.seek(0)
    notes.write(json.dumps({"rows": done, "source": stamp}))
    notes.truncate()
    notes.flush()


def holds(path: Path, text: str) -> bool:
    """Return whether a file exists and has this text."""
    return path.exists() and path.read_bytes() == text.encode("utf8")


def open_kept(path: Path) -> IO[str]:
    """Open a text file in UTF-8 for reading and writing; make it when missing, but never empty it."""
    return open(path, "r+", encoding="utf8", opener=lambda p, flags: os.open(p, flags | os.O_CREAT, 0o666))


def take(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed, without waiting.

    Returns False when another process holds the lock, and True with a warning on a file system without locks.
    """
    from filelock import lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(
            f"{file.name} lies on a file system without locks ({error.strerror}); "
            "make sure that no other process writes this folder",
            UserWarning,
            stacklevel=3,
        )
        return True
