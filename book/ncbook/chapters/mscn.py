"""Figures and tables of the chapter on MSCN."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import chapters, show
from ncbook.chapters import Finished, say, training
from ncbook.demo import timed
from ncbook.schematic import Schematic, Sketch
from nclib import methods, plots
from nclib.methods.mscn import score_margins
from nclib.methods.parts.meta import MetaPairs
from nclib.runs.noisy_pairs import NoisyPairs

SCORES = {
    "auc": "division: AUC",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    "called_matched": "pairs kept",
    "ece": "division: calibration error",
    "meta_auc": "meta set: AUC",
    "meta_loss": "meta set: loss after the look-ahead",
    "components_crossed": "networks whose components crossed, share",
}
BATCHES = 6  # timed; the first one warms up


def problem(pairs: NoisyPairs, seed: int) -> Figure | None:
    """Draw two pairs known to be right, and the same captions with random pictures: the meta set."""
    rows = chapters.some_pairs(pairs, True, 2, seed)
    if not (pairs.split.has_pictures and len(rows)):
        return None
    drawn = np.random.default_rng(seed).integers(pairs.split.n_images, size=len(rows))
    captions = [pairs.split.captions.text(int(row)) for row in rows]
    known = [[("known match", plots.MATCHED), (text, "#222222")] for text in captions]
    random = [[("random mismatch", plots.MISMATCHED), (text, "#222222")] for text in captions]
    pictures = [*(int(pairs.image_of[row]) for row in rows), *map(int, drawn)]
    return plots.captioned_pictures(pairs.split, pictures, [*known, *random], columns=2)


def idea() -> Schematic:
    """Draw the method in four panels; the margins are computed by the package's function."""
    net = Sketch(
        "Picture and caption enter the model; its vector z enters a small network that gives the score.",
        290,
        190,
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

    known = Sketch("Known matches get target 1, random mismatches target 0.", 290, 190)
    for k, (name, target, colour) in enumerate(
        (("known match", 1, "match"), ("random mismatch", 0, "mismatch"))
    ):
        y = 30 + 75 * k
        known.box(20, y, 150, 42, words=name, colour=colour, opacity=0.15, hatched=bool(k))
        known.line([(170, y + 21), (215, y + 21)])
        known.text(240, y + 26, f"s = {target}")

    ahead = Sketch(
        "A step of the model that depends on the meta-network, and the gradient that flows back.", 290, 190
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

    margin = Sketch("The margin rises in an S-shape from 0 to its full value with the score.", 290, 190)
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


def known_matches(run: Finished) -> Markdown:
    """Say how many known matches the run had, and what was left of the validation split."""
    trainer, val = run.trainer, run.dataset.val
    return say(
        f"Known matches: {trainer.n_held_out} pairs of {val.n_images - trainer.val.n_images} "
        "validation pictures; "
        f"{trainer.val.n_images} pictures are left to select the epoch."
    )


def scores_said(run: Finished) -> Markdown:
    """Say what the scores know of the meta set and of the training pairs, first and last."""
    curve = training(run.record)
    if "meta_auc" not in curve or not np.isfinite(float(curve["auc"].iloc[-1])):
        return say("The truth of this run's pairs is not known, so the scores cannot be judged.")
    first, last = curve.iloc[0], curve.iloc[-1]
    return say(
        f"On the meta set the scores reach an AUC of {last['meta_auc']:.2f}, on the training pairs "
        f"{last['auc']:.2f} "
        f"(first division {first['auc']:.2f}).",
        f"Kept are {last['called_matched']:,.0f} pairs; {last['division_precision']:.0%} of them "
        "are really "
        f"matched, and {1 - last['division_recall']:.0%} of the really matched pairs are thrown away.",
    )


def scores(run: Finished) -> Figure | None:
    """Draw the scores of the meta set and of the training pairs at the first and the last division."""
    fitted = [e for e in run.kept if "density" in run.kept[e]]
    if not fitted:
        return None
    shown = sorted({fitted[0], fitted[-1]})
    figure, axes = plots.panels(2, len(shown), 8.4, 5.4, sharex=True)
    for (top, bottom), epoch in zip(axes.T, shown, strict=True):
        arrays = run.kept[epoch]
        meta = (
            (arrays["meta_matched"], plots.MATCHED, "", "known matches"),
            (arrays["meta_mismatched"], plots.MISMATCHED, "///", "random mismatches"),
        )
        plots.histograms(top, meta, np.linspace(0, 1, 31))
        plots.by_truth(bottom, arrays["loss"], run.matched, np.linspace(0, 1, 61))
        at, high, low = arrays["density"].T
        bottom.plot(at, high, color=plots.MATCHED, label="component of the matches")
        bottom.plot(at, low, "--", color=plots.MISMATCHED, label="component of the mismatches")
        limit = np.histogram(arrays["loss"], 60, (0, 1), density=True)[0].max()
        bottom.set(xlabel="score", ylim=(0, 1.4 * limit), xlim=(0, 1))
        top.set(title=f"Division before epoch {epoch}", ylim=(0, 1.4 * top.get_ylim()[1]))
    for axis, name in zip(axes[:, 0], ("meta set", "training pairs"), strict=True):
        axis.set_ylabel(f"density, {name}")
        axis.legend(fontsize=8, loc="upper left")
    return figure


class GradientRecorder:
    """An optimiser that keeps the gradient and takes no step."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.gradients: list[Tensor] = []

    def step(self) -> None:
        """Keep the gradient."""
        self.gradients.append(torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None]))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradient."""
        for p in self.parameters:
            p.grad = None


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
        recorder = GradientRecorder(network.get_submodule("meta").parameters())
        method.meta_optimizers = [recorder]
        method.options = type(method.options)(**{**settings["method_options"], "lookahead": kind})
        spent = clock(lambda batch, pair: method.meta_step(trainer, batch, *pair))
        found[kind] = torch.stack(recorder.gradients)
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
