"""Figures and tables of the page on photographs: recorded runs on Flickr8K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import recorded, show
from ncbook.board import ALONE, AVERAGED, CHOSEN, DATA_NAMES, REAL
from ncbook.compare import Difference, by_seed, few_seeds, mean_text
from ncbook.marks import REMARKED, WARMUP, in_warmup, marks_of
from ncbook.notebook import NOT_RUN, means
from ncbook.runs import Runs, as_preset, devices, labelled, rows_of, select
from ncbook.temperature import WHERE, WITH_SOFTMAX, chosen
from nclib import plots

LOSSES = ["plain (triplet)", "plain (infonce)", "rcl", "plain (infonce_rce)", "plain (gce)"]
METHODS = ["ncr", "decl", "bicro", "mscn", "repair", "l2rm, dropped", "l2rm"]
NEWER = ["gsc", "gsc_plus", "cream", "crcl", "in2r", "sps", "pcsr"]
ORDER = [*LOSSES, f"plain (gce){AVERAGED}", *METHODS, *NEWER, "crank", "crank_plus"]
APART = [*LOSSES, "decl", "l2rm", "gsc", "crcl", "crank"]
"""Rows of one network of which two are also averaged."""
BOTH = ["plain (gce)", "crank"]
FAIR = [
    *(label + AVERAGED for label in APART),
    *(label + CHOSEN for label in WITH_SOFTMAX),
    *(label + CHOSEN + AVERAGED for label in BOTH),
]
"""Rows of averaged networks, of methods at the temperature that validation chooses, and of both."""
TOLD = {
    AVERAGED: "averaged: two networks trained apart on the same noise, tested by their mean similarity",
    CHOSEN: "temperature chosen: not the published one but the best of six on the validation photographs of "
    "Flickr8K at rate 0.6, seed 0, for all rates",
}
"""What a caption says of the ends of labels."""
FRAGMENTS = [*LOSSES, "ncr", "repair", "l2rm, dropped", "l2rm", "sps", "crank"]
"""Rows that the grid of Flickr8K declares for the model SAF."""
OF_SGR = ("plain (gce)", "l2rm, dropped", "l2rm")
"""Rows that it declares for the model SGR."""
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "repair": ("repair", {}),
    "repair, wrong pairs dropped": ("repair", {"variant": "rc+drop"}),
    "repair, hard labels": ("repair", {"variant": "hard"}),
    "repair, hard labels, wrong pairs dropped": ("repair", {"variant": "hard+drop"}),
    "mscn": ("mscn", {}),
    "mscn, pairs not divided": ("mscn", {"threshold": 0}),
}
"""Rows of the ablation on photographs: method and the options that differ from its own."""
PICTURES = {"f8k": ("Flickr8K", "photographs"), "emoji": ("drawn scenes at their full size", "scenes")}
WARM: dict[str, tuple[str, dict[str, Any]]] = {
    f"plain ({loss}), 0.07": ("plain", {"loss": loss, "tau": 0.07}) for loss in ("gce", "infonce_rce")
}
"""Plain losses at CRANK's temperature; the other rows of plain losses are at 0.05."""
NAMES = {
    "plain (gce), averaged": "GCE, two networks averaged",
    "crank": "CRANK (of this book)",
    "plain (gce)": "generalised cross entropy (GCE)",
    "l2rm": "L2RM",
    "plain (infonce)": "InfoNCE",
}
"""Lines in the figure of README and landing page, by label of the board."""


def photograph_runs(model: str = "bow", dataset: str = "f8k", *, fair: bool = False) -> pd.DataFrame:
    """Return the recorded runs of a model on Flickr8K, or on another data set, with a column ``label``.

    Those of the preset ``standard`` with the options of the methods, of L2RM also without rematching, and of
    plain losses also at the temperature of CRANK (:data:`WARM`); if ``fair``, also those of :data:`FAIR`. A
    ValueError for a model without runs there.
    """
    runs = labelled_runs(model, dataset, fair=fair)
    if runs.empty:
        there = sorted(set(recorded(preset="standard", dataset=dataset)["model"]))
        raise ValueError(f"model={model!r}: the recorded runs on {dataset} have {', '.join(there)}")
    return runs


