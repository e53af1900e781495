"""Figures and tables of the chapter on DECL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import chapters, show
from ncbook.chapters import Finished, say, training
from ncbook.schematic import Schematic, Sketch
from nclib import Record, plots
from nclib.methods.decl import correspondence, evidence, evidential_loss, hardness, published_warmup
from nclib.runs.noisy_pairs import NoisyPairs

OFFICIAL = {  # steps per epoch, epochs of warm-up and after it, line
    "Flickr30K": (1133, 5, 40, "-"),
    "MS-COCO": (4426, 2, 20, "--"),
    "CC152K": (1172, 5, 40, ":"),
}
# Logits of four pairs; the second one is wrong: its picture fits no caption of the batch well.
BATCH = torch.tensor(
    [[1.1, -0.4, 0.1, -0.7], [-0.6, -0.2, -0.1, -0.3], [0.0, -0.5, 0.9, -0.4], [-0.8, 0.1, -0.5, 1.3]]
)
TEMPERATURE = 0.4  # milder than the published one, so that the drawing shows more than one bar


def problem(pairs: NoisyPairs, seed: int) -> Figure | None:
    """Draw a batch of four wrong pairs, for which a softmax has to choose a caption all the same."""
    rows = chapters.some_pairs(pairs, False, 4, seed)
    return chapters.drawn_pairs(pairs, rows.tolist(), ["a softmax must choose one of the four"] * len(rows))


def idea() -> Schematic:
    """Draw the method in four panels; evidence, prediction and hardness come from the package's functions."""
    E = evidence(BATCH, TEMPERATURE)
    unsure = len(E) / (E.sum(1) + len(E))
    p_clean, _, _ = correspondence(BATCH, TEMPERATURE)
    wrong = np.diag((p_clean <= 0.5).numpy())
    bars = Sketch("Evidence of pictures 1 and 2 for four captions: high for one, low for all.", 290, 200)
    for left, row in ((20, 0), (165, 1)):
        colours = ["soft"] * 4
        colours[row] = "match" if row == 0 else "mismatch"
        look: dict[str, Any] = {"height": 105, "width": 20, "gap": 6, "top": float(E.max())}
        bars.bars(left, 140, E[row].tolist(), colours=colours, names=("c1", "c2", "c3", "c4"), **look)
        bars.text(left + 49, 25, f"picture {row + 1}")
        bars.text(left + 49, 178, f"uncertainty {unsure[row]:.2f}", colour="soft", size=12)
    names: dict[str, Any] = {
        "rows": [f"picture {i}" for i in range(1, 5)],
        "columns": [f"c{j}" for j in range(1, 5)],
    }
    judged = Sketch(
        "Evidence in both directions; picture 2 has its largest value away from the diagonal.", 290, 200
    )
    judged.matrix(90, 24, E + E.T, cell=42, digits=1, framed=wrong, **names)
    targets = Sketch("Targets: ones on the diagonal, but row 2 is all zeros.", 290, 200)
    one_hot = np.diag((p_clean > 0.5).numpy()).astype(float)
    targets.matrix(90, 24, one_hot, cell=42, digits=0, framed=wrong, **names)
    hinge = Sketch("The number of negatives that count falls from the batch size to five.", 290, 200)
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


def evidence_said(run: Finished) -> Markdown:
    """Say what prediction and uncertainty know of the truth at the last prediction."""
    last = training(run.record).iloc[-1]
    if "auc" not in last or not np.isfinite(float(last["auc"])):
        return say("The truth of this run's pairs is not known, so the prediction cannot be judged.")
    unsure = run.last["uncertainty"]
    means = [
        float(unsure[run.matched == flag].mean()) for flag in (True, False) if (run.matched == flag).any()
    ]
    parted = (
        f"Mean uncertainty is {means[0]:.2f} for matched and {means[1]:.2f} for mismatched pairs."
        if len(means) == 2
        else ""
    )
    return say(
        f"At the last prediction {last['called_matched']:,.0f} pairs are called matched, "
        f"and {last['division_precision']:.0%} of these really are.",
        parted,
        f"Ranking by low uncertainty finds matched pairs with an AUC of {last['auc_uncertainty']:.2f}, "
        f"ranking by the pair's advantage over its strongest rival with {last['auc']:.2f}.",
    )


