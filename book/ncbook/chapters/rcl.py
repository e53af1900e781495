"""Figures and tables of the chapter on RCL."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import recorded
from ncbook.chapters import Finished, rate_table
from nclib import losses, plots
from nclib.methods.rcl import COMPLEMENTARY, complementary

# A batch of four; pair 2 is wrong: its image belongs to caption 3.
BATCH = torch.tensor(
    [[0.82, 0.31, 0.12, 0.25], [0.28, 0.20, 0.62, 0.09], [0.15, 0.22, 0.66, 0.33], [0.05, 0.41, 0.18, 0.54]]
)
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def pushes() -> Figure:
    """Draw the similarities of a batch and where one gradient step of three losses would push them."""

    def push(loss: Callable[[Tensor], Tensor]) -> Tensor:
        scores = BATCH.clone().requires_grad_()
        loss(scores).mean().backward()
        assert scores.grad is not None
        return -scores.grad

    moved = {
        "InfoNCE": push(lambda s: losses.info_nce(s, 0.1)),
        "RCL, log": push(lambda s: complementary(s, "log", 0.1)),
        "RCL, abs": push(lambda s: complementary(s, "abs", 0.1)),
    }
    largest = max(float(g.abs().max()) for g in moved.values())
    looks = {name: {"cmap": "PuOr", "vmin": -largest, "vmax": largest, "fmt": "+.2f"} for name in moved}
    looks["similarity S"] = {"cmap": "Blues", "vmin": 0, "vmax": 1.2, "fmt": ".2f"}
    figure, (axes,) = plots.panels(1, 4, height=2.6)
    for axis, (name, values) in zip(axes, {"similarity S": BATCH, **moved}.items(), strict=True):
        plots.heatmap(values, axis, name, annot=True, annot_kws={"fontsize": 8}, **looks[name])
        axis.add_patch(Rectangle((1, 1), 1, 1, fill=False, ec=plots.MISMATCHED, lw=2))
        ticks = {"xticks": np.arange(4) + 0.5, "yticks": np.arange(4) + 0.5}
        axis.set(**ticks, xticklabels=range(1, 5), yticklabels=range(1, 5), ylabel="")
    axes[0].set_ylabel("image")
    return figure


def family(q: float, batch_size: int) -> Figure:
    """Draw the complementary losses, their slopes, and the pull on the given pair; ``q`` is of ``gce``."""
    colours = (plots.MATCHED, plots.ACCENT, plots.MISMATCHED, plots.THIRD, "#E69F00")
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


def judging_time(run: Finished) -> None:
    """Print the seconds of the extra pass over all pairs beside those of an epoch."""
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        run.trainer.per_pair(lambda scores: scores.diagonal())
    seconds = time.perf_counter() - started
    epoch = min(row["seconds"] for row in run.record.curves)
    print(f"one pass over {run.trainer.n_pairs:,} pairs now: {seconds:.1f} s")
    print(f"fastest epoch of the run, this pass and validation included: {epoch:.1f} s")


def loss_table() -> Styler | None:
    """Show recorded runs of every member of the family and of both baselines under RCL's schedule."""
    runs = recorded(preset="quick", dataset="emoji", protocol="images", method="rcl")
    if runs.empty or runs["method_loss"].nunique() < 2:
        return None
    others = runs.loc[runs["method_loss"] != "log", "mrate"].unique()  # where there is something to compare
    caption = "Measured, preset quick: rSum, mean ± standard deviation (seeds)"
    return rate_table(runs[runs["mrate"].isin(others)], "losses", ("model", "method_loss"), caption)
