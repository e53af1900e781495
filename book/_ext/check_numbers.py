"""Check that means in README, pages and prose of notebooks are ones that an executed notebook prints.

    python book/_ext/check_numbers.py

Prints those that no notebook prints; the exit status is then 1. Needs ``run_notebooks.py`` first.
"""

from __future__ import annotations

import html
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

from executed import ROOT, folder_of

MEAN = re.compile(r"\d+(?:\.\d+)? ± \d+(?:\.\d+)?")  # as ncbook.mean_text writes it, without its seeds


def cells(folder: pathlib.Path, kind: str) -> Iterator[tuple[str, dict]]:
    """Yield file name and cell of all cells of a kind in the notebooks of a folder."""
    for path in sorted(folder.glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf8"))["cells"]:
            if cell["cell_type"] == kind:
                yield path.name, cell


def prose(root: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield file name and text of README, pages and prose cells."""
    for path in (root / "README.md", *sorted((root / "book").rglob("*.md"))):
        yield path.name, path.read_text("utf8")
    for name, cell in cells(root / "notebooks", "markdown"):
        yield name, "".join(cell["source"])


def printed(folder: pathlib.Path) -> set[str]:
    """Return every mean with a spread in the outputs of executed notebooks."""
    found: set[str] = set()
    for _, cell in cells(folder, "code"):
        for output in cell["outputs"]:
            for value in (*output.get("data", {}).values(), output.get("text", "")):
                text = "".join(value) if isinstance(value, list) else str(value)
                found.update(MEAN.findall(html.unescape(text)))
    return found


def unprinted(said: Iterable[tuple[str, str]], measured: set[str]) -> list[str]:
    """Return the means in texts that are not among the measured ones, each with its file."""
    return [f"{name}: {mean}" for name, text in said for mean in MEAN.findall(text) if mean not in measured]


if __name__ == "__main__":
    measured = printed(folder_of(ROOT))
    wrong = unprinted(prose(ROOT), measured)
    print("\n".join([*wrong, f"{len(measured)} means printed, {len(wrong)} of the prose not among them"]))
    sys.exit(bool(wrong))
