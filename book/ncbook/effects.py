"""Effect sizes: which share of what wrong pairs or labels cost an undefended network a method wins back."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ncbook.board import DATA_NAMES
from ncbook.compare import Difference, by_seed
from ncbook.layouts import layout_of
from ncbook.match import run_of
from ncbook.page import Cell, Table, csv_text
from ncbook.papers import rows_of
from ncbook.runs import Runs, select
from nclib import plots

METRICS = {"mismatch": "rsum", "labels": "map_avg"}
RATE = {"rsum": "mrate", "map_avg": "noise_rate"}


@dataclass(frozen=True)
class Study:
    """The comparison of a paper whose effect is measured again.

    Parameters
    ----------
    table : str
        Printed table, with the methods at every rate.
    methods : sequence of str
        Methods that are drawn, of those that the table prints and that are compared here.
    undefended : str
        Method that trains on wrong pairs or labels as if they were right.
    kind : {"mismatch", "labels"}
    from_rate : float
        Rate whose undefended value counts as unharmed; 0 is matched pairs.
    clean : tuple of str
        Paper and table that print the undefended network without noise, where ``from_rate`` is 0.
    model : str
        Similarity model of the printed rows.
    shown : sequence of float
        Rates of the figure: those where the undefended network loses much more than the spread of the seeds.
    """

    table: str
    methods: Sequence[str]
    undefended: str = "plain"
    kind: str = "mismatch"
    from_rate: float = 0.0
    clean: tuple[str, str] | tuple[()] = ("L2RM", "7")
    model: str = "sgr"
    shown: Sequence[float] = (0.4, 0.6)

    @property
    def metric(self) -> str:
        """Column of the records that is compared."""
        return METRICS[self.kind]


STUDIES = {
    "L2RM": Study("6", ("ncr", "decl", "bicro", "rcl", "l2rm")),
    "REPAIR": Study("I", ("ncr", "decl", "bicro", "mscn", "repair")),
    "UOT-RCL": Study(
        table="II",
        methods=("sdml", "dscmr", "mrl", "elrcmr", "uot_rcl"),
        undefended="deep_sm",
        kind="labels",
        from_rate=0.2,
        clean=(),
        model="",
        shown=(0.6, 0.8),
    ),
}
SMALL = "quick"  # the preset in which runs are too short to show an effect
PROTOCOLS: dict[str, list[str]] = {"images": [], "captions": ["captions"], "symmetric": []}  # and their words


def won_back(method: pd.Series, undefended: pd.Series, unharmed: pd.Series) -> pd.Series:
    """Return (method - undefended) / (unharmed - undefended), of values with the same index.

    1 is a method that noise costs nothing, 0 one that is worth no more than no defence.

    Examples
    --------
    >>> won_back(pd.Series([180.0]), pd.Series([100.0]), pd.Series([260.0])).tolist()
    [0.5]
    """
    return (method - undefended) / (unharmed - undefended)


def printed_effects(paper: str) -> pd.DataFrame:
    """Return the shares that a paper's table prints.

    Returns
    -------
    DataFrame
        Columns ``method``, ``dataset``, ``rate`` and ``share``.
    """
    study = STUDIES[paper]
    values = _printed(paper, study.table, study)
    if study.clean:
        values |= {k: v for k, v in _printed(*study.clean, study).items() if k[2] == 0}
    rows = []
    for (dataset, method, rate), value in values.items():
        low = values.get((dataset, study.undefended, rate))
        high = values.get((dataset, study.undefended, study.from_rate))
        if method in study.methods and rate > study.from_rate and low is not None and high is not None:
            share = won_back(*(pd.Series([v]) for v in (value, low, high)))[0]
            rows.append((method, dataset, rate, float(share)))
    return pd.DataFrame(rows, columns=["method", "dataset", "rate", "share"])


def _printed(paper: str, table: str, study: Study) -> dict[tuple[str, str, float], float]:
    """Return the printed values of a table by data set, method and rate: rSum, or the mean of both mAPs."""
    layout, found = layout_of(paper, table), dict[tuple[str, str, float], list[float]]()
    for row in rows_of(paper, table):
        run = run_of(layout, row)
        is_sum = row.get("metric", "rsum") == "rsum" and row["noise_rate"]
        if run is not None and is_sum and run.model == study.model and not run.options:
            place = row["dataset"], run.method, float(row["noise_rate"])
            found.setdefault(place, []).append(float(row.get("value") or row["map"]))
    return {place: statistics.fmean(values) for place, values in found.items()}


def measured_effects(paper: str, runs: Runs) -> pd.DataFrame:
    """Return the shares that recorded runs show, of every data set, preset and model with all three rows.

    Runs of the preset ``quick`` are left out. The three rows of a share have the same seed, and so the same
    noise and first weights.

    Returns
    -------
    DataFrame
        Columns ``method``, ``place`` (data set, preset, model and unusual noise in words), ``rate`` and
        ``share``, a :class:`~ncbook.compare.Difference` whose values are the shares by seed.
    """
    study = STUDIES[paper]
    table = runs.retrieval if study.kind == "mismatch" else runs.category
    rows, columns = list[Any](), ["method", "place", "rate", "share"]
    if table.empty:
        return pd.DataFrame(rows, columns=columns)
    rate = RATE[study.metric]
    table = select(table, variant="")
    table = table[(table["preset"] != SMALL) & table["protocol"].isin(PROTOCOLS)]
    places = [k for k in ("dataset", "preset", "model") if k in table]

    def of(part: pd.DataFrame, method: str, level: float) -> pd.Series:
        found = select(part, method=method, **{rate: level})
        return found.groupby("seed")[study.metric].mean()

    for place, whole in table.groupby(places, sort=False):
        dataset, *more = place
        high = of(whole, study.undefended, study.from_rate)  # without noise every protocol is the same
        noisy = whole[whole[rate] > study.from_rate]
        for (protocol, level), part in noisy.groupby(["protocol", rate], sort=False):
            low = of(part, study.undefended, level)
            words = ", ".join([DATA_NAMES.get(dataset, dataset), *more, *PROTOCOLS[protocol]])
            for method in study.methods:
                share = by_seed(won_back(of(part, method, level), low, high), digits=2)
                if share.n:
                    rows.append((method, words, level, share))
    return pd.DataFrame(rows, columns=columns)


def effects_figure(paper: str, runs: Runs) -> Figure:
    """Draw the share of the loss that each method wins back, printed and measured, a panel a rate.

    Hollow marks are printed, filled ones measured, with the 95 % interval over seeds.
    """
    study = STUDIES[paper]
    printed, measured = printed_effects(paper), measured_effects(paper, runs)
    places = list(dict.fromkeys([*printed["dataset"], *measured["place"]]))
    looks = dict(zip(places, itertools.cycle(zip(plots.CYCLE, plots.MARKS, strict=True)), strict=False))
    shift = {place: 0.7 * (i / max(len(places) - 1, 1) - 0.5) for i, place in enumerate(places)}
    height = 1.6 + 0.14 * len(study.methods) * max(len(places), 3)
    figure, (axes,) = plots.panels(1, len(study.shown), height=height, sharey=True, sharex=True)
    for axis, rate in zip(axes, study.shown, strict=True):
        for row in select(printed, rate=rate).itertuples():
            colour, mark = looks[row.dataset]
            y = study.methods.index(row.method) + shift[row.dataset]
            axis.plot(row.share, y, mark, mec=colour, mfc="none", ms=7, mew=1.6)
        for row in select(measured, rate=rate).itertuples():
            colour, mark = looks[row.place]
            y = study.methods.index(row.method) + shift[row.place]
            if row.share.n > 1:
                axis.plot(row.share.interval, [y, y], color=colour, lw=2)
            axis.plot(row.share.mean, y, mark, color=colour, ms=6)
        for at in (0, 1):
            axis.axvline(at, color="#444444", lw=1, ls=("-", ":")[at])
        axis.set(
            title=f"noise rate {rate:g}",
            xlabel="share of the loss won back",
            xlim=(-0.6, 1.6 if study.kind == "labels" else 1.15),
        )
        axis.grid(axis="y", visible=False)
    axes[0].set(yticks=range(len(study.methods)), yticklabels=study.methods)
    axes[0].invert_yaxis()
    hollow = set(printed["dataset"])
    for place, (colour, mark) in looks.items():
        fill = {"mfc": "none"} if place in hollow else {}
        name = f"printed: {place}" if place in hollow else f"measured: {place}"
        axes[0].plot([], [], mark, color=colour, label=name, **fill)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def effects_table(paper: str, runs: Runs) -> Table:
    """Return the shares of :func:`effects_figure` in numbers, one row a method and rate."""
    printed, measured = printed_effects(paper), measured_effects(paper, runs)
    study = STUDIES[paper]
    heads = [("printed", name) for name in dict.fromkeys(printed["dataset"])]
    heads += [("measured", name) for name in dict.fromkeys(measured["place"])]
    shown = [(kind, *(part.strip() for part in name.partition(",")[::2])) for kind, name in heads]
    rows, lines = [], []
    for method in study.methods:
        for rate in sorted({*select(printed, method=method)["rate"]}):
            cells = []
            for kind, name in heads:
                if kind == "printed":
                    found = select(printed, method=method, rate=rate, dataset=name)["share"]
                    cells.append(_number(found.iloc[0]) if len(found) else "–")
                else:
                    own = select(measured, method=method, rate=rate, place=name)["share"]
                    cells.append(_share_text(own.iloc[0]) if len(own) else "not run")
            rows.append(([Cell(method), Cell(f"{rate:g}")], [_cell(c) for c in cells]))
            lines.append([method, f"{rate:g}", *cells])
    unharmed = "matched pairs" if not study.from_rate else f"label noise {study.from_rate:g}"
    return Table(
        slug=f"shares-{paper.lower()}",
        title=f"{paper}: share of the loss won back, printed and measured",
        kind="effects",
        lines=[
            f"(method − {study.undefended}) / ({study.undefended} on {unharmed} − {study.undefended})",
            "Measured: mean over seeds, 95 % interval (seeds).",
        ],
        names=("method", "rate"),
        columns=shown,
        rows=rows,
        file=csv_text(["method", "rate", *(f"{kind}: {name}" for kind, name in heads)], lines),
        closed=True,
    )


def _share_text(share: Difference) -> str:
    low, high = share.interval
    interval = f"\n[{low:.2f}, {high:.2f}] ({share.n})" if share.n > 1 else "\n(1)"
    return f"{_number(share.mean)}{interval}"


def _number(share: float) -> str:
    return f"{round(share, 2) + 0.0:.2f}"  # no minus before a zero


def _cell(text: str) -> Cell:
    number, _, rest = text.partition("\n")
    return Cell(number, own=rest, kind="nc-none" if number == "not run" else "")


def row_gains(paper: str, table: str, base: str, runs: Runs) -> pd.DataFrame:
    """Return the points of rSum that rows of a table without noise gain over one of them.

    Parameters
    ----------
    paper, table : str
        As in :func:`ncbook.paper_table`.
    base : str
        Printed name of the row that is subtracted.
    runs : Runs

    Returns
    -------
    DataFrame
        Columns ``method``, the printed name; ``place``, printed features, or data set and preset in words;
        ``kind``, printed or measured; and ``gain``, a :class:`~ncbook.compare.Difference` by seed.
    """
    layout = layout_of(paper, table)
    found = [row for row in rows_of(paper, table) if row["metric"] == "rsum"]
    own = {row["method"]: run for row in found if (run := run_of(layout, row))}
    sums: dict[tuple[str, str, str], dict[str, pd.Series]] = {}
    for row in found:
        place = ("printed", row["dataset"], row["backbone"])
        sums.setdefault(place, {})[row["method"]] = pd.Series([float(row["value"])])
    matched = select(runs.retrieval, mrate=0.0)
    for (dataset, preset), part in matched.groupby(["dataset", "preset"]) if len(matched) else ():
        sums["measured", DATA_NAMES.get(dataset, dataset), preset] = {
            name: select(part, method=run.method, model=run.model, variant=run.variant)
            .groupby("seed")["rsum"]
            .mean()
            for name, run in own.items()
        }
    rows = [
        (name, f"{data}, {more}", kind, gain)
        for (kind, data, more), of in sums.items()
        for name in of
        if name != base and (gain := by_seed(of[name] - of[base])).n
    ]
    return pd.DataFrame(rows, columns=["method", "place", "kind", "gain"])


def row_gains_figure(paper: str, table: str, base: str, runs: Runs) -> Figure:
    """Draw :func:`row_gains`: hollow marks are printed, filled ones measured, with the 95 % interval."""
    found = row_gains(paper, table, base, runs)
    names, places = list(dict.fromkeys(found["method"])), list(dict.fromkeys(found["place"]))
    figure, ((axis,),) = plots.panels(1, 1, width=7.0, height=1.4 + 0.14 * len(names) * max(len(places), 3))
    for i, (place, colour, mark) in enumerate(zip(places, plots.CYCLE, plots.MARKS, strict=False)):
        part = select(found, place=place)
        y = [names.index(name) + 0.7 * ((i + 0.5) / len(places) - 0.5) for name in part["method"]]
        fill = {"mfc": "none", "mew": 1.6} if (part["kind"] == "printed").all() else {}
        for at, gain in zip(y, part["gain"], strict=True):
            if gain.n > 1:
                axis.plot(gain.interval, [at, at], color=colour, lw=2)
        mean = [gain.mean for gain in part["gain"]]
        axis.plot(mean, y, mark, color=colour, label=f"{part['kind'].iloc[0]}: {place}", ls="", **fill)
    axis.axvline(0, color="#444444", lw=1)
    axis.set(yticks=range(len(names)), yticklabels=names, xlabel=f"points of rSum above {base}")
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    return figure
