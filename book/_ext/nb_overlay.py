"""Sphinx extension: pages show the current prose and code together with the stored outputs.

* ``notebooks/X.ipynb`` takes the outputs of ``book/executed/X.ipynb``; a stale one is a warning, which ``-W``
  turns into a failure.
* ``book/your_machine.ipynb`` takes the code cells and outputs of the live run in ``book/live`` when there
  is one.
* ``{execution-status}`` prints when, where and how long each notebook ran.
"""

from __future__ import annotations

import copy
import pathlib
import re
from typing import Any

import nbformat
from docutils import nodes
from docutils.statemachine import StringList
from live_page import runs_of, show_live
from nbstamp import INJECTED, PARAMETERS, Book, cell_keys, code_cells, problems, tags
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)
LIVE_PAGE = "book/your_machine"


def merge(current: Any, stored: Any) -> Any:
    """Return ``current`` with the outputs of ``stored``.

    When the code differs, ``stored`` itself comes back, so that code and outputs on the page belong together.
    """
    if cell_keys(current) != cell_keys(stored):
        return stored
    merged = copy.deepcopy(current)
    ran = [c for c in code_cells(stored) if c.source.strip()]
    for cell, done in zip([c for c in code_cells(merged) if c.source.strip()], ran, strict=True):
        cell.outputs, cell.execution_count = done.outputs, done.execution_count
    injected = [c for c in stored.cells if INJECTED in tags(c)]
    at = next((i for i, c in enumerate(merged.cells) if PARAMETERS in tags(c)), -1)
    merged.cells[at + 1 : at + 1] = injected
    return merged


def book_of(app: Sphinx) -> Book:
    """Return the code and records of this build, which are read once."""
    return app.nclib_book  # type: ignore[attr-defined,no-any-return]


def overlay(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the text of a notebook page by the merged one; an event handler of ``source-read``."""
    path = pathlib.Path(app.env.doc2path(docname))
    root = pathlib.Path(app.srcdir)
    if docname == LIVE_PAGE:
        app.env.note_dependency(str(root / "book" / "live" / "runs.json"))
        source[0] = nbformat.writes(described(show_live(root, nbformat.reads(source[0], 4))))
    if path.suffix != ".ipynb" or path.parent != root / "notebooks":
        return
    book = book_of(app)
    stored = root / "book" / "executed" / path.name
    for dependency in [stored, *book.code.paths.values()]:
        app.env.note_dependency(str(dependency))  # incremental builds notice
    for why in problems(path, stored, book):
        log.warning("stored outputs: %s", why, location=docname, type="nb_overlay", subtype="stale")
    if stored.exists():
        page = described(merge(nbformat.read(path, 4), nbformat.read(stored, 4)))
        source[0] = nbformat.writes(page)


def described(page: Any) -> Any:
    """Give every figure without alternative text one from its heading, in place; a file name says nothing."""
    heading = ""
    for cell in page.cells:
        if cell.cell_type == "markdown":
            found = re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE)
            heading = re.sub(r"\{[\w:]+\}`[^`]*`|[*`$]", "", found[-1]).strip() if found else heading
        elif any(k.startswith("image/") for o in cell.get("outputs", []) for k in o.get("data", {})):
            image = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
            image.setdefault("alt", f"Figure under the heading: {heading}")
    return page


class ExecutionStatus(SphinxDirective):
    """A table of the stored executions, one row per notebook."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        root = pathlib.Path(self.env.srcdir)
        runs = runs_of(root / "book" / "executed")
        self.env.note_dependency(str(root / "book" / "executed" / "runs.json"))
        lines = ["| page | state | ran on | seconds | device | threads | Python, torch, NumPy | commit |"]
        lines += ["|---|---|---|---:|---|---|---|---|"]
        for path in sorted((root / "notebooks").glob("*.ipynb")):
            state = problems(path, root / "book" / "executed" / path.name, book_of(self.env.app))
            cells = status_cells(runs[path.stem]) if path.stem in runs else ["never"] + [""] * 5
            cells = [f"{{doc}}`/notebooks/{path.stem}`", "stale" if state else "fresh", *cells]
            lines.append(f"| {' | '.join(cells)} |")
        box = nodes.container(classes=["execution-status"])
        self.state.nested_parse(StringList(lines, source=self.env.doc2path(self.env.docname)), 0, box)
        return [box]


def status_cells(run: dict[str, Any]) -> list[str]:
    """Return a row of the status table: date, seconds, device, threads, versions, commit."""
    return [
        run["date"],
        f"{run['seconds']:.0f}",
        run["device"],
        f"{run['threads']} of {run['cores']}",
        ", ".join([run["python"], *(run["versions"].get(k, "?") for k in ("torch", "numpy"))]),
        f"`{run['commit']}`",
    ]


def start(app: Sphinx) -> None:
    """Read code and records once per build."""
    app.nclib_book = Book(pathlib.Path(app.srcdir))  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", start)
    app.connect("source-read", overlay)
    app.add_directive("execution-status", ExecutionStatus)
    return {"parallel_read_safe": True}
