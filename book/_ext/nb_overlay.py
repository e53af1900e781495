"""Sphinx extension: pages show the current prose and code together with the stored outputs.

* ``notebooks/X.ipynb`` takes the outputs of ``book/executed/X.ipynb``; a stale one is a warning, which ``-W``
  turns into a failure.
* ``book/your_machine.ipynb`` takes the code cells and outputs of the live run in ``book/live``, beside
  the stored run and the recorded runs, when there is one.
* ``{execution-status}`` prints when, where and how long each notebook ran.
* "mean ± deviation (seeds)" and the two ends of an interval stay on one line.
"""

from __future__ import annotations

import copy
import json
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import nbformat
from docutils import nodes
from docutils.statemachine import StringList
from nbstamp import INJECTED, PARAMETERS, RESULTS, Book, cell_keys, code_cells, problems, records_in, tags
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from nclib.runs.identity import naming

log = logging.getLogger(__name__)
LIVE_PAGE = "book/your_machine"
SVG = "image/svg+xml"
DRAWING = "nc-drawing"  # class of drawings, which custom.css turns dark on dark pages
GLUE = "application/papermill.record/"
COLUMNS = {
    "i2t_r1": "image to text R@1",
    "i2t_r10": "R@10",
    "t2i_r1": "text to image R@1",
    "t2i_r10": "R@10",
    "rsum": "rSum",
}
STATUS = ("page", "state", "ran on", "seconds", "device", "threads", "Python, torch, NumPy", "commit")
NUMBER = r"[+\-−]?\d[\d.,]*"
TOGETHER = re.compile(
    rf"<script.*?</script>|(?<=\d) ± {NUMBER}(?: \(\d+\))?|\[{NUMBER}, {NUMBER}\]", re.DOTALL
)  # scripts are matched to leave them alone
NO_RUN = """```{note}
This copy of the book was built without a live run. `make book` makes one (a few minutes on two cores) and
shows it here.
```"""


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
    """Give figures an alternative text from their heading, and drawings without pictures a class, in place.

    A drawing of lines and text alone can be shown dark on a dark page.
    """
    heading = ""
    for cell in page.cells:
        if cell.cell_type == "markdown":
            found = re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE)
            heading = re.sub(r"\{[\w:]+\}`[^`]*`|[*`$]", "", found[-1]).strip() if found else heading
            continue
        data = [o["data"] for o in cell.get("outputs", []) if "data" in o]
        if any(kind.startswith("image/") for d in data for kind in d):
            image = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
            image.setdefault("alt", f"Figure under the heading: {heading}")
            if all(is_drawing(d) for d in data if any(kind.startswith("image/") for kind in d)):
                image.setdefault("classes", DRAWING)
    return page


def unbroken(body: str) -> str:
    """Return HTML in which a mean and its deviation, or the ends of an interval, stay on one line."""
    return TOGETHER.sub(
        lambda m: m[0] if m[0].startswith("<script") else m[0].replace(" ", "\N{NO-BREAK SPACE}"), body
    )


