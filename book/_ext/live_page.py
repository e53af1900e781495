"""The page about the reader's machine: its live run beside the stored one and the recorded runs."""

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


def live_cells(live: Any) -> list[Any]:
    """Return the cells of a live run that can stand on a second page: code and headings.

    Labels and glued values stay behind, since a book can define a name once; the prose is in the chapter.
    Alternative texts of figures come along.
    """
    out: list[Any] = []
    for cell in copy.deepcopy(live.cells):
        if cell.cell_type == "code":
            if any(t in {"remove-cell", INJECTED} for t in tags(cell)):
                continue
            words = cell.metadata.pop("mystnb", {}).get("image", {}).get("alt")
            if words:
                cell.metadata["mystnb"] = {"image": {"alt": words}}
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


def kind(record: Mapping[str, Any]) -> str:
    """Text that two runs share when they differ in their seed alone."""
    return json.dumps({**naming(record["settings"]), "seed": None}, sort_keys=True)


def called(settings: Mapping[str, Any]) -> str:
    """Name of a run in a table: its method, and what plain training minimises."""
    loss = settings.get("method_options", {}).get("loss")
    return settings["method"] + (f" ({loss})" if loss else "")


def summary(values: list[float]) -> str:
    """Mean, with the standard deviation where there are several values."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def comparison(live: Iterable[Mapping[str, Any]], recorded: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a table in Markdown: each live run, and under it the recorded runs of the same settings."""
    recorded = list(recorded)
    rows = []
    for mine in live:
        same = [r for r in recorded if kind(r) == kind(mine)]
        n = mine["environment"]["threads"]
        device = f"{mine['environment']['device']}, {n} thread{'s' if n != 1 else ''}"
        for where, group in ((f"your machine: {device}", [mine]), (f"recorded, seeds: {len(same)}", same)):
            if group:
                tests = [r["metrics"]["test"] for r in group]
                cells = [called(mine["settings"]), f"{mine['settings']['mrate']:g}", where]
                cells += [summary([test[name] for test in tests]) for name in COLUMNS]
                cells += [f"{statistics.fmean(r['cost']['seconds'] for r in group):.0f}"]
                rows.append(f"| {' | '.join(cells)} |")
    head = f"| method | mismatch rate | run | {' | '.join(COLUMNS.values())} | training seconds |"
    return [head, "|---|---:|---|" + "---:|" * (len(COLUMNS) + 1), *rows] if rows else []


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
        table = comparison(records_in(root / "book" / "live" / name), records_in(root / RESULTS))
        lines += ["", *table] if table else []
        page.cells.append(nbformat.v4.new_markdown_cell("\n".join(lines), id=f"live-{name}"))
        page.cells += live_cells(live)
    return page
