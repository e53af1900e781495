"""Two networks that teach each other, beside two that were trained apart and averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ncbook.board import ALONE, AVERAGED, DATA_NAMES, ONE, REAL, TWO, is_marked, scored
from ncbook.compare import Difference, paired
from ncbook.figures import interval
from ncbook.marks import OUTDATED, marks_of
from ncbook.notebook import NOT_RUN
from ncbook.runs import Runs, select
from ncbook.statistics import judged
from nclib import plots

GCE = "plain (gce)"
OF = {  # what a method with two networks trains with, as a label of the board
    "ncr": "plain (triplet)",
    "bicro": "plain (triplet)",
    "mscn": "plain (triplet)",
    "repair": "plain (triplet)",
    "pcsr": "plain (triplet)",
    "sps": "plain (infonce)",
    "cream": "plain (infonce)",
    "in2r": "plain (infonce_rce)",
    "gsc_plus": "gsc",
    "crank_plus": "crank",
}
RATES = (0.0, 0.4, 0.6)
PLACES: dict[str, dict[str, Any]] = {
    **{dataset: {"dataset": dataset, **where} for dataset, where in REAL["pairs"].items()},
    "emoji": {"dataset": "emoji", "preset": "quick", "model": "vse", "protocol": "images"},
}
"""Where both kinds of pairs are recorded, by data set."""


def against_averaged(runs: Runs, dataset: str, rate: float) -> dict[str, tuple[Difference, Difference]]:
    """Return each method with two networks minus the averaged pair of its own loss, and minus that of GCE.

    Parameters
    ----------
    runs : Runs
        From :func:`ncbook.load_runs`.
    dataset : str
        One of :data:`PLACES`.
    rate : float
        Share of the images that were exchanged.

    Returns
    -------
    dict
        By method, in the order of :data:`OF`; over shared seeds, which draw the same noise. Without values
        where a side is not recorded or not ranked.
    """
    part = select(scored(runs), **PLACES[dataset], networks=TWO, rate=float(rate))
    part = part[~is_marked(part)] if len(part) else part

    def minus(method: str, label: str) -> Difference:
        pair = part[part["label"] == label + AVERAGED]
        return paired(part[part["label"] == method], pair, "value", name=method)

    return {method: (minus(method, own), minus(method, GCE)) for method, own in OF.items()}


def standing(
    runs: Runs, dataset: str = "f8k", rate: float = 0.6, *, gce: bool = True
) -> dict[str, list[str]]:
    """Return the methods with two networks that are above an averaged pair, level with it, and below.

    Parameters
    ----------
    runs, dataset, rate
        As for :func:`against_averaged`.
    gce : bool
        Beside the pair of GCE, or beside that of the method's own loss.

    Returns
    -------
    dict
        Methods by ``above``, ``level`` and ``below``, by the rule of :mod:`ncbook.statistics`, and
        ``fewer than three seeds``.
    """
    groups: dict[str, list[str]] = {"above": [], "level": [], "below": [], "fewer than three seeds": []}
    found = judged({m: both[gce] for m, both in against_averaged(runs, dataset, rate).items()})
    for method, one in found.items():
        groups[one.sign.replace("not judged", "fewer than three seeds")].append(method)
    return groups


def standing_text(runs: Runs, dataset: str = "f8k", rate: float = 0.6) -> str:
    """Say what :func:`standing` returns, for both kinds of pairs."""
    lines = [
        f"{DATA_NAMES[dataset]}, {rate:.0%} wrong pairs: methods whose networks teach each other, beside"
    ]
    for gce, name in ((False, "the averaged pair of their own loss"), (True, "the averaged pair of GCE")):
        found = standing(runs, dataset, rate, gce=gce).items()
        said = "; ".join(f"{sign}: {', '.join(names)}" for sign, names in found if names)
        lines.append(f"  {name}: {said}")
    return "\n".join(lines)


def averaged_figure(runs: Runs, dataset: str = "f8k", rates: Sequence[float] = RATES) -> Figure:
    """Draw each method with two networks against two averaged networks, mean and 95 % interval by rate.

    Parameters
    ----------
    runs : Runs
        From :func:`ncbook.load_runs`.
    dataset : str
        One of :data:`PLACES`.
    rates : sequence of float
        A panel each.

    Returns
    -------
    Figure
        Right of zero the method is ahead of the pair. One shared seed is a hollow mark; without any a row
        says not run.
    """
    figure, (axes,) = plots.panels(1, len(rates), width=3.2 * len(rates), height=4.2, sharey=True)
    kinds = (("pair of its own loss", plots.ACCENT, "s", 0.17), ("pair of GCE", plots.THIRD, "o", -0.17))
    for axis, rate in zip(axes, rates, strict=True):
        for row, differences in enumerate(against_averaged(runs, dataset, rate).values()):
            for (name, colour, mark, up), d in zip(kinds, differences, strict=True):
                look = {"mfc": colour, "label": f"minus the averaged {name}"}
                if d.n == 1:
                    look = {"mfc": "none", "label": f"{look['label']}, one seed"}
                if d.n:
                    interval(axis, d, up - row, colour, mark, **look)
            if not any(d.n for d in differences):
                axis.annotate(
                    NOT_RUN, (0.5, -row), xycoords=("axes fraction", "data"), ha="center", va="center",
                    fontsize=8, color=plots.NEUTRAL,
                )  # fmt: skip
        axis.axvline(0, color="#444444", lw=1)
        axis.set(title=f"rate {rate:g}", xlabel="difference in rSum", ylim=(0.6 - len(OF), 0.6))
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks([-row for row in range(len(OF))], list(OF))
    _legend(figure, axes)
    return figure


def cost_figure(runs: Runs, dataset: str = "f8k", rates: Sequence[float] = RATES) -> Figure:
    """Draw rSum against seconds of training, with 1, 2 and 4 averaged networks of GCE as a line.

    Parameters
    ----------
    runs, dataset, rates
        As for :func:`averaged_figure`.

    Returns
    -------
    Figure
        One point for each method with one network, and for each with two that teach each other; means over
        the seeds. A point marked † or * (:data:`ncbook.marks.MARKS`) is not ranked. Above the line a method
        gains more than as much time spent on further networks.
    """
    figure, (axes,) = plots.panels(1, len(rates), width=3.4 * len(rates), height=4.2)
    every = select(scored(runs), **PLACES[dataset])
    every = every[(every["networks"] != ALONE) & ~every["label"].str.endswith(AVERAGED).astype(bool)]
    for axis, rate in zip(axes, rates, strict=True):
        for label, own in select(every, rate=float(rate)).groupby("label"):
            style = plots.method_style(str(label))
            face = style["color"] if (own["networks"] == ONE).all() else "none"
            at = own["seconds"].mean(), own["value"].mean()
            axis.plot(
                *at, style["marker"], color=style["color"], markerfacecolor=face, ms=7, label=str(label)
            )
            if marks := "".join(mark for mark in marks_of(own, "value") if mark != OUTDATED):
                axis.annotate(marks, at, (0, 6), textcoords="offset points", ha="center")
        line = gce_line(runs, dataset, rate)
        if len(line):
            axis.plot(line["seconds"], line["rsum"], "-", color=plots.method_style(GCE)["color"], zorder=1)
            for n, at in line.iterrows():
                axis.annotate(
                    f"{n}", (at["seconds"], at["rsum"]), (0, 7), textcoords="offset points", ha="center"
                )
            axis.margins(y=0.1)
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        else:
            axis.text(0.5, 0.5, NOT_RUN, transform=axis.transAxes, ha="center", color=plots.NEUTRAL)
        axis.set(title=f"rate {rate:g}", xlabel="seconds of training", ylabel="rSum")
    _legend(figure, axes)
    return figure


def gce_line(runs: Runs, dataset: str, rate: float) -> pd.DataFrame:
    """Return the mean ``seconds`` and ``rsum`` of averaged networks of GCE, by their number."""
    table = select(runs.retrieval, **PLACES[dataset], method="plain", mrate=float(rate))
    kinds = {1: "loss=gce", **{n: f"loss=gce, networks={n}" for n in (2, 4)}}
    table = select(table, variant=list(kinds.values())) if len(table) else table
    if table.empty:
        return table
    spent = table.get("cpu_seconds", table["seconds"]).fillna(table["seconds"])
    return table.assign(seconds=spent).groupby("networks")[["seconds", "rsum"]].mean()


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend of what the panels show, below them."""
    shown = {
        name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if shown:
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=5, fontsize=8)
