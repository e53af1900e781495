"""Sphinx extension: links from documented functions and classes to the pages that use them.

The code of the pages is parsed, not run. A method or a model counts as used where its registered name stands.
"""

from __future__ import annotations

import ast
import pathlib
import pydoc
import re
from collections.abc import Iterator
from typing import Any

import nbformat
from executed import parts_of
from sphinx.application import Sphinx

Key = tuple[str, str]  # defining module, name
PACKAGES = ("nclib", "ncbook")
BLOCK = re.compile(r"^```\{code-block\} python\n(?::\w+:[^\n]*\n)*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def page_of(root: pathlib.Path, name: str) -> tuple[str, str]:
    """Return title (up to its colon) and code of a page: of a notebook's cells, or of its Python blocks."""
    path = root / f"{name}.ipynb"
    if path.exists():
        cells = nbformat.read(path, 4).cells
        text = next((c.source for c in cells if c.cell_type == "markdown"), "")
        code = "\n".join(c.source for c in cells if c.cell_type == "code")
        code = re.sub(r"^\s*[%!].*$", "", code, flags=re.MULTILINE)  # IPython's commands
    else:
        text = (root / f"{name}.md").read_text("utf8")
        code = "\n".join(BLOCK.findall(text))
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    return title[1].partition(":")[0].strip().replace("`", "") if title else name, code


def names_in(code: str) -> Iterator[str]:
    """Yield the dotted names that code mentions, with what its imports bind written out, and its strings."""
    nodes = list(ast.walk(ast.parse(code)))
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                bound |= {alias.asname: alias.name} if alias.asname else {top: top}
        elif isinstance(node, ast.ImportFrom):
            bound |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Attribute | ast.Name):
            head, _, rest = ast.unparse(node).partition(".")
            if head in bound:
                yield f"{bound[head]}.{rest}".removesuffix(".")


def key_of(thing: Any) -> Key:
    """Return the module and the name under which an object is defined."""
    return str(getattr(thing, "__module__", "")), str(getattr(thing, "__qualname__", ""))


def back_links(root: pathlib.Path) -> dict[Key, dict[str, str]]:
    """Return for each function or class the pages that use it and their titles, in the order of the book."""
    from nclib import label_noise, methods, models

    registries = methods.base.METHODS, label_noise.base.METHODS, models.registry.MODELS
    registered = {name: registry[name].factory for registry in registries for name in registry}
    found: dict[Key, dict[str, str]] = {}
    for page in (page for pages in parts_of(root).values() for page in pages):
        title, code = page_of(root, page)
        for name in set(names_in(code)):
            thing = registered.get(name)
            if name.split(".")[0] in PACKAGES:
                thing = pydoc.locate(name)
            found.setdefault(key_of(thing), {})[page] = title
    return found


def add_links(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Append the pages to a docstring; an event handler of ``autodoc-process-docstring``."""
    if what not in ("function", "class", "exception"):
        return
    if pages := app.nclib_back_links.get(key_of(obj)):  # type: ignore[attr-defined]
        text = ", ".join(f":doc:`{title} </{page}>`" for page, title in pages.items())
        lines += ["", ".. container:: nc-used-in", "", f"   Used in: {text}", ""]


def start(app: Sphinx) -> None:
    """Read the pages once per build."""
    app.nclib_back_links = back_links(pathlib.Path(app.srcdir))  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", start)
    app.connect("autodoc-process-docstring", add_links, priority=900)  # after numpydoc sections are read
    return {"parallel_read_safe": True, "parallel_write_safe": True}
