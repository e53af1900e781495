"""Exclusive lock on a folder; the operating system releases it when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

NAME = ".lock"
NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


def open_kept(path: Path) -> IO[str]:
    """Open a text file for reading and writing; make it when missing, but never empty it.

    Parameters
    ----------
    path : Path
        Its folder must exist.

    Returns
    -------
    file object
        Text in UTF-8, positioned at the start.

    Raises
    ------
    OSError
        When the file cannot be opened or made.
    """
    return open(path, "r+", encoding="utf8", opener=lambda p, flags: os.open(p, flags | os.O_CREAT, 0o666))


def take(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed, without waiting.

    Parameters
    ----------
    file : file object
        Open for reading and writing.

    Returns
    -------
    bool
        False when another process holds the lock. True with a warning on a file system without locks.
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


def make_folder(folder: Path) -> None:
    """Make the folder of a run and its parents where they are missing.

    Parameters
    ----------
    folder : Path
        It may exist.

    Raises
    ------
    ValueError
        When it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def check_writable(folder: Path) -> None:
    """Check that the folder of a run can be made, without making it.

    Parameters
    ----------
    folder : Path
        The nearest existing parent is examined.

    Raises
    ------
    ValueError
        When it cannot be made.
    """
    there = next(p for p in folder.absolute().parents if p.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        code = errno.EACCES if there.is_dir() else errno.ENOTDIR
        raise _unwritable(folder, OSError(code, os.strerror(code), str(there)))


def _unwritable(folder: Path, error: OSError) -> ValueError:
    return ValueError(f"out={str(folder.parent)!r} cannot be written ({error}); choose another folder")


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, and remove the ``.part`` files of a writer that was killed.

    Parameters
    ----------
    folder : Path
        Made when missing. Gets a file ``.lock`` that names the holder and stays.

    Raises
    ------
    RuntimeError
        When another process holds the lock; the message names process and machine.
    ValueError
        When the folder cannot be written.
    """
    make_folder(folder)
    try:
        handle = open_kept(folder / NAME)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with handle:
        free = take(handle)
        # The name of the holder begins at the second byte: the first one is what Windows locks.
        with contextlib.suppress(OSError):  # a full disk; the name is only for the message below
            handle.seek(1)
            if free:
                handle.truncate()
                handle.write(f"process {os.getpid()} on {platform.node()}\n")
                handle.flush()
        if not free:
            holder = handle.read().strip()
            raise RuntimeError(
                f"{folder} is being written by {holder or 'another process'}; "
                "wait for it, or choose another out"
            )
        for part in folder.rglob("*.part"):
            with contextlib.suppress(OSError):
                part.unlink()
        yield
