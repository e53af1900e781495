"""Figures and tables of the chapter on category retrieval that its runs on drawn objects make."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import papers, show
from ncbook.layouts import DIRECTION
from ncbook.match import category_method
from ncbook.papers import wide
from nclib import Record, plots
from nclib.runs import LoadedRun

FAMILIES = {
    "no labels": ["pls", "mcca", "dcca", "dccae"],
    "discriminant": ["gma", "mvda", "gss_regression"],
    "deep": ["deep_sm", "acmr", "sdml", "dscmr", "fgcrossnet_losses"],
    "robust": ["mrl", "elrcmr", "uot_rcl", "nirnl"],
}
MAPS = {"map_i2t": "image → text", "map_t2i": "text → image"}
NOT_RERUN = ("GSS-SL", "FGCrossNet", "SMLN")  # printed rows whose methods cannot be had
UNLABELLED = ("mcca", "pls", "dcca", "dccae")  # label noise cannot change them
RATES = (0.2, 0.4, 0.6, 0.8)


def printed_methods() -> dict[str, str]:
    """Return the methods that are rerun under their printed name: printed name -> method."""
    names = dict.fromkeys(row["method"] for row in papers.rows_of("UOT-RCL", "II"))
    return {name: category_method(name) for name in names if name not in NOT_RERUN}


def printed_map(table: str, dataset: str) -> pd.DataFrame:
    """Return a printed table of UOT-RCL, one row per method, columns (direction, noise rate), in [0, 1].

    A ValueError when the paper has no such table for that data.
    """
    rows = papers.printed("category_map", paper="UOT-RCL", table=table, dataset=dataset)
    if rows.empty:
        raise ValueError(f"UOT-RCL has no values for {dataset!r} in Table {table!r}")
    places = {"direction": rows["direction"].map(DIRECTION), "noise_rate": rows["noise_rate"].astype(float)}
    cells = wide(rows.assign(**places), "method", ["direction", "noise_rate"], "map")
    cells.columns.names = ["", "noise"]
    return cells


def _printed_means(table: str, dataset: str) -> pd.DataFrame:
    """Return the mean of both printed directions, noise rates in rows, methods in columns."""
    return printed_map(table, dataset).rename(index=printed_methods()).T.groupby(level="noise").mean()


def rank_agreement(runs: pd.DataFrame, dataset: str, table: str) -> pd.DataFrame:
    """Compare the order of methods in a printed table with that of the measured runs.

    Returns per noise rate Spearman's rank correlation of the mean of both directions, and the number of
    methods.
    """
    theirs = _printed_means(table, dataset).T
    found = []
    for rate in theirs.columns:
        part = runs[runs["noise_rate"] == rate] if len(runs) else runs
        ours = part.groupby("row")["map_avg"].mean() if len(part) else pd.Series(dtype=float)
        both = pd.concat([theirs[rate].rename("theirs"), ours.rename("ours")], axis=1, join="inner")
        if len(both) >= 3:
            correlation = both["theirs"].corr(both["ours"], method="spearman")
            found.append({"noise": rate, "rank correlation": correlation, "methods": len(both)})
    return pd.DataFrame(found, columns=["noise", "rank correlation", "methods"])


def live_bars(records: Mapping[str, Record], run: LoadedRun) -> Figure:
    """Draw the test mAP of the runs in both directions, and the level of a random order."""
    labels = run.dataset.test.labels
    chance = np.square(np.bincount(labels) / len(labels)).sum()  # what a random order tends to
    figure, ((axis,),) = plots.panels(1, 1, 8.0, 2.9)
    rows = {
        name + ("\n(no labels)" if name in UNLABELLED else ""): r.metrics["test"]
        for name, r in records.items()
    }
    table = pd.DataFrame(rows).T[list(MAPS)].rename(columns=MAPS)
    plots.bars(axis, table, (plots.IMAGES, plots.CAPTIONS))
    axis.axhline(chance, color="#444444", ls=":", lw=1.5, label="random order")
    axis.set(ylabel="mAP on test", ylim=(0, 1.15 * table.to_numpy().max()))
    axis.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    return figure


def live_table(records: Mapping[str, Record]) -> Styler:
    """Show the test mAP and cost of the runs, with what they chose on validation."""
    rows = {
        name: {
            **{k: r.metrics["test"][k] for k in (*MAPS, "map_avg")},
            "best epoch": r.best_epoch,
            "seconds": r.cost["seconds"],
            "chosen on validation": ", ".join(
                f"{k.removeprefix('chosen_')} {v:g}" for k, v in r.diagnostics.items() if "chosen_" in k
            ),
        }
        for name, r in records.items()
    }
    r = next(iter(records.values()))
    caption = (
        f"Measured here: {r.data['name']}, {r.data['train_pairs']:,} training pairs, "
        f"{r.data['test_pairs']:,} test pairs; {r.noise['description']}"
    )
    return show(pd.DataFrame(rows).T, "live", caption, digits=3)


def slopes(runs: pd.DataFrame) -> Figure:
    """Draw mAP, mean of both directions, over the noise rate, one panel per family of methods."""
    figure, axes = plots.panels(2, 2, 8.4, 5.6, sharey=True, sharex=True)
    for axis, (family, members) in zip(axes.flat, FAMILIES.items(), strict=True):
        for name in members:
            style = plots.method_style(name)
            part = runs[runs["method"] == name].groupby("noise_rate")["map_avg"]
            mean, spread = part.mean(), part.std().fillna(0)
            if len(mean):
                low, high = mean - spread, mean + spread
                axis.plot(mean.index, mean, ms=5, label=name, **style)
                axis.fill_between(mean.index, low, high, color=style["color"], alpha=0.15, lw=0)
        axis.set(title=family, xticks=RATES, xlim=(0.15, 0.85))
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axis in axes[1]:
        axis.set_xlabel("share of labels redrawn")
    for axis in axes[:, 0]:
        axis.set_ylabel("mAP, both directions")
    axes[0, 0].set_ylim(0, None)
    return figure


def order(runs: pd.DataFrame) -> Styler:
    """Show the rank correlation between printed and measured means, by data set and noise rate."""
    runs = runs.assign(row=runs["method"])
    places = (("II", "Wikipedia"), ("I", "NUS-WIDE"), ("I", "XMediaNet"))
    parts = [rank_agreement(runs, data, table).assign(printed=data) for table, data in places]
    found = pd.concat(parts)
    cells = found.pivot_table(index="printed", columns="noise", values="rank correlation", sort=False)
    caption = (
        f"Rank correlation, printed against measured on emoji_category; {int(found['methods'].max())} methods"
    )
    return show(cells, "order", caption, digits=2)
