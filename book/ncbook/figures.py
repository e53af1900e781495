"""Figures of printed and measured values: a panel each, never one axis for both."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ncbook import plots
from ncbook.board import noise_name
from ncbook.compare import Difference, seeds_text, spread
from ncbook.layouts import Layout, layout_of
from ncbook.match import printed_sums, run_of, sum_of
from ncbook.papers import rows_of
from ncbook.regime import ONLY_SHORT, SMALL, Place, place_of, place_text, strongest
from ncbook.runs import Runs, select, usual_value

STYLES = tuple(zip(plots.CYCLE, plots.MARKS, strict=True))


def _draw(axis: Axes, groups: Any, **style: Any) -> None:
    """Draw mean and standard deviation over the values of a grouping."""
    cells = groups.agg(["mean", "std"]).fillna(0)
    axis.errorbar(cells.index, cells["mean"], cells["std"], ms=5, lw=1.6, capsize=2, **style)


def rates_figure(
    paper: str,
    table: str,
    runs: Runs,
    *,
    dataset: str,
    model: str = "",
    preset: str = "",
    methods: Sequence[str] = (),
) -> Figure:
    """Draw a metric over the noise rate: printed left, measured right, in the strongest regime on record.

    Parameters
    ----------
    paper, table : str
        Printed table.
    runs : Runs
        From :func:`load_runs`.
    dataset : str
        Data set of the table, as printed.
    model, preset : str
        Of the measured runs; chosen by :func:`ncbook.regime.place_of` where empty.
    methods : sequence of str
        Methods, or ``"method, variant"``; by default every row of the printed table.
    """
    layout = layout_of(paper, table)
    printed = _printed_lines(layout, dataset)
    drawn = methods or list(printed)
    figure, ((left, right),) = plots.panels(1, 2, height=4.4)
    place = place_of(layout, runs, preset=preset, model=model, methods=drawn, figure=True)
    part = select(runs.category if layout.of_labels else runs.retrieval, **place.where)
    rate, metric = ("noise_rate", "map_avg") if layout.of_labels else ("mrate", "rsum")
    if place.protocol and len(part):
        part = part[(part["protocol"] == place.protocol) | (part[rate] == 0)]
    fixed = {name: plots.method_style(name) for name in drawn if ", " not in name}  # no variants
    taken = {style["color"] for style in fixed.values()}
    free = ({"color": c, "marker": m} for c, m in STYLES if c not in taken)
    for name in drawn:
        values = printed.get(name, {})
        own = select(part, method=name.partition(", ")[0], variant=name.partition(", ")[2])
        if not values and not len(own):
            continue
        style = {"label": name, **(fixed.get(name) or next(free))}
        left.plot(list(values), list(values.values()), ms=5, lw=1.6, **style)
        if len(own):
            _draw(right, own.groupby(rate)[metric], **style)
    what = "mean average precision" if layout.of_labels else "rSum (max 600)"
    left.set(xlabel="noise rate", ylabel=what, title=f"Printed, {dataset}", ylim=(0, None))
    title = _measured_title(place, [len(cell) for _, cell in part.groupby(["method", "variant", rate])])
    right.set(xlabel="noise rate", title=title, ylim=(0, None))
    if not right.lines:
        _no_runs(right)
    remark(figure, place.remark)
    for axis in (left, right):
        at = sorted({float(x) for line in axis.lines for x in np.asarray(line.get_xdata(), float)})
        axis.set_xticks(at if len(at) < 9 else [])
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _printed_lines(layout: Layout, dataset: str) -> dict[str, dict[float, float]]:
    """Return by method and variant the printed values by rate: mean of both directions, or rSum on SGR."""
    table = select(printed_sums(layout.paper, layout.table), dataset=dataset)
    table = table if layout.of_labels else select(table, model="sgr")
    names = (table["method"] + ", " + table["variant"]).str.removesuffix(", ")
    parts = table.set_index("rate")["value"].groupby(names.to_list(), sort=False)
    return {name: dict(part.sort_index()) for name, part in parts}


def interval(axis: Axes, d: Difference, y: float, colour: str, mark: str, **look: Any) -> None:
    """Draw the mean of a difference at a height, and its interval from three seeds on."""
    if d.judged:
        axis.plot(d.interval, [y, y], color=colour, lw=2)
    axis.plot(d.mean, y, mark, **{"color": colour, "ms": 6, **look})


def _no_runs(axis: Axes) -> None:
    axis.text(0.5, 0.5, "no recorded runs", transform=axis.transAxes, ha="center", color=plots.NEUTRAL)


def _measured_title(place: Place, seeds: Collection[int]) -> str:
    """Return the title of a panel of measured values, with the number of seeds behind each."""
    noise = [noise_name(place.protocol)] if place.protocol else []
    more = ", ".join([*noise, *([seeds_text(seeds)] if seeds else [])])
    return f"Measured, {place_text(place.where)},\n{more}"


def remark(figure: Figure, text: str) -> None:
    """Write above a figure what differs from the printed noise, or that only short runs exist."""
    if text:
        figure.suptitle(textwrap.fill(text, 110), fontsize=9)


def rows_figure(paper: str, table: str, runs: Runs, *, preset: str = "") -> Figure:
    """Draw rSum of a table's rows: printed left, measured right, in the strongest regime on record.

    Rows stand in the table's order. Left: one mark per block of the table. Right: mean and standard deviation
    over seeds, one mark per rate. Where the paper prints no rSum, the six recalls are added.
    """
    layout = layout_of(paper, table)
    names = list(dict.fromkeys(row["method"] for row in rows_of(paper, table)))
    place = {name: -i for i, name in enumerate(names)}
    figure, ((left, right),) = plots.panels(1, 2, height=1.2 + 0.34 * len(names))
    blocks = list(dict.fromkeys(row["backbone"] for row in rows_of(paper, table)))
    for block, (colour, mark) in zip(blocks, STYLES, strict=False):
        sums = _sums([row for row in rows_of(paper, table) if row["backbone"] == block])
        left.plot(list(sums.values()), [place[n] for n in sums], mark, color=colour, ms=6, label=block)
    measured = place_of(layout, runs, preset=preset, figure=True)
    drawn = _measured_rows(layout, runs, measured)
    rates = sorted({rate for rate, _ in drawn})
    for i, (rate, (colour, mark)) in enumerate(zip(rates, STYLES, strict=False)):
        here = {name: values for (r, name), values in drawn.items() if r == rate}
        mean = [statistics.fmean(v) for v in here.values()]
        std = [spread(v) if len(v) > 1 else 0 for v in here.values()]
        y = [place[name] - 0.12 * (i - (len(rates) - 1) / 2) for name in here]
        right.errorbar(mean, y, xerr=std, fmt=mark, color=colour, ms=5, capsize=2, label=f"rate {rate:g}")
    left.set(yticks=list(place.values()), yticklabels=names, xlabel="rSum", title="Printed, Flickr30K")
    title = _measured_title(measured, [len(values) for values in drawn.values()])
    right.set(yticks=list(place.values()), yticklabels=[], xlabel="rSum", title=title)
    for axis in (left, right):
        axis.set_ylim(min(place.values()) - 0.6, 0.6)
        axis.grid(axis="y", visible=False)
    left.legend(fontsize=8) if len(blocks) > 1 else None
    right.legend(fontsize=8) if rates else _no_runs(right)
    remark(figure, measured.remark)
    return figure


def _sums(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Return the printed rSum by row, or the sum of its recalls."""
    by_method: dict[str, dict[str, float]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["metric"]] = float(row["value"])
    return {name: sum_of(values) for name, values in by_method.items()}


