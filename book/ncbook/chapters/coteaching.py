"""Figures and tables of the page on co-teaching: NCR, BiCro and MSCN."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import show
from ncbook.chapters import ONLY_PRINTED, Finished, family, say, training, wide
from ncbook.chapters.family import Views
from ncbook.demo import timed
from ncbook.papers import printed
from ncbook.schematic import Schematic, Sketch
from nclib import losses, methods, plots
from nclib.methods.mscn import score_margins
from nclib.methods.ncr import predicted_correspondence, rectified_label
from nclib.methods.parts.anchors import (
    closeness_ratios,
    n_anchors,
    noisy_labels,
)
from nclib.methods.parts.meta import MetaPairs
from nclib.runs import load_record

# Diagnostics of the methods, and what the page calls them.
DIVIDED = {
    "auc": "division: AUC",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    "called_matched": "pairs called clean",
    "ece": "division: calibration error",
}
SEEN = {
    **DIVIDED,
    "anchor_precision": "anchors: really matched",
    "clean_label_auc": "labels of clean pairs: AUC",
    "clean_label_matched": "their mean, really matched",
    "clean_label_mismatched": "their mean, really mismatched",
    "label_auc": "labels of noisy pairs: AUC",
    "label_matched": "mean, really matched",
    "label_mismatched": "mean, really mismatched",
    "meta_auc": "meta set: AUC",
    "meta_loss": "meta set: loss after the look-ahead",
    "components_crossed": "networks whose components crossed, share",
}
# Angles, in degrees, of an anchor and of two noisy pairs in the space of pictures and in that of captions.
ANCHOR, PAIRS = (60.0, 60.0), {"consistent": (30.0, 33.0), "inconsistent": (30.0, -20.0)}
BATCHES = 6  # timed; the first one warms up


def exchange() -> Sketch:
    """Draw two networks, each of which trains on the division that the other one made."""
    sketch = Sketch("Networks A and B; the division made by A trains B, and the division by B trains A.")
    for x, name, other in ((30, "A", "B"), (190, "B", "A")):
        sketch.box(x, 20, 70, 40, words=f"network {name}", colour="match", opacity=0.12)
        sketch.box(x - 15, 130, 50, 34, words="clean", colour="match", opacity=0.3)
        sketch.box(x + 38, 130, 50, 34, words="noisy", colour="mismatch", opacity=0.2, hatched=True, size=12)
        sketch.text(x + 36, 182, f"divided by {name}, trains {other}", size=11.5, colour="soft")
    sketch.line([(52, 60), (52, 126)])
    sketch.line([(238, 60), (238, 126)])
    sketch.line([(80, 126), (195, 64)], colour="match")
    sketch.line([(210, 126), (95, 64)], colour="match", dashed=True)
    return sketch


def ncr() -> Schematic:
    """Draw the method in four panels; labels and margins are computed by the package's functions."""
    split = Sketch("Losses of all pairs as two Gaussian humps; the posterior w falls with the loss.")
    x = np.linspace(0, 1, 60)
    humps = [np.exp(-(((x - centre) / width) ** 2) / 2) for centre, width in ((0.25, 0.11), (0.65, 0.15))]
    for hump, colour, dashed in zip(humps, ("match", "mismatch"), (False, True), strict=True):
        points = [(20 + 250 * a, 160 - 100 * b) for a, b in zip(x, hump, strict=True)]
        split.line(points, colour=colour, arrow=False, dashed=dashed, weight=2)
    posterior = [
        (20 + 250 * a, 160 - 130 * b) for a, b in zip(x, humps[0] / (humps[0] + humps[1]), strict=True)
    ]
    split.line(posterior, colour="ink", arrow=False)
    split.line([(20, 160), (275, 160)])
    split.text(60, 24, "posterior w", anchor="start")
    split.text(148, 182, "loss of the pair", colour="soft")

    label = Sketch("Bars: posterior, prediction, and the label made of both.")
    w, prediction = torch.tensor([0.55]), torch.tensor([0.8])
    y = float(rectified_label(w, prediction))
    values = (float(w), float(prediction), y)
    label.bars(60, 150, values, colours=("match", "soft", "ink"), height=115, width=42, gap=24, top=1,
               names=("w", "P", "label"))  # fmt: skip
    for k, value in enumerate(values):
        label.text(81 + 66 * k, 144 - 115 * value, f"{value:.2f}")
    label.text(148, 185, "w + (1 − w) P", colour="soft")

    margin = Sketch(
        "Similarity of a pair above its strongest rival: wide margin for a sure pair, narrow else."
    )
    for top, sure in ((30, 1.0), (115, 0.5)):
        wide = 600 * float(losses.soft_margins(torch.tensor([sure]))[0])
        margin.line([(20, top + 40), (275, top + 40)])
        margin.dot(110, top + 40, colour="mismatch", hollow=True)
        margin.dot(110 + wide, top + 40, colour="match")
        margin.box(110, top + 18, wide, 14, colour="match", opacity=0.3)
        margin.text(20, top + 10, f"label {sure:g}: margin {wide / 600:.3f}", anchor="start")
        margin.text(110, top + 62, "rival", colour="mismatch", size=12)
        margin.text(max(110 + wide, 150), top + 62, "pair", colour="match", size=12)
    titles = ("Divide by the losses", "Exchange the divisions", "Correct the label", "Ask for a soft margin")
    words = (
        "A mixture of two Gaussians on the losses gives every pair a probability w of being clean.",
        "Each network trains on the division that the other one made, so its own mistakes are not confirmed.",
        "The network's own prediction P raises the label of a clean pair; a noisy pair is judged by P "
        "of both.",
        "A sure pair must beat its strongest rival by the full margin, a doubtful one by much less.",
    )
    return Schematic.of(titles, (split, exchange(), label, margin), words)


