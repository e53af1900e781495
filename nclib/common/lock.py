"""Exclusive lock on a folder; the operating system releases it when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".lock"


class BusyError(RuntimeError):
    """Another process writes the folder of a run."""


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, and remove the hidden ``.part`` files of a writer that was killed.

    Parameters
    ----------
    folder : Path
        Made when missing, and then removed when the block leaves nothing in it. Gets a file ``.lock`` that
        names the holder.

    Raises
    ------
    BusyError
        When another process holds the lock; the message names process and machine.
    ValueError
        When the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    new = [path for path in (folder, *folder.parents) if not path.exists()]
    note = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(note).acquire(blocking=False)
    except Timeout as error:
        holder = ""
        with contextlib.suppress(OSError):  # Windows does not read a locked file
            holder = note.read_text("utf8").strip()
        raise BusyError(
            f"{folder} is being written by {holder or 'another process'}; wait for it, or choose another out"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"out: {folder} cannot be written ({error}); choose another folder") from error
    with held:
        with contextlib.suppress(OSError):  # a full disk; the name is only for the message above
            note.write_text(f"process {os.getpid()} on {platform.node()}\n", "utf8")
        for part in folder.rglob(".*.part"):
            with contextlib.suppress(OSError):
                part.unlink()
        try:
            yield
        finally:  # a start that failed before its first checkpoint leaves no folder
            with contextlib.suppress(OSError):  # Windows keeps the open file; a parent may hold other folders
                if new and [path.name for path in folder.iterdir()] == [NAME]:
                    note.unlink()
                    for path in new:
                        path.rmdir()
