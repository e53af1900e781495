"""Figures of the page on relations and space: GSC and SPS."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from ncbook.chapters.family import Views
from ncbook.training import Finished
from nclib import plots
from nclib.methods.parts.replacing import relevance_of

# Diagnostics of the methods, and what the page calls them.
SEEN = {
    "auc_consistency": "AUC of the consistency",
    "auc_prediction": "AUC of the prediction",
    "auc": "AUC of the weight, or of the division by losses",
    "ece": "calibration error",
    "division_precision": "called matched: precision",
    "division_recall": "called matched: recall",
    "called_matched": "called matched: pairs",
    "n_sure": "strictly clean pairs",
    "n_clean": "clean pairs",
    "n_noisy": "noisy pairs",
    "replaced": "captions replaced",
    "replaced_precision": "of their pairs really mismatched",
    "replaced_label": "mean label",
    "old_relevance": "share that is true of the given captions",
    "new_relevance": "share that is true of the borrowed captions",
}
DRAWN = 4000  # captions of a kind whose truth is drawn


def two_signals(run: Finished) -> Figure:
    """Draw consistency, prediction and weight of all pairs by truth after the last epoch."""
    figure, (axes,) = plots.panels(1, 3, 8.8, 2.9)
    names = {
        "consistency": "consistency $c_i$",
        "prediction": "prediction $p_i$",
        "p_clean": r"weight $\omega_i$",
    }
    for axis, (array, label) in zip(axes, names.items(), strict=True):
        values = run.last[array]
        bins = np.linspace(min(0.0, float(values.min())), 1, 41)
        plots.by_truth(axis, values, run.matched, bins, "% of kind")
        axis.set(xlabel=label, yscale="log")
    axes[0].set_ylabel("% of the pairs of that kind")
    axes[1].legend(fontsize=8)
    return figure


def truth_of_proxies(run: Finished) -> Figure | None:
    """Draw which share of given captions and of proxies is true of the picture; None if that is unknown."""
    truth, last = run.trainer.pairs.truth(), run.last
    if truth.relevance is None or "replaced_pair" not in last:
        return None
    pair, by, used = last["replaced_pair"], last["replaced_by"], last["replaced_label"] > 0
    groups = {
        "given caption": (pair, pair, plots.MISMATCHED, "///"),
        "proxy": (pair, by, plots.MATCHED, ""),
        "proxy, label above 0": (pair[used], by[used], plots.THIRD, "..."),
    }
    figure, ((axis,),) = plots.panels(1, 1, 7.0, 3.0)
    drawn = []
    for name, (*rows, colour, hatch) in groups.items():
        some = np.random.default_rng(0).permutation(len(rows[0]))[:DRAWN]
        if len(some):
            share = relevance_of(truth, *(torch.as_tensor(each[some]) for each in rows))
            drawn.append((share, colour, hatch, f"{name}, mean {share.mean():.2f}"))
    plots.histograms(axis, drawn, np.linspace(0, 1, 11), "% of kind")
    axis.set(xlabel="share of the caption that is true of the picture", ylabel="% of the captions")
    axis.legend(fontsize=8)
    return figure


VIEWS: Views = {"gsc": (two_signals,), "gsc_plus": (two_signals,), "sps": (truth_of_proxies,)}
"""What the page shows of a run of each method."""
