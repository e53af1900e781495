"""Figures of pairs: what a run kept of them in its epochs, and pictures with lines of text below."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ncbook.plots import by_truth, panels
from nclib.data import Split


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
        As for :func:`~ncbook.plots.by_truth`.
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
        _picture(axis.inset_axes((0.0, 1 - share, 1.0, share)), split, images[k])
        y = 1 - share - 0.02
        for part, colour in wrapped[k]:
            for line in part:
                axis.text(0.0, y, line, va="top", fontsize=8.5, color=colour, transform=axis.transAxes)
                y -= step
    return figure


def _picture(axis: Axes, split: Split, row: int) -> None:
    """Draw the picture in a row of a split on ``axis``, without ticks and frame."""
    axis.imshow(split.picture(row), interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(False)
