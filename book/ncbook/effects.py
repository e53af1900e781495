"""Effect sizes: which share of what wrong pairs cost an undefended network a method wins back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ncbook import plots
from ncbook.board import data_name
from ncbook.compare import Difference, by_seed
from ncbook.figures import interval, remark
from ncbook.layouts import LAYOUTS, layout_of
from ncbook.marks import explained, marks_of
from ncbook.match import DATASETS, printed_sums, run_of
from ncbook.page import Cell, Table, csv_text
from ncbook.papers import rows_of
from ncbook.regime import SMALL
from ncbook.runs import Runs, select


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
        Method that trains on wrong pairs as if they were right.
    clean : tuple of str
        Paper and table that print the undefended network without noise.
    model : str
        Similarity model of the printed rows.
    simple : sequence of str
        Labels of rows that were measured alone: plain training with other losses, the closed form.
    shown : sequence of float
        Rates of the figure: those where the undefended network loses much more than the spread of the seeds.
    """

    table: str
    methods: Sequence[str]
    undefended: str = "plain"
    clean: tuple[str, str] = ("L2RM", "7")
    model: str = "sgr"
    simple: Sequence[str] = ("plain (infonce)", "plain (infonce_rce)", "plain (gce)", "linear")
    shown: Sequence[float] = (0.4, 0.6)

    @property
    def rows(self) -> list[str]:
        """Labels of the rows of figure and table, the simple ones first."""
        return [*self.simple, *self.methods]


STUDIES = {
    "L2RM": Study("6", ("ncr", "decl", "bicro", "rcl", "l2rm")),
    "REPAIR": Study("I", ("ncr", "decl", "bicro", "mscn", "repair")),
}
PRINTED = {name: dataset for dataset, name in DATASETS.items()}  # data set -> printed name
FILL: dict[str, dict[str, Any]] = {"printed": {"mfc": "none", "mew": 1.6, "ms": 7}, "measured": {}}
MISSING = {"printed": "–", "measured": "not run"}
PROTOCOLS: dict[str, list[str]] = {"images": [], "captions": ["captions"]}  # and their words


def reader(label: str) -> str:
    """Return what readers call a row of figure and table."""
    return next((name for name, known in plots.NAMES.items() if known == label), label)


def won_back(method: pd.Series, undefended: pd.Series, unharmed: pd.Series) -> pd.Series:
    """Return (method - undefended) / (unharmed - undefended), of values with the same index.

    1 is a method that noise costs nothing, 0 one that is worth no more than no defence.

    Examples
    --------
    >>> won_back(pd.Series([180.0]), pd.Series([100.0]), pd.Series([260.0])).tolist()
    [0.5]
    """
    return (method - undefended) / (unharmed - undefended)


def with_shares(table: pd.DataFrame, study: Study, least: float = 0) -> pd.DataFrame:
    """Return runs with the column ``won_back``: the share of the loss that each wins back.

    The three runs of a share have the same data, preset, model and seed, and so the same noise and first
    weights; it is missing where one of them is, and at noise rates below ``least``.
    """
    place = ["dataset", "preset", "model", "seed"]
    noise = [*place, "protocol", "mrate"]
    undefended = select(table, method=study.undefended, variant="")
    high = select(undefended, mrate=0.0).groupby(place)["rsum"].mean().rename("high")
    low = undefended[undefended["mrate"] > 0].groupby(noise)["rsum"].mean().rename("low")
    both = table[noise].join(low, on=noise).join(high, on=place)
    share = won_back(table["rsum"], both["low"], both["high"])
    return table.assign(won_back=share.where(table["mrate"] >= least))


@functools.cache
def printed_runs(paper: str) -> pd.DataFrame:
    """Return the values that a paper prints under noise, with their shares, as runs on its data with seed 0.

    Of a row that several tables print, that of the study counts.
    """
    study, tables = STUDIES[paper], [table for name, table in LAYOUTS if name == paper]
    keys = [(paper, study.table), study.clean, *((paper, t) for t in tables)]
    shares = [
        printed_sums(*key).assign(protocol=LAYOUTS[key].noise)
        for key in dict.fromkeys(keys)
        if len(printed_sums(*key))
    ]
    table = pd.concat(shares).rename(columns={"rate": "mrate", "value": "rsum"})
    table = table.drop_duplicates(["dataset", "method", "variant", "model", "mrate"])
    table = table.assign(dataset=table["dataset"].map(DATASETS), preset="paper", seed=0, networks=1)
    return with_shares(table.reset_index(drop=True), study)