def labelled_runs(model: str, dataset: str = "f8k", *, fair: bool = False) -> pd.DataFrame:
    """Return what :func:`photograph_runs` does, no rows for a model without runs."""
    runs = recorded(preset="standard", dataset=dataset, model=model, networks=[1, 2] if fair else 1)
    rows: dict[str, tuple[str, dict[str, Any]]] = {"l2rm, dropped": ("l2rm", {"rematch_weight": 0}), **WARM}
    if fair:
        taus = chosen(Runs(recorded(**WHERE), pd.DataFrame()))
        given: dict[str, tuple[str, dict[str, Any]]]
        given = {label + AVERAGED: (label, {"networks": 2}) for label in APART}
        for label, tau in taus.items():
            given[label + CHOSEN] = label, {"tau": tau}
            given[label + CHOSEN + AVERAGED] = label, {"networks": 2, "tau": tau}
        for name, (label, options) in given.items():
            method, _, loss = label.removesuffix(")").partition(" (")
            rows[name] = method, {**({"loss": loss} if loss else {}), **options}
    return pd.concat([labelled(as_preset(runs)), rows_of(runs, rows)], ignore_index=True)


def summary(runs: pd.DataFrame) -> str:
    """Return how many runs there are, of how many rows and seeds."""
    rates = ", ".join(f"{rate:g}" for rate in sorted(set(runs["mrate"])))
    rows, seeds = (runs[column].nunique() for column in ("label", "seed"))
    return f"{len(runs)} recorded runs: {rows} rows, rates {rates}, seeds: {seeds}"


def rate_rows(
    runs: pd.DataFrame,
    protocol: str,
    name: str,
    value: str = "rsum",
    *,
    order: Sequence[str] = ORDER,
    declared: Sequence[str] = (),
) -> Styler:
    """Show the sum of recalls by method and mismatch rate.

    Parameters
    ----------
    runs : DataFrame
        From :func:`photograph_runs`.
    protocol : {"images", "captions"}
        What was exchanged.
    name : str
        Of the table in the page.
    value : {"rsum", "last.rsum", "one_network"}
        At the epoch that validation selected, or at the last one; or of one network, which is for methods
        that test two together the mean of the two alone.
    order : sequence of str
        Labels of the rows, in their order.
    declared : sequence of str
        Labels of rows that also stand in the table when they were not run.
    """
    part = runs[(runs["protocol"] == protocol) & runs["label"].isin(order)]
    if value == "one_network":
        part = part.assign(one_network=part["single.rsum"].fillna(part["rsum"]))
    part = part.dropna(subset=[value])  # of averaged networks the last epoch was not tested
    table = means(part, "label", "mrate", value).rename_axis(columns="mismatch rate")
    rows = [label for label in order if label in table.index or label in declared]
    model = ", ".join(sorted(set(part["model"])))
    data, pictures = PICTURES[part["dataset"].iloc[0]]
    epoch = "last epoch" if value == "last.rsum" else f"epoch selected on the validation {pictures}"
    networks = " of one network" if value == "one_network" else ""
    caption = (
        f"Measured on {data}, model {model}, preset standard: rSum{networks} on 1,000 test {pictures}, "
        f"{epoch}; mean ± standard deviation (seeds); {protocol} exchanged at random, drawn with the run's "
        f"seed; {devices(part)}"
    )
    told = [words for end, words in TOLD.items() if any(end in label for label in rows)]
    return show(table.reindex(rows).fillna(NOT_RUN), name, "; ".join([caption, *told]))


def of_sgr(rate: float = 0.6) -> str:
    """Say what the rows :data:`OF_SGR` reach on Flickr8K, or that they were not run."""
    runs = labelled_runs("sgr")
    part = runs[(runs["protocol"] == "images") & (runs["mrate"] == rate)]
    said = []
    for label in OF_SGR:
        own = part[part["label"] == label]
        said.append(" ".join([f"`{label}`", mean_text(list(own["rsum"])) or NOT_RUN, *marks_of(own)]))
    return f"The model `SGR`, images exchanged at rate {rate:g}, rSum: {'; '.join(said)}."