def beliefs(options: Any) -> Figure:
    """Draw three beliefs about three candidates as densities, and the evidential loss over a logit."""
    logits = {"sure of A": [1.2, -0.6, -0.8], "all three fit": [0.8] * 3, "none fits": [-1.2] * 3}
    grid = np.linspace(0.004, 0.992, 110)
    p1, p2 = (g.ravel() for g in np.meshgrid(grid, grid))
    p1, p2 = p1[p1 + p2 < 0.996], p2[p1 + p2 < 0.996]
    simplex = np.stack([p1, p2, 1 - p1 - p2], 1)  # (points, 3)
    density = {}
    for name, values in logits.items():
        E = evidence(torch.tensor(values, dtype=torch.float64), 0.4)  # a mild temperature, to see the shape
        log_density = torch.distributions.Dirichlet(E + 1).log_prob(torch.from_numpy(simplex))
        density[name] = log_density.exp().numpy(), float(3 / (E + 1).sum())
    levels = np.linspace(0, density["all three fit"][0].max(), 13)
    figure, (axes,) = plots.panels(1, 4, 8.8, 2.7, width_ratios=(1, 1, 1, 1.5))
    for axis, (name, (values, uncertainty)) in zip(axes[:3], density.items(), strict=True):
        _triangle(axis, simplex, values, levels)
        axis.set_title(name, fontsize=9)
        axis.text(0.5, -0.3, f"uncertainty {uncertainty:.2f}", ha="center", fontsize=9)
    own = torch.linspace(-2, 2, 81, dtype=torch.float64)
    row = torch.zeros(81, 32, dtype=torch.float64)
    row[:, 0] = own  # one query among 32 candidates, the others at logit 0
    alpha = evidence(row, options.tau) + 1
    one_hot = torch.zeros_like(alpha)
    one_hot[:, 0] = 1
    looks = (("predicted to match", 1, "-", plots.MATCHED), ("predicted mismatch", 0, "--", plots.MISMATCHED))
    for name, target, style, colour in looks:
        loss = evidential_loss(alpha, target * one_hot, options.lam2)
        axes[3].plot(own, loss, style, color=colour, label=name)
    axes[3].set(xlabel="logit of the given pair", title="evidential loss", ylim=(0, None))
    axes[3].legend(fontsize=8)
    return figure


def _triangle(axis: Axes, simplex: np.ndarray, density: np.ndarray, levels: Any) -> None:
    """Draw a density over the probabilities of three candidates."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    x, y = (simplex @ corners).T
    axis.tricontourf(x, y, density, levels=levels, cmap="Blues", extend="max")
    axis.plot(*corners[[0, 1, 2, 0]].T, color="#444444", lw=1)
    for (right, up), label in zip(corners, "ABC", strict=True):
        axis.text(right, up + (0.04 if up else -0.12), label, ha="center", fontsize=9)
    axis.set(aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.36, 1.02))
    axis.axis("off")


def warmup_table() -> Styler:
    """Show the epochs of warm-up of the official scripts, by data set and mismatch rate."""
    rates, datasets = (0.2, 0.4, 0.6, 0.8), ("f30k", "coco", "cc152k")
    cells = pd.DataFrame({name: [published_warmup(name, rate) for rate in rates] for name in datasets})
    cells.index = pd.Index([f"{rate:g}" for rate in rates], name="mismatch rate")
    return show(cells.T, "warmup", "Epochs of warm-up in the official code: -p warmup_epochs")


def hardness_curves(record: Record) -> Figure:
    """Draw the hardness over the share of all steps, of the official settings and of this run."""
    figure, ((axis,),) = plots.panels(1, 1, height=2.9)

    def line(name: str, warm: int, total: int, share: Any, n: list[float], **look: Any) -> None:
        axis.plot(share, n, label=name, **look)
        axis.plot([warm / total] * 2, [0, 0.1], color=look["color"], lw=1)

    colours = (plots.NEUTRAL, plots.ACCENT, plots.THIRD)
    for (name, (per_epoch, warm, more, style)), colour in zip(OFFICIAL.items(), colours, strict=True):
        total = per_epoch * (warm + more)
        at = np.linspace(1, total, 2000).astype(int)
        n = [hardness(int(step), 128) / 128 for step in at]
        label = f"{name}: warm-up {warm} of {warm + more} epochs"
        line(label, warm, warm + more, at / total, n, ls=style, color=colour)
    s, options = record.settings, record.settings["method_options"]
    steps = sum(row["steps"] for row in record.curves)
    warm = sum(row["steps"] for row in record.curves if row["phase"] == "warm-up")
    size = s["batch_size"]
    n = [hardness(i, size, options["eta"], options["mu"]) / size for i in range(1, steps + 1)]
    label = f"this run: warm-up {s['warmup_epochs']} of {len(record.curves)} epochs"
    line(label, warm, steps, np.arange(1, steps + 1) / steps, n, color=plots.METHOD_STYLES["decl"][0])
    axis.set(xlabel="share of all steps (ticks: end of warm-up)", ylabel="hardness n / batch size")
    axis.set(ylim=(0, 1.02), xlim=(0, 1))
    axis.legend(loc="upper right")
    return figure


def evidence_histograms(run: Finished) -> Figure:
    """Draw share of the evidence and uncertainty of all pairs by truth, at the first and last prediction."""
    shown = sorted({min(run.kept), max(run.kept)})
    figure, axes = plots.panels(2, len(shown), 8.4, 5.0, sharey="row")
    views = (
        ("share", "share of the evidence on the given pair", 1),
        ("uncertainty", "uncertainty, both directions", 2),
    )
    for row, (array, label, top) in zip(axes, views, strict=True):
        for axis, epoch in zip(row, shown, strict=True):
            bins = np.linspace(0, top, 41)
            plots.by_truth(axis, run.kept[epoch][array], run.matched, bins, "% of all")
            axis.set(xlabel=label, title=f"before epoch {epoch}", xlim=(0, top), yscale="log")
            axis.set_ylim(50 / len(run.matched), 100)  # down to half a pair
        row[0].set_ylabel("pairs in %, log scale")
    axes[0, 0].legend(loc="upper center")
    return figure
