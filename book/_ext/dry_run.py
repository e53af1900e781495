"""Dry run of the papers' grids: a made record in place of every run, to see which printed cells they fill.

    make paper DRY=1

Every record holds the groups of metrics that a real run writes, with a number that tells the run, so that
each cell can be traced to the run behind it. Fails when a cell that has a run stays empty or holds another
run's number, when a run fills nothing, or when a figure of a results page finds no recorded runs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ncbook
import torch
from grid_plan import GRIDS, ROOT, Planned, plan, told
from matplotlib.figure import Figure
from ncbook.layouts import LAYOUTS
from ncbook.match import UNITS, arguments_of, measured, printed_run
from ncbook.papers import values_of

import nclib
from nclib.data.feature_files import LAYOUTS as FILES
from nclib.methods.base import METHODS
from nclib.runs import append
from nclib.runs.pairs import FOLD, metrics_of
from nclib.runs.record import MAPS, RECALLS, Record

GRIDS_OF = {paper: f"paper_{paper.lower().replace('-', '_')}" for paper in ncbook.PAPERS}
SWEEPS = "paper_sweeps"  # read by figures, not by cells
APART = {"folds": 40.0, "test_dsl": 60.0}  # between the numbers of the groups of metrics of one run
NOTEBOOKS = ("results_l2rm", "results_omit", "results_repair", "results_uot_rcl")
EMPTY = "no recorded runs"
OF_A_CELL = ("metric", "direction", "value", "map")  # columns in which the cells of one run differ


class Worth(NamedTuple):
    """What a run is worth: the printed cells that it fills; has a table that compares methods some?"""

    cells: int
    compares: bool


@dataclass
class Found:
    """What the made records fill."""

    filled: dict[str, tuple[int, int]]  # table -> cells with a number, cells
    wrong: list[str]  # what must not be

    def __str__(self) -> str:
        width = max(map(len, self.filled))
        lines = [f"{name:<{width}}  {done:>5} of {n:>5} cells" for name, (done, n) in self.filled.items()]
        done, every = (sum(counts) for counts in zip(*self.filled.values(), strict=True))
        lines.append(f"{'all':<{width}}  {done:>5} of {every:>5} cells")
        return "\n".join([*lines, *self.wrong])


def test_images(dataset: str) -> int:
    """Return the number of test images of a paper's data set."""
    images = FILES[dataset].images
    return images["testall" if "testall" in images else "test"]


def made(run: Planned, number: int) -> Record:
    """Return the record that a run would leave; its metrics are ``number`` and say nothing."""
    s = run.settings
    labels = "noise_rate" in s
    if labels:
        groups = {"val": dict.fromkeys(("map_avg", *MAPS), number / 1e4)}
        groups["test"] = dict(groups["val"])
        sizes = {"test_pairs": 462}
    else:
        images = test_images(s["dataset"])
        split = nclib.data.load("planted", n_train=4, n_val=4, n_test=8).test
        networks = METHODS[s["method"]].factory.n_networks * len(run.parts) * s.get("networks", 1)
        scores = torch.zeros(networks, split.n_images, split.n_captions)
        names = ["val", *metrics_of(scores, split, fold=4 if images % FOLD == 0 and images > FOLD else FOLD)]
        recalls = [name for name in names if name != "errors"]  # of two networks; no table shows them
        groups = {name: _recalls(number / 1e3 + APART.get(name, 0.0)) for name in recalls}
        sizes = {"test_images": images}
    rate = s["noise_rate" if labels else "mrate"]
    return Record(
        settings=s,
        data={"name": s["dataset"], "checksum": "dry", **sizes},
        noise={"protocol": s["protocol"], "true_rate": rate, "checksum": f"dry {s['seed']}"},
        metrics=groups,
        curves=[],
        diagnostics={"bank_mb": float(number)} if s["method"] == "repair" else {},
        best_epoch=s.get("warmup_epochs", 0) + 1,
        cost={"seconds": 0.0, "test_seconds": 0.0},
        environment={"device": "none: a dry run"},
        name=run.label,
    )


def _recalls(value: float) -> dict[str, float]:
    return {**dict.fromkeys(RECALLS, value), "rsum": sum([value] * len(RECALLS))}


