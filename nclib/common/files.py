"""Atomic writes, SHA-256 digests of values and of large files, and the folder for generated data."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Chunk = bytes | memoryview
SMALL = 2**22  # bytes; the digest of a smaller file is made every time
SETTLED = 2.0  # seconds; a file that changed later than that may change again under the same time stamp


def cache_folder() -> Path:
    """Return the folder for generated data, which need not exist: ``$NCLIB_CACHE``, or the user's cache."""
    chosen = os.environ.get("NCLIB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("nclib", appauthor=False))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` when the block ends; ``path`` is untouched when it fails.

    The content is on disk before the name changes, so that a crash leaves the old file or the new one.

    Parameters
    ----------
    path : path
        Its folder is made when missing.

    Yields
    ------
    BinaryIO
        Its name ends in ``.part`` and is removed whatever happens.

    Raises
    ------
    OSError
        When the file cannot be written, for instance on a full disk.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.npy") as file:
    ...         np.save(file, np.arange(3))
    ...     np.load(Path(folder) / "a.npy")
    array([0, 1, 2])
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        reason = (
            f"{error.strerror or error}; what was there before is kept. Make room or choose another place"
        )
        raise OSError(error.errno, reason, str(path)) from error
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def write_atomically(path: str | os.PathLike[str], data: str | bytes | Iterable[Chunk]) -> None:
    """Write ``data`` as by :func:`replacing`: ``path`` holds the old content or the new, whatever happens.

    Text is written as UTF-8 with the line ends that it has; chunks are written one after the other.
    """
    if isinstance(data, str):
        data = data.encode("utf8")
    with replacing(path) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def digest(content: str | bytes | Path | np.ndarray | Iterable[Any]) -> str:
    """Return a SHA-256 digest.

    Parameters
    ----------
    content : str, bytes, Path, ndarray or iterable
        Text (as UTF-8), bytes, and the file at a ``Path`` have the digest that ``sha256sum`` prints. An
        array's digest covers its type and shape as well. An iterable of strings, bytes and arrays has a
        digest of all of them in order; moving a byte from one part to the next changes it.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> digest("a")[:12], digest(np.zeros(2))[:12], digest(["a", np.zeros(2)])[:12]
    ('ca978112ca1b', 'cdead7b1f559', '7e827d56894d')
    """
    if isinstance(content, Path):
        with open(content, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if isinstance(content, (str, bytes)):
        return hashlib.sha256(_bytes(content)).hexdigest()
    total = hashlib.sha256()
    for part in [content] if isinstance(content, np.ndarray) else content:
        if isinstance(part, np.ndarray):
            little = np.ascontiguousarray(part, part.dtype.newbyteorder("<"))
            total.update(f"{little.dtype.str}{little.shape}".encode())
            total.update(little.reshape(-1).view(np.uint8).data)
        else:
            data = _bytes(part)
            total.update(f"{len(data)}:".encode())
            total.update(data)
    return total.hexdigest()


def content_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 digest of a whole file, or of the names and contents of all files in a folder.

    The digest of a large file is made once and kept in :func:`cache_folder`, bound by a digest of its own to
    the file's path, its size and the times of its last changes. Hidden files of a folder are left out.

    Parameters
    ----------
    path : path
        A file or a folder.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    OSError
        When a file cannot be read.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        inside = (p for p in sorted(path.rglob("*")) if p.is_file())
        names = [(p, p.relative_to(path)) for p in inside]
        shown = [(p, name) for p, name in names if not any(part.startswith(".") for part in name.parts)]
        return digest(text for p, name in shown for text in (name.as_posix(), content_digest(p)))
    stat, now = path.stat(), time.time()
    if stat.st_size < SMALL:
        return digest(path)
    where = str(path.resolve())
    kept = cache_folder() / "digests" / digest(where)
    stamp = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    with contextlib.suppress(OSError, ValueError):
        known, bound = kept.read_text("utf8").split()
        if bound == digest([where, stamp, known]):
            return known
    made = digest(path)
    if now - max(stat.st_mtime, stat.st_ctime) > SETTLED:
        with contextlib.suppress(OSError):  # without a cache it is made again
            write_atomically(kept, f"{made} {digest([where, stamp, made])}\n")
    return made


def _bytes(part: Any) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode("utf8")
