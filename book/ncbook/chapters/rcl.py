"""Figures and tables of the chapter on RCL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from torch import Tensor

from ncbook import chapters
from ncbook.chapters import Finished, say, training
from ncbook.schematic import Schematic, Sketch
from nclib import Record, losses, plots
from nclib.methods.rcl import COMPLEMENTARY, complementary
from nclib.runs.noisy_pairs import NoisyPairs

# A batch of four; pair 2 is wrong: its image belongs to caption 3.
BATCH = torch.tensor(
    [[0.82, 0.31, 0.12, 0.25], [0.28, 0.20, 0.62, 0.09], [0.15, 0.22, 0.66, 0.33], [0.05, 0.41, 0.18, 0.54]]
)
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def idea() -> Schematic:
    """Draw what RCL trusts, and where InfoNCE and RCL push the similarities of :data:`BATCH`."""

    def push(loss: Callable[[Tensor], Tensor]) -> Tensor:
        scores = BATCH.clone().requires_grad_()
        loss(scores).mean().backward()
        assert scores.grad is not None
        return -scores.grad

    infonce, rcl = push(lambda s: losses.info_nce(s, 0.1)), push(lambda s: complementary(s, "log", 0.1))
    wrong = np.zeros((4, 4), bool)
    wrong[1, 1] = True
    names: dict[str, Any] = {
        "rows": [f"picture {i}" for i in range(1, 5)],
        "columns": [f"c{j}" for j in range(1, 5)],
    }
    known = Sketch("A matrix with question marks on the diagonal and crosses everywhere else.", 290, 200)
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
        sketch = Sketch(alt, 290, 200)
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


def problem(pairs: NoisyPairs, seed: int) -> Figure | None:
    """Draw two right and two wrong pairs, each with a caption of another pair below."""
    rows = np.concatenate([chapters.some_pairs(pairs, flag, 2, seed) for flag in (True, False)])
    others = np.random.default_rng(seed + 1).integers(len(pairs), size=len(rows))
    notes = ["another caption: " + pairs.split.captions.text(int(k)) for k in others]
    return chapters.drawn_pairs(pairs, rows.tolist(), notes)


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


def family(q: float, batch_size: int) -> Figure:
    """Draw the complementary losses, their slopes, and the pull on the given pair; ``q`` is of ``gce``."""
    colours = plots.CYCLE[: len(COMPLEMENTARY)]
    p = torch.linspace(0, 0.995, 400, dtype=torch.float64, requires_grad=True)
    own = torch.linspace(0.002, 0.998, 300, dtype=torch.float64)

    def pull(f: Callable[..., Tensor], rivals: int) -> Tensor:
        """Return the force on the given pair, times tau: its probability times sum_j p_j f'(p_j)."""
        each = ((1 - own) / rivals).requires_grad_()
        (slope,) = torch.autograd.grad(f(each, 1 - each, q).sum(), each)
        return (own * rivals * each * slope).detach()

    figure, ((left, middle, right),) = plots.panels(1, 3, 8.8, 3.1)
    for (name, f), line, colour in zip(COMPLEMENTARY.items(), LINES, colours, strict=True):
        values = f(p, 1 - p, q)
        (slope,) = torch.autograd.grad(values.sum(), p)
        look = {"color": colour, "ls": line}
        left.plot(p.detach(), values.detach(), label=name if name != "gce" else f"gce, q={q:g}", **look)
        middle.plot(p.detach(), slope, **look)
        right.plot(own, pull(f, batch_size - 1), **look)
        right.plot(own[::25], pull(f, 1)[::25], "o", ms=3, color=colour)
    right.plot(own, 1 - own, color="#222222", lw=1, label="InfoNCE")
    left.set(xlabel="probability p of the negative", title="f(p)", ylim=(0, 4), xlim=(0, 1))
    middle.set(xlabel="probability p of the negative", title="slope f'(p)", ylim=(0, 6), xlim=(0, 1))
    right.set(xlabel="probability of the given pair", title="pull on the given pair")
    right.set(xlim=(0, 1), ylim=(0, 1.05))
    left.legend()
    right.legend()
    return figure


def belief(run: Finished) -> Figure | None:
    """Draw the probability of the given pair by truth; a dotted line marks one half."""
    label = "probability of the given pair"
    figure = plots.pairs_by_epoch(
        run.kept, "p_clean", run.matched, xlabel=label, unit="% of all", title="after epoch {}"
    )
    for axis in figure.axes if figure else ():
        axis.axvline(0.5, color="#444444", ls=":", lw=1.5)
    return figure


def belief_said(record: Record) -> Markdown:
    """Say what the last epoch's network believes of right and wrong pairs."""
    last = training(record).iloc[-1]
    if "auc" not in last or not np.isfinite(float(last["auc"])):
        return say("The truth of this run's pairs is not known, or the network was not asked.")
    return say(
        "After the last epoch a matched pair is believed more than a mismatched one with probability "
        f"{last['auc']:.2f}, although no step of training used that belief.",
        f"Above one half lie {last['called_matched']:,.0f} pairs; of these "
        f"{last['division_precision']:.0%} are "
        "really matched.",
    )
