"""Figures and tables of the chapter on the baselines of category retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ncbook import category_tables as tables
from ncbook import show
from ncbook.chapters.common import stored_benchmark
from ncbook.runs import select
from nclib import Record, plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas.io.formats.style import Styler

    from nclib.runs import LoadedRun

FAMILIES = {
    "no labels": ["pls", "mcca", "dcca", "dccae"],
    "discriminant": ["gma", "mvda", "gss_regression"],
    "deep": ["deep_sm", "acmr", "sdml", "dscmr", "fgcrossnet_losses"],
    "robust": ["mrl", "elrcmr", "uot_rcl"],
}
MAPS = {"map_i2t": "image → text", "map_t2i": "text → image"}


def speed() -> Styler | None:
    """Show the recorded time and memory of mean average precision on galleries up to NUS-WIDE's size."""
    bench = stored_benchmark("bench/map.json")
    if bench is None:
        return None
    columns = ["queries", "items", "dim", "labels", "candidate", "ms_per_query", "ratio", "difference"]
    names = {"ms_per_query": "ms per query", "ratio": "times as fast", "dim": "dimensions"}
    table = pd.DataFrame(bench["rows"])[columns].rename(columns=names)
    peak = max((row["mb"] for row in bench["whole"]), default=float("nan"))
    caption = (
        f"Measured {bench['measured'][:10]}, CPU time on one thread. All items as queries: "
        f"at most {peak:.0f} MB on top of the embeddings"
    )
    text = {"ms per query": "{:.3f}", "times as fast": "{:.1f}", "difference": "{:.0e}"}
    return show(table, "map-bench", caption, format=text, index=False)


def live_bars(records: Mapping[str, Record], run: LoadedRun) -> Figure:
    """Draw the test mAP of the runs in both directions, with the level of a random order.

    Parameters
    ----------
    records : mapping
        Method to its record.
    run : LoadedRun
        One of the runs, for the classes of its test pairs.
    """
    labels = run.dataset.test.labels
    chance = np.square(np.bincount(labels) / len(labels)).sum()  # what a random order tends to
    figure, ((axis,),) = plots.panels(1, 1, 8.0, 2.9)
    rows = {
        name + ("\n(no labels)" if name in tables.UNLABELLED else ""): r.metrics["test"]
        for name, r in records.items()
    }
    table = pd.DataFrame(rows).T[list(MAPS)].rename(columns=MAPS)
    plots.bars(axis, table, (plots.MATCHED, plots.MISMATCHED))
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
                f"{k.removeprefix('chosen_')} {v:g}"
                for k, v in r.diagnostics.items()
                if k.startswith("chosen_")
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


def printed(table: str, dataset: str) -> Styler:
    """Show a printed table of UOT-RCL.

    Parameters
    ----------
    table, dataset : str
        As for :func:`ncbook.category_tables.printed_map`.
    """
    caption = f"Printed in the paper (Table {table}, {dataset}); nothing here was measured."
    cells, name = tables.printed_map(table, dataset), f"printed-{table}-{dataset}".lower()
    return show(cells, name, caption, digits=3, best=True).format_index(_short, axis=1)


def _short(heading: object) -> str:
    """Return a column heading; a noise rate in its shortest form."""
    return f"{heading:g}" if isinstance(heading, float) else str(heading)


def _measured(runs: pd.DataFrame, names: Mapping[str, str], name: str, caption: str) -> Styler:
    """Show recorded runs in the form of a printed table; ``row`` of the runs to the name shown."""
    return show(tables.measured_map(runs, names), name, caption).format_index(_short, axis=1)


def slopes(runs: pd.DataFrame) -> Figure | None:
    """Draw mAP, mean of both directions, over the noise rate, one panel per family of methods.

    Parameters
    ----------
    runs : DataFrame
        Columns ``method``, ``noise_rate``, ``map_avg``; runs of a method at a rate become mean and spread.
    """
    if runs.empty:
        return None
    figure, axes = plots.panels(2, 2, 8.4, 5.6, sharey=True, sharex=True)
    for axis, (family, members) in zip(axes.flat, FAMILIES.items(), strict=True):
        for name, colour, mark in zip(members, plots.CYCLE, plots.MARKS, strict=False):
            part = runs[runs["method"] == name].groupby("noise_rate")["map_avg"]
            mean, spread = part.mean(), part.std().fillna(0)
            if len(mean):
                axis.plot(mean.index, mean, marker=mark, ms=5, color=colour, label=name)
                axis.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.15, lw=0)
        axis.set(title=family, xticks=tables.RATES, xlim=(0.15, 0.85))
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axis in axes[1]:
        axis.set_xlabel("share of labels redrawn")
    for axis in axes[:, 0]:
        axis.set_ylabel("mAP, both directions")
    axes[0, 0].set_ylim(0, None)
    return figure


def printed_slopes() -> Figure | None:
    """Draw the printed mAP on Wikipedia over the noise rate, one panel per family of methods."""
    cells = tables.printed_map("II", "Wikipedia").rename(index=tables.printed_methods())
    mean = cells.T.groupby(level="noise").mean().rename_axis("noise_rate").reset_index()
    return slopes(mean.melt(id_vars="noise_rate", var_name="method", value_name="map_avg"))


def reasons() -> Styler:
    """Show the printed methods that are not rerun, why, and what stands in."""
    rows = [
        {"printed row": name, "why it is not rerun": why, "stand-in": stand_in or "none"}
        for name, (why, stand_in) in tables.PRINTED_ONLY.items()
    ]
    return show(pd.DataFrame(rows), "reasons", index=False)


def measured(runs: pd.DataFrame) -> Styler:
    """Show the rows of Table II from recorded runs with the options of the preset.

    Parameters
    ----------
    runs : DataFrame
        From :func:`ncbook.chapters.recorded_labels`, with the options of the preset.
    """
    names = {method: name for name, method in tables.printed_methods().items()}
    names |= {stand_in: f"{stand_in} (stand-in)" for _, stand_in in tables.PRINTED_ONLY.values() if stand_in}
    where = ", ".join(sorted(set(runs["device"]))) or "no records here"
    caption = (
        f"Measured: emoji_category, preset quick, symmetric noise drawn for images and texts apart; {where}."
    )
    return _measured(runs.assign(row=runs["method"]), names, "measured", caption)


def order(runs: pd.DataFrame) -> Styler | None:
    """Show the rank correlation between printed and measured means, by data set and noise rate."""
    runs = runs.assign(row=runs["method"])
    places = (("II", "Wikipedia"), ("I", "NUS-WIDE"), ("I", "XMediaNet"))
    parts = [tables.rank_agreement(runs, data, table).assign(printed=data) for table, data in places]
    found = pd.concat(parts)
    if found.empty:
        return None
    cells = found.pivot_table(index="printed", columns="noise", values="rank correlation", sort=False)
    caption = (
        f"Rank correlation, printed against measured on emoji_category; {int(found['methods'].max())} methods"
    )
    return show(cells, "order", caption, digits=2).format_index("{:g}", axis=1)


def ablation(runs: pd.DataFrame) -> Styler:
    """Show the rows of Table IV from all recorded runs of UOT-RCL."""
    rows = {
        " ".join(f"{k}={v}" for k, v in options.items()) or "default": name
        for name, options in tables.ABLATIONS.items()
    }
    runs = select(runs, method="uot_rcl", variant=list(rows))
    caption = "Measured: emoji_category, preset quick, mean ± standard deviation (seeds)."
    names = {name: name for name in tables.ABLATIONS}
    return _measured(runs.assign(row=runs["variant"].map(rows)), names, "measured-four", caption)
