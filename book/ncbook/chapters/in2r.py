"""Figures of the chapter on IN2R."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ncbook.chapters.replaced import DIVIDED
from ncbook.schematic import Schematic, Sketch
from nclib.methods.in2r import elite_threshold, nearest, sce

POSTERIOR = torch.tensor([0.99, 0.97, 0.6, 0.8, 0.3, 0.1])  # of six pairs of a batch
# Angles, in degrees, of a common space with two dimensions: trusted pairs, and noisy ones.
PICTURES, CAPTIONS = (5.0, 20.0, 40.0, 60.0, 75.0, 95.0), (12.0, 15.0, 48.0, 55.0, 82.0, 90.0)
NOISY, OWN = (12.0, 50.0, 85.0), (82.0, 12.0, 48.0)
NEIGHBOURS, TEMPERATURE = 3, 0.05
SEEN = {
    **DIVIDED,
    "rectified": "pairs rectified",
    "rectified_precision": "of the last ones really mismatched",
    "given_relevance": "relevance of the given captions",
    "neighbour_relevance": "relevance of the neighbours' captions",
}


def on_circle(degrees: tuple[float, ...]) -> Tensor:
    """Return unit vectors, (n, 2), at angles in degrees."""
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])


def prototypes() -> tuple[Tensor, Tensor]:
    """Return the neighbours of the drawn noisy pictures, (3, K), and the plain mean of their captions."""
    near = nearest(on_circle(NOISY), on_circle(PICTURES), NEIGHBOURS)
    return near, normalize(on_circle(CAPTIONS)[near].mean(1), dim=1)


def idea() -> Schematic:
    """Draw the method in four panels; threshold, neighbours and losses come from the package's functions."""
    bound = elite_threshold(POSTERIOR)
    queue = Sketch("Posteriors of six pairs; those above the elite threshold enter the queue.", 290, 200)
    look = ["match" if w > bound else "soft" if w > 0.5 else "mismatch" for w in POSTERIOR.tolist()]
    names = [f"{w:.2f}" for w in POSTERIOR.tolist()]
    queue.bars(25, 165, POSTERIOR.tolist(), colours=look, height=130, width=30, gap=12, names=names, top=1)
    queue.line([(15, 165 - 130 * bound), (280, 165 - 130 * bound)], arrow=False, dashed=True)
    queue.text(280, 160 - 130 * bound, f"elite above {bound:.2f}", anchor="end", size=12)
    queue.text(150, 196, "posterior of each pair", colour="soft", size=12)
    near, found = prototypes()
    v, own = on_circle(NOISY), on_circle(OWN)
    search = Sketch("A noisy picture and its three nearest trusted pictures on a quarter circle.", 290, 200)
    blend = Sketch(
        "The captions of these three, their prototype between them; its own is far away.", 290, 200
    )
    arc = [_at(point) for point in on_circle(tuple(np.linspace(0, 95, 40)))]
    for sketch, places in ((search, PICTURES), (blend, CAPTIONS)):
        sketch.line(arc, colour="line", arrow=False, dashed=True, weight=1)
        for k, point in enumerate(on_circle(places)):
            sketch.dot(*_at(point), colour="match" if k in near[1] else "line")
    search.dot(*_at(v[1]), colour="mismatch", radius=8, hollow=True)
    search.text(*_at(v[1], 14), "noisy picture", anchor="start", size=12)
    search.text(25, 192, "pictures of the other network's queue", colour="soft", size=11, anchor="start")
    blend.dot(*_at(found[1]), colour="ink", radius=6)
    blend.text(*_at(found[1], 12, -8), "prototype", anchor="start", size=12)
    blend.dot(*_at(own[1]), colour="mismatch", radius=8, hollow=True)
    blend.text(*_at(own[1], 14, 12), "its own caption", anchor="start", size=12)
    blend.text(25, 192, "captions of the same queue", colour="soft", size=11, anchor="start")
    train = Sketch("Similarities of three noisy pictures with their prototypes.", 290, 200)
    rows, columns = [f"picture {i}" for i in (1, 2, 3)], ["proto 1", "proto 2", "proto 3"]
    train.matrix(95, 24, v @ found.T, cell=42, rows=rows, columns=columns)
    losses = [float(sce(v @ t.T, TEMPERATURE)) for t in (own, found)]
    train.text(145, 174, f"loss with their own captions {losses[0]:.1f},", size=12)
    train.text(145, 192, f"with the prototypes {losses[1]:.1f}", size=12)
    titles = ("Queue the most trusted", "Find similar pictures", "Blend their captions", "Train against them")
    words = (
        "Pairs above the mean posterior of all clean pairs enter their network's queue; the oldest leave.",
        "Picture 2 looks up its nearest pictures, not captions: neighbours of one kind need no matching.",
        "Self-attention over the neighbours' captions, and their mean, make a prototype of a caption.",
        "Each noisy picture should find its own prototype among all. Captions do the same, the other way.",
    )
    return Schematic.of(titles, (queue, search, blend, train), words)


def _at(point: Tensor, right: float = 0, down: float = 4) -> tuple[float, float]:
    """Return where a point of the quarter circle is drawn, or words beside it."""
    x, y = 45 + 140 * float(point[0]), 170 - 140 * float(point[1])
    return x + right, y + down * bool(right)