@functools.lru_cache(maxsize=2)
def rectified_labels(run: Finished) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by name which pairs both networks of NCR call clean, and noisy, (N,), with labels, (N,)."""
    last, options = run.last, run.options
    if "p_clean" not in last:  # no mixture was fitted
        return {}
    predicted = run.trainer.each_pair(
        lambda batch: torch.stack(
            [predicted_correspondence(run.trainer.similarity(batch, k), options["margin"]) for k in (0, 1)], 1
        )
    )
    w = np.stack([last["p_clean"], last["p_clean_b"]], axis=1)
    clean = rectified_label(torch.from_numpy(w[:, 1]), predicted[:, 0])
    return {
        "clean by both": ((w > options["threshold"]).all(1), clean.numpy()),
        "noisy by both": ((w <= options["threshold"]).all(1), predicted.numpy().mean(1)),
    }


def anchored_labels(run: Finished) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by name which pairs BiCro's first network trained as clean, and as noisy, (N,), with labels."""
    labels = {kind: run.last.get(f"label_{kind}", np.empty(0)) for kind in ("clean", "noisy")}
    return {kind: (~np.isnan(y), y) for kind, y in labels.items() if np.isfinite(y).any()}


def label_histograms(run: Finished) -> Figure | None:
    """Draw the labels of NCR or BiCro after the last division, by truth."""
    found = rectified_labels(run) if run.record.settings["method"] == "ncr" else anchored_labels(run)
    if not found:
        return None
    figure, (axes,) = plots.panels(1, len(found), height=2.9)
    for axis, (name, (chosen, label)) in zip(axes, found.items(), strict=True):
        plots.by_truth(axis, label[chosen], run.matched[chosen], np.linspace(0, 1, 26), "% of all")
        axis.set(xlabel="soft label", title=f"Pairs called {name}")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("% of these pairs")
    return figure


def margins_said(run: Finished) -> Markdown:
    """Say how much of the margin NCR still asks of wrong pairs that both networks call clean."""
    chosen, label = rectified_labels(run).get("clean by both", (np.zeros(0, bool), np.zeros(0)))
    if not (wrong := chosen & ~run.matched[: len(chosen)]).any():
        return say("Both networks call no wrong pair clean.")
    given = losses.soft_margins(torch.from_numpy(label), 1.0, run.options["m"]).numpy()
    return say(
        f"Of the pairs that both networks call clean {wrong.sum() / chosen.sum():.0%} are wrong, and these "
        f"are still asked for {given[wrong].mean():.0%} of the full margin; right ones for "
        f"{given[chosen & run.matched].mean():.0%}."
    )


def validated() -> pd.DataFrame:
    """Return validation rSum of NCR's recorded runs on Flickr8K, epochs x (mismatch rate, seed)."""
    runs = family.rates(["ncr"])
    curves = {
        (run["mrate"], run["seed"]): training(load_record(run["path"]))["val_rsum"]
        for _, run in runs[runs["label"] == "ncr"].iterrows()
    }
    return pd.DataFrame(curves).rename_axis(columns=["rate", "seed"])


