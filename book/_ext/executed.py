"""Where executed notebooks lie, and what they are a function of.

They lie in ``_build/executed/<state>/``; the state is a digest of the code and the stored data that notebooks
can read, so that a changed record shows on its page. Code counts as its syntax tree without docstrings: a
comment executes no notebook, and listings are read when the pages are built. Each executed notebook holds the
digest of its source and of the notebooks that it reads.
"""

from __future__ import annotations

import ast
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import nbformat
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ("nclib", "book/ncbook", "book/bench", "book/requirements.lock", "book/_ext/run_notebooks.py")
DATA = (
    *("book/results", "book/measured", "book/demo", "book/clipart", "book/_static/ideas"),
    *("book/references.bib", "book/cpu.lock", "book/cuda.lock", "_config.yml", "_toc.yml"),
)
UNREAD = ("*.md", "licences/*")  # files beside code and data that no notebook reads
INJECTED, PARAMETERS = "injected-parameters", "parameters"  # tags of cells
SOURCE = "nclib_source"  # metadata of an executed notebook: the digest of its source
READS = "nclib_reads"  # metadata of a notebook: patterns of other notebooks whose text it shows
DIGITS = 12


def digest(path: pathlib.Path) -> str:
    """Return a digest of a file: of a module's code without docstrings, of any other file's bytes."""
    content = path.read_bytes()
    if path.suffix == ".py":
        content = code_of(content).encode()
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def code_of(content: bytes) -> str:
    """Return the syntax tree of a module without docstrings; the text itself where Python cannot parse it."""
    try:
        tree = ast.parse(content)
    except SyntaxError:
        return content.decode("utf8", "replace")
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def source_digest(source: pathlib.Path) -> str:
    """Return a digest of a notebook and of the notebooks that it reads."""
    patterns = nbformat.read(source, 4).metadata.get(READS, [])
    read = sorted({path for pattern in patterns for path in source.parent.glob(pattern)} - {source})
    lines = "".join(f"{path.name} {digest(path)}\n" for path in read)
    return hashlib.sha256((digest(source) + lines).encode()).hexdigest()[:DIGITS]


def files_of(root: pathlib.Path, places: Iterable[str]) -> Iterator[pathlib.Path]:
    """Yield the files at some places below ``root``, in order, without those that :data:`UNREAD` names."""
    for place in places:
        path = root / place
        found = path.rglob("*") if path.is_dir() else [path]
        for file in sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts):
            if not any(file.match(pattern) for pattern in UNREAD):
                yield file


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
    return path.exists() and nbformat.read(path, 4).metadata.get(SOURCE) == source_digest(source)


def runs_of(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return title, date, seconds and machine of each executed notebook; empty when there is none."""
    path = folder / "runs.json"
    return json.loads(path.read_text("utf8")) if path.exists() else {}
