"""Printed tables with what was measured beside each row: values, effects, and the difference of effects."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ncbook import plots
from ncbook.compare import mean_text, paired
from ncbook.layouts import LAYOUTS, Layout, layout_of
from ncbook.marks import MARKS, marks_of
from ncbook.match import models_named, printed_sums
from ncbook.page import Cell, Table, csv_text
from ncbook.regime import groups_of, place_of, place_text
from ncbook.runs import Runs, select
from ncbook.tables import reference_of

PRINTED_MODEL = "sgr"  # of the printed rows, where a method is printed with several models
NONE = "–"


def compared_table(paper: str, table: str, runs: Runs, *, preset: str = "") -> Table | None:
    """Return the rows of a printed table that were run here, printed and measured in one row.

    Values of different data do not compare, effects do: what a row gains over its reference (plain training
    of the same model, the full method, ...), printed and measured, and how much the two differ.

    Parameters
    ----------
    paper, table : str
        As in :func:`ncbook.paper_table`.
    runs : Runs
        From :func:`ncbook.load_runs`.
    preset : str
        Preset of the runs; empty for the strongest in which most of the rows were recorded.

    Returns
    -------
    Table or None
        None where no row has a run. Rows that are printed alone stand once, in a line.
    """
    layout = layout_of(paper, table)
    printed, place = _printed(layout), place_of(layout, runs, preset=preset, figure=True)
    rate, metric, digits = ("noise_rate", "map_avg", 3) if layout.of_labels else ("mrate", "rsum", 1)
    named = models_named(layout)
    where = {k: v for k, v in place.where.items() if k != "model" or not named}
    part = select(runs.category if layout.of_labels else runs.retrieval, **where)
    if place.protocol and len(part):
        part = part[(part["protocol"] == place.protocol) | (part[rate] == 0)]
    rows, lines, alone = [], [], dict[str, list[str]]()
    for row in printed.itertuples():
        at = place.rates[0] if printed["rate"].nunique() == 1 and place.rates else row.rate
        level = select(part, **{rate: at}, **({"model": row.model} if named else {}))
        own = select(level, method=row.method, variant=row.variant)
        if own.empty:
            alone.setdefault(_label(layout, row), []).append(f"{row.rate:g}")
            continue
        base = reference_of(layout, row.method, row.model)
        other = select(select(part, **{rate: at}), method=base.method, variant=base.variant)
        gain = paired(own, select(other, model=base.model) if named else other, metric, digits=digits)
        is_base = (base.method, base.variant) == (row.method, row.variant)
        if is_base and (not named or base.model == row.model):
            effects = ["reference", "reference", ""]
        else:
            shown = NONE if pd.isna(row.gain) else f"{row.gain:+.{digits}f}"
            apart = NONE if NONE in (shown, gain.short or NONE) else f"{gain.mean - row.gain:+.{digits}f}"
            effects = [shown, gain.short or NONE, apart]
        mean, _, spread = mean_text(list(own[metric]), digits).partition(" ")
        number, _, interval = effects[1].partition(" ")
        value = f"{row.value:.{digits}f}"
        heads = [f"{row.rate:g}", _label(layout, row)]
        cells = [Cell(value), Cell(effects[0]), Cell(mean, own=spread), Cell(number, own=interval)]
        marks = tuple(dict.fromkeys([*marks_of(own, metric), *gain.marks]))
        rows.append(([Cell(heads[0]), Cell(heads[1], marks)], [*cells, Cell(effects[2])]))
        lines.append([*heads, value, effects[0], mean, spread, effects[1], effects[2]])
    if not rows:
        return None
    total, gap = "mAP" if layout.of_labels else "rSum", f"− {layout.reference}"
    columns = [("printed", total), ("printed", gap), ("measured", total), ("measured", gap)]
    every = printed["rate"].nunique()
    missing = [f"{name}{f' ({chr(44).join(at)})' if len(at) < every else ''}" for name, at in alone.items()]
    return Table(
        slug=f"{layout.slug}-rows",
        title=f"{layout.name}: printed and measured, row by row",
        kind="effects",
        lines=[
            f"Printed: {printed['dataset'].iloc[0]}{'' if named or layout.of_labels else ', SGR first'}. "
            f"Measured: {place_text(place.where)}; mean ± standard deviation, effects over shared seeds with "
            "their 95 % interval (seeds). Values of other data do not compare; effects do.",
            place.remark,
            f"Printed, without a run here: {', '.join(missing)}." if missing else "",
        ],
        names=("rate", "row"),
        columns=[*columns, ("effects", "measured − printed")],
        rows=rows,
        notes={m: MARKS[m] for m in MARKS if any(m in heads[1].marks for heads, _ in rows)},
        file=csv_text(
            ["rate", "row", f"printed {total}", f"printed {gap}", f"measured {total}", "spread",
             f"measured {gap}", "difference of effects"],
            lines,
        ),
        closed=len(rows) > 12,
    )  # fmt: skip


def _printed(layout: Layout) -> pd.DataFrame:
    """Return the printed values of a table's first data set with their gain over the printed reference.

    Of a method that is printed with several models one counts. A reference that the table leaves out is taken
    from another table of the paper.
    """
    own = printed_sums(layout.paper, layout.table)
    if own.empty:
        return own.assign(gain=[])
    every = pd.concat([own, *(printed_sums(*key) for key in LAYOUTS if key[0] == layout.paper)])
    own = own[own["dataset"] == own["dataset"].iloc[0]]
    if not models_named(layout):
        own = own.sort_values("model", key=lambda model: model != PRINTED_MODEL, kind="stable")
        own = own.drop_duplicates(["method", "variant", "rate"]).sort_index()
    gains = []
    for row in own.itertuples():
        base = reference_of(layout, row.method, row.model)
        at = {"method": base.method, "variant": base.variant, "model": base.model or row.model}
        of_base = select(every, dataset=row.dataset, rate=row.rate, **at)["value"]
        gains.append(row.value - of_base.iloc[0] if len(of_base) else float("nan"))
    return own.assign(gain=gains)


def _label(layout: Layout, row: Any) -> str:
    """Return the printed name of a row that changes one thing, and what readers call a method."""
    key = (row.method, row.model if models_named(layout) else "", row.variant)
    if layout.method or models_named(layout):
        return ", ".join(groups_of(layout)[key][1])
    names = {label: name for name, label in plots.NAMES.items()}
    name = names.get(row.method, "triplet" if row.method == "plain" else row.method)
    return f"{name} ({row.variant})" if row.variant else name
