"""Files that change together: the digests of a folder's files in one list, ``SHA256SUMS``.

The list is as ``sha256sum -c`` reads it. Files that change together are written into a hidden folder beside
the others, their new list last: from then on the new files are the ones that are read. They are then moved
to their places; whoever comes next completes that for a writer that was killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock

from nclib.common.files import digest, write_atomically

LIST = "SHA256SUMS"
LOCK = ".tables.lock"
NEXT = ".next-"  # first letters of the folder in which files stand until their list is written
ADVICE = "Take the file back from where it came, or make it again"
TRIES, PAUSE = 20, 0.05  # looks at a file that another process replaces, seconds between them


def lock_of(folder: Path) -> BaseFileLock:
    """Return the lock of a folder whose files have several writers; it may be taken again within itself."""
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / LOCK, is_singleton=True)


@contextlib.contextmanager
def together(folder: Path, whole: bool = False) -> Iterator[Path]:
    """Give a folder for new files; when the block ends they replace those of ``folder``, all or none.

    A process that is killed at any moment leaves the former files or the new ones for :func:`digests` and
    what reads by it. One writer at a time, see :func:`lock_of`.

    Parameters
    ----------
    folder : Path
        Made when missing.
    whole : bool
        The new files are all of the folder: others that its list names go.

    Yields
    ------
    Path
    """
    former = digests(folder)  # of a writer that was killed
    for left in folder.glob(f"{NEXT}*"):
        shutil.rmtree(left)
    new = folder / f"{NEXT}{secrets.token_hex(6)}"
    new.mkdir(parents=True)
    try:
        yield new
        stated = ({} if whole else former) | {path.name: digest(path) for path in new.iterdir()}
        write_atomically(new / LIST, "".join(f"{stated[name]}  {name}\n" for name in sorted(stated)))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    settle(folder)
    for name in former.keys() - stated.keys():
        (folder / name).unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Complete what a killed writer of a folder began, if its list was written."""
    for listed in folder.glob(f"{NEXT}*/{LIST}"):
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            for path in [*(one for one in listed.parent.iterdir() if one.name != LIST), listed]:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(path, folder / path.name)
            listed.parent.rmdir()


def digests(folder: Path) -> dict[str, str]:
    """Return the digests that the list of a folder states, by the names of its files."""
    settle(folder)
    path = folder / LIST
    lines = path.read_text("utf8", "replace").splitlines() if path.is_file() else ()
    return {name: stated for stated, _, name in (line.partition("  ") for line in lines)}


def read_checked(path: Path) -> bytes:
    """Return the content of a file, which must have the digest that its folder's list states.

    Raises
    ------
    ValueError
        For a file without a digest, or with another one.
    """
    for _ in range(TRIES):
        stated, data = digests(path.parent).get(path.name, ""), path.read_bytes()
        if digest(data) == stated or digests(path.parent).get(path.name, "") == stated:
            break
        time.sleep(PAUSE)  # a writer came between
    if not stated:
        raise ValueError(f"{path} has no digest in {path.parent / LIST}, so it is not read. {ADVICE}")
    if digest(data) != stated:
        raise ValueError(f"{path} was changed: {path.parent / LIST} states another digest. {ADVICE}")
    return data
