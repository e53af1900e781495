"""The digests of a folder's files in one list, ``SHA256SUMS``, as ``sha256sum -c`` reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nclib.common.files import digest, write_atomically

LIST = "SHA256SUMS"
ADVICE = "Take the file back from where it came, or make it again"


def check_digest(path: Path, data: bytes, why: Callable[[Path], str] = lambda path: "") -> None:
    """Raise a ValueError unless the content of a file has the digest that its folder's list states.

    ``why`` says more about a file that has another one.
    """
    stated = digests(path.parent).get(path.name)
    if not stated:
        raise ValueError(f"{path} has no digest in {path.parent / LIST}, so it is not read. {ADVICE}")
    if digest(data) not in stated:
        raise ValueError(
            f"{path} was changed: {path.parent / LIST} states another digest. {why(path)}{ADVICE}"
        )


def digests(folder: Path) -> dict[str, list[str]]:
    """Return the digests that the list of a folder states: one a file, or two while a table is written."""
    path, found = folder / LIST, dict[str, list[str]]()
    for line in path.read_text("utf8").splitlines() if path.is_file() else ():
        stated, _, name = line.partition("  ")
        found.setdefault(name, []).append(stated)
    return found


def note_digests(files: Mapping[Path, bytes], keep: bool = False) -> None:
    """Put the digests of these contents into the lists of their folders; ``keep`` leaves the former there."""
    for folder in {path.parent for path in files}:
        stated = digests(folder)
        for path, data in files.items():
            if path.parent == folder:
                former = stated.get(path.name, []) if keep else []
                stated[path.name] = list(dict.fromkeys([*former, digest(data)]))
        lines = [f"{one}  {name}\n" for name in sorted(stated) for one in stated[name]]
        write_atomically(folder / LIST, "".join(lines))
