"""Figures of the chapter on PCSR."""

from __future__ import annotations

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from torch.nn.functional import normalize, one_hot

from ncbook.chapters import Finished, say, training
from ncbook.chapters.replaced import DIVIDED, REPLACED
from ncbook.schematic import Schematic, Sketch
from nclib import plots
from nclib.methods.parts.classes import consistency
from nclib.methods.pcsr import KINDS, PCSROptions, next_threshold

# Classes that six epochs vote for: a consistent picture, one that changes once, and one that wavers.
VOTES = torch.tensor([[1, 1, 1, 1, 1, 1], [2, 2, 0, 2, 2, 2], [0, 3, 1, 0, 2, 3]])
# Distributions over four pseudo-classes of three noisy and of three clean pictures.
NOISY = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.2, 0.1, 0.6, 0.1], [0.3, 0.2, 0.2, 0.3]])
CLEAN = torch.tensor([[0.1, 0.1, 0.75, 0.05], [0.1, 0.8, 0.05, 0.05], [0.6, 0.1, 0.1, 0.2]])
SEEN = {
    **DIVIDED,
    **{f"n_{kind}": f"{kind} pairs" for kind in KINDS},
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
            place, hatched = (32 + 32 * k, 36 + 46 * i, 28, 34), look != "match"
            votes.box(*place, words="ABCD"[chosen], colour=look, opacity=0.2, hatched=hatched)
        votes.text(255, 58 + 46 * i, f"g = {int(g[i])}")
    votes.text(126, 22, "votes of epochs 1 to 6", colour="soft", size=12)
    parted = Sketch("Pairs divide into clean and noisy, noisy ones into refinable and ambiguous.", 290, 200)
    boxes = ((100, 12, "all pairs", "ink"), (20, 82, "clean", "match"), (170, 82, "noisy", "mismatch"))
    for x, y, word, look in (*boxes, (85, 152, "refinable", "soft"), (192, 152, "ambiguous", "mismatch")):
        parted.box(x, y, 92, 30, words=word, colour=look, opacity=0.1, hatched=look == "mismatch")
    for x0, x1, y in ((130, 70, 42), (160, 210, 42), (205, 140, 112), (225, 240, 112)):
        parted.line([(x0, y), (x1, y + 38)])
    parted.text(70, 62, "low loss", size=12)
    parted.text(122, 132, f"g > {theta:.2f}", size=12)
    borrow = Sketch("Cosines of the pseudo-classes of noisy and clean pictures; row maxima framed.", 290, 200)
    cosine = normalize(NOISY, dim=1) @ normalize(CLEAN, dim=1).T
    rows, columns = ([f"{kind} {i}" for i in (1, 2, 3)] for kind in ("noisy", "clean"))
    framed = torch.eye(3)[cosine.argmax(1)].numpy() > 0
    borrow.matrix(90, 40, cosine, cell=46, framed=framed, rows=rows, columns=columns)
    late = Sketch("Clean pairs train from the start, refinable ones later, ambiguous ones last.", 290, 200)
    o, left, wide = PCSROptions(), 20, 250
    starts = {"match": 0.0, "soft": o.refinable_from, "mismatch": o.ambiguous_from}
    for k, (look, share) in enumerate(starts.items()):
        late.box(left + wide * share, 14 + 46 * k, wide * (1 - share), 34, colour=look, opacity=0.2)
        late.text(left + 8, 36 + 46 * k, f"{KINDS[2 - k]}: from {share:.0%}", anchor="start", size=12)
    late.line([(left, 160), (left + wide, 160)])
    late.text(left + wide / 2, 182, "training epochs", colour="soft", size=12)
    titles = ("Vote for a pseudo-class", "Divide twice", "Borrow a caption", "Join late")
    words = (
        "A head names one class per picture and epoch. Consistency: largest minus second largest count.",
        "Low loss makes a pair clean. Of the noisy ones, those with consistent votes are refinable.",
        "A noisy picture takes the caption of the clean picture with the most similar classes (framed).",
        "Doubtful pairs join when the network is better. Ambiguous ones also get a robust loss.",
    )
    return Schematic.of(titles, (votes, parted, borrow, late), words)


def consistencies(run: Finished) -> Figure:
    """Draw the consistency of network A's votes by truth and its threshold, first and last epoch."""
    shown = sorted({min(run.kept), max(run.kept)})
    figure, (axes,) = plots.panels(1, len(shown), height=2.9, sharey=True)
    for axis, epoch in zip(axes, shown, strict=True):
        g, theta = run.kept[epoch]["consistency"], run.kept[epoch]["theta"][0]
        plots.by_truth(axis, g, run.matched, np.arange(-0.5, g.max() + 1.5), "% of kind")
        axis.axvline(theta, color="#444444", ls="--", label=f"threshold {theta:.2f}")
        axis.set(xlabel="consistency g", xticks=np.arange(g.max() + 1), title=f"before epoch {epoch}")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("% of the pairs of that kind")
    return figure


def constant_head(classes: int, weight: float = 10.0) -> tuple[float, float]:
    """Return the loss terms ``classes`` and ``entropy`` of the best head that tells no pictures apart."""
    p = torch.logspace(-4, -0.01, 4000, dtype=torch.float64)[:, None]  # of the one class that is a target
    log_pi = torch.cat([p, ((1 - p) / (classes - 1)).expand(-1, classes - 1)], 1).log()
    terms = torch.stack([-log_pi[:, 0], weight * (log_pi.exp() * log_pi).sum(1)])
    k = int(terms.sum(0).argmin())
    return float(terms[0, k]), float(terms[1, k])


def votes_said(run: Finished) -> Markdown:
    """Say how many pseudo-classes the votes name, and how near the head is to one that is constant."""
    curve = training(run.record).reindex(columns=["classes_used", "loss_classes", "loss_entropy"])
    first, (last, target, spread) = curve["classes_used"].iloc[0], curve.iloc[-1].astype(float)
    classes, weight = (run.options[name] for name in ("classes", "entropy_weight"))
    return say(
        f"Of {classes} pseudo-classes the votes name {first:.0f} before the first training epoch and "
        f"{last:.0f} before the last (mean of both networks).",
        "The loss terms `classes` and `entropy` end at {:.2f} and {:.2f}; the best head with one "
        "distribution for all pictures has {:.2f} and {:.2f}.".format(
            target, spread, *constant_head(classes, weight)
        ),
    )
