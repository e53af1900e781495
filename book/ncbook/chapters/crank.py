"""Figures and tables of the chapter on CRANK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import board, load_runs, recorded, show
from ncbook.averaged import PLACES, RATES, against_averaged
from ncbook.chapters import advice
from ncbook.chapters.photographs import gap_text, labelled_runs
from ncbook.compare import Difference, mean_text, paired
from ncbook.notebook import NOT_RUN, means, measures
from ncbook.runs import as_preset, devices, labelled, rows_of, select
from ncbook.training import Finished, say, training_epochs
from nclib import plots
from nclib.methods.crank import LEAST_COUNT

MIXTURE = "a mixture of the losses instead of count and rank"
# Row of the ablation -> method and the options in which it differs from the method's own.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "CRANK": ("crank", {}),
    "without the terms for a stable space": ("crank", {"stable": 0}),
    "whole batches instead of partial views": ("crank", {"drop": 0}),
    "temperature 0.05 instead of 0.07": ("crank", {"tau": 0.05}),
    "generalised cross entropy to the end": ("crank", {"loss": "gce"}),
    "... and nothing counted or ranked": ("crank", {"loss": "gce", "select": "none"}),
    "nothing counted or ranked": ("crank", {"select": "none"}),
    MIXTURE: ("crank", {"select": "mixture"}),
    "counted below the lowest tenth of wrong pairs": ("crank", {"kappa": 0.1}),
    "counted below the lower half of wrong pairs": ("crank", {"kappa": 0.5}),
    "a twentieth of the pictures held out": ("crank", {"held": 0.05}),
    "a fifth of the pictures held out": ("crank", {"held": 0.2}),
    "a step of the weights less than half as wide": ("crank", {"width": 0.1}),
    "a step of the weights twice as wide": ("crank", {"width": 0.5}),
    "plain generalised cross entropy, temperature 0.07": ("plain", {"loss": "gce", "tau": 0.07}),
    "plain generalised cross entropy, temperature 0.05": ("plain", {"loss": "gce"}),
    "plain InfoNCE and reverse cross entropy, 0.07": ("plain", {"loss": "infonce_rce", "tau": 0.07}),
    "plain InfoNCE and reverse cross entropy, 0.05": ("plain", {"loss": "infonce_rce"}),
}

# The same for methods with two networks: CRANK+, and CRANK's views for its rivals.
OF_TWO: dict[str, tuple[str, dict[str, Any]]] = {
    "CRANK+": ("crank_plus", {}),
    "CRANK+, a mixture of the losses instead of count and rank": ("crank_plus", {"select": "mixture"}),
    "SPS": ("sps", {}),
    "SPS on partial views": ("sps", {"drop": 0.2}),
    "SPS on partial views, temperature 0.1": ("sps", {"drop": 0.2, "tau": 0.1}),
    "GSC+": ("gsc_plus", {}),
    "GSC+ on partial views": ("gsc_plus", {"drop": 0.2}),
    "GSC+ on partial views, temperature 0.1": ("gsc_plus", {"drop": 0.2, "tau": 0.1}),
    "CREAM": ("cream", {}),
    "CREAM on partial views": ("cream", {"drop": 0.2}),
    "CREAM on partial views, temperature 0.1": ("cream", {"drop": 0.2, "tau": 0.1}),
}

# The book's methods beside others at a chosen temperature, and beside averaged networks.
FAIR = (
    *(name + end for name in board.OWN for end in ("", board.CHOSEN)),
    *(name + board.CHOSEN for name in ("sps", "gsc_plus", "cream", "plain (gce)")),
    *(
        name + end
        for name in ("crank", "plain (gce)")
        for end in (board.AVERAGED, board.CHOSEN + board.AVERAGED)
    ),
)

# The same for the drawn scenes.
STABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "crank_plus, not stable": ("crank_plus", {"stable": 0}),
    "sps, not stable": ("sps", {"symmetry": 0, "geometry": 0}),
}

# ------------------------------------------------------------------------------------------------ this run


def ranked(run: Finished) -> Figure | None:
    """Draw scores and weights of all pairs by truth before the last epoch; None when all pairs trained."""
    share = float(run.last["share"])
    if share < LEAST_COUNT or not run.last["score"].any():
        return None
    figure, (axes,) = plots.panels(1, 2, 8.4, 3.0)
    score = run.last["score"]
    low, high = np.quantile(score, (0.001, 0.999))
    plots.by_truth(axes[0], score, run.matched, np.linspace(low, high, 41), "% of kind")
    axes[0].axvline(np.quantile(score, share), color=plots.THIRD, linestyle="--", label="counted share")
    axes[0].set(xlabel="score $s_i$", ylabel="% of the pairs of that kind")
    plots.by_truth(axes[1], run.last["p_clean"], run.matched, np.linspace(0, 1, 41), "% of kind")
    axes[1].set(xlabel="weight $w_i$", yscale="log")
    axes[0].legend(fontsize=8)
    return figure


def said(run: Finished) -> Markdown:
    """Say what was counted, and how well the ranking finds the wrong pairs."""
    last, share = training_epochs(run.record).iloc[-1], float(run.last["share"])
    counted = f"Counted: {share:.1%} of the pairs are wrong."
    if not np.isfinite(float(last.get("auc", np.nan))):
        return say(counted, "The truth of this run's pairs is not known, or none of them is wrong.")
    return say(
        counted,
        f"Really wrong: {1 - run.matched.mean():.1%}.",
        f"The weights of the last epoch tell both kinds apart with an AUC of {last['auc']:.3f};",
        f"of the {last['called_matched']:,.0f} pairs with a weight above one half "
        f"{last['division_precision']:.0%} are really matched.",
    )


# ---------------------------------------------------------------------------------------------- the records


def ablation_runs(rows: Mapping[str, tuple[str, dict[str, Any]]] = VARIANTS) -> pd.DataFrame:
    """Return the recorded runs of some rows on photographs, with the row's name as ``label``."""
    runs = recorded(preset="standard", dataset="f8k", model="bow")
    every = rows_of(runs, rows)
    return every[every["protocol"] == "images"]