def printed_effects(paper: str) -> pd.DataFrame:
    """Return the shares that a paper's table prints.

    Returns
    -------
    DataFrame
        Columns ``method``, ``dataset``, ``rate`` and ``share``.
    """
    study, own = STUDIES[paper], printed_runs(paper)
    own = own[own["dataset"].map(PRINTED).isin(printed_sums(paper, study.table)["dataset"])]
    chosen = select(own, variant="", model=study.model, method=list(study.methods))
    chosen = chosen.rename(columns={"mrate": "rate", "won_back": "share"}).dropna(subset="share")
    return chosen.assign(dataset=chosen["dataset"].map(PRINTED))[["method", "dataset", "rate", "share"]]


def measured_effects(paper: str, runs: Runs) -> pd.DataFrame:
    """Return the shares that recorded runs show, of every data set, preset and model with all three rows.

    Runs of the preset ``quick`` are left out.

    Returns
    -------
    DataFrame
        Columns ``method``, ``place`` (data set, preset, model and unusual noise in words), ``rate`` and
        ``share``, a :class:`~ncbook.compare.Difference` whose values are the shares by seed.
    """
    study, table = STUDIES[paper], runs.retrieval
    rows, columns = list[Any](), ["method", "place", "rate", "share"]
    if table.empty:
        return pd.DataFrame(rows, columns=columns)
    losses = [label.removeprefix("plain (").removesuffix(")") for label in study.simple if "(" in label]
    table = with_shares(select(table, variant=["", *(f"loss={loss}" for loss in losses)]), study)
    simple = table["variant"] != ""
    label = table["method"].where(~simple, "plain (" + table["variant"].str.removeprefix("loss=") + ")")
    table = table.assign(label=label)[~simple | (table["method"] == "plain")]
    table = table[(table["preset"] != SMALL) & table["protocol"].isin(PROTOCOLS)].dropna(subset="won_back")
    table = select(table, label=study.rows)
    of = ["dataset", "preset", "model", "protocol", "mrate", "label"]
    for (dataset, preset, model, protocol, rate, method), part in table.groupby(of, sort=False):
        words = ", ".join([data_name(dataset), preset, model, *PROTOCOLS[protocol]])
        share = by_seed(part.groupby("seed")["won_back"].mean(), digits=2)
        rows.append((method, words, rate, replace(share, marks=marks_of(part))))
    return pd.DataFrame(rows, columns=columns)


def effects_figure(paper: str, runs: Runs) -> Figure:
    """Draw the share of the loss that each method wins back, printed and measured, a panel a rate.

    Hollow marks are printed, filled ones measured, with the 95 % interval over seeds.
    """
    study, both = STUDIES[paper], _both(paper, runs)
    places = dict(zip(both["place"], both["kind"], strict=True))
    looks = dict(zip(places, itertools.cycle(zip(plots.CYCLE, plots.MARKS, strict=True)), strict=False))
    shift = {place: 0.7 * (i / max(len(places) - 1, 1) - 0.5) for i, place in enumerate(places)}
    height = 1.6 + 0.14 * len(study.rows) * max(len(places), 3)
    figure, (axes,) = plots.panels(1, len(study.shown), height=height, sharey=True, sharex=True)
    for axis, rate in zip(axes, study.shown, strict=True):
        for row in select(both, rate=rate).itertuples():
            y = study.rows.index(row.method) + shift[row.place]
            colour, mark = looks[row.place]
            interval(axis, row.share, y, colour, mark, **FILL[row.kind])
            place = {"xytext": (4, 1), "textcoords": "offset points", "fontsize": 8}
            axis.annotate("".join(row.share.marks), (row.share.mean, y), **place)
        for at in (0, 1):
            axis.axvline(at, color="#444444", lw=1, ls=("-", ":")[at])
        axis.set(title=f"noise rate {rate:g}", xlabel="share of the loss won back")
        axis.grid(axis="y", visible=False)
    axes[0].set(yticks=range(len(study.rows)), yticklabels=[reader(label) for label in study.rows])
    axes[0].set_ylim(len(study.rows) - 0.4, -0.6)
    for place, (colour, mark) in looks.items():
        kind = places[place]
        axes[0].plot([], [], mark, color=colour, label=f"{kind}: {place}", **FILL[kind])
    remark(figure, _explained(select(both, rate=list(study.shown))))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _both(paper: str, runs: Runs) -> pd.DataFrame:
    """Return the printed and the measured shares with their ``kind``, each as a difference."""
    printed = printed_effects(paper).rename(columns={"dataset": "place"}).assign(kind="printed")
    printed["share"] = [Difference((share,), digits=2) for share in printed["share"]]
    return pd.concat([printed, measured_effects(paper, runs).assign(kind="measured")], ignore_index=True)


