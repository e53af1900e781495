"""Figures of the page on evidence and negatives: DECL, RCL and CRCL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import show
from ncbook.chapters import Finished, kind_of_pair, say
from ncbook.chapters.family import BATCH, Views
from ncbook.schematic import Schematic, Sketch, numbered
from nclib import losses, plots
from nclib.methods.crcl import CRCL, CRCLOptions, active_complementary, match_probability, refined
from nclib.methods.decl import correspondence, evidence, hardness, published_warmup
from nclib.methods.rcl import complementary
from nclib.runs.noisy_pairs import NoisyPairs

# Logits of four pairs; the second one is wrong: its picture fits no caption of the batch well.
LOGITS = torch.tensor(
    [[1.1, -0.4, 0.1, -0.7], [-0.6, -0.2, -0.1, -0.3], [0.0, -0.5, 0.9, -0.4], [-0.8, 0.1, -0.5, 1.3]]
)
TEMPERATURE = 0.2  # of CRCL's drawing: milder than the published one, so that it shows more than two bars
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


def decl() -> Schematic:
    """Draw the method in four panels; evidence, prediction and hardness come from the package's functions."""
    tau = 0.4  # milder than the published one, so that the drawing shows more than one bar
    E = evidence(LOGITS, tau)
    unsure = len(E) / (E.sum(1) + len(E))
    p_clean, _, _ = correspondence(LOGITS, tau)
    wrong = np.diag((p_clean <= 0.5).numpy())
    bars = Sketch("Evidence of pictures 1 and 2 for four captions: high for one, low for all.")
    for left, row in ((20, 0), (165, 1)):
        colours = ["soft"] * 4
        colours[row] = "match" if row == 0 else "mismatch"
        look: dict[str, Any] = {"height": 105, "width": 20, "gap": 6, "top": float(E.max())}
        bars.bars(left, 140, E[row].tolist(), colours=colours, names=("c1", "c2", "c3", "c4"), **look)
        bars.text(left + 49, 25, f"picture {row + 1}")
        bars.text(left + 49, 178, f"uncertainty {unsure[row]:.2f}", colour="soft", size=12)
    names = numbered(4)
    judged = Sketch("Evidence in both directions; picture 2 has its largest value away from the diagonal.")
    judged.matrix(90, 24, E + E.T, cell=42, digits=1, framed=wrong, **names)
    targets = Sketch("Targets: ones on the diagonal, but row 2 is all zeros.")
    one_hot = np.diag((p_clean > 0.5).numpy()).astype(float)
    targets.matrix(90, 24, one_hot, cell=42, digits=0, framed=wrong, **names)
    hinge = Sketch("The number of negatives that count falls from the batch size to five.")
    steps = np.linspace(1, 6000, 120)
    n = [hardness(int(step), 128) for step in steps]
    curve = [(25 + 240 * s / 6000, 160 - 125 * k / 128) for s, k in zip(steps, n, strict=True)]
    hinge.line(curve, colour="match", arrow=False, weight=2.2)
    hinge.line([(25, 160), (275, 160)])
    hinge.line([(25, 160), (25, 20)])
    hinge.text(32, 24, f"{n[0]} negatives", anchor="start", size=12)
    hinge.text(265, 146, f"{n[-1]} hardest", anchor="end", size=12)
    hinge.text(150, 182, "steps of training", colour="soft")
    titles = (
        "Read similarities as evidence",
        "Predict who matches",
        "Two kinds of target",
        "A hinge that hardens",
    )
    words = (
        'Much evidence for one caption, or little for any: the second picture can say "none of these".',
        "A pair is predicted to match when its own cell is the largest of its row. Pair 2 (framed) is not.",
        "A matched pair should gather evidence for itself; a predicted mismatch should gather none.",
        "The ranking loss begins with all negatives and ends with the hardest few; predicted "
        "mismatches are left out.",
    )
    return Schematic.of(titles, (bars, judged, targets, hinge), words)


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