def write_records(folder: Path) -> dict[str, dict[int, Planned]]:
    """Write a made record of every declared run, once; return the runs by grid and number."""
    found: dict[str, dict[int, Planned]] = {}
    numbers: dict[str, int] = {}  # settings -> number
    for name in [*GRIDS_OF.values(), SWEEPS]:
        for run in plan(GRIDS / f"{name}.yml", root="."):
            key = json.dumps(run.settings, sort_keys=True)
            if key not in numbers:
                numbers[key] = len(numbers) + 1
                made(run, numbers[key]).save(folder / name / f"{run.label}.json")
            found.setdefault(name, {})[numbers[key]] = run
    return found


def check(folder: Path, declared: dict[str, dict[int, Planned]]) -> Found:
    """Fill every printed cell from the made records, and look for what must not be."""
    runs, wrong = ncbook.load_runs(folder), []
    of_number = {n: run for grid in reversed(declared.values()) for n, run in grid.items()}
    used: set[int] = set()
    filled: dict[str, tuple[int, int]] = {}
    for (paper, table), layout in LAYOUTS.items():
        values, done = values_of(paper, table), 0
        for value in values:
            row, numbers = value.source, measured(layout, value, runs)
            done += bool(numbers)
            cell = f"{layout.name}, {', '.join((*value.row, *value.column))}"
            if bool(numbers) == isinstance(printed_run(layout, row), str):
                wrong.append(f"{cell}: {'filled, though no run is behind it' if numbers else 'empty'}")
            if not numbers:
                continue
            found = {_number(v, row, layout.of_labels) for v in numbers}
            used |= found
            asked = told(arguments_of(layout, row))
            for number in found:
                own = told(of_number[number].arguments)
                if own != asked:
                    wrong.append(f"{cell}: filled by {own}, wanted {asked}")
        filled[layout.name] = done, len(values)
    for name, grid in declared.items():
        idle = [run.label for n, run in grid.items() if n not in used]
        wrong += [f"{name}: {label} fills no cell" for label in idle if name != SWEEPS]
    return Found(filled, wrong)


def worths() -> dict[str, Worth]:
    """Return what each run behind printed cells is worth, by :func:`told`."""
    found: dict[str, Worth] = {}
    for (paper, table), layout in LAYOUTS.items():
        cells: dict[tuple[str, ...], list[dict[str, str]]] = {}  # of one row, at one rate of one data set
        for value in values_of(paper, table):
            if not isinstance(printed_run(layout, value.source), str):
                shared = tuple(v for k, v in value.source.items() if k not in OF_A_CELL)
                cells.setdefault(shared, []).append(value.source)
        for rows in cells.values():
            run = told(arguments_of(layout, rows[0]))
            before = found.get(run, Worth(0, False))
            found[run] = Worth(before.cells + len(rows), before.compares or not layout.options)
    return found


def _number(value: float, row: dict[str, str], labels: bool) -> int:
    """Return the number of the run behind a metric; a wrong group of metrics gives no run's number."""
    if labels:
        return round(value * 1e4)
    if "unit" in row:
        return round(value * UNITS[row["unit"]])
    each = value / (len(RECALLS) if row["metric"] == "rsum" else 1)
    group = "folds" if row["protocol"] == "5fold-1k" else "test_dsl" if "DSL" in row["setting"] else ""
    return round((each - APART.get(group, 0.0)) * 1e3)


def empty_figures(folder: Path) -> Iterator[str]:
    """Yield the cells of the results pages whose figure finds no recorded runs."""
    append(folder / "l2rm.csv", ncbook.RECORDED / "l2rm.csv")  # sweeps of no paper's figure
    for name in NOTEBOOKS:
        content = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf8"))
        sources = ["".join(c["source"]) for c in content["cells"] if c["cell_type"] == "code"]
        namespace: dict[str, Any] = {}
        for place, source in enumerate(sources):
            with contextlib.redirect_stdout(io.StringIO()):
                shown = _run_cell(source, namespace)
            if isinstance(shown, Figure):
                texts = [text.get_text() for axis in shown.axes for text in axis.texts]
                if any(EMPTY in text for text in texts):
                    yield f"{name}, code cell {place + 1}: {EMPTY}"
            if place == 0:
                namespace["folder"] = str(folder)


def _run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = ast.Module(tree.body[:-1] if last else tree.body, [])
    exec(compile(body, "cell", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace) if last else None


def main() -> int:
    """Make the records, fill the cells, draw the figures; return 0 when all is as it must be."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = check(folder, write_records(folder))
        found.wrong += empty_figures(folder)
    print(found)
    print("All that a declared run can fill is filled." if not found.wrong else f"{len(found.wrong)} faults")
    return int(bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main())