def effects_table(paper: str, runs: Runs) -> Table:
    """Return the shares of :func:`effects_figure` in numbers, one row a method and rate."""
    study, both = STUDIES[paper], _both(paper, runs)
    heads = list(dict.fromkeys(zip(both["kind"], both["place"], strict=True)))
    shown = [(kind, *(part.strip() for part in name.partition(",")[::2])) for kind, name in heads]
    rates = sorted(set(both.loc[both["kind"] == "printed", "rate"]))
    rows, lines = [], []
    for method, rate in itertools.product(study.rows, rates):
        columns = [select(both, method=method, rate=rate, kind=kind, place=place) for kind, place in heads]
        cells = [
            _share_text(kind, own["share"].iloc[0]) if len(own) else MISSING[kind]
            for (kind, _), own in zip(heads, columns, strict=True)
        ]
        rows.append(([Cell(reader(method)), Cell(f"{rate:g}")], [_cell(c) for c in cells]))
        lines.append([reader(method), f"{rate:g}", *cells])
    return Table(
        slug=f"shares-{paper.lower()}",
        title=f"{paper}: share of the loss won back, printed and measured",
        kind="effects",
        lines=[
            f"(method − {study.undefended}) / ({study.undefended} on matched pairs − {study.undefended})",
            "Measured: mean over seeds, 95 % interval (seeds).",
            _explained(both),
        ],
        names=("method", "rate"),
        columns=shown,
        rows=rows,
        file=csv_text(["method", "rate", *(f"{kind}: {name}" for kind, name in heads)], lines),
        closed=True,
    )


def _explained(both: pd.DataFrame) -> str:
    return explained(mark for share in both["share"] for mark in share.marks)


def _share_text(kind: str, share: Difference) -> str:
    (low, high), number = share.interval, f"{round(share.mean, 2) + 0.0:.2f}"  # no minus before a zero
    if kind == "printed":
        return number
    ends = f"[{low:.2f}, {high:.2f}] " if share.judged else ""
    return " ".join([f"{number}\n{ends}({share.n})", *share.marks])


def _cell(text: str) -> Cell:
    number, _, rest = text.partition("\n")
    return Cell(number, own=rest, kind="nc-none" if number == "not run" else "")


def row_gains(paper: str, table: str, base: str, runs: Runs) -> pd.DataFrame:
    """Return the points of rSum that rows of a table without noise gain over one of them.

    Runs of the preset ``quick`` are left out where longer ones were recorded.

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
    printed_rows = [row for row in rows_of(paper, table) if row["metric"] == "rsum"]
    own = {row["method"]: run for row in printed_rows if (run := run_of(layout, row))}
    sums: dict[tuple[str, str, str], dict[str, pd.Series]] = {}
    for row in printed_rows:
        place = ("printed", row["dataset"], row["backbone"])
        sums.setdefault(place, {})[row["method"]] = pd.Series([float(row["value"])])
    matched = select(runs.retrieval, mrate=0.0)
    for (dataset, preset), part in matched.groupby(["dataset", "preset"]) if len(matched) else ():
        sums["measured", data_name(dataset), preset] = {
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
    longer = {kind for _, place, kind, _ in rows if not place.endswith(SMALL)}
    rows = [row for row in rows if row[2] not in longer or not row[1].endswith(SMALL)]
    return pd.DataFrame(rows, columns=["method", "place", "kind", "gain"])
