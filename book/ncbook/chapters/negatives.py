"""Figures of the page on evidence and negatives: DECL, RCL and CRCL."""

from __future__ import annotations

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import show
from ncbook.chapters.family import Views
from ncbook.training import Finished, kind_of_pair, say
from nclib import plots
from nclib.methods.crcl import CRCL, CRCLOptions
from nclib.methods.decl import published_warmup
from nclib.runs.noisy_pairs import NoisyPairs

# Diagnostics of the methods, and what the page calls them.
SEEN = {
    "auc": "AUC of the prediction, the probability, or y",
    "auc_share": "AUC of the share of the evidence",
    "auc_uncertainty": "AUC of low uncertainty",
    "ece": "calibration error",
    "division_precision": "called matched: precision",
    "division_recall": "called matched: recall",
    "called_matched": "pairs called matched",
}


def evidence_histograms(run: Finished) -> Figure:
    """Draw share of the evidence and uncertainty of all pairs by truth, at the last prediction of DECL."""
    figure, (axes,) = plots.panels(1, 2, height=2.9)
    views = (
        ("share", "share of the evidence on the given pair", 1),
        ("uncertainty", "uncertainty, both directions", 2),
    )
    for axis, (array, label, top) in zip(axes, views, strict=True):
        plots.by_truth(axis, run.last[array], run.matched, np.linspace(0, top, 41), "% of all")
        axis.set(xlabel=label, xlim=(0, top), yscale="log")
        axis.set_ylim(50 / len(run.matched), 100)  # down to half a pair
    axes[0].set_ylabel("pairs in %, log scale")
    axes[0].legend(loc="upper center")
    return figure


def warmup_table() -> Styler:
    """Show the epochs of warm-up of the official scripts, by data set and mismatch rate."""
    rates, datasets = (0.2, 0.4, 0.6, 0.8), ("f30k", "coco", "cc152k")
    cells = pd.DataFrame({name: [published_warmup(name, rate) for rate in rates] for name in datasets})
    cells.index = pd.Index([f"{rate:g}" for rate in rates], name="mismatch rate")
    return show(cells.T, "warmup", "Epochs of warm-up in the official code (option warmup_epochs)")


def problem_said(pairs: NoisyPairs, seed: int) -> Markdown:
    """Say how often a given pair is wrong, and how often a random pairing is right by accident."""
    given = f"Of the given pairs {1 - pairs.noise.matched.mean():.0%} are wrong: as positives they mislead."
    if not pairs.split.has_relevance:
        return say(given)
    rng = np.random.default_rng(seed)
    images, captions = rng.integers(pairs.split.n_images, size=200), rng.integers(len(pairs), size=200)
    right = (pairs.split.relevance(images, captions) == 1).mean()
    safe = "as negatives they are safe" if right < 0.05 else "as negatives they are not safe here"
    return say(given, f"Of 40,000 random pairings {right:.2%} are right by accident: {safe}.")


def belief(run: Finished) -> Figure | None:
    """Draw the probability of the given pair by truth; a dotted line marks one half."""
    label = "probability of the given pair"
    figure = plots.pairs_by_epoch(
        run.kept, "p_clean", run.matched, xlabel=label, unit="% of all", title="after epoch {}"
    )
    for axis in figure.axes if figure else ():
        axis.axvline(0.5, color="#444444", ls=":", lw=1.5)
    return figure


def bank(run: Finished) -> Figure:
    """Draw the mean correspondence of right and wrong pairs by epoch, and all of them after the last."""
    figure, ((left, right),) = plots.panels(1, 2, 8.6, 3.0)
    epochs = sorted(run.kept)
    for flag in (True, False):
        name, colour = kind_of_pair(flag)
        rows = run.matched == flag
        if rows.any():
            means = [float(run.kept[e]["p_clean"][rows].mean()) for e in epochs]
            left.plot(epochs, means, "o-" if flag else "s--", color=colour, label=f"really {name}")
    for k, begin in enumerate(CRCL(CRCLOptions(**run.options)).restarts(len(epochs))):
        left.axvline(
            begin + epochs[0] - 0.5, color="#444444", ls=":", lw=1.5, label="" if k else "new network"
        )
    left.set(xlabel="epoch", ylabel="mean y after it", ylim=(0, 1.05), xticks=epochs)
    left.legend(fontsize=8)
    plots.by_truth(right, run.last["p_clean"], run.matched, np.linspace(0, 1, 41), "% of all")
    right.set(xlabel=f"y after epoch {epochs[-1]}", ylabel="pairs in %", yscale="log")
    right.legend(fontsize=8)
    return figure


VIEWS: Views = {"decl": (evidence_histograms,), "rcl": (belief,), "crcl": (bank,)}
"""What the page shows of a run of each method."""
