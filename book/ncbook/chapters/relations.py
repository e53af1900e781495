"""Figures of the page on relations and space: GSC and SPS."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.functional import normalize

from ncbook.chapters import Finished
from ncbook.chapters.family import Views
from ncbook.schematic import Schematic, Sketch
from nclib import plots
from nclib.methods.gsc import GSCOptions, predictions, structure
from nclib.methods.parts.replacing import relevance_of
from nclib.methods.sps import disagreement, probability, proxies, proxy_labels

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

# Unit vectors of four images, and of captions that fit them except the second, which fits image 4 better.
IMAGES = normalize(torch.tensor([[1.0, 0.2, 0.1], [0.1, 1.0, 0.5], [0.2, 0.6, 1.0], [1.0, 0.1, 0.6]]), dim=1)
CAPTIONS = normalize(
    torch.tensor([[1.0, 0.3, 0.1], [1.0, 0.0, 0.8], [0.3, 0.6, 1.0], [0.9, 0.1, 0.5]]), dim=1
)
WRONG = 1  # position of the wrong pair


def gsc() -> Schematic:
    """Draw GSC in four panels; relations, consistency and predictions are the package's."""
    G_v, G_t = IMAGES @ IMAGES.T, CAPTIONS @ CAPTIONS.T
    _, c = structure(G_v, G_t, torch.ones(4))
    p = predictions(IMAGES @ CAPTIONS.T, GSCOptions().tau)
    framed = np.zeros((4, 4), bool)
    framed[WRONG] = True
    drawn = []
    for alt, G, letter in (
        ("Similarities of four images with each other.", G_v, "i"),
        ("Similarities of their captions; row 2 differs from that of the images.", G_t, "c"),
    ):
        sketch = Sketch(alt)
        names = [f"{letter}{k}" for k in range(1, 5)]
        sketch.matrix(75, 24, G, cell=42, framed=framed, top=1.2, rows=names, columns=names)
        drawn.append(sketch)
    colours = ["match"] * 4
    colours[WRONG] = "mismatch"
    look: dict[str, Any] = {"height": 105, "width": 22, "gap": 8, "top": 1.0, "colours": colours}
    judged = Sketch("Consistency and prediction of four pairs; both are lowest for pair 2.")
    for left, values, name in ((20, c, "consistency"), (160, p, "prediction")):
        judged.bars(left, 150, values.tolist(), names=("1", "2", "3", "4"), **look)
        judged.text(left + 56, 22, name)
        judged.text(left + 11 + 30 * WRONG, 143 - 105 * float(values[WRONG]), f"{values[WRONG]:.2f}", size=11)
    beta = GSCOptions().beta
    weights = Sketch("Weights of a right and of a wrong pair by epoch.")
    for left, target, colour, name in (
        (20, 1.0, "match", "right pair"),
        (160, 0.0, "mismatch", "wrong pair"),
    ):
        omega = [1.0]
        for _ in range(3):
            omega.append(beta * target + (1 - beta) * omega[-1])
        each: dict[str, Any] = {**look, "colours": [colour]}
        weights.bars(left, 150, omega, names=("1", "2", "3", "4"), **each)
        weights.text(left + 56, 22, name)
        weights.text(left + 56, 184, "epoch", colour="soft", size=12)
    titles = ("Relations of the images", "Relations of the captions", "Two signals", "A weight with memory")
    words = (
        "Each image is compared with every image of the batch. A row is its place among the others.",
        "The captions are compared in the same way. Row 2 (framed) differs: caption 2 has another place.",
        "Consistency: cosine of both rows. Prediction: the pair's own probability. Both are lowest for the "
        "wrong pair.",
        f"After each epoch, {beta:.0%} of the weight is the new finding, the smaller of both signals. Bars: "
        "signals that stay at 1 and at 0.",
    )
    return Schematic.of(titles, (*drawn, judged, weights), words)


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