def _measured_rows(layout: Layout, runs: Runs, place: Place) -> dict[tuple[float, str], tuple[float, ...]]:
    """Return the measured rSum by rate and row."""
    rsums = {}
    part = select(runs.retrieval, **place.where)
    for row in rows_of(layout.paper, layout.table):
        run = run_of(layout, row)
        if run is None:
            continue
        for rate in place.rates:
            where = {"mrate": rate} | ({"protocol": place.protocol} if place.protocol and rate else {})
            own = select(part, method=run.method, variant=run.variant, **where)
            if len(own):
                rsums[rate, row["method"]] = tuple(own["rsum"])
    return rsums


def sweep_figure(
    runs: Runs,
    option: str,
    *,
    xlabel: str,
    scale: str = "linear",
    preset: str = "",
    model: str = "",
    **where: Any,
) -> Figure:
    """Draw the recalls over the values of one option, image to text on the left, text to image on the right.

    Parameters
    ----------
    runs : Runs
    option : str
        Name of an option of a method or model whose values are numbers.
    xlabel : str
        What the option is.
    scale : {"linear", "log"}
        Of the axis of its values.
    preset, model : str
        Of the runs; those in which most values were recorded where empty, see
        :func:`ncbook.regime.strongest`.
    **where
        Column = value pairs of the runs, such as ``method="l2rm", mrate=0.2``.

    Returns
    -------
    Figure
        Mean and standard deviation over seeds, with a dotted line at the usual value; with fewer than two
        recorded values a line of text.
    """
    where |= {k: v for k, v in (("preset", preset), ("model", model)) if v}
    table = select(runs.retrieval, **where)
    variants = {v for v in table.get("variant", ()) if not v or (v.startswith(f"{option}=") and "," not in v)}
    table = select(table, variant=sorted(variants))
    place = strongest(table, ["variant"])
    table = select(table, **place)
    usual = usual_value(table, option)
    values = {
        variant: float(variant.removeprefix(f"{option}=")) if variant else usual
        for variant in set(table.get("variant", ()))
    }
    figure, (axes,) = plots.panels(1, 2, height=3.4)
    ticks = sorted(values.values())
    for axis, way, title in zip(axes, ("i2t", "t2i"), ("image to text", "text to image"), strict=True):
        axis.set(xlabel=xlabel, title=title)
        if len(values) < 2:
            _no_runs(axis)
            continue
        groups = table.groupby(table["variant"].map(values))
        for (colour, mark), k in zip(STYLES, (10, 5, 1), strict=False):
            _draw(axis, groups[f"{way}_r{k}"], color=colour, marker=mark, label=f"R@{k}")
        axis.set_xscale(scale)
        axis.set_xticks(ticks, [f"{v:g}" for v in ticks], rotation=45)
        axis.minorticks_off()
        axis.axvline(usual, color=plots.NEUTRAL, lw=1, ls=":")
    axes[0].set_ylabel("recall, %")
    if len(values) > 1:
        said = f"Measured, {place_text(place)}, {seeds_text(set(table.groupby('variant').size()))}."
        remark(figure, f"{said} {ONLY_SHORT if place['preset'] == SMALL and not preset else ''}".strip())
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure
