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


def run_folder(out: str, name: str) -> Path:
    """Return the folder of a run below ``out``, where ``~`` is the user's home.

    Raises
    ------
    ValueError
        When the system cannot have a folder of that name, for instance one of 300 characters.
    """
    folder = Path(out) / name
    try:
        folder = folder.expanduser()
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):  # to be made, or refused when it is made
        pass
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a user without home
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"out={out!r:.80} cannot hold a run ({reason}); choose another folder") from None
    return folder


def make_folder(folder: Path) -> None:
    """Make the folder of a run and its parents where missing; a ValueError says when it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def check_can_be_made(folder: Path) -> None:
    """Raise a ValueError unless a folder is there or can be made, without making it."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    code = errno.EACCES if nearest.is_dir() else errno.ENOTDIR
    if nearest != folder and not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise _unwritable(folder, OSError(code, os.strerror(code)))


def _unwritable(folder: Path, error: OSError) -> ValueError:
    return ValueError(f"out={str(folder.parent)!r} cannot be written ({error}); choose another folder")


def _is_still(file: IO[Any], path: Path) -> bool:
    """Return whether an open file is the one at ``path``: its last holder may have removed it."""
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, and remove the ``.part`` files of a writer that was killed.

    Parameters
    ----------
    folder : Path
        Made when missing, and then removed when the block leaves nothing in it. Gets a file ``.lock`` that
        names the holder.

    Raises
    ------
    RuntimeError
        When another process holds the lock; the message names process and machine.
    ValueError
        When the folder cannot be written.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    try:
        handle = open_kept(folder / NAME)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with handle:
        free = take(handle) and _is_still(handle, folder / NAME)
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
        try:
            yield
        finally:  # a start that failed before its first checkpoint leaves no folder
            with contextlib.suppress(OSError):  # Windows keeps the open file; a parent may hold other folders
                if new and [path.name for path in folder.iterdir()] == [NAME]:
                    (folder / NAME).unlink()
                    for path in new:
                        path.rmdir()