POSTERIOR = (0.98, 0.91, 0.83, 0.55, 0.31, 0.12, 0.04)  # of seven pairs
SURE, CLEAN, TAU = 0.6, 0.5, 0.07  # the published bounds and temperature
# Mean regions of three noisy and of three strictly clean pictures, in two dimensions.
NOISY = torch.tensor([[0.95, 0.35], [0.45, 1.0], [0.9, 0.6]])
SURE_PICTURES = torch.tensor([[1.0, 0.05], [0.1, 0.9], [0.7, 0.7]])
SURE_CAPTIONS = torch.tensor([[0.8, 0.4], [0.3, 0.9], [1.0, 0.1]])
# Similarities of the noisy pictures with the captions of their proxies.
TO_PROXIES = torch.tensor([[0.82, 0.31, 0.12], [0.28, 0.35, 0.47], [0.15, 0.22, 0.76]])


def sps() -> Schematic:
    """Draw SPS in four panels; proxies and labels come from the package's functions."""
    split = Sketch("Posteriors of seven pairs with the bounds 0.5 and 0.6.")
    look = ["match" if w > SURE else "soft" if w > CLEAN else "mismatch" for w in POSTERIOR]
    names = [f"{w:.2f}" for w in POSTERIOR]
    split.bars(12, 165, POSTERIOR, colours=look, height=130, width=26, gap=9, names=names, top=1)
    for bound, word, up in ((SURE, "strictly clean above", -5), (CLEAN, "noisy up to", 14)):
        split.line([(8, 165 - 130 * bound), (285, 165 - 130 * bound)], arrow=False, dashed=True)
        split.text(285, 165 - 130 * bound + up, f"{word} {bound:g}", anchor="end", size=12)
    split.text(135, 196, "posterior of each pair", colour="soft", size=12)
    stable = Sketch("Cosines of three pictures with each other, and of their captions.")
    for left, points, word in ((15, SURE_PICTURES, "pictures"), (165, SURE_CAPTIONS, "captions")):
        unit = normalize(points, dim=1)
        stable.matrix(left, 30, unit @ unit.T, cell=36)
        stable.text(left + 54, 20, word, size=12)
    gap = float(disagreement(SURE_PICTURES, SURE_CAPTIONS))
    stable.text(145, 172, f"mean squared difference {gap:.2f}", size=12)
    proxy, cosine = proxies(NOISY, SURE_PICTURES)
    p = probability(TO_PROXIES, TAU)
    noisy, sure = (normalize(x, dim=1) for x in (NOISY, SURE_PICTURES))
    search = Sketch("Cosines of three noisy with three strictly clean pictures; row maxima framed.")
    names_of: dict[str, Any] = {
        "rows": [f"noisy {i}" for i in (1, 2, 3)],
        "columns": [f"clean {j}" for j in (1, 2, 3)],
    }
    search.matrix(90, 40, noisy @ sure.T, cell=46, framed=torch.eye(3)[proxy].numpy() > 0, **names_of)
    label = Sketch("Probability, cosine and label of the three noisy pictures.")
    for k, (name, values) in enumerate({"p": p, "cosine": cosine, "label": proxy_labels(p, cosine)}.items()):
        at = 15 + 95 * k
        numbers = [f"{v:.2f}" for v in values.tolist()]
        label.bars(
            at, 150, values.tolist(), colours=("match",), names=numbers, width=23, gap=5, height=105, top=1
        )
        label.text(at + 40, 30, name)
    label.text(145, 190, "noisy pictures 1 to 3 in each group", colour="soft", size=12)
    titles = ("Three kinds of pairs", "A stable feature space", "Take a proxy", "A label with two factors")
    words = (
        "The other network's posterior parts the pairs: orange is noisy, grey lies in a narrow band.",
        "Strictly clean pairs: pictures should lie to each other as captions do, and S be symmetric.",
        "A noisy picture takes the caption of the most similar strictly clean picture of the step (framed).",
        "Its label is probability times cosine; below 0.5 it becomes 0, and the picture is left out.",
    )
    return Schematic.of(titles, (split, stable, search, label), words)


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
