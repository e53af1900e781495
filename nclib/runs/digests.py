"""The digests of a folder's files in one list, ``SHA256SUMS``, as ``sha256sum -c`` reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nclib.common.files import digest, write_atomically

LIST = "SHA256SUMS"
ADVICE = "Take the file back from where it came, or make it again"


def check_digest(path: Path, data: bytes | Path, why: Callable[[Path], str] = lambda path: "") -> None:
    """Raise a ValueError unless the content of a file has the digest that its folder's list states.

    ``data`` is the content, or the path of the file. ``why`` says more about a file that has another digest.
    """
    stated = digests(path.parent).get(path.name)
    if not stated:
        raise ValueError(f"{path} has no digest in {path.parent / LIST}, so it is not read. {ADVICE}")
    if digest(data) not in stated:
        raise ValueError(
            f"{path} was changed: {path.parent / LIST} states another digest. {why(path)}{ADVICE}"
        )


def check_folder(folder: Path, own: Iterable[str]) -> None:
    """Raise a ValueError unless all files that a folder lists, and its ``own`` ones, have their digests."""
    listed = digests(folder)
    for name in dict.fromkeys([*listed, *own]):
        path = folder / name
        if path.is_file():
            check_digest(path, path)
        elif name in listed:
            raise ValueError(f"{path} is not there, but in {folder / LIST}. {ADVICE}")


def digests(folder: Path) -> dict[str, list[str]]:
    """Return the digests that the list of a folder states: one a file, or two while a table is written."""
    path, found = folder / LIST, dict[str, list[str]]()
    for line in path.read_text("utf8", "replace").splitlines() if path.is_file() else ():
        stated, _, name = line.partition("  ")
        found.setdefault(name, []).append(stated)
    return found


def note_digests(files: Mapping[Path, bytes | Path], keep: bool = False) -> None:
    """Put the digests of these contents into the lists of their folders; ``keep`` leaves the former there.

    A content is bytes, or the path of a file.
    """
    for folder in {path.parent for path in files}:
        stated = digests(folder)
        for path, data in files.items():
            if path.parent == folder:
                former = stated.get(path.name, []) if keep else []
                stated[path.name] = list(dict.fromkeys([*former, digest(data)]))
        lines = [f"{one}  {name}\n" for name in sorted(stated) for one in stated[name]]
        write_atomically(folder / LIST, "".join(lines))
