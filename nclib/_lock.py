"""One writer to a folder: a lock that dies with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if need be.

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
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / NAME, "a+", encoding="utf8")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise ValueError(
            f"out={str(folder.parent)!r} cannot be written ({error}); choose another folder"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise RuntimeError(
                f"{folder} is being written by {handle.read().strip() or 'another process'}; "
                "wait for it, or choose another out"
            ) from None
        with contextlib.suppress(OSError):  # a full disk; the note is only for the message above
            os.ftruncate(handle.fileno(), 0)
            os.write(handle.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        yield