def last_epoch(method: str, diagnostic: str, words: str) -> str:
    """Say between which values a diagnostic of the last epoch lies in the recorded runs of a method."""
    runs = photograph_runs()
    own = runs[runs["label"] == method]
    values = own[diagnostic].dropna()
    low, high = (f"{value:.3g}" for value in (values.min(), values.max()))
    return f"Over {len(values)} recorded runs on photographs, {words}: {low} to {high}."


def part_runs(rate: float) -> pd.DataFrame:
    """Return the runs of :data:`PARTS` on Flickr8K at a mismatch rate, with a column ``label``."""
    runs = recorded(preset="standard", dataset="f8k", model="bow", mrate=rate, protocol="images")
    return rows_of(runs, PARTS)


def parts_table(rate: float = 0.6) -> Styler:
    """Show what the parts of REPAIR and MSCN give on photographs, rSum by row and by seed."""
    runs = part_runs(rate)
    table = runs.pivot_table(index="label", columns="seed", values="rsum")
    table = table.loc[[label for label in PARTS if label in table.index]].rename_axis(None)
    table.columns = [f"seed {seed}" for seed in table]
    groups = {str(label): part for label, part in runs.groupby("label")}
    table = table.map(lambda value: "" if pd.isna(value) else f"{value:.1f}")
    table["mean"] = [
        " ".join([mean_text(list(groups[label]["rsum"]), 1), *marks_of(groups[label])])
        for label in table.index
    ]
    caption = (
        f"Measured on Flickr8K, model bow, preset standard, {rate:g} of the images exchanged: rSum on 1,000 "
        f"test photographs, epoch selected on validation; mean ± standard deviation (seeds); {devices(runs)}"
    )
    return show(table, "parts", caption)


def parts_said(rate: float = 0.6) -> str:
    """Return the differences of the ablation seed by seed, as a Markdown list."""
    cells = part_runs(rate).pivot_table(index="seed", columns="label", values="rsum")
    lines = []
    for label in PARTS:
        whole = label.split(",")[0]
        if label == whole or label not in cells:
            continue
        lines.append(f"- `{label}` minus `{whole}`: {gap_text(by_seed(cells[label] - cells[whole]))}.")
    return "\n".join(lines)


def gap_text(d: Difference) -> str:
    """Return a difference with half of its interval, and whether its seeds tell it from zero."""
    if not d.n:
        return NOT_RUN
    how = f"± {d.visible:.1f} ({d.n} seeds, 95 %)" if d.judged else f"with {few_seeds(d.n)}"
    said = " ".join([f"{d.mean:+.1f}", how, *d.marks])
    return f"{said}, not told from zero" if d.judged and d.sign == "open" else said


def two_sets(table: pd.DataFrame, model: str = "bow") -> Figure | None:
    """Draw the sum of recalls over the mismatch rate for the rows of :data:`NAMES`, a panel a real set.

    Parameters
    ----------
    table : DataFrame
        From :func:`ncbook.board.scored`.
    model : str
        Whose runs are drawn. Sets without any are left out; None without a set.
    """
    parts = {d: select(table, dataset=d, **{**where, "model": model}) for d, where in REAL["pairs"].items()}
    parts = {d: part for d, part in parts.items() if len(part)}
    if not parts:
        return None
    figure, (axes,) = plots.panels(1, len(parts), width=4.1 * len(parts), height=3.6)
    for axis, (dataset, part) in zip(axes, parts.items(), strict=True):
        for label, name in NAMES.items():
            own = part[(part["label"] == label) & (part["networks"] != ALONE)]
            style = plots.method_style(label.removesuffix(AVERAGED))
            line = {
                "ls": "-" if not label.endswith(AVERAGED) else "--",
                "color": style["color"],
                "label": name,
            }
            means = own.groupby("rate")["value"].mean()
            axis.plot(means.index, means, marker=style["marker"], ms=5, **line)
            axis.plot(own["rate"], own["value"], ".", ms=3, color=style["color"], alpha=0.6)
        tuned = "" if dataset == "f8k" else ", on which nothing was tuned"
        axis.set(title=f"{DATA_NAMES[dataset]}{tuned}", xlabel="share of wrong pairs", ylabel="rSum")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center")
    return figure