def keep_numbers_together(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Apply :func:`unbroken` to a page; an event handler of ``html-page-context``."""
    if "body" in context:
        context["body"] = unbroken(context["body"])


def is_drawing(data: Mapping[str, Any]) -> bool:
    """Tell whether an output is a drawing of lines and text, without pictures."""
    return SVG in data and "<image" not in data[SVG]


class ExecutionStatus(SphinxDirective):
    """A table of the stored executions, one row per notebook."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        root = pathlib.Path(self.env.srcdir)
        runs = runs_of(root / "book" / "executed")
        self.env.note_dependency(str(root / "book" / "executed" / "runs.json"))
        rows = []
        for path in sorted((root / "notebooks").glob("*.ipynb")):
            state = problems(path, root / "book" / "executed" / path.name, book_of(self.env.app))
            cells = status_cells(runs[path.stem]) if path.stem in runs else ["never"] + [""] * 5
            rows.append([f"{{doc}}`/notebooks/{path.stem}`", "stale" if state else "fresh", *cells])
        lines = status_lines(rows)
        box = nodes.container(classes=["execution-status"])
        self.state.nested_parse(StringList(lines, source=self.env.doc2path(self.env.docname)), 0, box)
        return [box]


def status_lines(rows: list[list[str]]) -> list[str]:
    """Return the status table in Markdown, after a sentence with what is the same in every row."""
    same = [i for i in range(len(STATUS)) if len({row[i] for row in rows}) == 1] if len(rows) > 1 else []
    said = "; ".join(f"{STATUS[i]}: {rows[0][i]}" for i in same)
    kept = [i for i in range(len(STATUS)) if i not in same]
    rule = ["---:" if STATUS[i] == "seconds" else "---" for i in kept]
    table = [[STATUS[i] for i in kept], rule, *([row[i] for i in kept] for row in rows)]
    return [*([f"All pages: {said}.", ""] if said else []), *(f"| {' | '.join(row)} |" for row in table)]


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


def live_cells(live: Any) -> list[Any]:
    """Return the cells of a live run that can be shown on a second page: code with outputs, and its headings.

    Labels and glued values are removed, since a book can define a name only once; the chapter has the prose.
    """
    out: list[Any] = []
    heading = None
    for cell in copy.deepcopy(live.cells):
        if cell.cell_type == "markdown":
            if found := re.search(r"^##+ +(.+)$", cell.source, re.MULTILINE):
                # Roles make labels and citations.
                text = re.sub(r"\{[\w:]+\}`([^`<]+)[^`]*`", r"\1", found[1])
                heading = nbformat.v4.new_markdown_cell(f"### {text}", id=cell.id)
        elif cell.cell_type == "code" and not {"remove-cell", INJECTED} & {*tags(cell)}:
            if alt := cell.metadata.pop("mystnb", {}).get("image", {}).get("alt"):
                cell.metadata["mystnb"] = {"image": {"alt": alt}}
            cell.outputs = [o for o in cell.outputs if not any(k.startswith(GLUE) for k in o.get("data", {}))]
            cell.metadata["tags"] = sorted({*tags(cell), "hide-input"})
            if cell.outputs:
                out += [cell] if heading is None else [heading, cell]
                heading = None
    return out


def machine_line(run: Mapping[str, Any]) -> str:
    """Return one sentence about where and how long a notebook ran."""
    return (
        f"{run['date']}: **{run['seconds']:.0f} seconds** on {run['device']}, {run['threads']} of "
        f"{run['cores']} cores; Python {run['python']}, torch {run['versions']['torch']}."
    )


def runs_of(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return ``runs.json`` of a folder of executed notebooks; empty when there is none."""
    path = folder / "runs.json"
    return json.loads(path.read_text("utf8")) if path.exists() else {}


def comparison(live: Iterable[Mapping[str, Any]], recorded: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a table in Markdown: each live run, and under it the recorded runs with the same settings."""
    from ncbook import mean_text

    def kind(record: Mapping[str, Any]) -> dict[str, Any]:
        return {**naming(record["settings"]), "seed": None}

    recorded = list(recorded)
    rows = []
    for mine in live:
        threads, settings = mine["environment"]["threads"], mine["settings"]
        loss = settings.get("method_options", {}).get("loss")  # of plain training
        name = settings["method"] + (f" ({loss})" if loss else "")
        device = f"{mine['environment']['device']}, {threads} thread{'s' if threads != 1 else ''}"
        same = [record for record in recorded if kind(record) == kind(mine)]
        for where, group in ((f"your machine: {device}", [mine]), ("recorded", same)):
            if group:
                means = [mean_text([r["metrics"]["test"][column] for r in group]) for column in COLUMNS]
                seconds = statistics.fmean(r["cost"]["seconds"] for r in group)
                rows.append([name, f"{settings['mrate']:g}", where, *means, f"{seconds:.0f}"])
    if not rows:
        return []
    head = ["method", "mismatch rate", "run (number of seeds)", *COLUMNS.values(), "training seconds"]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def show_live(root: pathlib.Path, page: Any) -> Any:
    """Return the page about the reader's machine, with the live runs of ``book/live`` after its own text."""
    runs = runs_of(root / "book" / "live")
    if not runs:
        page.cells.append(nbformat.v4.new_markdown_cell(NO_RUN, id="no-live-run"))
    for name, run in runs.items():
        live = nbformat.read(root / "book" / "live" / f"{name}.ipynb", 4)
        lines = [f"## {run['title']}", "", f"This machine, {machine_line(run)}", ""]
        if recorded := runs_of(root / "book" / "executed").get(name):
            lines += [f"The stored run on the chapter's page, {machine_line(recorded)}", ""]
        lines += comparison(records_in(root / "book" / "live" / name), records_in(root / RESULTS))
        page.cells.append(nbformat.v4.new_markdown_cell("\n".join(lines), id=f"live-{name}"))
        page.cells += live_cells(live)
    return page


def start(app: Sphinx) -> None:
    """Read code and records once per build."""
    app.nclib_book = Book(pathlib.Path(app.srcdir))  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", start)
    app.connect("source-read", overlay)
    app.connect("html-page-context", keep_numbers_together)
    app.add_directive("execution-status", ExecutionStatus)
    return {"parallel_read_safe": True}
