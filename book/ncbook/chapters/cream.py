"""Figures and tables of the chapter on CREAM."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import chapters
from ncbook.chapters import Finished
from ncbook.chapters.family import BATCH  # pair 2 is wrong: its image belongs to caption 3
from ncbook.schematic import Schematic, Sketch
from nclib import plots
from nclib.methods.coteaching import threshold_division
from nclib.methods.cream import SETS, mean_label, mined_targets
from nclib.methods.ncr import rectified_label

POSTERIORS = torch.tensor([[0.95, 0.90], [0.75, 0.25], [0.10, 0.15]])  # of a pair of each set, by A and B
PREDICTED = torch.tensor([[0.90, 0.90], [0.40, 0.30], [0.10, 0.06]])  # match probability by A and B
LABELS = torch.tensor([0.95, 0.10, 0.90, 0.90])  # of the pairs in BATCH


def idea() -> Schematic:
    """Draw the method in four panels; labels and targets come from the package's functions."""
    (clean, hard, _), p = POSTERIORS, PREDICTED
    labels = rectified_label(clean[1], p[0, 0]), rectified_label(hard.mean(), p[1, 0]), p[2].mean()
    sets = Sketch("Posteriors of two networks for a clean, a hard and a noisy pair.", 290, 200)
    refined = Sketch("Refined labels of a clean, a hard and a noisy pair.", 290, 200)
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
    names: dict[str, Any] = {
        "rows": [f"picture {k}" for k in range(1, 5)],
        "columns": ["c1", "c2", "c3", "c4"],
    }
    for alt, values, crossed in (
        ("Targets of four pictures; what pair 2 loses goes to the other captions.", before, None),
        ("The same targets after the filter: every weight away from the diagonal is struck out.", after, cut),
    ):
        sketch = Sketch(alt, 290, 200)
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


def set_table(run: Finished) -> Styler:
    """Show size and matched share of the three sets, and the share of weights that the filter leaves."""
    parts = (("pairs", "pairs"), ("matched", "really matched"))
    names = {f"{name}_{what}": f"{name}: {word}" for name in SETS for what, word in parts}
    caption = "By epoch: pairs in each set, share of them really matched, and off-diagonal targets above 0"
    return chapters.by_epoch(
        run.record, names | {"mined_share": "targets that are mined"}, "cream-sets", caption
    )
