"""One writer to a folder: a lock that dies with its process, however that ends."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

NAME = ".lock"


def take(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed; return False where another process has it.

    Always True on Windows, which has no such lock.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make the folder of a run, if need be.

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
    """Check that the folder of a run can be made, and make nothing.

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
    """Hold the lock of a folder, which is made if need be; remove what a killed writer left half written.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    RuntimeError
        When another process holds it.
    ValueError
        When the folder cannot be written.
    """
    make_folder(folder)
    try:
        handle = open(folder / NAME, "a+", encoding="utf8")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with handle:
        if not take(handle):
            handle.seek(0)
            raise RuntimeError(
                f"{folder} is being written by {handle.read().strip() or 'another process'}; "
                "wait for it, or choose another out"
            )
        with contextlib.suppress(OSError):  # a full disk; the note is only for the message above
            os.ftruncate(handle.fileno(), 0)
            os.write(handle.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        for part in folder.rglob("*.part"):
            with contextlib.suppress(OSError):
                part.unlink()
        yield
