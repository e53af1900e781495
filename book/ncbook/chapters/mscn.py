"""Figures and tables of the chapter on MSCN."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import show
from ncbook.chapters import Finished
from nclib import methods, plots
from nclib.methods.mscn import score_margins
from nclib.methods.parts.meta import MetaPairs

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


def margins(alpha: float = 0.2) -> Figure:
    """Draw the margin, at most ``alpha``, over the score beside the exponential margin of NCR and BiCro."""
    s = torch.linspace(0, 1, 201)
    figure, ((axis,),) = plots.panels(1, 1, 5.2, 2.8)
    axis.plot(s, score_margins(s, alpha), color=plots.MATCHED, label="MSCN")
    other = "exponential (NCR, BiCro), label s"
    axis.plot(s, alpha * (10**s - 1) / 9, "--", color=plots.NEUTRAL, label=other)
    axis.set(xlabel="score s of the pair", ylabel="margin", title="Margin by score")
    axis.set(ylim=(0, None), xlim=(0, 1))
    axis.legend(fontsize=8)
    return figure


def known_matches(run: Finished) -> None:
    """Print how many known matches the run had, and what was left of the validation split."""
    trainer, val = run.trainer, run.dataset.val
    print(
        f"known matches: {trainer.n_held_out} pairs of {val.n_images - trainer.val.n_images} validation "
        f"pictures; {trainer.val.n_images} pictures are left to select the epoch"
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
    caption = f"Measured now: batches of {size}, model {settings['model']}, median of {BATCHES - 1} batches"
    return show(pd.DataFrame(rows).T, "cost", caption)
