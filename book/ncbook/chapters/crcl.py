"""Figures of the chapter on CRCL."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from torch import Tensor

from ncbook.chapters import Finished, kind_of_pair, say, training
from ncbook.chapters.rcl import BATCH  # pair 2 is wrong: its image belongs to caption 3
from ncbook.schematic import Schematic, Sketch
from nclib import plots
from nclib.methods.crcl import CRCL, CRCLOptions, active_complementary, match_probability, refined

TEMPERATURE = 0.2  # milder than the published one, so that the drawing shows more than two bars


def push(y: Tensor, tau: float = TEMPERATURE) -> Tensor:
    """Return how gradient descent on the loss moves the similarities of :data:`BATCH`, (4, 4)."""
    S = BATCH.clone().requires_grad_()
    active, complementary = active_complementary(S, y, tau)
    (slope,) = torch.autograd.grad((y * active + CRCLOptions().weight * complementary).mean(), S)
    return -slope


def idea() -> Schematic:
    """Draw the method in four panels; probabilities, averages and gradients come from the package."""
    options, p = CRCLOptions(), match_probability(BATCH, TEMPERATURE)
    asked = Sketch("Probabilities of four given pairs; that of pair 2 is low.", 290, 200)
    look: dict[str, Any] = {"height": 115, "width": 36, "gap": 16, "top": 1.0}
    look["colours"] = ["match", "mismatch", "match", "match"]
    asked.bars(50, 155, p.tolist(), names=[f"pair {k}" for k in range(1, 5)], **look)
    for k, value in enumerate(p.tolist()):
        asked.text(68 + 52 * k, 148 - 115 * value, f"{value:.2f}", size=12)
    kept = Sketch("Correspondence of pairs 1 and 2 over twelve visits.", 290, 200)
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
    names: dict[str, Any] = {"rows": [f"picture {k}" for k in range(1, 5)]}
    names["columns"] = ["c1", "c2", "c3", "c4"]
    split = Sketch("Push of the loss when the correspondence of pair 2 is zero.", 290, 200)
    split.matrix(
        90, 24, doubted, cell=42, framed=framed, signed=True, top=float(trusted.abs().max()), **names
    )
    renewed = Sketch("Three networks one after the other; one bank of y runs through all.", 290, 200)
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


def said(run: Finished) -> Markdown:
    """Say what the bank knows of the truth at the end."""
    last = training(run.record).iloc[-1]
    if "auc" not in last or not np.isfinite(float(last["auc"])):
        return say("The truth of this run's pairs is not known, so the bank cannot be judged.")
    zero = run.last["p_clean"] == 0
    wrong = f", of which {(~run.matched[zero]).mean():.0%} are really mismatched" if zero.any() else ""
    found = f"At the end y tells matched from mismatched pairs with an AUC of {last['auc']:.2f}."
    return say(found, f"It is 0 for {zero.sum():,} pairs{wrong}.")
