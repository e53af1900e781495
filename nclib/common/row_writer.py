"""Resumable writing of a large ``.npy`` file.

The rows grow in ``NAME.part``, and ``NAME.progress`` counts the finished ones. A conversion that was stopped,
in whatever way, goes on behind them; the file gets its name when the last row is on disk.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from tqdm import tqdm

from nclib.common.files import digest, write_atomically

BLOCK = 64  # rows that are written together: 19 MB at the papers' sizes
SHOWN = 5  # names in a message


class ConvertError(RuntimeError):
    """A conversion that cannot go on; the rows written so far are kept for the next attempt."""


@dataclass
class RowSource:
    """Rows to be written.

    Parameters
    ----------
    shape, dtype
        Of all rows together.
    read : callable
        Rows from first to last - 1, checked; raises a ConvertError for bad ones.
    content : sequence
        Of the digest that changes with the origin of the rows.
    """

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[int, int], np.ndarray]
    content: Sequence[Any]

    def stamp(self) -> str:
        """Return a digest of the origin."""
        return digest(self.content)


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
    # 1. lock the file's name; 2. cut the growing file to the rows that the counter names; 3. append blocks,
    # each on disk before it is counted; 4. write the files beside, and give the file its name.
    part, counter = (path.with_name(f"{path.name}.{end}") for end in ("part", "progress"))
    title = title or path.name
    stream, descr = io.BytesIO(), np.dtype(source.dtype).newbyteorder("<").str
    kind = {"descr": descr, "fortran_order": False, "shape": source.shape}
    np.lib.format.write_array_header_1_0(stream, kind)
    header = stream.getvalue()
    row = int(np.prod(source.shape[1:])) * np.dtype(source.dtype).itemsize
    n, stamp = source.shape[0], digest([source.stamp(), header])
    with _alone(path):
        for left in path.parent.glob(f".{escape(counter.name)}.*.part"):
            left.unlink()  # of a count whose process was killed
        if path.exists() and not replace:
            if not part.exists() and _finished_rows(counter, stamp) == n:
                counter.unlink()  # stopped between the last two steps: the file is whole
                return
            raise ConvertError(f"{path} is there already; remove it, or give --replace")
        whole = max(0, part.stat().st_size - len(header)) // row if part.exists() else 0
        done = min(_finished_rows(counter, stamp), whole)
        if done:
            print(f"{title}: {done:,} of {n:,} rows are there from an earlier attempt", file=sys.stderr)
        needed, free = (n - done) * row, shutil.disk_usage(path.parent).free
        if needed > free:
            raise ConvertError(
                f"{path} needs {needed / 1e9:.2f} GB more, {path.parent} has {free / 1e9:.2f} GB free; "
                "make room, or choose another folder"
            )
        # A bar in a terminal, a line every half minute elsewhere.
        wait = 0.1 if sys.stderr.isatty() else 30.0
        bar = tqdm(total=n, initial=done, desc=title, unit="row", mininterval=wait)
        try:
            with open(part, "r+b" if done else "wb") as file, bar:
                if not done:
                    file.write(header)
                file.truncate(len(header) + done * row)
                file.seek(0, os.SEEK_END)
                for first in range(done, n, BLOCK):
                    rows = source.read(first, min(first + BLOCK, n))
                    file.write(np.ascontiguousarray(rows, source.dtype).data)
                    file.flush()
                    os.fsync(file.fileno())
                    done = first + len(rows)
                    _count(counter, done, stamp)
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
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from writing the rows of a file meanwhile."""
    lock_path = path.with_name(path.name + ".lock")
    lock = FileLock(lock_path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ConvertError(f"another process is writing {path}; wait for it, or end it") from None
    except OSError as error:
        raise ConvertError(f"{lock_path} cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes it with the release
            lock_path.unlink()
        lock.release()


def _finished_rows(counter: Path, stamp: str) -> int:
    """Return the finished rows of an earlier attempt from the same source."""
    try:
        note = json.loads(counter.read_text("utf8"))
        return int(note["rows"]) if note["source"] == stamp else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _count(counter: Path, done: int, stamp: str) -> None:
    write_atomically(counter, json.dumps({"rows": done, "source": stamp}))


def holds(path: Path, text: str) -> bool:
    """Return whether a file exists and has this text."""
    return path.exists() and path.read_bytes() == text.encode("utf8")


def some(names: Iterable[Any]) -> str:
    """List the first five names and the number of the others, for messages."""
    names = list(names)
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more