def switch_figure() -> Figure:
    """Draw validation rSum of NCR by epoch, a line per mismatch rate, as Fig. 1b of REPAIR."""
    means = validated().T.groupby("rate").mean().T
    figure, ((axis,),) = plots.panels(1, 1, width=6.4, height=3.2)
    for rate, colour in zip(means, sns.color_palette("viridis", means.shape[1]), strict=True):
        axis.plot(means.index, means[rate], color=colour, marker="o", ms=4, label=f"rate {rate:g}")
    axis.axvline(means.index[len(means) // 2] - 0.5, color=plots.NEUTRAL, ls=":")
    axis.set(xlabel="epoch (dotted: the noisy loss begins)", ylabel="validation rSum", title="NCR, Flickr8K")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def switch_said() -> Markdown:
    """Say in how many recorded runs validation falls in the first epoch with noisy pairs."""
    curves = validated()
    half = len(curves) // 2
    fell = curves.iloc[half] < curves.iloc[half - 1]
    by_rate = ", ".join(f"{part.sum()} of {len(part)} at {rate:g}" for rate, part in fell.groupby("rate"))
    return say(f"Validation falls in that epoch in {fell.sum()} of {len(fell)} runs: {by_rate}.")


def printed_by_protocol() -> Styler:
    """Show the rSum of NCR on Flickr30K as two later papers print it, for the two noise protocols."""
    parts, names = [], ["printed in", "what is moved", "method"]
    for paper, number, kind in (("L2RM", "6", "images"), ("REPAIR", "I", "captions, most likely")):
        rows = printed("retrieval", paper=paper, table=number, dataset="Flickr30K", metric="rsum")
        rows = rows[rows["method"].isin(["SGR", "NCR"])].drop_duplicates(["method", "noise_rate"])
        parts.append(rows.assign(**{"printed in": paper, "what is moved": kind}))
    cells = wide(pd.concat(parts), names, "noise_rate").sort_index().sort_index(axis=1)
    cells = cells.rename_axis(columns="mismatch rate")
    return show(cells, "printed", f"Printed in other papers; {ONLY_PRINTED}", digits=1, missing="")


def _at(degrees: float) -> Tensor:
    angle = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([angle.cos(), angle.sin()])[None]


def drawn_ratios(name: str) -> tuple[float, float, float]:
    """Return the cosine with the anchor by picture and by caption, and the soft label, of a drawn pair."""
    u, t, anchor_u, anchor_t = (_at(degrees) for degrees in (*PAIRS[name], *ANCHOR))
    ratios = closeness_ratios(u, t, anchor_u, anchor_t)
    cosines = [float((x * y).sum()) for x, y in ((u, anchor_u), (t, anchor_t))]
    return cosines[0], cosines[1], float(noisy_labels(*ratios)[0])


def _two_spaces(name: str) -> Sketch:
    """Draw an anchor and a pair as vectors in the space of pictures and in that of captions."""
    by_picture, by_caption, _ = drawn_ratios(name)
    sketch = Sketch(f"Anchor and pair in two spaces, cosines {by_picture:.2f} and {by_caption:.2f}.")
    colour = "match" if name == "consistent" else "mismatch"
    for k, (space, cosine) in enumerate((("pictures", by_picture), ("captions", by_caption))):
        left, base = 25 + 140 * k, 130
        sketch.text(left + 50, 24, space)
        for degrees, look in ((ANCHOR[k], "ink"), (PAIRS[name][k], colour)):
            x, y = (90 * float(v) for v in _at(degrees)[0])
            sketch.line(
                [(left, base), (left + x, base - y)], colour=look, dashed=look == "mismatch", weight=2
            )
        sketch.text(left + 62, 44, "anchor", size=11.5, anchor="start")
        sketch.text(left + 60, 188, f"cosine {cosine:.2f}", size=12, colour="soft")
    return sketch


def bicro() -> Schematic:
    """Draw the method in four panels; cosines, labels and margins come from the package's functions."""
    chosen = Sketch("Ten bars of reliability; the two highest are the anchors.")
    values = [0.9, 0.55, 0.7, 0.4, 0.95, 0.6, 0.35, 0.5, 0.65, 0.45]
    best = np.argsort(values)[-n_anchors(len(values)) :]
    colours = ["match" if k in best else "soft" for k in range(10)]
    chosen.bars(20, 150, values, colours=colours, height=110, width=18, gap=8, top=1)
    for k in best:
        chosen.text(29 + 26 * int(k), 146 - 110 * values[k], "★", colour="match")
    chosen.text(148, 178, "pairs of a clean batch, by reliability", colour="soft", size=12)
    label = Sketch("Labels of the two pairs, and the margins that they give.")
    labels = [drawn_ratios(name)[2] for name in PAIRS]
    label.bars(
        70, 140, labels, colours=("match", "mismatch"), height=95, width=55, gap=40, top=1, names=tuple(PAIRS)
    )
    for k, y in enumerate(labels):
        margin = float(losses.soft_margins(torch.tensor([y]))[0])
        label.text(97 + 95 * k, 132 - 95 * y, f"{y:.2f}")
        label.text(97 + 95 * k, 178, f"margin {margin:.2f}", colour="soft", size=12)
    titles = (
        "Choose anchors",
        "A pair that is consistent",
        "A pair that is not",
        "The agreement is the label",
    )
    words = (
        "The pairs that stand highest above their rivals in a clean batch are trusted: about one in ten.",
        "As close to the anchor by picture as by caption: the two cosines nearly agree.",
        "Close by picture, far by caption: the caption is probably about something else.",
        "The ratio of the two closenesses is the soft label, and a label up to one half becomes 0. It "
        "sets the margin.",
    )
    sketches = (chosen, _two_spaces("consistent"), _two_spaces("inconsistent"), label)
    return Schematic.of(titles, sketches, words)


def mscn() -> Schematic:
    """Draw the method in four panels; the margins are computed by the package's function."""
    net = Sketch(
        "Picture and caption enter the model; its vector z enters a small network that gives the score.",
        height=190,
    )
    for y, name in ((30, "picture"), (100, "caption")):
        net.box(8, y, 62, 34, words=name)
        net.line([(70, y + 17), (98, 82 if y < 60 else 92)])
    net.box(100, 65, 62, 44, words="model φ")
    net.line([(162, 87), (182, 87)])
    net.box(184, 70, 56, 34, words="V(z; Θ)", colour="match", opacity=0.3)
    net.line([(240, 87), (258, 87)])
    net.text(272, 92, "s")
    net.text(172, 60, "z", colour="soft")
    net.text(212, 128, "meta-network", colour="match", size=12)

    known = Sketch("Known matches get target 1, random mismatches target 0.", height=190)
    for k, (name, target, colour) in enumerate(
        (("known match", 1, "match"), ("random mismatch", 0, "mismatch"))
    ):
        y = 30 + 75 * k
        known.box(20, y, 150, 42, words=name, colour=colour, opacity=0.15, hatched=bool(k))
        known.line([(170, y + 21), (215, y + 21)])
        known.text(240, y + 26, f"s = {target}")

    ahead = Sketch(
        "A step of the model that depends on the meta-network, and the gradient that flows back.", height=190
    )
    ahead.box(10, 30, 60, 40, words="φ")
    ahead.box(130, 30, 66, 40, words="φ'(Θ)", dashed=True)
    ahead.box(70, 125, 60, 40, words="Θ", colour="match", opacity=0.3)
    ahead.box(225, 30, 56, 40, words="meta\nloss", size=12)
    ahead.line([(70, 50), (128, 50)])
    ahead.text(100, 42, "step", size=11, colour="soft")
    ahead.line([(196, 50), (223, 50)])
    ahead.line([(100, 123), (100, 60)], colour="match")
    ahead.line([(253, 72), (250, 150), (132, 146)], colour="mismatch", dashed=True)
    ahead.text(215, 170, "gradient through the step", size=11.5, colour="mismatch")

    margin = Sketch("The margin rises in an S-shape from 0 to its full value with the score.", height=190)
    s = torch.linspace(0, 1, 61)
    curve = [(30 + 240 * float(a), 150 - 600 * float(b)) for a, b in zip(s, score_margins(s), strict=True)]
    margin.line(curve, colour="match", arrow=False, weight=2.2)
    margin.line([(30, 150), (282, 150)])
    margin.line([(30, 150), (30, 15)])
    margin.text(36, 22, "margin", anchor="start", colour="soft")
    margin.text(155, 175, "score s of the pair", colour="soft")
    titles = (
        "A score that can be taught",
        "A few pairs are known",
        "Look one step ahead",
        "Score becomes margin",
    )
    words = (
        "The last layer of the similarity model becomes a small meta-network with weights Θ of its own.",
        "About two pairs in a hundred are known to match. With random pictures they give sure mismatches.",
        "How good is the model after its next step, which used these scores? The answer flows back to "
        "Θ (dashed).",
        "Pairs with low scores are thrown away; the others get a margin by their score.",
    )
    return Schematic.of(titles, (net, known, ahead, margin), words)


def scores(run: Finished) -> Figure | None:
    """Draw the scores of MSCN's meta set and of its training pairs at the last division."""
    arrays = run.last
    if "density" not in arrays:
        return None
    figure, ((left, right),) = plots.panels(1, 2, height=2.9)
    meta = (
        (arrays["meta_matched"], plots.MATCHED, "", "known matches"),
        (arrays["meta_mismatched"], plots.MISMATCHED, "///", "random mismatches"),
    )
    plots.histograms(left, meta, np.linspace(0, 1, 31))
    plots.by_truth(right, arrays["loss"], run.matched, np.linspace(0, 1, 61))
    at, high, low = arrays["density"].T
    right.plot(at, high, color=plots.MATCHED, label="component of the matches")
    right.plot(at, low, "--", color=plots.MISMATCHED, label="component of the mismatches")
    limit = np.histogram(arrays["loss"], 60, (0, 1), density=True)[0].max()
    left.set(xlabel="score", ylabel="density", title="meta set")
    right.set(xlabel="score", ylim=(0, 1.4 * limit), xlim=(0, 1), title="training pairs")
    for axis in (left, right):
        axis.legend(fontsize=8, loc="upper left")
    return figure


def look_ahead_cost(run: Finished) -> Styler:
    """Show the time of the look-ahead step, exact and by differences, timed with the run."""
    found = timed(run.record, "look-ahead", lambda: _look_ahead_cost(run))
    what = f"batches of {found['size']}, model {run.record.settings['model']}"
    caption = f"Measured: {what}, median of {BATCHES - 1} batches"
    return show(pd.DataFrame(found["rows"]).T, "cost", caption)


def _look_ahead_cost(run: Finished) -> dict[str, Any]:
    """Time the look-ahead step, exact and by differences, and compare their gradients; no weight changes."""
    trainer, settings = run.trainer, run.record.settings
    network = trainer.networks[0].train()
    method: Any = methods.build("mscn", **settings["method_options"])
    method.meta_loss, trainer.epoch = [[], []], run.record.best_epoch
    before = {k: v.clone() for k, v in network.state_dict().items()}
    weights = list(network.get_submodule("meta").parameters())
    size = max(2, trainer.batch_size // 2)
    batches = [trainer.batch(torch.arange(size) + k * size) for k in range(BATCHES)]
    meta = MetaPairs(trainer).batches(size)
    pairs = [next(meta) for _ in batches]

    def clock(work: Callable[[Any, Any], Any]) -> float:
        seconds = []
        for batch, pair in zip(batches, pairs, strict=True):
            started = time.perf_counter()
            work(batch, pair)
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        return float(np.median(seconds[1:]))

    def main_step(batch: Any, pair: Any) -> None:
        method._loss(trainer.similarity(batch)).backward()
        network.zero_grad()

    threads = torch.get_num_threads()
    torch.set_num_threads(settings["threads"] or threads)
    plain, rows, found = clock(main_step), {}, {}
    for kind in ("exact", "difference"):
        kept: list[Tensor] = []  # an optimiser that keeps the gradient and takes no step
        method.meta_optimizers = [
            SimpleNamespace(
                step=lambda kept=kept: kept.append(torch.cat([w.grad.flatten() for w in weights])),
                zero_grad=lambda set_to_none: network.zero_grad(),
            )
        ]
        method.options = type(method.options)(**{**settings["method_options"], "lookahead": kind})
        spent = clock(lambda batch, pair: method.meta_step(trainer, batch, *pair))
        found[kind] = torch.stack(kept)
        apart = (found[kind] - found["exact"]).norm() / found["exact"].norm()
        rows[kind] = {
            "model's step, ms": f"{1e3 * plain:.1f}",
            "look-ahead, ms": f"{1e3 * spent:.1f}",
            "look-ahead's share": f"{spent / (spent + plain):.0%}",
            "gradient, relative distance to exact": f"{float(apart):.1e}",
        }
    torch.set_num_threads(threads)
    network.load_state_dict(before)
    return {"size": size, "rows": rows}


VIEWS: Views = {"ncr": (label_histograms,), "bicro": (label_histograms,), "mscn": (scores, look_ahead_cost)}
"""What the page shows of a run of each method."""
