"""Sphinx extension: pages show the current prose and code together with the stored outputs.

* ``notebooks/X.ipynb`` takes the outputs of ``book/executed/X.ipynb``; a stale one is a warning, which ``-W``
  turns into a failure.
* ``book/your_machine.ipynb`` takes the code cells and outputs of the live run in ``book/live`` when there
  is one.
* ``{execution-status}`` prints when, where and how long each notebook ran.
"""

from __future__ import annotations

import copy
import json
import pathlib
import re
from typing import Any

import nbformat
from docutils import nodes
from docutils.statemachine import StringList
from nbdeps import Walk
from nbstamp import INJECTED, PARAMETERS, cell_keys, code_cells, failures, problems, tags
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)
GLUE = "application/papermill.record/"
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


def live_cells(live: Any) -> list[Any]:
    """Return the cells of a live run that can stand on a second page: code and headings.

    Labels and glued values stay behind, since a book can define a name once; the prose is in the chapter.
    """
    out: list[Any] = []
    for cell in copy.deepcopy(live.cells):
        if cell.cell_type == "code":
            if any(t in {"remove-cell", INJECTED} for t in tags(cell)):
                continue
            cell.metadata.pop("mystnb", None)
            cell.outputs = [o for o in cell.outputs if not any(k.startswith(GLUE) for k in o.get("data", {}))]
            if cell.outputs:
                cell.metadata["tags"] = sorted({*tags(cell), "hide-input"})
                out.append(cell)
        elif cell.cell_type == "markdown":
            heading = re.search(r"^##+ +(.+)$", cell.source, re.MULTILINE)
            if heading:
                text = re.sub(
                    r"\{[\w:]+\}`([^`<]+)[^`]*`", r"\1", heading[1]
                )  # roles make labels and citations
                out.append(nbformat.v4.new_markdown_cell(f"### {text}", id=cell.id))
    while out and out[-1].cell_type == "markdown":  # a heading whose cells show nothing
        out.pop()
    return [
        c
        for c, after in zip(out, [*out[1:], None], strict=True)
        if c.cell_type == "code" or (after is not None and after.cell_type == "code")
    ]


def machine_line(run: dict[str, Any]) -> str:
    """Return one sentence about where and how long a notebook ran."""
    return (
        f"{run['date']}: **{run['seconds']:.0f} seconds** on {run['device']}, {run['threads']} of "
        f"{run['cores']} cores; Python {run['python']}, torch {run['versions']['torch']}."
    )


def runs_of(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return ``runs.json`` of a folder of executed notebooks; empty when there is none."""
    path = folder / "runs.json"
    return json.loads(path.read_text("utf8")) if path.exists() else {}


def show_live(root: pathlib.Path, page: Any) -> Any:
    """Return the page about the reader's machine, with the live runs in ``book/live`` behind its own text."""
    runs = runs_of(root / "book" / "live")
    if not runs:
        text = (
            "```{note}\nThis copy of the book was built without a live run. `make book` makes one (a few "
            "minutes on two cores) and shows it here.\n```"
        )
        page.cells.append(nbformat.v4.new_markdown_cell(text, id="no-live-run"))
    for name, run in runs.items():
        live = nbformat.read(root / "book" / "live" / f"{name}.ipynb", 4)
        recorded = runs_of(root / "book" / "executed").get(name)
        lines = [f"## {run['title']}", "", f"This machine, {machine_line(run)}"]
        if recorded:
            lines += ["", f"The stored run on the chapter's page, {machine_line(recorded)}"]
        page.cells.append(nbformat.v4.new_markdown_cell("\n".join(lines), id=f"live-{name}"))
        page.cells += live_cells(live)
        if failures(live):
            log.warning("the live run of %s did not finish", name, location=LIVE_PAGE)
    return page


def overlay(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the text of a notebook page by the merged one; an event handler of ``source-read``."""
    path = pathlib.Path(app.env.doc2path(docname))
    root = pathlib.Path(app.srcdir)
    if docname == LIVE_PAGE:
        app.env.note_dependency(str(root / "book" / "live" / "runs.json"))
        source[0] = nbformat.writes(show_live(root, nbformat.reads(source[0], 4)))
    if path.suffix != ".ipynb" or path.parent != root / "notebooks":
        return
    walk: Walk = app.nclib_walk  # type: ignore[attr-defined]
    stored = root / "book" / "executed" / path.name
    for dependency in [stored, *walk.paths.values()]:
        app.env.note_dependency(str(dependency))  # incremental builds notice
    for why in problems(path, stored, root, walk):
        log.warning("stored outputs: %s", why, location=docname, type="nb_overlay", subtype="stale")
    if stored.exists():
        source[0] = nbformat.writes(merge(nbformat.read(path, 4), nbformat.read(stored, 4)))


class ExecutionStatus(SphinxDirective):
    """A table of the stored executions, one row per notebook."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        root = pathlib.Path(self.env.srcdir)
        runs = runs_of(root / "book" / "executed")
        self.env.note_dependency(str(root / "book" / "executed" / "runs.json"))
        lines = ["| page | state | ran on | seconds | device | threads | Python | torch | commit |"]
        lines += ["|---|---|---|---:|---|---|---|---|---|"]
        for path in sorted((root / "notebooks").glob("*.ipynb")):
            state = problems(path, root / "book" / "executed" / path.name, root, self.env.app.nclib_walk)
            cells = status_cells(runs[path.stem]) if path.stem in runs else ["never"] + [""] * 6
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
        run["python"],
        run["versions"]["torch"],
        f"`{run['commit']}`",
    ]


def start(app: Sphinx) -> None:
    """Read the package once per build."""
    app.nclib_walk = Walk(pathlib.Path(app.srcdir))  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", start)
    app.connect("source-read", overlay)
    app.add_directive("execution-status", ExecutionStatus)
    return {"parallel_read_safe": True}
