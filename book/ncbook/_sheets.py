"""The printed tables beside what was measured: the same cells on the papers' data, and bundled data below."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ncbook._compare import mean_text, paired, spread
from ncbook._html import Sheet, View, csv_text
from ncbook._layouts import Layout, layout_of
from ncbook._match import Wanted, measured, models_named, wanted
from ncbook._printed import MISSING, Cell, anomaly_text, cells, paper_table, rows_of, said_against
from ncbook.runs import Runs, checksums, protocol_line, select

if TYPE_CHECKING:
    import pandas as pd

NO_RECORD = "no record"
RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
BUNDLED = {"retrieval": "emoji", "category_map": "emoji_category"}
SPREADS = 2  # a mean within so many standard deviations of the printed value counts as equal


# -- printed ------------------------------------------------------------------------------------------------


def printed_sheet(paper: str, table: str, runs: Runs) -> Sheet:
    """Return a printed table, with measured values in the cells for which a run on the paper's data exists.

    Parameters
    ----------
    paper, table : str
        As in :func:`paper_table`.
    runs : Runs
        Runs runs.

    Returns
    -------
    Sheet
        With a CSV file of one line per printed cell: its place, the value as printed, mean, standard
        deviation and number of seeds measured, difference, and the oddities it is marked with.
    """
    layout, found, frame = layout_of(paper, table), cells(paper, table), paper_table(paper, table)
    own = {c: measured(layout, c, runs) for c in found}
    by_place = {(c.row, c.column): c for c in found}
    row_marks: dict[tuple[str, ...], dict[str, None]] = {}
    for c in found:
        row_marks.setdefault(c.row, {}).update(dict.fromkeys(c.row_marks))
    rows = []
    for row in frame.index:
        heads = [View(text) for text in row]
        heads[-1] = View(row[-1], tuple(row_marks.get(row, {})))
        rows.append((heads, [_printed_view(by_place.get((row, c)), own) for c in frame.columns]))
    against = said_against(paper, table)
    marks = dict.fromkeys([m for c in found for m in (*c.row_marks, *c.marks)] + list(against))
    has = sum(bool(v) for v in own.values())
    state = (
        f"{has:,} of {len(found):,} printed values were measured on this data."
        if has
        else (f"{len(found):,} values, all as printed: no record on this data.")
    )
    return Sheet(
        slug=layout.slug,
        title=f"{layout.name}: {layout.title}",
        kind="printed",
        lines=[f"{_upper(layout.protocol)}.", layout.note, state],
        names=layout.rows,
        columns=list(frame.columns),
        rows=rows,
        notes={m: anomaly_text(m) for m in marks},
        file=csv_text(
            [*layout.rows, *layout.columns, "printed", "mean", "std", "n", "difference", "oddities"],
            (_line(c, own[c]) for c in found),
        ),
    )


def _printed_view(cell: Cell | None, own: dict[Cell, tuple[float, ...]]) -> View:
    if cell is None:
        return View(MISSING)
    values = own[cell]
    if not values:
        return View(cell.value, cell.marks)
    digits = len(cell.value.partition(".")[2])
    difference = sum(values) / len(values) - float(cell.value)
    text = f"{mean_text(values, digits)}\n{difference:+.{digits}f} {verdict_mark(difference, values)}"
    return View(cell.value, cell.marks, text.strip(), "nc-measured")


def verdict_mark(difference: float, values: tuple[float, ...]) -> str:
    """Return ``≈`` when the printed value lies within two standard deviations, else ``▲`` or ``▼``.

    Empty for a single run, which has no spread.
    """
    if len(values) < 2:
        return ""
    if abs(difference) <= SPREADS * spread(values):
        return "≈"
    return "▲" if difference > 0 else "▼"


def _line(cell: Cell, values: tuple[float, ...]) -> list[str]:
    numbers = ["", "", "0", ""]
    if values:
        mean = sum(values) / len(values)
        std = spread(values)
        numbers = [
            f"{mean:.4f}",
            "" if math.isnan(std) else f"{std:.4f}",
            str(len(values)),
            f"{mean - float(cell.value):.4f}",
        ]
    return [*cell.row, *cell.column, cell.value, *numbers, " ".join((*cell.row_marks, *cell.marks))]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- bundled data -------------------------------------------------------------------------------------------

REFERENCES: dict[str, tuple[str, Any]] = {
    "plain": ("plain", lambda run: Wanted("plain", run.model)),
    "full": ("full method", lambda run: Wanted(run.method, run.model)),
    "partial_ot": ("Partial OT", lambda run: Wanted("plain", "omit")),
    "uni": ("Uni", lambda run: Wanted("plain", "omit")),
    "omit": ("OMIT", lambda run: Wanted("plain", "omit")),
    "deep_sm": ("deep_sm", lambda run: Wanted("deep_sm")),
}


def bundled_sheet(
    paper: str, table: str, runs: Runs, *, dataset: str = "", preset: str = "quick"
) -> Sheet | None:
    """Return the nearest thing to a printed table that was measured on bundled data.

    The same methods and rates, other data and sizes: it shows whether an effect appears, and its numbers are
    not comparable with printed ones. Every row whose runs were not made says so.

    Parameters
    ----------
    paper, table : str
        As in :func:`paper_table`.
    runs : Runs
        Runs runs.
    dataset : str
        Data; by default the bundled one of that task.
    preset : str
        Preset of the runs.

    Returns
    -------
    Sheet or None
        None for tables that have no counterpart on bundled data: web data with natural noise, CLIP, times.
    """
    layout = layout_of(paper, table)
    groups = _groups(layout)
    where = {"dataset": dataset or BUNDLED.get(layout.file, ""), "preset": preset}
    rates = _rates(layout, groups, runs, where)
    if not groups or not rates:
        return None
    make = _category_rows if layout.file == "category_map" else _retrieval_rows
    return make(layout, groups, rates, runs, where)


def _groups(layout: Layout) -> dict[tuple[str, str, str], tuple[Wanted, list[str]]]:
    """Runs behind the rows of a table, with the names of those rows; models apart where rows are models."""
    groups: dict[tuple[str, str, str], tuple[Wanted, list[str]]] = {}
    for row in rows_of(layout.paper, layout.table):
        run = wanted(layout, row)
        if run is None:
            continue
        name = row["setting"] if layout.rows == ("warm-up",) else row["method"]
        key = (run.method, run.model if models_named(layout) else "", run.variant)
        names = groups.setdefault(key, (run, []))[1]
        if name not in names:
            names.append(name)
    return groups


def _rates(layout: Layout, groups: Iterable[Any], runs: Runs, where: dict[str, str]) -> list[float]:
    """Rates of the table; for tables without added noise those at which its rows were recorded."""
    printed = {row["noise_rate"] for row in rows_of(layout.paper, layout.table) if row.get("noise_rate")}
    if not models_named(layout):
        return sorted(float(r) for r in printed)
    table = select(runs.retrieval, **where, method="plain")
    models = {model for _, model, _ in groups}
    found = set(table[table["model"].isin(models) & ~table["model"].isin({"saf", "vse"})]["mrate"])
    return sorted({0.0, *(float(r) for r in found)})


def _retrieval_rows(
    layout: Layout, groups: Any, rates: list[float], runs: Runs, where: dict[str, str]
) -> Sheet:
    import pandas as pd

    name, of = REFERENCES[layout.reference]
    rows, lines, used = [], [], []
    for rate in rates:
        noise = {"protocol": layout.noise} if rate > 0 and layout.noise else {}
        level = select(runs.retrieval, **where, mrate=rate, **noise)
        for run, names in groups.values():
            same = select(level, method=run.method, variant=run.variant)
            models = [run.model] if models_named(layout) else sorted(set(same["model"]))
            for model in models or [""]:
                part = select(same, model=model)
                other = of(Wanted(run.method, model, run.options))
                base = select(level, method=other.method, model=other.model, variant="")
                gain = paired(part, base)
                is_base = (run.method, model, run.variant) == (other.method, other.model, "")
                label = f"{run.label} · {model}" if model else run.label
                heads = [f"{rate:g}", label, ", ".join(names)]
                values = [_numbers(part, metric) for metric in RECALLS]
                texts = [mean_text(v) for v in values]
                gained = "reference" if is_base and len(part) else gain.short
                shown = [texts[-1], gained, *texts[:-1]] if len(part) else [NO_RECORD] + [""] * len(RECALLS)
                first = [View(heads[0]), View(label, own=f"printed: {heads[2]}")]
                rows.append((first, [_own_view(t) for t in shown]))
                lines.append([*heads, *_summary(values), gained, *_origin(part)])
                used.append(part)
    together = (
        pd.concat([u for u in used if len(u)]) if any(len(u) for u in used) else runs.retrieval.iloc[:0]
    )
    columns = [("both", "rSum"), ("both", f"rSum − {name}")]
    columns += [("image → text", k) for k in ("R@1", "R@5", "R@10")]
    columns += [("text → image", k) for k in ("R@1", "R@5", "R@10")]
    head = [f"{m} {word}" for m in RECALLS for word in ("mean", "std")]
    return Sheet(
        slug=f"{layout.slug}-measured",
        title=f"{layout.name}: the nearest measured",
        kind="measured",
        lines=[
            f"{_upper(protocol_line(together))}",
            f"Mean ± standard deviation (seeds); second column: mean difference to {name} over runs with "
            "the same seed, 95 % interval of the paired t-test. Not comparable with printed numbers.",
        ],
        names=("rate", "run"),
        columns=columns,
        rows=rows,
        file=csv_text(["rate", "run", "printed rows", *head, "n", f"rsum - {name}", *ORIGIN], lines),
    )


def _numbers(part: pd.DataFrame, metric: str) -> tuple[float, ...]:
    return tuple(float(v) for v in part[metric].dropna()) if metric in part else ()


def _summary(values: list[tuple[float, ...]]) -> list[str]:
    out = []
    for v in values:
        out.append(f"{sum(v) / len(v):.4f}" if v else "")
        out.append(f"{spread(v):.4f}" if len(v) > 1 else "")
    return [*out, str(max(len(v) for v in values))]


ORIGIN = ("noise checksums", "records")


def _origin(part: pd.DataFrame) -> list[str]:
    """Checksums of the noise, and names of the records, behind a row."""
    return [" ".join(checksums(part, "noise_checksum")), " ".join(sorted(map(str, part.get("name", ()))))]


def _own_view(text: str) -> View:
    return View(text, kind="nc-none" if text == NO_RECORD else "nc-value")


def _category_rows(
    layout: Layout, groups: Any, rates: list[float], runs: Runs, where: dict[str, str]
) -> Sheet:
    import pandas as pd

    reference = "deep_sm" if layout.reference == "plain" else layout.reference
    name, of = REFERENCES[reference]
    rows, lines, used = [], [], []
    for run, names in groups.values():
        every = select(runs.category, **where, method=run.method, variant=run.variant, protocol="symmetric")
        level = {r: select(every, noise_rate=r) for r in rates}
        values = [_numbers(level[r], f"map_{d}") for d in ("i2t", "t2i") for r in rates]
        other = of(run)
        gains = []
        for r in rates:
            base = select(
                runs.category, **where, method=other.method, variant="", protocol="symmetric", noise_rate=r
            )
            is_base = (run.method, run.variant) == (other.method, "") and len(level[r])
            gains.append("reference" if is_base else paired(level[r], base, "map_avg", digits=3).short)
        texts = [mean_text(v, 3) or NO_RECORD for v in values]
        heads = [run.label, ", ".join(names)]
        first = View(run.label, own=f"printed: {heads[1]}")
        rows.append(([first], [_own_view(t) for t in [*texts, *gains]]))
        own = [part for part in level.values() if len(part)]
        lines.append([*heads, *_summary(values), *gains, *_origin(pd.concat(own) if own else every.iloc[:0])])
        used += own
    together = pd.concat(used) if used else runs.category.iloc[:0]
    marks = [f"{r:g}" for r in rates]
    columns = [(d, m) for d in ("image → text", "text → image", f"mean of both − {name}") for m in marks]
    head = [f"{d} {m} {w}" for d in ("i2t", "t2i") for m in marks for w in ("mean", "std")]
    return Sheet(
        slug=f"{layout.slug}-measured",
        title=f"{layout.name}: the nearest measured",
        kind="measured",
        lines=[
            f"{_upper(protocol_line(together))}",
            f"Mean ± standard deviation (seeds); right: mean difference to {name} over runs with the same "
            "seed, with the 95 % interval of the paired t-test. Not comparable with printed numbers.",
        ],
        names=("run",),
        columns=columns,
        rows=rows,
        file=csv_text(
            ["run", "printed rows", *head, "n", *(f"mean - {name} {m}" for m in marks), *ORIGIN], lines
        ),
    )


# -- both ---------------------------------------------------------------------------------------------------


def side_by_side(paper: str, table: str, runs: Runs, *, dataset: str = "", preset: str = "quick") -> None:
    """Display a printed table and, below it, the nearest measured one, as :func:`bundled_sheet` makes it."""
    from IPython.display import display

    for sheet in (
        printed_sheet(paper, table, runs),
        bundled_sheet(paper, table, runs, dataset=dataset, preset=preset),
    ):
        if sheet is not None:
            display(sheet)


def errata_sheet(paper: str = "") -> Sheet:
    """Return the list of odd values, disagreements and gaps in the papers as printed.

    Parameters
    ----------
    paper : str
        Entries that concern this paper; all when empty.
    """
    from ncbook._printed import printed

    rows, lines = [], []
    found = printed("anomalies")
    names = [str(c) for c in found.columns]
    for row in found.to_dict("records"):
        if paper and paper not in row["paper"] and row["paper"] != "all":
            continue
        where = ", ".join(row[k] for k in ("dataset", "noise_rate", "method", "metric") if row[k])
        table = row["table"] if row["table"] != "all" else "all tables"
        what = row["observed"] + (f"; against: {row['other']}" if row["other"] else "")
        why = "; ".join(p for p in (row["explanation"], row["note"]) if p)
        views = [
            View(f"{row['paper']}, {table}: {row['kind'].replace('_', ' ')}", own=where, kind="nc-text"),
            View(what, own=row["difference"], kind="nc-text"),
            View(why, own=_EXPLAINED.get(row["explained_by_papers"], ""), kind="nc-text nc-soft"),
        ]
        rows.append(([View(row["id"])], views))
        lines.append([row[n] for n in names])
    return Sheet(
        slug=f"errata-{paper.lower() or 'all'}",
        title=f"Odd values and gaps: {paper}" if paper else "Odd values and gaps, all papers",
        kind="errata",
        lines=[f"{len(rows)} entries."],
        names=("no.",),
        columns=[("where and what",), ("printed",), ("explanation",)],
        rows=rows,
        file=csv_text(names, lines),
    )


_EXPLAINED = {"no": "the papers do not explain it", "partly": "partly explained", "yes": "explained"}