Compared = Sequence[tuple[str, str, str]]
SAME = " at the same temperature"
OURS = (
    ("crank", "plain (gce), 0.07", f"CRANK against generalised cross entropy{SAME}"),
    ("crank", "plain (gce)", "CRANK (temperature 0.07) against generalised cross entropy (0.05)"),
    ("crank", "plain (infonce_rce), 0.07", f"CRANK against InfoNCE with RCE{SAME}"),
    ("crank", "plain (infonce_rce)", "CRANK (temperature 0.07) against InfoNCE with RCE (0.05)"),
    ("crank", "l2rm", "CRANK against L2RM"),
    ("crank", "ncr", "CRANK, one network, against NCR, two"),
    ("crank_plus", "gsc_plus", "CRANK+ against GSC+, two networks each"),
    ("crank_plus", "sps", "CRANK+ against SPS, two networks each"),
    ("crank_plus", "cream", "CRANK+ against CREAM, two networks each"),
    ("crank_plus", "crank", "CRANK+, two networks, against CRANK, one"),
    ("crank_plus", f"crank{AVERAGED}", "CRANK+ against two networks of CRANK, averaged"),
    ("crank_plus", f"plain (gce){AVERAGED}", "CRANK+ against two of generalised cross entropy, averaged"),
    ("crank_plus" + CHOSEN, "sps" + CHOSEN, "CRANK+ against SPS, temperature chosen for both"),
    (
        "crank" + CHOSEN,
        "plain (gce)" + CHOSEN,
        "CRANK against generalised cross entropy, temperature chosen for both",
    ),
)
COMPARED = (
    ("l2rm", "l2rm, dropped", "rematching against dropping"),
    ("l2rm", "plain (infonce_rce)", "L2RM against its warm-up loss alone"),
    ("l2rm", "plain (infonce)", "L2RM against undefended InfoNCE"),
    ("plain (gce)", "plain (infonce)", "a bounded loss against InfoNCE"),
    ("plain (gce)", "l2rm", "a bounded loss against L2RM"),
    ("crcl", "plain (gce)", "CRCL against a bounded loss, one network each"),
    ("gsc", "plain (gce)", "GSC against a bounded loss, one network each"),
    ("plain (gce)", "bicro", "a bounded loss, one network, against BiCro, two"),
    *OURS,
)


def differences(runs: pd.DataFrame, protocol: str = "images", compared: Compared = COMPARED) -> pd.DataFrame:
    """Return differences of rSum between runs with the same seed.

    Parameters
    ----------
    runs : DataFrame
        From :func:`photograph_runs`.
    protocol : {"images", "captions"}
        What was exchanged.
    compared : sequence of (str, str, str)
        Label of a row, of the row that is subtracted, and the words for both.

    Returns
    -------
    DataFrame
        One row per comparison and rate: ``comparison``, ``mrate``, ``mean``, ``half`` (half the width of
        Student's interval at 95 %; NaN with one seed), ``n``, the number of seeds, and ``mark``, † or * of
        :data:`ncbook.marks.MARKS` where one of the runs has it; such a difference decides nothing.
    """
    part = runs[runs["protocol"] == protocol]
    part = part.assign(early=in_warmup(part), remarked=part["remarks"].fillna("") != "")
    index = ["mrate", "seed"]
    cells, early, remarked = (
        part.pivot_table(index=index, columns="label", values=value, aggfunc=how)
        for value, how in (("rsum", "mean"), ("early", "max"), ("remarked", "max"))
    )
    rows = []
    for first, second, words in compared:
        if not {first, second} <= set(cells):
            continue
        for rate, gap in (cells[first] - cells[second]).dropna().groupby("mrate"):
            d = by_seed(gap.droplevel("mrate"))
            marks = [
                mark
                for mark, found in ((WARMUP, early), (REMARKED, remarked))
                if found.loc[gap.index, [first, second]].astype(bool).to_numpy().any()
            ]
            rows.append((words, rate, d.mean, d.visible, d.n, "".join(marks)))
    return pd.DataFrame(rows, columns=["comparison", "mrate", "mean", "half", "n", "mark"])


