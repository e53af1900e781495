"""Figures of the chapter on PCSR."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from torch.nn.functional import normalize, one_hot

from ncbook.chapters import Finished, say, training
from ncbook.chapters.replaced import DIVIDED, REPLACED
from ncbook.schematic import Panel, Schematic, Sketch
from nclib import plots
from nclib.methods.parts.classes import consistency
from nclib.methods.pcsr import PCSROptions, next_threshold

# Classes that six epochs vote for: a consistent picture, one that changes once, and one that wavers.
VOTES = torch.tensor([[1, 1, 1, 1, 1, 1], [2, 2, 0, 2, 2, 2], [0, 3, 1, 0, 2, 3]])
# Distributions over four pseudo-classes of three noisy and of three clean pictures.
NOISY = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.2, 0.1, 0.6, 0.1], [0.3, 0.2, 0.2, 0.3]])
CLEAN = torch.tensor([[0.1, 0.1, 0.75, 0.05], [0.1, 0.8, 0.05, 0.05], [0.6, 0.1, 0.1, 0.2]])
SEEN = {
    **DIVIDED,
    "n_clean": "clean pairs",
    "n_refinable": "refinable pairs",
    "n_ambiguous": "ambiguous pairs",
    "classes_used": "pseudo-classes that votes name",
    **REPLACED,
}


def idea() -> Schematic:
    """Draw the method in four panels; consistency and threshold come from the package's functions."""
    g = consistency(one_hot(VOTES, 4).sum(1))
    theta = next_threshold(float(g.double().mean()), g, 6, 55)
    votes = Sketch("Votes of three pictures in six epochs, and the consistency of each.", 290, 200)
    for i, row in enumerate(VOTES.tolist()):
        votes.text(18, 58 + 46 * i, f"{i + 1}", colour="soft")
        for k, chosen in enumerate(row):
            look = "match" if chosen == int(VOTES[i].mode().values) else "mismatch"
            place = (32 + 32 * k, 36 + 46 * i, 28, 34)
            votes.box(*place, words="ABCD"[chosen], colour=look, opacity=0.2, hatched=look != "match")
        votes.text(255, 58 + 46 * i, f"g = {int(g[i])}")
    votes.text(126, 22, "votes of epochs 1 to 6", colour="soft", size=12)
    parted = Sketch("Pairs divide into clean and noisy, noisy ones into refinable and ambiguous.", 290, 200)
    boxes = ((100, 12, "all pairs", "ink"), (20, 82, "clean", "match"), (170, 82, "noisy", "mismatch"))
    more = ((85, 152, "refinable", "soft"), (192, 152, "ambiguous", "mismatch"))
    for x, y, word, look in (*boxes, *more):
        opacity = 0.15 * (look != "ink")
        parted.box(x, y, 92, 30, words=word, colour=look, opacity=opacity, hatched=look == "mismatch")
    for x0, x1, y in ((130, 70, 42), (160, 210, 42), (205, 140, 112), (225, 240, 112)):
        parted.line([(x0, y), (x1, y + 38)])
    parted.text(70, 62, "low loss", size=12)
    parted.text(122, 132, f"g > {theta:.2f}", size=12)
    borrow = Sketch("Cosines of the pseudo-classes of noisy and clean pictures; row maxima framed.", 290, 200)
    cosine = normalize(NOISY, dim=1) @ normalize(CLEAN, dim=1).T
    names: dict[str, Any] = {"rows": [f"noisy {i}" for i in (1, 2, 3)]}
    names["columns"] = [f"clean {j}" for j in (1, 2, 3)]
    borrow.matrix(90, 40, cosine, cell=46, framed=torch.eye(3)[cosine.argmax(1)].numpy() > 0, **names)
    late = Sketch("Clean pairs train from the start, refinable ones later, ambiguous ones last.", 290, 200)
    o, left, wide = PCSROptions(), 20, 250
    rows = (("clean", 0.0, "match"), ("refinable", o.refinable_from, "soft"))
    for k, (name, share, look) in enumerate((*rows, ("ambiguous", o.ambiguous_from, "mismatch"))):
        late.box(left + wide * share, 14 + 46 * k, wide * (1 - share), 34, colour=look, opacity=0.2)
        late.text(left + 8, 36 + 46 * k, f"{name}: from {share:.0%}", anchor="start", size=12)
    late.line([(left, 160), (left + wide, 160)])
    late.text(left + wide / 2, 182, "training epochs", colour="soft", size=12)
    titles = ("Vote for a pseudo-class", "Divide twice", "Borrow a caption", "Join late")
    words = (
        "A head names one class per picture and epoch. Consistency: largest minus second largest count.",
        "Low loss makes a pair clean. Of the noisy ones, those with consistent votes are refinable.",
        "A noisy picture takes the caption of the clean picture with the most similar classes (framed).",
        "Doubtful pairs join when the network is better. Ambiguous ones also get a robust loss.",
    )
    panels = zip(titles, (votes, parted, borrow, late), words, strict=True)
    return Schematic([Panel(*parts) for parts in panels])


def consistencies(run: Finished) -> Figure:
    """Draw the consistency of network A's votes by truth and its threshold, first and last epoch."""
    shown = sorted({min(run.kept), max(run.kept)})
    figure, (axes,) = plots.panels(1, len(shown), 8.4, 2.9, sharey=True)
    for axis, epoch in zip(axes, shown, strict=True):
        g, theta = run.kept[epoch]["consistency"], run.kept[epoch]["theta"][0]
        plots.by_truth(axis, g, run.matched, np.arange(-0.5, g.max() + 1.5), "% of kind")
        axis.axvline(theta, color="#444444", ls="--", label=f"threshold {theta:.2f}")
        axis.set(xlabel="consistency g", xticks=np.arange(g.max() + 1), title=f"before epoch {epoch}")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("% of the pairs of that kind")
    return figure


def votes_said(run: Finished) -> Markdown:
    """Say how many pseudo-classes the votes name, and what that makes of the labels."""
    curve, classes = training(run.record).reindex(columns=[*SEEN]), run.options["classes"]
    first, last = (curve["classes_used"].iloc[k] for k in (0, -1))
    return say(
        f"Of {classes} pseudo-classes the votes name {first:.0f} before the first training epoch and "
        f"{last:.0f} before the last (mean of both networks).",
        "Nearly all pictures look alike to the head: borrowed captions are then arbitrary, and their labels "
        "are high all the same."
        if last < 0.02 * classes and curve["replaced_label"].iloc[-1] > 0.9
        else "",
    )