def ablation(
    rows: Mapping[str, tuple[str, dict[str, Any]]] = VARIANTS, name: str = "crank-ablation"
) -> Styler:
    """Show the sum of recalls with one part of a method taken away or exchanged at a time."""
    runs = ablation_runs(rows)
    both = runs[runs["mrate"].isin([0.0, 0.6])]
    table = means(both, "label", "mrate").reindex(index=list(rows), columns=["0", "0.6"])
    table = table.astype(object).fillna(NOT_RUN)
    caption = (
        "Measured on Flickr8K, preset standard: rSum on 1,000 test photographs at the epoch selected on the "
        f"validation photographs; mean ± standard deviation (seeds); images exchanged; {devices(both)}"
    )
    return show(table.rename_axis(columns="mismatch rate"), name, caption)


def divided() -> Markdown:
    """Say what a mixture in place of count and rank does, and what other settings of the count do."""
    runs = ablation_runs()

    def minus(name: str, rate: float = 0.6) -> Difference:
        at = runs[runs["mrate"] == rate]
        return paired(at[at["label"] == name], at[at["label"] == "CRANK"])

    wrong, matched = minus(MIXTURE), minus(MIXTURE, 0.0)
    words = {"open": "divides as well", "above": "divides better", "below": "divides less well"}
    own = runs[(runs["label"] == "CRANK") & (runs["mrate"] == 0)]
    others = [
        f"`{option}` {value:g}: {gap_text(minus(name))}"
        for name, (method, given) in VARIANTS.items()
        for option, value in given.items()
        if method == "crank" and option in ("kappa", "held", "width")
    ]
    how = words[wrong.sign] if wrong.judged else "divides too"
    return Markdown(
        f"* **A mixture {how}.** Difference in rSum, weights "
        f"from a Gaussian mixture of the losses minus count and rank: {gap_text(wrong)} at rate 0.6, "
        f"{gap_text(matched)} on matched pairs. A mixture always finds two groups. The count decides "
        "whether there is anything to divide: of matched pairs it calls at most "
        f"{own['counted_share'].max():.1%} wrong, and below {LEAST_COUNT:.0%} all pairs train.\n"
        f"* **Other settings of count and weights**, minus CRANK at rate 0.6: {'; '.join(others)}."
    )


