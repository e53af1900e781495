"""Sphinx extension: pages show the notebooks as they were executed for this build.

* ``notebooks/X.ipynb`` is shown as ``run_notebooks.py`` executed it; one that was not executed with the
  present code and data is a warning, which ``-W`` turns into a failure.
* ``{live-run}`` shows the run in ``book/live``, if there is one, beside the stored and the recorded ones.
* ``{execution-status}`` prints when, where and how long each notebook ran.
* ``{gpu-results}`` shows what ``make gpu`` measured.
* A training log is one line that unfolds.
* "mean ± deviation (seeds)" and the two ends of an interval stay on one line.
"""

from __future__ import annotations

import html
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import nbformat
from docutils import nodes
from executed import folder_of, is_done, notebooks_of, runs_of
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)
SVG = "image/svg+xml"
DRAWING = "nc-drawing"  # class of drawings, which custom.css turns dark on dark pages
SMALL = "nc-small"  # class of figures that a phone scales to its width
NARROW = 370  # pt; wider ones move sideways there
EPOCH = re.compile(r"^epoch +\d+/\d+ .*\n?", re.MULTILINE)  # of a training log
COLUMNS = {
    "i2t_r1": "image to text R@1",
    "i2t_r10": "R@10",
    "t2i_r1": "text to image R@1",
    "t2i_r10": "R@10",
    "rsum": "rSum",
}
STATUS = ("page", "ran on", "seconds", "device", "threads", "Python, torch, NumPy", "commit")
NUMBER = r"[+\-−]?\d[\d.,]*"
TOGETHER = re.compile(
    rf"<script.*?</script>|(?<=\d) ± {NUMBER}(?: \(\d+\))?|\[{NUMBER}, {NUMBER}\]", re.DOTALL
)  # scripts are matched to leave them alone
NO_RUN = "*This copy of the book was built without a live run; `make book` makes one.*"


def executed_folder(app: Sphinx) -> pathlib.Path:
    """Return the folder of the notebooks that this build shows."""
    return app.nclib_executed  # type: ignore[attr-defined,no-any-return]


