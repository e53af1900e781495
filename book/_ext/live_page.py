"""The page "Your machine": a live run on the reader's machine beside the stored run and the recorded runs."""

from __future__ import annotations

import copy
import json
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import nbformat
from nbstamp import INJECTED, RESULTS, records_in, tags

from nclib.runs.identity import naming

GLUE = "application/papermill.record/"
COLUMNS = {
    "i2t_r1": "image to text R@1",
    "i2t_r10": "R@10",
    "t2i_r1": "text to image R@1",
    "t2i_r10": "R@10",
    "rsum": "rSum",
}
NO_RUN = """```{note}
This copy of the book was built without a live run. `make book` makes one (a few minutes on two cores) and
shows it here.
```"""


def live_cells(live: Any) -> list[Any]:
    """Return the cells of a live run that can be shown on a second page: code with outputs, and its headings.

    Labels and glued values are removed, since a book can define a name only once; the chapter has the prose.
    """
    out: list[Any] = []
    heading = None
    for cell in copy.deepcopy(live.cells):
        if cell.cell_type == "markdown":
            if found := re.search(r"^##+ +(.+)$", cell.source, re.MULTILINE):
                text = re.sub(
                    r"\{[\w:]+\}`([^`<]+)[^`]*`", r"\1", found[1]
                )  # roles make labels and citations
                heading = nbformat.v4.new_markdown_cell(f"### {text}", id=cell.id)
        elif cell.cell_type == "code" and not {"remove-cell", INJECTED} & {*tags(cell)}:
            alt = cell.metadata.pop("mystnb", {}).get("image", {}).get("alt")
            if alt:
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