def lead() -> Markdown:
    """Say how CRANK stands to L2RM with SAF, and CRANK+ to SPS at the chosen temperatures and to a pair."""
    runs = load_runs(preset="standard")
    part = select(board.scored(runs, temperatures=True), **PLACES["f8k"], networks=board.TWO, rate=0.6)
    rows = {str(label): own for label, own in part.groupby("label")}
    published, tuned = (
        gap_text(paired(rows.get(f"crank_plus{end}", part[:0]), rows.get(f"sps{end}", part[:0]), "value"))
        for end in ("", board.CHOSEN)
    )
    saf = select(labelled_runs("saf"), protocol="images")
    larger = {
        rate: paired(select(saf, mrate=rate, label="crank"), select(saf, mrate=rate, label="l2rm"))
        for rate in (0.4, 0.6)
    }
    lines = [
        "* **A larger model.** CRANK minus L2RM with SAF on photographs "
        "([table](photographs.html#photographs-fragments)): "
        f"{'; '.join(f'rate {rate:g}: {gap_text(d)}' for rate, d in larger.items())}.",
        "* **Part of its lead is a temperature.** Other methods ran at the temperatures of their papers. "
        f"CRANK+ minus SPS on Flickr8K at rate 0.6: {published}, as published; {tuned}, at the temperatures "
        "that validation chooses for both ([published and chosen](losses.html#losses-temperature)).",
        "* **Two networks of CRANK**, trained apart on the same wrong pairs and averaged, are what CRANK+ "
        "has to beat. CRANK+ minus this pair:",
    ]
    for dataset in board.REAL["pairs"]:
        gaps = {rate: against_averaged(runs, dataset, rate)["crank_plus"][0] for rate in RATES}
        said = "; ".join(f"rate {rate:g}: {gap_text(d)}" for rate, d in gaps.items())
        lines.append(f"  * {board.data_name(dataset)}: {said}.")
    return Markdown("\n".join(lines))


def counts() -> Styler:
    """Show the counted share of wrong pairs, and how well the ranking finds them, by rate and protocol."""
    runs = recorded(preset="standard", dataset="f8k", model="bow")
    own = as_preset(runs[runs["method"] == "crank"])
    names = {"counted_share": "share counted", "auc": "AUROC of the ranking"}
    table = measures(
        own.sort_values(["protocol", "mrate"]), names, ["protocol", "mrate"], missing="no wrong pairs"
    )
    table.index = [f"{rate:g}, {protocol} exchanged" for protocol, rate in table.index]
    caption = (
        "Measured on the 30,000 training pairs of Flickr8K: share of wrong pairs that CRANK counts after "
        "warm-up, beside the nominal rate, and the area under the ROC curve of its weights after the last "
        "epoch; mean ± standard deviation (seeds)"
    )
    return show(table, "crank-counts", caption)


def judged() -> Markdown:
    """Say which rank CRANK and CRANK+ have on each real set, see :func:`ncbook.chapters.advice.across`."""
    table = board.scored(load_runs(preset="standard"))
    lines = []
    for name, kind in (("crank", board.ONE), ("crank_plus", board.TWO)):
        for rate in RATES:
            found = advice.across(table, networks=kind, rates=(rate,))
            parts = []
            for dataset in board.REAL["pairs"]:
                if name in found.index and (rank := found.loc[name, (dataset, "rank")]) == rank:
                    leader = found[dataset, "rank"].idxmin()
                    gap = found.loc[leader, (dataset, "score")] - found.loc[name, (dataset, "score")]
                    behind = f", {gap:.1f} behind `{leader}`" if gap else ""
                    n = found[dataset, "rank"].count()
                    parts.append(f"rank {rank:.0f} of {n} on {board.data_name(dataset)}{behind}")
            lines.append(f"- `{name}` at rate {rate:g}: {'; '.join(parts) or 'not run'}.")
    return Markdown("\n".join(lines))


def scenes() -> Styler:
    """Show the methods that are recorded up to rate 0.4 on the drawn scenes, model VSE, preset quick."""
    runs = recorded(preset="quick", dataset="emoji", model="vse")
    runs = pd.concat([labelled(as_preset(runs)), rows_of(runs, STABLE)])
    images = runs[(runs["protocol"] == "images") & runs["mrate"].isin([0.0, 0.2, 0.4, 0.6, 0.8])]
    cells = images.groupby(["label", "mrate"])["rsum"].agg(lambda values: mean_text(list(values), 1))
    table = cells.unstack("mrate")
    means = images.groupby(["label", "mrate"])["rsum"].mean().unstack("mrate")
    shown = means.reindex(columns=[0.0, 0.2, 0.4]).dropna().mean(axis=1).sort_values(ascending=False)
    table = table.loc[shown.index].fillna(NOT_RUN)
    table.columns = [f"{rate:g}" for rate in table.columns]
    caption = (
        "Measured on drawn scenes, model VSE, preset quick, five epochs in all: rSum on 500 test scenes; "
        "mean ± standard deviation (seeds); images exchanged; not stable: without the two terms "
        f"for a stable space; in the order of the mean at 0, 0.2 and 0.4; {devices(images)}"
    )
    return show(table.rename_axis(index=None), "crank-scenes", caption)
