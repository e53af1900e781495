"""Figures of the page on neighbours: CREAM, PCSR and IN2R."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from ncbook.chapters import Finished, say, training
from ncbook.chapters.family import BATCH, Views
from ncbook.schematic import Schematic, Sketch, numbered
from nclib import plots
from nclib.methods.coteaching import threshold_division
from nclib.methods.cream import SETS, mean_label, mined_targets
from nclib.methods.in2r import elite_threshold, nearest, sce
from nclib.methods.ncr import rectified_label
from nclib.methods.parts.classes import consistency
from nclib.methods.parts.replacing import relevance_of
from nclib.methods.pcsr import KINDS, PCSROptions, next_threshold

# Diagnostics of the methods, and what the page calls them.
SEEN = {
    "auc": "AUC of the division (losses)",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    **{f"{name}_pairs": f"{name} pairs" for name in SETS},
    **{f"{name}_matched": f"{name}: really matched" for name in SETS},
    "mined_share": "off-diagonal targets above 0",
    **{f"n_{kind}": f"{kind} pairs" for kind in KINDS},
    "classes_used": "pseudo-classes that votes name",
    "replaced": "captions replaced",
    "replaced_precision": "of their pairs really mismatched",
    "replaced_label": "mean label",
    "old_relevance": "share that is true of the given captions",
    "new_relevance": "share that is true of the borrowed captions",
    "rectified": "pairs rectified",
    "rectified_precision": "of the last ones really mismatched",
    "given_relevance": "share that is true of the given captions",
    "neighbour_relevance": "share that is true of the neighbours' captions",
}

POSTERIORS = torch.tensor([[0.95, 0.90], [0.75, 0.25], [0.10, 0.15]])  # of a pair of each set, by A and B
PREDICTED = torch.tensor([[0.90, 0.90], [0.40, 0.30], [0.10, 0.06]])  # match probability by A and B
LABELS = torch.tensor([0.95, 0.10, 0.90, 0.90])  # of the pairs in BATCH


def cream() -> Schematic:
    """Draw CREAM in four panels; labels and targets come from the package's functions."""
    (clean, hard, _), p = POSTERIORS, PREDICTED
    labels = rectified_label(clean[1], p[0, 0]), rectified_label(hard.mean(), p[1, 0]), p[2].mean()
    sets = Sketch("Posteriors of two networks for a clean, a hard and a noisy pair.")
    refined = Sketch("Refined labels of a clean, a hard and a noisy pair.")
    colours = ("match", "soft", "mismatch")
    for k, (name, colour) in enumerate(zip(SETS, colours, strict=True)):
        look: dict[str, Any] = {"height": 105, "colours": [colour], "top": 1.0}
        sets.bars(25 + 88 * k, 145, POSTERIORS[k].tolist(), names=("A", "B"), width=24, **look)
        sets.text(52 + 88 * k, 185, name)
        label = float(labels[k])
        refined.bars(38 + 88 * k, 145, [label], width=30, **look)
        refined.text(53 + 88 * k, 138 - 105 * label, f"{label:.2f}", size=12)
        refined.text(53 + 88 * k, 168, name)
    sets.line([(15, 92.5), (275, 92.5)], arrow=False, dashed=True)
    f = mean_label([LABELS], [1])
    before, _ = mined_targets(BATCH, LABELS)
    after, _ = mined_targets(BATCH, LABELS, f)
    framed = np.zeros((4, 4), bool)
    framed[1, 1] = True
    cut = ((before > 0) & (after == 0)).numpy()
    drawn = []
    names = numbered(4)
    for alt, values, crossed in (
        ("Targets of four pictures; what pair 2 loses goes to the other captions.", before, None),
        ("The same targets after the filter: every weight away from the diagonal is struck out.", after, cut),
    ):
        sketch = Sketch(alt)
        sketch.matrix(90, 24, values, cell=42, framed=framed, top=1.2, crossed=crossed, **names)
        drawn.append(sketch)
    titles = ("Divide in three", "Refine the labels", "Mine the negatives", "Filter what is mined")
    words = (
        "Clean: both networks call the pair clean. Hard: one does. Noisy: neither does.",
        "A clean pair keeps nearly all its weight. A noisy pair gets only what the networks predict.",
        f"Pair 2 has label {LABELS[1]:.2f}. The rest of its weight goes to the other captions by similarity; "
        f"caption 3, its true partner, gets {before[1, 2]:.2f}.",
        f"Weights below the mean label ({f:.2f}) become 0. Here {int(cut.sum())} of 12 are struck out"
        + (", the true partner too." if cut[1, 2] else "."),
    )
    return Schematic.of(titles, (sets, refined, *drawn), words)


