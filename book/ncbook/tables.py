"""Printed tables with measured values beside or below them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ncbook.compare import mean_text, paired, spread
from ncbook.layouts import LAYOUTS, Layout, layout_of
from ncbook.marks import MARKS, marks_of
from ncbook.match import RunSpec, measured, models_named, numbers, printed_run
from ncbook.notebook import NOT_RUN
from ncbook.page import Cell, Table, csv_text
from ncbook.papers import MISSING, Value, anomaly_text, paper_table, said_against, values_of
from ncbook.regime import Groups, Place, groups_of, place_of
from ncbook.runs import RECALLS, RECORDED, Runs, checksums, protocol_line, select

SPREADS = 2  # a mean within this number of standard deviations of the printed value counts as equal
ORIGIN = ("noise checksums", "records")


# -- printed ---------------------------------------------------------------------------------------------


def printed_table(paper: str, table: str, runs: Runs) -> Table:
    """Return a printed table, with measured values in the cells for which a run on the paper's data exists.

    Parameters
    ----------
    paper, table : str
        As in :func:`ncbook.paper_table`.
    runs : Runs
        From :func:`ncbook.load_runs`.

    Returns
    -------
    Table
        With a CSV file of one line per printed value: its place, the value as printed, mean, standard
        deviation and number of seeds measured, difference, and the numbers of its notes.

    Raises
    ------
    ValueError
        For a table that does not exist.
    """
    layout, values, frame = layout_of(paper, table), values_of(paper, table), paper_table(paper, table)
    own = {v: measured(layout, v, runs) for v in values}
    by_place = {(v.row, v.column): v for v in values}
    row_marks: dict[tuple[str, ...], dict[str, None]] = {}
    for v in values:
        row_marks.setdefault(v.row, {}).update(dict.fromkeys(v.row_marks))
    rows = []
    for row in frame.index:
        heads = [*map(Cell, row[:-1]), Cell(row[-1], tuple(row_marks.get(row, {})))]
        rows.append((heads, [_printed_cell(by_place.get((row, c)), own) for c in frame.columns]))
    marks = dict.fromkeys([m for v in values for m in (*v.row_marks, *v.marks)])
    marks |= dict.fromkeys(said_against(paper, table))
    filled = sum(map(bool, own.values()))
    state = (
        f"{filled:,} of {len(values):,} printed values were measured on this data."
        if filled
        else f"{len(values):,} values, all as printed: no record on this data."
    )
    head = [*layout.rows, *layout.columns, "printed", "mean", "std", "n", "difference", "oddities"]
    return Table(
        slug=layout.slug,
        title=f"{layout.name}: {layout.title}",
        kind="printed",
        lines=[f"{_upper(layout.protocol)}.", layout.note, state],
        names=layout.rows,
        columns=list(frame.columns),
        rows=rows,
        notes={m: anomaly_text(m) for m in marks},
        file=csv_text(head, (_line(v, own[v]) for v in values)),
        closed=not filled,
    )


def _printed_cell(value: Value | None, own: dict[Value, tuple[float, ...]]) -> Cell:
    if value is None:
        return Cell(MISSING)
    if not own[value]:
        return Cell(value.value, value.marks)
    digits = len(value.number.partition(".")[2])
    difference = sum(own[value]) / len(own[value]) - float(value.number)
    sign = agreement(difference, own[value])
    text = f"{mean_text(own[value], digits)}\n{difference:+.{digits}f} {sign}"
    return Cell(value.value, value.marks, text.strip(), "nc-measured")


def agreement(difference: float, values: Sequence[float]) -> str:
    """Return ``≈`` when the printed value lies within two standard deviations, else ``▲`` or ``▼``.

    Empty for a single run, which has no spread.
    """
    if len(values) < 2:
        return ""
    return "≈" if abs(difference) <= SPREADS * spread(values) else "▲" if difference > 0 else "▼"


def _line(value: Value, own: tuple[float, ...]) -> list[str]:
    cells = ["", "", "0", ""]
    if own:
        mean = sum(own) / len(own)
        cells = [*_mean_and_std(own), str(len(own)), f"{mean - float(value.number):.4f}"]
    return [*value.row, *value.column, value.value, *cells, " ".join((*value.row_marks, *value.marks))]


def _mean_and_std(values: Sequence[float]) -> list[str]:
    """Return mean and standard deviation for a CSV file, empty where there is none."""
    mean = f"{sum(values) / len(values):.4f}" if values else ""
    std = spread(values)
    return [mean, "" if math.isnan(std) else f"{std:.4f}"]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def unfilled_table(paper: str) -> Table:
    """Return the printed values of a paper that no declared run fills: how many, in which tables, and why.

    Parameters
    ----------
    paper : {"L2RM", "OMIT", "REPAIR", "UOT-RCL"}
    """
    why: dict[str, dict[str, int]] = {}
    total = 0
    for key in (key for key in LAYOUTS if key[0] == paper):
        layout, values = LAYOUTS[key], values_of(*key)
        total += len(values)
        for value in values:
            if isinstance(reason := printed_run(layout, value.source), str):
                tables = why.setdefault(reason, {})
                tables[layout.number or layout.table] = tables.get(layout.number or layout.table, 0) + 1
    lines = [(reason, ", ".join(tables), str(sum(tables.values()))) for reason, tables in why.items()]
    empty = sum(sum(tables.values()) for tables in why.values())
    return Table(
        slug=f"unfilled-{paper.lower()}",
        title=f"{paper}: printed values that no run here fills",
        kind="printed",
        lines=[
            f"{total - empty:,} of {total:,} printed values have a declared run that fills them, with the "
            "encoder, module and test protocol of their row; make paper DRY=1 checks this."
        ],
        names=("values",),
        columns=[("tables",), ("why",)],
        rows=[([Cell(n)], [Cell(tables), Cell(reason)]) for reason, tables, n in lines],
        file=csv_text(("why", "tables", "values"), lines),
    )


# -- bundled data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """One measured row: CSV headings, headings on the page, means, gains, and the runs behind them."""

    heads: list[str]
    first: list[Cell]
    values: list[tuple[float, ...]]
    gains: list[str]
    runs: pd.DataFrame


def bundled_table(paper: str, table: str, runs: Runs, *, preset: str = "") -> Table | None:
    """Return the nearest counterpart of a printed table that was measured on other data.

    The same methods and rates, other data and sizes: it shows whether an effect appears, and its numbers are
    not comparable with printed ones. Rows without runs stand in one line with the command that makes them.

    Parameters
    ----------
    paper, table, runs
        As in :func:`printed_table`.
    preset : str
        Preset of the runs; empty for the strongest in which most of the rows were recorded, see
        :func:`ncbook.regime.place_of`.

    Returns
    -------
    Table or None
        None for tables without a counterpart on other data: web data with natural noise, CLIP, times.
    """
    layout = layout_of(paper, table)
    groups, place = groups_of(layout), place_of(layout, runs, preset=preset)
    where, rates = place.where, place.rates
    if not groups or not rates:
        return None
    reference = layout.reference
    if layout.of_labels:
        rows = list(_category_rows(layout, groups, place, select(runs.category, **where)))
        marks = [f"{r:g}" for r in rates]
        columns = [
            (d, m) for d in ("image → text", "text → image", f"mean of both − {reference}") for m in marks
        ]
        names = [f"{d} {m}" for d in ("i2t", "t2i") for m in marks]
        heads, gains = ["run", "printed rows"], [f"mean - {reference} {m}" for m in marks]
        side = "right"
    else:
        rows = list(_retrieval_rows(layout, groups, place, select(runs.retrieval, **where)))
        columns = [("both", "rSum"), ("both", f"rSum − {reference}")]
        columns += [(way, k) for way in ("image → text", "text → image") for k in ("R@1", "R@5", "R@10")]
        names, heads, gains = list(RECALLS), ["rate", "run", "printed rows"], [f"rsum - {reference}"]
        side = "second column"
    shown = [row for row in rows if len(row.runs)]
    texts = f"{side}: mean difference to {reference} over runs with the same seed, "
    head = [*heads, *(f"{n} {w}" for n in names for w in ("mean", "std")), "n", *gains, *ORIGIN]
    return Table(
        slug=f"{layout.slug}-measured",
        title=f"{layout.name}: the nearest measured",
        kind="measured",
        lines=[
            place.remark,
            _upper(protocol_line(_together([row.runs for row in rows]))),
            f"Mean ± standard deviation (seeds); {texts}95 % interval of the paired t-test. Not comparable "
            "with printed numbers.",
            _not_run([row for row in rows if not len(row.runs)], where),
        ],
        names=heads[:-1],
        columns=columns,
        rows=[(row.first, _measured_cells(layout, row)) for row in shown],
        notes={m: MARKS[m] for m in MARKS if any(m in cell.marks for row in shown for cell in row.first)},
        file=csv_text(head, (_measured_line(row) for row in rows)),
        closed=True,
    )


def _not_run(rows: Sequence[_Row], where: dict[str, str]) -> str:
    """Return one line for rows without runs: their names, and the command that makes one of them."""
    if not rows:
        return ""
    of_labels = len(rows[0].heads) == 2
    labels: dict[str, list[str]] = {}
    for row in rows:
        labels.setdefault(row.heads[-2], []).extend([] if of_labels else row.heads[:1])
    names = ", ".join(f"{label} ({', '.join(at)})" if at else label for label, at in labels.items())
    place = " ".join(f"--{key} {value}" for key, value in where.items())
    given = f"METHOD {place} --noise_rate" if of_labels else f"METHOD --model MODEL {place} --mrate"
    return f"{NOT_RUN.capitalize()}: {names}. Each is one command: nclib run {given} RATE"


def reference_of(layout: Layout, method: str, model: str) -> RunSpec:
    """Return the run that the differences of a row are taken against."""
    if layout.reference == "deep_sm":
        return RunSpec("deep_sm")
    if layout.reference in ("plain", "full method"):
        return RunSpec("plain" if layout.reference == "plain" else method, model)
    return RunSpec("plain", "omit")


def _retrieval_rows(layout: Layout, groups: Groups, place: Place, table: pd.DataFrame) -> Iterator[_Row]:
    """Yield one row per rate, run and model."""
    for rate in place.rates:
        noise = {"protocol": place.protocol} if rate > 0 and place.protocol else {}
        level = select(table, mrate=rate, **noise)
        for run, names in groups.values():
            same = select(level, method=run.method, variant=run.variant)
            models = [run.model] if models_named(layout) else sorted(set(same["model"])) or [""]
            for model in models:
                part, other = select(same, model=model), reference_of(layout, run.method, model)
                gain = paired(part, select(level, method=other.method, model=other.model, variant="")).short
                if len(part) and (run.method, model, run.variant) == (other.method, other.model, ""):
                    gain = "reference"
                label = f"{run.label} · {model}" if model else run.label
                heads = [f"{rate:g}", label, ", ".join(names)]
                first = [Cell(heads[0]), Cell(label, marks_of(part), own=f"printed: {heads[2]}")]
                yield _Row(heads, first, [numbers(part, metric) for metric in RECALLS], [gain], part)


def _category_rows(layout: Layout, groups: Groups, place: Place, table: pd.DataFrame) -> Iterator[_Row]:
    """Yield one row per run, with all rates beside each other."""
    rates, table = place.rates, select(table, protocol=place.protocol)
    for run, names in groups.values():
        every = select(table, method=run.method, variant=run.variant)
        level = {r: select(every, noise_rate=r) for r in rates}
        other, gains = reference_of(layout, run.method, ""), []
        for rate, part in level.items():
            base = select(table, method=other.method, variant="", noise_rate=rate)
            is_base = len(part) and (run.method, run.variant) == (other.method, "")
            gains.append("reference" if is_base else paired(part, base, "map_avg", digits=3).short)
        values = [numbers(level[r], f"map_{d}") for d in ("i2t", "t2i") for r in rates]
        heads, shown = [run.label, ", ".join(names)], _together(list(level.values()))
        first = [Cell(run.label, marks_of(shown, "map"), own=f"printed: {heads[1]}")]
        yield _Row(heads, first, values, gains, shown)


def _together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [part for part in parts if len(part)]
    return pd.concat(filled) if filled else parts[0]


def _measured_cells(layout: Layout, row: _Row) -> list[Cell]:
    """Return the cells of a row; intervals stand below, of labels spreads too, and n stands once."""
    gains = [_two_lines(gain) for gain in row.gains]
    if layout.of_labels:
        half = len(row.values) // 2  # the two directions are of the same runs
        means = [mean_text(v, 3, count=k < half) or NOT_RUN for k, v in enumerate(row.values)]
        return [*map(_two_lines, means), *(replace(gain, own=gain.own.split(" (")[0]) for gain in gains)]
    *recalls, total = (mean_text(v, count=v is row.values[-1]) for v in row.values)
    return [Cell(total), *gains, *map(Cell, recalls)]


def _two_lines(text: str) -> Cell:
    """Put what follows a number below it."""
    if text == NOT_RUN:
        return Cell(text, kind="nc-none")
    number, _, rest = text.partition(" ")
    return Cell(number, own=rest)


def _measured_line(row: _Row) -> list[str]:
    """Return a line of the CSV file, with the checksums of the noise and the names of the records."""
    means = [cell for v in row.values for cell in _mean_and_std(v)]
    origin = [checksums(row.runs, "noise.checksum"), sorted(map(str, row.runs.get("name", ())))]
    return [*row.heads, *means, str(max(map(len, row.values))), *row.gains, *map(" ".join, origin)]


# -- where they are --------------------------------------------------------------------------------------


def figures_named(page: str) -> Iterator[tuple[str, str]]:
    """Yield number and description of the paper's figures that the captions of a notebook name."""
    path = RECORDED.parents[1] / "notebooks" / f"{page}.ipynb"
    cells = json.loads(path.read_text("utf8"))["cells"] if path.exists() else []
    for cell in cells:
        shown = cell["metadata"].get("mystnb", {})
        caption = shown.get("figure", {}).get("caption", "")
        for named in re.findall(r"Figs?\. ([A-Z]?\d+(?:, \d+)*)", caption):
            yield from ((number, shown["image"]["alt"].rstrip(".")) for number in named.split(", "))
