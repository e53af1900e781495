"""Figures and tables of the chapter on the baselines of category retrieval."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import mean_text, papers, show
from ncbook.chapters import ONLY_PRINTED, devices, wide
from ncbook.layouts import DIRECTION, LAYOUTS
from ncbook.match import STAND_INS, WHY_NOT, category_method
from ncbook.measurements import measurement
from ncbook.notebook import NO_RECORD, marks_of
from ncbook.runs import select
from nclib import Record, plots
from nclib.runs import LoadedRun
from nclib.runs.variant import in_words

FAMILIES = {
    "no labels": ["pls", "mcca", "dcca", "dccae"],
    "discriminant": ["gma", "mvda", "gss_regression"],
    "deep": ["deep_sm", "acmr", "sdml", "dscmr", "fgcrossnet_losses"],
    "robust": ["mrl", "elrcmr", "uot_rcl", "nirnl"],
}
MAPS = {"map_i2t": "image → text", "map_t2i": "text → image"}
NOT_RERUN = ("GSS-SL", "FGCrossNet", "SMLN")
PRINTED_ONLY = {name: (WHY_NOT[name], STAND_INS.get(name, "")) for name in NOT_RERUN}  # reason, stand-in
ABLATIONS = LAYOUTS["UOT-RCL", "IV"].options  # rows of Table IV -> options of uot_rcl
UNLABELLED = ("mcca", "pls", "dcca", "dccae")  # label noise cannot change them
RATES = (0.2, 0.4, 0.6, 0.8)


def printed_methods() -> dict[str, str]:
    """Return the methods that are rerun under their printed name: printed name -> method."""
    names = dict.fromkeys(row["method"] for row in papers.rows_of("UOT-RCL", "II"))
    return {name: category_method(name) for name in names if name not in PRINTED_ONLY}


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


def measured_map(runs: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return mean ± standard deviation (seeds) of recorded runs, in the form of :func:`printed_map`.

    ``names`` leads from the column ``row`` of the runs to the name shown; rows without runs say "no record".
    """
    columns = pd.MultiIndex.from_product([list(DIRECTION.values()), RATES], names=["", "noise"])
    table = pd.DataFrame(NO_RECORD, index=pd.Index(list(names.values()), name="method"), columns=columns)
    for (row, rate), part in runs.groupby(["row", "noise_rate"]) if len(runs) else ():
        for key, direction in DIRECTION.items() if row in names and rate in RATES else ():
            text = mean_text(list(part[f"map_{key}"]), 3)
            table.loc[names[row], (direction, rate)] = " ".join([text, *marks_of(part)])
    return table


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


def speed() -> Styler | None:
    """Show the recorded time and memory of mean average precision on galleries up to NUS-WIDE's size."""
    bench = measurement("bench_map")
    if bench is None:
        return None
    columns = ["queries", "items", "dim", "labels", "candidate", "ms_per_query", "ratio", "difference"]
    names = {"ms_per_query": "ms per query", "ratio": "times as fast", "dim": "dimensions"}
    table = pd.DataFrame(bench["rows"])[columns].rename(columns=names)
    peak = max((row["mb"] for row in bench["whole"]), default=float("nan"))
    caption = (
        f"Measured {bench['when'][:10]}, CPU time on one thread. All items as queries: "
        f"at most {peak:.0f} MB on top of the embeddings"
    )
    text = {"ms per query": "{:.3f}", "times as fast": "{:.1f}", "difference": "{:.0e}"}
    return show(table, "map-bench", caption, format=text, index=False)


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


def printed(table: str, dataset: str) -> Styler:
    """Show a printed table of UOT-RCL."""
    caption = f"Printed in the paper (Table {table}, {dataset}); {ONLY_PRINTED}"
    cells, name = printed_map(table, dataset), f"printed-{table}-{dataset}".lower()
    return show(cells, name, caption, digits=3, best=True)


def _measured(runs: pd.DataFrame, names: Mapping[str, str], name: str, caption: str) -> Styler:
    """Show recorded runs as a printed table, one direction below the other; ``row`` to the name shown."""
    cells = measured_map(runs, names)
    directions = dict.fromkeys(cells.columns.get_level_values(0))
    stacked = pd.concat({direction: cells[direction] for direction in directions})
    return show(stacked, name, caption)


def slopes(runs: pd.DataFrame) -> Figure | None:
    """Draw mAP, mean of both directions, over the noise rate, one panel per family of methods."""
    if runs.empty:
        return None
    figure, axes = plots.panels(2, 2, 8.4, 5.6, sharey=True, sharex=True)
    for axis, (family, members) in zip(axes.flat, FAMILIES.items(), strict=True):
        for name in members:
            style = plots.method_style(name)
            part = runs[runs["method"] == name].groupby("noise_rate")["map_avg"]
            mean, spread = part.mean(), part.std().fillna(0)
            if len(mean):
                axis.plot(mean.index, mean, ms=5, label=name, **style)
                axis.fill_between(
                    mean.index, mean - spread, mean + spread, color=style["color"], alpha=0.15, lw=0
                )
        axis.set(title=family, xticks=RATES, xlim=(0.15, 0.85))
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
    mean = _printed_means("II", "Wikipedia").rename_axis("noise_rate").reset_index()
    return slopes(mean.melt(id_vars="noise_rate", var_name="method", value_name="map_avg"))


def reasons() -> Styler:
    """Show the printed methods that are not rerun, why, and what stands in."""
    rows = [
        {"printed row": name, "why it is not rerun": why, "stand-in": stand_in or "none"}
        for name, (why, stand_in) in PRINTED_ONLY.items()
    ]
    return show(pd.DataFrame(rows), "reasons", index=False)


def measured(runs: pd.DataFrame) -> Styler:
    """Show the rows of Table II from recorded runs with the options of the preset."""
    names = {method: name for name, method in printed_methods().items()}
    names |= {stand_in: f"{stand_in} (stand-in)" for _, stand_in in PRINTED_ONLY.values() if stand_in}
    where = f"symmetric noise drawn for images and texts apart; {devices(runs) or 'no records here'}"
    caption = f"Measured: emoji_category, preset quick, {where}."
    return _measured(runs.assign(row=runs["method"]), names, "measured", caption)


def order(runs: pd.DataFrame) -> Styler | None:
    """Show the rank correlation between printed and measured means, by data set and noise rate."""
    runs = runs.assign(row=runs["method"])
    places = (("II", "Wikipedia"), ("I", "NUS-WIDE"), ("I", "XMediaNet"))
    parts = [rank_agreement(runs, data, table).assign(printed=data) for table, data in places]
    found = pd.concat(parts)
    if found.empty:
        return None
    cells = found.pivot_table(index="printed", columns="noise", values="rank correlation", sort=False)
    caption = (
        f"Rank correlation, printed against measured on emoji_category; {int(found['methods'].max())} methods"
    )
    return show(cells, "order", caption, digits=2)


def ablation(runs: pd.DataFrame) -> Styler:
    """Show the rows of Table IV from all recorded runs of UOT-RCL."""
    rows = {in_words(options): name for name, options in ABLATIONS.items()}
    runs = select(runs, method="uot_rcl", variant=list(rows))
    caption = "Measured: emoji_category, preset quick, mean ± standard deviation (seeds)."
    names = {name: name for name in ABLATIONS}
    return _measured(runs.assign(row=runs["variant"].map(rows)), names, "measured-four", caption)