def label_histograms(run: Finished) -> Figure:
    """Draw the refined labels of network A in the last epoch, by set and by truth."""
    last, bound = run.last, float(run.options["threshold"])
    a, b = (threshold_division(torch.from_numpy(last[k]), bound).numpy() for k in ("p_clean", "p_clean_b"))
    figure, (axes,) = plots.panels(1, 3, 8.8, 2.9)
    trained = np.isfinite(last["label"])
    for axis, name, part in zip(axes, SETS, (a & b, a ^ b, ~(a | b)), strict=True):
        rows = part & trained
        title = f"{name}: {rows.sum():,} of {part.sum():,} pairs trained"
        plots.by_truth(axis, last["label"][rows], run.matched[rows], np.linspace(0, 1, 31), "% of all")
        axis.set(xlabel="refined label $y_i$", xlim=(0, 1))
        axis.set_title(title, fontsize=9)
        if rows.any():
            axis.legend(fontsize=7)
    axes[0].set_ylabel("% of the set's trained pairs")
    return figure


# Classes that six epochs vote for: a consistent picture, one that changes once, and one that wavers.
VOTES = torch.tensor([[1, 1, 1, 1, 1, 1], [2, 2, 0, 2, 2, 2], [0, 3, 1, 0, 2, 3]])
# Distributions over four pseudo-classes of three noisy and of three clean pictures.
NOISY = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.2, 0.1, 0.6, 0.1], [0.3, 0.2, 0.2, 0.3]])
CLEAN = torch.tensor([[0.1, 0.1, 0.75, 0.05], [0.1, 0.8, 0.05, 0.05], [0.6, 0.1, 0.1, 0.2]])


def pcsr() -> Schematic:
    """Draw PCSR in four panels; consistency and threshold come from the package's functions."""
    g = consistency(one_hot(VOTES, 4).sum(1))
    theta = next_threshold(float(g.double().mean()), g, 6, 55)
    votes = Sketch("Votes of three pictures in six epochs, and the consistency of each.")
    for i, row in enumerate(VOTES.tolist()):
        votes.text(18, 58 + 46 * i, f"{i + 1}", colour="soft")
        for k, chosen in enumerate(row):
            look = "match" if chosen == int(VOTES[i].mode().values) else "mismatch"
            place, hatched = (32 + 32 * k, 36 + 46 * i, 28, 34), look != "match"
            votes.box(*place, words="ABCD"[chosen], colour=look, opacity=0.2, hatched=hatched)
        votes.text(255, 58 + 46 * i, f"g = {int(g[i])}")
    votes.text(126, 22, "votes of epochs 1 to 6", colour="soft", size=12)
    parted = Sketch("Pairs divide into clean and noisy, noisy ones into refinable and ambiguous.")
    boxes = ((100, 12, "all pairs", "ink"), (20, 82, "clean", "match"), (170, 82, "noisy", "mismatch"))
    for x, y, word, look in (*boxes, (85, 152, "refinable", "soft"), (192, 152, "ambiguous", "mismatch")):
        parted.box(x, y, 92, 30, words=word, colour=look, opacity=0.1, hatched=look == "mismatch")
    for x0, x1, y in ((130, 70, 42), (160, 210, 42), (205, 140, 112), (225, 240, 112)):
        parted.line([(x0, y), (x1, y + 38)])
    parted.text(70, 62, "low loss", size=12)
    parted.text(122, 132, f"g > {theta:.2f}", size=12)
    borrow = Sketch("Cosines of the pseudo-classes of noisy and clean pictures; row maxima framed.")
    cosine = normalize(NOISY, dim=1) @ normalize(CLEAN, dim=1).T
    rows, columns = ([f"{kind} {i}" for i in (1, 2, 3)] for kind in ("noisy", "clean"))
    framed = torch.eye(3)[cosine.argmax(1)].numpy() > 0
    borrow.matrix(90, 40, cosine, cell=46, framed=framed, rows=rows, columns=columns)
    late = Sketch("Clean pairs train from the start, refinable ones later, ambiguous ones last.")
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


