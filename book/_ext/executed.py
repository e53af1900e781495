"""Where executed notebooks lie, and what they are a function of.

They lie in ``_build/executed/<state>/``; the state is a digest of the code and the stored data that notebooks
can read, so that a changed record shows on its page. Each holds the digest of its source notebook.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import nbformat
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ("nclib", "book/ncbook", "book/requirements.lock", "book/_ext/run_notebooks.py")
DATA = ("book/results", "book/submitted", "book/measured", "book/demo", "_toc.yml")
INJECTED, PARAMETERS = "injected-parameters", "parameters"  # tags of cells
SOURCE = "nclib_source"  # metadata of an executed notebook: the digest of its source
DIGITS = 12


def digest(path: pathlib.Path) -> str:
    """Return a digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]


def files_of(root: pathlib.Path, places: Iterable[str]) -> Iterator[pathlib.Path]:
    """Yield the files at some places below ``root``, in order, without caches of Python."""
    for place in places:
        path = root / place
        found = path.rglob("*") if path.is_dir() else [path]
        yield from sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts)


def state(root: pathlib.Path, places: Iterable[str] = (*CODE, *DATA)) -> str:
    """Return a digest of some places: by default of all code and data that notebooks can read."""
    lines = (f"{path.relative_to(root)} {digest(path)}\n" for path in files_of(root, places))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:DIGITS]


def folder_of(root: pathlib.Path) -> pathlib.Path:
    """Return the folder of the notebooks executed with the present code and data."""
    return root / "_build" / "executed" / state(root)


def parts_of(root: pathlib.Path) -> dict[str, list[str]]:
    """Return the pages of ``_toc.yml`` part by part, in order; pages below a page follow it."""

    def below(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            yield entry["file"]
            yield from below(entry.get("sections", []))

    contents = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    return {part["caption"]: list(below(part["chapters"])) for part in contents["parts"]}


def notebooks_of(root: pathlib.Path) -> list[str]:
    """Return the names of the notebooks that are pages of the book, in its order."""
    pages = (page for pages in parts_of(root).values() for page in pages)
    return [page.removeprefix("notebooks/") for page in pages if page.startswith("notebooks/")]


def tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def title_of(nb: Any, name: str) -> str:
    """Return the first top heading of a notebook."""
    for cell in nb.cells:
        found = re.search(r"^# +(.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if found:
            return found[1].strip()
    return name


def failures(nb: Any) -> list[str]:
    """Return why an executed notebook is not to be trusted."""
    said = []
    code = [c for c in nb.cells if c.cell_type == "code"]
    if any(c.source.strip() and c.execution_count is None for c in code):
        said.append("not every code cell ran")
    if any(o.output_type == "error" for c in code for o in c.outputs):
        said.append("a cell failed")
    return said


def is_done(source: pathlib.Path, folder: pathlib.Path) -> bool:
    """Tell whether the folder holds this notebook, executed as it is now."""
    path = folder / source.name
    return path.exists() and nbformat.read(path, 4).metadata.get(SOURCE) == digest(source)


def runs_of(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return title, date, seconds and machine of each executed notebook; empty when there is none."""
    path = folder / "runs.json"
    return json.loads(path.read_text("utf8")) if path.exists() else {}
