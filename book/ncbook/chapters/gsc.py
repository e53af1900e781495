"""Figures of the chapter on GSC."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from IPython.display import Markdown
from matplotlib.figure import Figure

from ncbook.chapters import Finished, say, training
from ncbook.schematic import Schematic, Sketch
from nclib import plots
from nclib.methods.gsc import GSCOptions, predictions, structure

# Unit vectors of four images, and of captions that fit them except the second, which fits image 4 better.
IMAGES = F.normalize(
    torch.tensor([[1.0, 0.2, 0.1], [0.1, 1.0, 0.5], [0.2, 0.6, 1.0], [1.0, 0.1, 0.6]]), dim=1
)
CAPTIONS = F.normalize(
    torch.tensor([[1.0, 0.3, 0.1], [1.0, 0.0, 0.8], [0.3, 0.6, 1.0], [0.9, 0.1, 0.5]]), dim=1
)
WRONG = 1  # position of the wrong pair


def idea() -> Schematic:
    """Draw the method in four panels; relations, consistency and predictions are the package's."""
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
        sketch = Sketch(alt, 290, 200)
        names = [f"{letter}{k}" for k in range(1, 5)]
        sketch.matrix(75, 24, G, cell=42, framed=framed, top=1.2, rows=names, columns=names)
        drawn.append(sketch)
    colours = ["match"] * 4
    colours[WRONG] = "mismatch"
    look: dict[str, Any] = {"height": 105, "width": 22, "gap": 8, "top": 1.0, "colours": colours}
    judged = Sketch("Consistency and prediction of four pairs; both are lowest for pair 2.", 290, 200)
    for left, values, name in ((20, c, "consistency"), (160, p, "prediction")):
        judged.bars(left, 150, values.tolist(), names=("1", "2", "3", "4"), **look)
        judged.text(left + 56, 22, name)
        judged.text(left + 11 + 30 * WRONG, 143 - 105 * float(values[WRONG]), f"{values[WRONG]:.2f}", size=11)
    beta = GSCOptions().beta
    weights = Sketch("Weights of a right and of a wrong pair by epoch.", 290, 200)
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


def said(run: Finished) -> Markdown:
    """Say how well each of the signals finds wrong pairs after the last epoch."""
    last = training(run.record).iloc[-1]
    if "auc" not in last or not np.isfinite(float(last["auc"])):
        return say("The truth of this run's pairs is not known, so the weights cannot be judged.")
    return say(
        "After the last epoch, matched and mismatched pairs are told apart with an AUC of "
        f"{last['auc_consistency']:.3f} by consistency, {last['auc_prediction']:.3f} by prediction and "
        f"{last['auc']:.3f} by the weight.",
        f"{last['called_matched']:,.0f} pairs have a weight above one half, and "
        f"{last['division_precision']:.0%} of these are really matched.",
    )