POSTERIOR = torch.tensor([0.99, 0.97, 0.6, 0.8, 0.3, 0.1])  # of six pairs of a batch
# Angles, in degrees, of a common space with two dimensions: trusted pairs, and noisy ones.
PICTURES, CAPTIONS = (5.0, 20.0, 40.0, 60.0, 75.0, 95.0), (12.0, 15.0, 48.0, 55.0, 82.0, 90.0)
LOOKING, OWN = (12.0, 50.0, 85.0), (82.0, 12.0, 48.0)
NEIGHBOURS, TEMPERATURE = 3, 0.05


def on_circle(degrees: tuple[float, ...]) -> Tensor:
    """Return unit vectors, (n, 2), at angles in degrees."""
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])


def prototypes() -> tuple[Tensor, Tensor]:
    """Return the neighbours of the drawn noisy pictures, (3, K), and the plain mean of their captions."""
    near = nearest(on_circle(LOOKING), on_circle(PICTURES), NEIGHBOURS)
    return near, normalize(on_circle(CAPTIONS)[near].mean(1), dim=1)


def in2r() -> Schematic:
    """Draw IN2R in four panels; threshold, neighbours and losses come from the package's functions."""
    bound = elite_threshold(POSTERIOR)
    queue = Sketch("Posteriors of six pairs; those above the elite threshold enter the queue.")
    look = ["match" if w > bound else "soft" if w > 0.5 else "mismatch" for w in POSTERIOR.tolist()]
    names = [f"{w:.2f}" for w in POSTERIOR.tolist()]
    queue.bars(25, 165, POSTERIOR.tolist(), colours=look, height=130, width=30, gap=12, names=names, top=1)
    queue.line([(15, 165 - 130 * bound), (280, 165 - 130 * bound)], arrow=False, dashed=True)
    queue.text(280, 160 - 130 * bound, f"elite above {bound:.2f}", anchor="end", size=12)
    queue.text(150, 196, "posterior of each pair", colour="soft", size=12)
    near, found = prototypes()
    v, own = on_circle(LOOKING), on_circle(OWN)
    search = Sketch("A noisy picture and its three nearest trusted pictures on a quarter circle.")
    blend = Sketch("The captions of these three, their prototype between them; its own is far away.")
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
    train = Sketch("Similarities of three noisy pictures with their prototypes.")
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


def neighbours(run: Finished, n: int = 2) -> Figure | None:
    """Draw ``n`` mismatched pairs that IN2R rectified beside three neighbours; None without pictures."""
    split, truth = run.trainer.pairs.split, run.trainer.pairs.truth()
    if not split.has_pictures or truth.relevance is None or "rectified_pair" not in run.last:
        return None
    pair, by = run.last["rectified_pair"], run.last["rectified_by"]
    rows, lines = [], []
    for i in np.random.default_rng(0).permutation(np.flatnonzero(~run.matched[pair]))[:n]:
        for k, row in enumerate((pair[i], *by[i, :3])):
            share = float(relevance_of(truth, torch.tensor([pair[i]]), torch.tensor([row]))[0])
            head = (f"neighbour {k}", plots.MATCHED) if k else ("✗ the noisy pair", plots.MISMATCHED)
            said = f"{share:.0%} true of {'the noisy' if k else 'its'} picture"
            lines.append([head, (split.captions.text(int(row)), "#222222"), (said, "#444444")])
            rows.append(int(run.image_of[row]))
    return plots.captioned_pictures(split, rows, lines, columns=4) if rows else None


VIEWS: Views = {"cream": (label_histograms,), "pcsr": (consistencies, votes_said), "in2r": (neighbours,)}
"""What the page shows of a run of each method."""