def overlay(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the text of a notebook page by the executed one; an event handler of ``source-read``."""
    path = pathlib.Path(app.env.doc2path(docname))
    root = pathlib.Path(app.srcdir)
    if path.suffix == ".ipynb" and path.parent == root:  # the only page, made by ``ncbook view``
        source[0] = nbformat.writes(shown(nbformat.reads(source[0], 4)))
    if path.suffix != ".ipynb" or path.parent != root / "notebooks":
        return
    done = executed_folder(app) / path.name
    app.env.note_dependency(str(done))  # incremental builds notice
    if is_done(path, executed_folder(app)):
        source[0] = nbformat.writes(shown(nbformat.read(done, 4)))
    else:
        text = "not executed with the present code and data; make html executes it"
        log.warning(text, location=docname, type="nb_overlay", subtype="missing")


def shown(page: Any) -> Any:
    """Return a notebook as its page shows it, changed in place: described figures, folded logs.

    With ``SOLUTIONS=no`` in the environment the solutions of exercises are left out.
    """
    if os.environ.get("SOLUTIONS") == "no":
        page.cells = [cell for cell in page.cells if not cell.get("id", "").startswith("solution-")]
    for cell in page.cells:
        if cell.cell_type == "code":
            cell.outputs = [folded(output) for output in cell.outputs]
    return described(page)


def folded(output: Any) -> Any:
    """Return an output; a training log as HTML that shows what came out in one line, and unfolds."""
    if output.output_type != "stream" or not EPOCH.search(output.text):
        return output
    said = [line.partition("  ")[0] for line in EPOCH.sub("", output.text).splitlines()]
    head = html.escape("; ".join(said) if len(said) < 3 else "several runs")
    log = html.escape(output.text.rstrip())
    text = f'<details class="nc-log"><summary>Training log: {head}</summary><pre>{log}</pre></details>'
    return nbformat.v4.new_output("display_data", {"text/html": text})


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
            drawn = [d for d in data if any(kind.startswith("image/") for kind in d)]
            looks = {DRAWING: all(map(is_drawing, drawn)), SMALL: all(map(is_narrow, drawn))}
            if classes := " ".join(name for name, holds in looks.items() if holds):
                image.setdefault("classes", classes)
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


def is_narrow(data: Mapping[str, Any]) -> bool:
    """Tell whether an output is so narrow that a phone shows it whole, with labels that can be read."""
    width = re.search(r'<svg\b[^>]* width="([\d.]+)pt"', data.get(SVG, ""))
    return width is not None and float(width[1]) <= NARROW


def is_drawing(data: Mapping[str, Any]) -> bool:
    """Tell whether an output is a drawing of lines and text, without pictures."""
    return SVG in data and "<image" not in data[SVG]


class Lines(SphinxDirective):
    """Markdown that is made when the page is built."""

    def lines(self) -> list[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return [nodes.container("", *self.parse_text_to_nodes("\n".join(self.lines())), classes=[self.name])]


class LiveRun(Lines):
    """The run that ``make book`` trained on this machine."""

    def lines(self) -> list[str]:
        root = pathlib.Path(self.env.srcdir)
        self.env.note_dependency(str(root / "book" / "live" / "runs.json"))
        return live_lines(root)


class ExecutionStatus(Lines):
    """A table of the executions that the pages show, one row per notebook."""

    def lines(self) -> list[str]:
        root = pathlib.Path(self.env.srcdir)
        folder = executed_folder(self.env.app)
        runs = runs_of(folder)
        self.env.note_dependency(str(folder / "runs.json"))
        rows = []
        for name in notebooks_of(root):
            cells = status_cells(runs[name]) if name in runs else ["never"] + [""] * 5
            rows.append([f"{{doc}}`/notebooks/{name}`", *cells])
        return status_lines(rows)


class GpuResults(Lines):
    """The section of the page on GPUs that shows what was measured."""

    def lines(self) -> list[str]:
        from ncbook.gpu import lines_of, stored

        self.env.note_dependency(str(pathlib.Path(self.env.srcdir, "book/measured/bench_gpu.json")))
        return lines_of(stored())


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
    threads = f"{run['threads']} of {run['cores']}"
    versions = ", ".join([run["python"], *(run["versions"].get(k, "?") for k in ("torch", "numpy"))])
    return [run["date"], f"{run['seconds']:.0f}", run["device"], threads, versions, f"`{run['commit']}`"]


def machine_line(run: Mapping[str, Any]) -> str:
    """Return one sentence about where and how long a notebook ran."""
    return (
        f"{run['date']}: **{run['seconds']:.0f} seconds** on {run['device']}, {run['threads']} of "
        f"{run['cores']} cores; Python {run['python']}, torch {run['versions']['torch']}."
    )


def comparison(mine: Mapping[str, Any]) -> list[str]:
    """Return a table in Markdown: a live run, and under it the recorded runs of its settings, with marks."""
    import pandas as pd
    from ncbook import mean_text, recorded
    from ncbook.marks import explained, marks_of
    from ncbook.runs import as_preset

    settings, where, test = mine["settings"], mine["environment"], mine["metrics"]["test"]
    shared = ("method", "model", "dataset", "preset", "protocol", "mrate")
    found = recorded(**{name: settings[name] for name in shared})
    found = as_preset(found) if len(found) else found
    threads = f"{where['threads']} thread{'s' if where['threads'] != 1 else ''}"
    loss = settings.get("method_options", {}).get("loss")  # of plain training
    if loss and len(found):
        found = found[found["option.loss"] == loss]
    name = settings["method"] + (f" ({loss})" if loss else "")
    head = ["method", "mismatch rate", "run (number of seeds)", *COLUMNS.values(), "training seconds"]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head))]
    values = {key: [test[key]] for key in COLUMNS} | {"seconds": [mine["cost"]["seconds"]]}
    marks = marks_of(pd.DataFrame([{**settings, "best_epoch": mine["best_epoch"]}]))
    groups = {" ".join([f"your machine: {where['device']}, {threads}", *marks]): values}
    if len(found):
        groups[" ".join(["recorded", *marks_of(found)])] = {key: list(found[key]) for key in values}
        marks += marks_of(found)
    for place, group in groups.items():
        means = [mean_text(group[key]) for key in COLUMNS]
        seconds = sum(group["seconds"]) / len(group["seconds"])
        row = [name, f"{settings['mrate']:g}", place, *means, f"{seconds:.0f}"]
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, *(["", f"{explained(marks)}."] if marks else [])]


def records_in(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the records of the runs in a folder."""
    return [json.loads(path.read_text("utf8")) for path in sorted(folder.glob("*/record.json"))]


def live_lines(root: pathlib.Path) -> list[str]:
    """Return where and how long the live runs of ``book/live`` took, and their results, in Markdown."""
    runs = runs_of(root / "book" / "live")
    lines = [] if runs else [NO_RUN]
    for name, run in runs.items():
        lines += [f"**{run['title']}**, {machine_line(run)}"]
        for record in records_in(root / "book" / "live" / name):
            lines += ["", *comparison(record), ""]
    return lines


def start(app: Sphinx) -> None:
    """Find the folder of executed notebooks once per build."""
    app.nclib_executed = folder_of(pathlib.Path(app.srcdir))  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", start)
    app.connect("source-read", overlay)
    app.connect("html-page-context", keep_numbers_together)
    app.add_directive("execution-status", ExecutionStatus)
    app.add_directive("gpu-results", GpuResults)
    app.add_directive("live-run", LiveRun)
    return {"parallel_read_safe": True}
