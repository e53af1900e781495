"""Writing a large ``.npy`` file block by block, so that a stopped conversion continues where it was.

The rows grow in ``NAME.part`` and each finished block is noted in ``NAME.journal`` with its checksum and the
state of what it was made from. A run that starts again believes only blocks whose bytes have that checksum.
The file gets its name when the last row is on disk.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from tqdm import tqdm

from nclib.common.files import digest, write_atomically
from nclib.common.lock import take

BLOCK = 64  # rows that are written and noted together: 19 MB at the papers' sizes
PERCENT = 5  # a line for so much progress, where no bar can be drawn


class ConvertError(RuntimeError):
    """Why a conversion stops; what was written before is kept and used by the next attempt."""


class RowSource(Protocol):
    """Where rows come from."""

    shape: tuple[int, ...]
    dtype: Any

    def read(self, first: int, last: int) -> np.ndarray:
        """Return rows ``first`` to ``last - 1``, checked; raises ConvertError for bad ones."""

    def stamp(self, first: int, last: int) -> str:
        """Return what changes when the origin of these rows changes."""


def write_rows(
    path: Path, source: RowSource, *, beside: Mapping[Path, str] | None = None, replace: bool = False
) -> None:
    """Write all rows of ``source`` into ``path``, or those that an earlier attempt has left to write.

    Parameters
    ----------
    path : Path
        Ends in ``.npy``; appears when all rows are on disk.
    source : RowSource
    beside : mapping of Path to str, optional
        Text files that belong to the rows. They are written when all rows are on disk; where they change, an
        older ``path`` is removed first, so that it never stands beside files that are not its own.
    replace : bool
        Allow a file of that name to be replaced, at the end.

    Raises
    ------
    ConvertError
        When the file is there already, another process writes it, the disk has too little space or refuses
        to be written, or the source finds bad rows.
    """
    part, journal = path.with_name(path.name + ".part"), journal_of(path)
    if path.exists() and not replace:
        if journal.exists() and not part.exists():
            journal.unlink()  # stopped between the last two steps: the file is whole
            return
        raise ConvertError(f"{path} is there already; remove it, or give --replace")
    header = _header(source)
    row = int(np.prod(source.shape[1:])) * np.dtype(source.dtype).itemsize
    n = source.shape[0]
    with _alone(part, path) as file:
        done, lines = _believed(file, journal, header, source, row)
        if done:
            print(f"{path.name}: {done:,} of {n:,} rows are there from an earlier attempt", file=sys.stderr)
        written = len(header) + done * row
        _check_space(path, len(header) + n * row - written)
        try:
            file.truncate(written if done else 0)
            file.seek(0)
            _write(file, header)
            file.seek(written)
            write_atomically(journal, "".join(lines))
            with open(journal, "a", encoding="utf8") as notes, _progress(path.name, n, done) as shown:
                for first in range(done, n, BLOCK):
                    last = min(first + BLOCK, n)
                    rows = np.ascontiguousarray(source.read(first, last), source.dtype)
                    _write(file, rows.reshape(-1).view(np.uint8).data)
                    note = {"rows": [first, last], "sha256": _digest(rows), "from": source.stamp(first, last)}
                    notes.write(json.dumps(note) + "\n")
                    notes.flush()
                    done = last
                    shown(done)
            os.fsync(file.fileno())
            changed = {p: text for p, text in (beside or {}).items() if not _holds(p, text)}
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
        journal.unlink(missing_ok=True)


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_bytes() == text.encode("utf8")


def journal_of(path: Path) -> Path:
    """Return the file that notes the finished rows of ``path``."""
    return path.with_name(path.name + ".journal")


def _header(source: RowSource) -> bytes:
    stream = io.BytesIO()
    descr = np.dtype(source.dtype).newbyteorder("<").str
    header = {"descr": descr, "fortran_order": False, "shape": tuple(source.shape)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


@contextmanager
def _alone(part: Path, path: Path) -> Iterator[BinaryIO]:
    """Open the growing file so that no other process writes it meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise ConvertError(f"{part} cannot be written ({error.strerror})") from error
    with file:
        try:
            same = take(file) and os.path.samestat(os.fstat(file.fileno()), part.stat())
        except OSError:
            same = False  # it got its name just now
        if not same:
            raise ConvertError(f"another process is writing {path}; wait for it, or end it")
        yield file


def _believed(
    file: BinaryIO, journal: Path, header: bytes, source: RowSource, row: int
) -> tuple[int, list[str]]:
    """Return how many rows of an earlier attempt are as its journal says, and the journal's lines on them."""
    if not journal.exists() or file.read(len(header)) != header:
        return 0, []
    done, lines = 0, []
    for line in journal.read_text("utf8").splitlines(keepends=True):
        try:
            note = json.loads(line)
            first, last = note["rows"]
            wanted = note["sha256"], note["from"]
        except (ValueError, KeyError, TypeError):
            break  # the line on which the attempt was ended
        if first != done or not first < last <= source.shape[0]:
            break
        data = file.read((last - first) * row)
        if (digest(data), source.stamp(first, last)) != wanted:
            break
        done = last
        lines.append(line)
    return done, lines


def _check_space(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise ConvertError(
            f"{path} needs {needed / 1e9:.2f} GB more, {path.parent} has {free / 1e9:.2f} GB free; "
            "make room, or choose another folder"
        )


def _write(file: BinaryIO, data: Any) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]


def _digest(rows: np.ndarray) -> str:
    return digest(rows.tobytes())


@contextmanager
def _progress(name: str, n: int, done: int) -> Iterator[Any]:
    """Yield a function that is told the number of finished rows: a bar, or a line per some percent."""
    if sys.stderr.isatty():
        with tqdm(total=n, initial=done, desc=name, unit="row") as bar:
            yield lambda now: bar.update(now - bar.n)
        return
    told = [100 * done // n]

    def tell(now: int) -> None:
        percent = 100 * now // n
        if percent >= told[0] + PERCENT or now == n:
            told[0] = percent
            print(f"{name}: {now:,} of {n:,} rows, {percent} %", file=sys.stderr, flush=True)

    yield tell