def difference_rows(runs: pd.DataFrame, protocol: str = "images", compared: Compared = COMPARED) -> Styler:
    """Show :func:`differences`, one column per rate; differences that decide nothing are in brackets."""
    found = differences(runs, protocol, compared)

    def text(row: pd.Series) -> str:
        if row["n"] == 1:
            said = f"({row['mean']:+.1f}, one seed)"
        else:
            said = f"{row['mean']:+.1f} ± {row['half']:.1f}"
            said = f"({said})" if row["mark"] or abs(row["mean"]) <= row["half"] else said
        return " ".join([said, *row["mark"]])

    table = found.assign(text=found.apply(text, axis=1)).pivot(
        index="comparison", columns="mrate", values="text"
    )
    order = [words for *_, words in compared if words in table.index]
    table = table.loc[order].fillna(NOT_RUN).rename_axis(index=None, columns="mismatch rate")
    table.columns = [f"{rate:g}" for rate in table.columns]
    seeds = f"{found['n'].min()} to {found['n'].max()}" if found["n"].nunique() > 1 else found["n"].iloc[0]
    caption = (
        f"Differences of rSum between runs with the same seed and noise, mean ± half of Student's 95 % "
        f"interval; in brackets: the interval holds 0, or a run is marked. {seeds} seeds; {protocol} "
        "exchanged"
    )
    return show(table, f"differences-{protocol}", caption)


def findings(runs: pd.DataFrame) -> str:
    """Return what the differences say, as a Markdown list computed from the records."""
    found = differences(runs)
    lines = []
    for words, part in found.groupby("comparison", sort=False):
        marked, single = part["mark"] != "", part["n"] == 1
        above, below = part["mean"] > part["half"], -part["mean"] > part["half"]
        kinds = {
            "gains at rate": above & ~marked,
            "loses at rate": below & ~marked,
            "is not decided at": ~(above | below | marked | single),
            "has one seed at": single & ~marked,
            "is not judged, since runs are marked, at": marked,
        }
        said = []
        for kind, rows in kinds.items():
            group = part[rows]
            if len(group):
                rates = ", ".join(
                    " ".join([f"{rate:g}", *mark])
                    for rate, mark in zip(group["mrate"], group["mark"], strict=True)
                )
                said.append(f"{kind} {rates} ({_span(group['mean'])})")
        lines.append(f"- **{words[0].upper()}{words[1:]}** " + ", ".join(said) + ".")
    return "\n".join(lines)


BRIEFLY = ("plain (infonce)", "l2rm", "plain (gce)", "crank")


def in_short(runs: pd.DataFrame, fragments: pd.DataFrame, rate: float = 0.6) -> str:
    """Return what the landing page says of two models at one rate, and at one temperature, in Markdown.

    ``runs`` and ``fragments`` are :func:`photograph_runs` of two models.
    """
    lines = []
    for table in (runs, fragments):
        part = table[(table["protocol"] == "images") & (table["mrate"] == rate)]
        rows = {label: part[part["label"] == label] for label in BRIEFLY}
        said = [
            f"{NAMES[label]} {mean_text(list(own['rsum']))}{f' {WARMUP}' if in_warmup(own).any() else ''}"
            for label, own in rows.items()
            if len(own)
        ]
        lines.append(f"- **Model {part['model'].iloc[0]}, rate {rate:g}**: rSum {', '.join(said)}.")
    found = differences(runs, compared=OURS)
    same = found[found["comparison"].str.endswith(SAME) & (found["mrate"] == rate)]
    if len(same):
        gains = [f"{c.removesuffix(SAME)}, {m:+.1f} ± {h:.1f} ({n})" for c, _, m, h, n, _ in same.to_numpy()]
        lines.append(f"- **At one temperature**, model {runs['model'].iloc[0]}: {'; '.join(gains)}.")
    return "\n".join(lines)


def _span(means: pd.Series) -> str:
    low, high = f"{means.min():+.1f}", f"{means.max():+.1f}"
    return low if low == high else f"{low} to {high}"
