"""Sphinx extension: every documented function says which chapters and how-to pages use it.

The notebooks' code cells and the pages' code blocks are read as syntax trees when the book is built; nothing
is imported or run.
"""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Any

import nbformat
import yaml
from nbdeps import Walk
from nbstamp import code_cells, python
from nbuses import Reader, Uses
from sphinx.application import Sphinx

Key = tuple[str, str]  # defining module, name
API = "book/api"
CHOSEN_BY_NAME = ("nclib.methods.", "nclib.models.", "nclib.label_noise.")
BLOCK = re.compile(r"^```\{code-block\} python\n(?::\w+:[^\n]*\n)*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def code_of(path: pathlib.Path) -> str:
    """Return the code of a notebook, or of a page's Python blocks."""
    if path.suffix == ".ipynb":
        return "\n".join(python(c.source) for c in code_cells(nbformat.read(path, 4)))
    return "\n".join(BLOCK.findall(path.read_text("utf8")))


def title_of(path: pathlib.Path) -> str:
    """Return a page's title up to its colon."""
    text = path.read_text("utf8")
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, 4).cells
        text = next((c.source for c in cells if c.cell_type == "markdown"), "")
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].partition(":")[0].strip().replace("`", "") if found else path.stem


def file_of(root: pathlib.Path, page: str) -> pathlib.Path:
    """Return the source of a page."""
    notebook = root / f"{page}.ipynb"
    return notebook if notebook.exists() else root / f"{page}.md"


def pages_of(root: pathlib.Path) -> list[str]:
    """Return the pages of the book in its order, without suffix."""
    contents = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    return [c["file"] for part in contents["parts"] for c in part["chapters"]]


def uses_of(code: str, walk: Walk) -> Uses | None:
    """Return what a page's code asks of the package; None when it is not Python."""
    try:
        return Reader(walk.paths, walk.top).read(ast.parse(code), every_string=False)
    except SyntaxError:
        return None


def back_links(root: pathlib.Path, walk: Walk) -> dict[Key, list[str]]:
    """Return the pages that use each function or class, by its defining module and name.

    A class that registers itself is used where code chooses it by its name, such as ``nclib.run("l2rm")``.
    """
    found: dict[Key, list[str]] = {}
    chosen = [m for m in walk.paths if m.startswith(CHOSEN_BY_NAME)]
    registered = {name: module for module in chosen for name in walk.uses(module).registers}
    for page in pages_of(root):
        uses = uses_of(code_of(file_of(root, page)), walk)
        if uses is None:
            continue
        keys = {(walk.origin(module, name), name) for module, name in uses.names}
        keys |= {(registered[s], "") for s in uses.strings if s in registered}
        for key in sorted(keys):
            found.setdefault(key, []).append(page)
    return found


def add_links(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Append the pages to a docstring; an event handler of ``autodoc-process-docstring``."""
    if what not in ("function", "class", "exception"):
        return
    links: dict[Key, list[str]] = app.nclib_back_links  # type: ignore[attr-defined]
    module = str(getattr(obj, "__module__", ""))
    keys = [(module, str(getattr(obj, "__name__", "")))]
    if what == "class" and not keys[0][1].endswith("Options"):
        keys.append((module, ""))
    pages = list(dict.fromkeys(page for key in keys for page in links.get(key, [])))
    if not pages:
        return
    root = pathlib.Path(app.srcdir)
    text = ", ".join(f":doc:`{title_of(file_of(root, page))} </{page}>`" for page in pages)
    lines += ["", ".. container:: nc-used-in", "", f"   Used in: {text}", ""]


def start(app: Sphinx) -> None:
    """Read the pages once per build."""
    root = pathlib.Path(app.srcdir)
    app.nclib_back_links = back_links(root, Walk(root))  # type: ignore[attr-defined]


def note(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let the page of interfaces be read again when a notebook changes."""
    if docname == API:
        for path in sorted((pathlib.Path(app.srcdir) / "notebooks").glob("*.ipynb")):
            app.env.note_dependency(str(path))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", start)
    app.connect("source-read", note)
    app.connect("autodoc-process-docstring", add_links, priority=900)  # after numpydoc sections are read
    return {"parallel_read_safe": True, "parallel_write_safe": True}