def rcl() -> Schematic:
    """Draw what RCL trusts, and where InfoNCE and RCL push the similarities of :data:`BATCH`."""

    def push(loss: Callable[[Tensor], Tensor]) -> Tensor:
        scores = BATCH.clone().requires_grad_()
        loss(scores).mean().backward()
        assert scores.grad is not None
        return -scores.grad

    infonce, rcl = push(lambda s: losses.info_nce(s, 0.1)), push(lambda s: complementary(s, "log", 0.1))
    wrong = np.zeros((4, 4), bool)
    wrong[1, 1] = True
    names = numbered(4)
    known = Sketch("A matrix with question marks on the diagonal and crosses everywhere else.")
    known.matrix(90, 24, np.zeros((4, 4)), cell=42, digits=-1, **names)
    for i in range(4):
        for j in range(4):
            mark, colour = ("?", "mismatch") if i == j else ("✗", "match")
            known.text(90 + 42 * j + 21, 24 + 42 * i + 27, mark, colour=colour, size=17)
    sketches = [known]
    top = float(max(infonce.abs().max(), rcl.abs().max()))
    panels: tuple[tuple[str, Tensor, dict[str, Any]], ...] = (
        ("Similarities of four pairs; the second one, framed, is wrong.", BATCH, {"top": 1.2}),
        ("InfoNCE pulls hardest at the wrong pair.", infonce, {"signed": True, "top": top}),
        ("RCL pulls less at the wrong pair.", rcl, {"signed": True, "top": top}),
    )
    for alt, values, look in panels:
        sketch = Sketch(alt)
        sketch.matrix(90, 24, values, cell=42, framed=wrong, **names, **look)
        sketches.append(sketch)
    titles = (
        "What can be trusted",
        "A batch with a wrong pair",
        "InfoNCE believes it",
        "RCL does not ask it",
    )
    strongest = "hardest of all entries" if infonce[1, 1] == infonce.max() else "hard"
    words = (
        "A given pair (?) may be wrong. Any other pairing of the batch (✗) is almost surely wrong: a "
        "safe label.",
        "Similarities. Pair 2 is wrong (framed): picture 2 belongs to caption 3.",
        f"One step of gradient descent. InfoNCE raises the wrong pair {strongest}: {infonce[1, 1]:+.2f}.",
        "RCL lowers negatives only. What they lose, the rest of the row shares; the wrong pair gets "
        f"{rcl[1, 1]:+.2f}.",
    )
    return Schematic.of(titles, sketches, words)


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


def push(y: Tensor, tau: float = TEMPERATURE) -> Tensor:
    """Return how gradient descent on the loss moves the similarities of :data:`BATCH`, (4, 4)."""
    S = BATCH.clone().requires_grad_()
    active, complementary = active_complementary(S, y, tau)
    (slope,) = torch.autograd.grad((y * active + CRCLOptions().weight * complementary).mean(), S)
    return -slope


def crcl() -> Schematic:
    """Draw the method in four panels; probabilities, averages and gradients come from the package."""
    options, p = CRCLOptions(), match_probability(BATCH, TEMPERATURE)
    asked = Sketch("Probabilities of four given pairs; that of pair 2 is low.")
    look: dict[str, Any] = {"height": 115, "width": 36, "gap": 16, "top": 1.0}
    look["colours"] = ["match", "mismatch", "match", "match"]
    asked.bars(50, 155, p.tolist(), names=[f"pair {k}" for k in range(1, 5)], **look)
    for k, value in enumerate(p.tolist()):
        asked.text(68 + 52 * k, 148 - 115 * value, f"{value:.2f}", size=12)
    kept = Sketch("Correspondence of pairs 1 and 2 over twelve visits.")
    y = torch.ones(4)
    seen = [y]
    for _ in range(12):
        y = refined(y, p, options.alpha)
        y = y.masked_fill(y < options.floor, 0)
        seen.append(y)
    for k, colour in ((0, "match"), (1, "mismatch")):
        line = [(30 + 19 * i, 155 - 120 * float(y[k])) for i, y in enumerate(seen)]
        kept.line(line, colour=colour, arrow=False, weight=2.2)
        kept.text(262, line[-1][1] - 14, f"pair {k + 1}", anchor="end", size=12)
    kept.line([(30, 155), (270, 155)])
    kept.line([(30, 155), (30, 20)])
    kept.text(150, 178, "visits", colour="soft")
    trusted, doubted = push(torch.ones(4)), push(torch.tensor([1.0, 0.0, 1.0, 1.0]))
    framed = np.diag([False, True, False, False])
    names = numbered(4)
    split = Sketch("Push of the loss when the correspondence of pair 2 is zero.")
    split.matrix(
        90, 24, doubted, cell=42, framed=framed, signed=True, top=float(trusted.abs().max()), **names
    )
    renewed = Sketch("Three networks one after the other; one bank of y runs through all.")
    for k in range(3):
        renewed.box(15 + 92 * k, 35, 76, 50, words=f"network {k + 1}", colour="soft")
        renewed.line([(53 + 92 * k, 87), (53 + 92 * k, 121)])
    renewed.box(15, 123, 260, 36, words="y of every pair", colour="match", opacity=0.25)
    titles = ("Ask the model", "Remember the answers", "Pull by y, push always", "Forget the network, keep y")
    words = (
        "Every pair is asked at every visit how probable its own partner is.",
        f"y moves {1 - options.alpha:.0%} of the way to each answer; below {options.floor:g} it becomes 0.",
        f"A descent step moves pair 2 (framed) by {doubted[1, 1]:+.2f} with y = 0, by {trusted[1, 1]:+.2f} "
        "with y = 1. Negatives are pushed away in both cases.",
        "What a network learned by heart is lost with it. The next one starts at random, but knows y.",
    )
    return Schematic.of(titles, (asked, kept, split, renewed), words)


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
