"""Figures of image-text retrieval, drawn from records, kept arrays or plain arrays."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nclib.plots.style import (
    ACCENT,
    IMAGES,
    NEUTRAL,
    THIRD,
    by_truth,
    colours,
    method_style,
    panels,
    picture,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nclib.data import Split
    from nclib.runs.record import Record

RECALL_NAMES = {
    "i2t_r1": "image → text\nR@1", "i2t_r5": "R@5", "i2t_r10": "R@10",
    "t2i_r1": "text → image\nR@1", "t2i_r5": "R@5", "t2i_r10": "R@10",
}  # fmt: skip


def learning_curves(records: Mapping[str, Record]) -> Figure:
    """Draw validation rSum and the loss terms by epoch; warm-up is shaded.

    Parameters
    ----------
    records : mapping of str to Record
        The first one's losses are drawn.

    Returns
    -------
    Figure
    """
    from matplotlib.ticker import MaxNLocator

    figure, ((left, right),) = panels(1, 2)
    first = next(iter(records.values()))
    for name, record in records.items():
        x, y = [r["epoch"] for r in record.curves], [r["val_rsum"] for r in record.curves]
        left.plot(x, y, ms=4, label=name, **method_style(name))
    left.set(xlabel="epoch", ylabel="rSum on validation (max 600)", title="Validation", ylim=(0, None))
    left.legend()
    terms = sorted({k for r in first.curves for k in r if k.startswith("loss_")})
    looks = zip(("-", "--", ":", "-."), (NEUTRAL, ACCENT, THIRD, IMAGES), strict=True)
    for term, (style, colour) in zip(terms, looks, strict=False):
        rows = [r for r in first.curves if term in r]
        # Each term in units of its first value: sums and means over the batch differ by its size.
        start = abs(rows[0][term]) or 1.0
        x, y = [r["epoch"] for r in rows], [r[term] / start for r in rows]
        said = f"{term[5:]} ({start:.3g} at first)"
        right.plot(x, y, style, color=colour, marker="o", ms=3, label=said)
    right.set(xlabel="epoch", ylabel="loss, relative to its first value", title="Loss terms", ylim=(0, None))
    right.legend()
    warm = sum(r["phase"] == "warm-up" for r in first.curves)
    for axis in (left, right):
        axis.axvspan(0.5, warm + 0.5, color="#f0f0f0", zorder=0)
        axis.set_xlim(0.5, len(first.curves) + 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if warm:
        left.text(0.5 + warm / 2, left.get_ylim()[1] * 0.98, "warm-up", ha="center", va="top", color=NEUTRAL)
    return figure


def pairs_by_epoch(
    epochs: Mapping[int, Mapping[str, np.ndarray]],
    name: str,
    matched: np.ndarray,
    *,
    xlabel: str,
    bins: int = 40,
    unit: str = "density",
    middle: bool = False,
) -> Figure | None:
    """Draw a kept array of the pairs by truth, in the first and in the last epoch that has it.

    Parameters
    ----------
    epochs : mapping of int to arrays
        From ``epoch_arrays``.
    name : str
        Of the array, (N,), values in [0, 1].
    matched : ndarray, bool, (N,)
        The truth.
    xlabel : str
    bins : int
    unit : str
        As for :func:`~nclib.plots.by_truth`.
    middle : bool
        Draw the epoch half way too.

    Returns
    -------
    Figure or None
        None where no epoch kept the array.
    """
    used = [e for e in epochs if name in epochs[e]]
    if not used:
        return None
    chosen = sorted({used[0], used[-1], *([used[len(used) // 2]] if middle else [])})
    figure, (axes,) = panels(1, len(chosen), sharey=unit != "density")
    for axis, epoch in zip(axes, chosen, strict=True):
        by_truth(axis, epochs[epoch][name], matched, np.linspace(0, 1, bins + 1), unit)
        axis.set(xlabel=xlabel, title=f"Epoch {epoch}", xlim=(0, 1))
    axes[0].set_ylabel("density" if unit == "density" else "% of the pairs of that kind")
    axes[0].legend(fontsize=8)
    return figure


def captioned_pictures(
    split: Split, images: Sequence[int], texts: Sequence[Sequence[tuple[str, str]]], columns: int = 4
) -> Figure:
    """Draw pictures with coloured lines of text below.

    Parameters
    ----------
    split : Split
        Whose pictures are shown.
    images : sequence of int
        Rows of the split.
    texts : sequence of sequences of (str, str)
        For every picture, lines of (text, colour).
    columns : int
        Pictures in a row.

    Returns
    -------
    Figure
    """
    rows = -(-len(images) // columns)
    wrapped = [[(textwrap.wrap(t, 27) or [""], c) for t, c in lines] for lines in texts]
    deepest = max(sum(len(part) for part, _ in lines) for lines in wrapped)
    height = 1.85 + 0.17 * deepest
    figure, axes = panels(rows, columns, 2.15 * columns, rows * height, layout="none")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.0, wspace=0.08, hspace=0.1)
    share, step = 1.75 / height, 0.17 / height
    for k, axis in enumerate(axes.flat):
        axis.axis("off")
        if k >= len(images):
            continue
        picture(axis.inset_axes((0.0, 1 - share, 1.0, share)), split, images[k])
        y = 1 - share - 0.02
        for part, colour in wrapped[k]:
            for line in part:
                axis.text(0.0, y, line, va="top", fontsize=8.5, color=colour, transform=axis.transAxes)
                y -= step
    return figure


def recall_bars(records: Mapping[str, Record | Mapping[str, float]]) -> Figure:
    """Draw the six recalls of several runs side by side.

    Parameters
    ----------
    records : mapping of str to Record or mapping of str to float
        Label of a run, then its record or its recalls in percent, ``i2t_r1`` to ``t2i_r10``.

    Returns
    -------
    Figure
    """
    import pandas as pd

    figure, ((axis,),) = panels(1, 1, height=3.0)
    tests = {name: r if isinstance(r, Mapping) else r.metrics["test"] for name, r in records.items()}
    table = pd.DataFrame(tests).loc[list(RECALL_NAMES)]
    table.index = list(RECALL_NAMES.values())
    table.plot.bar(ax=axis, width=0.8, color=colours(records), edgecolor="white", linewidth=1, rot=0)
    for k, column in enumerate(axis.containers):
        for bar in column:
            bar.set_hatch(("", "///", "...")[k % 3])
        axis.bar_label(column, fmt="%.0f", fontsize=8, padding=1)
    axis.grid(axis="x", visible=False)
    axis.set(xlabel="", ylabel="recall in %", ylim=(0, 108))
    axis.legend(loc="upper left", ncols=len(records))
    return figure
