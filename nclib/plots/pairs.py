"""Figures of image-text retrieval, drawn from records, kept arrays or plain arrays."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nclib.common.checks import check_count
from nclib.plots.style import (
    ACCENT,
    IMAGES,
    MATCHED,
    MISMATCHED,
    NEUTRAL,
    THIRD,
    bars,
    by_truth,
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
    top: float = 1.0,
    unit: str = "density",
    title: str = "Epoch {}",
    middle: bool = False,
) -> Figure | None:
    """Draw a kept array of the pairs by truth, in the first and in the last epoch that has it.

    Parameters
    ----------
    epochs : mapping of int to arrays
        From ``epoch_arrays``.
    name : str
        Of the array, (N,), values in [0, ``top``].
    matched : ndarray, bool, (N,)
        The truth.
    xlabel : str
    bins : int
    top : float
    unit : str
        As for :func:`~nclib.plots.by_truth`.
    title : str
        Of a panel; ``{}`` becomes the epoch.
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
        by_truth(axis, epochs[epoch][name], matched, np.linspace(0, top, bins + 1), unit)
        axis.set(xlabel=xlabel, title=title.format(epoch), xlim=(0, top))
    names = {"density": "density", "% of all": "pairs in %", "% of kind": "% of the pairs of that kind"}
    axes[0].set_ylabel(names[unit])
    axes[0].legend(fontsize=8)
    return figure


def division(epochs: Mapping[int, Mapping[str, np.ndarray]], matched: np.ndarray) -> Figure | None:
    """Draw the per-pair losses and the fitted mixture at the first and at the last division.

    Parameters
    ----------
    epochs : mapping of int to arrays
        From ``epoch_arrays``; needs ``loss`` (N,) and the fitted mixture: ``mixture`` (3, 2), weights, a, b
        of beta components, or ``density`` (n, 3), points and both components' densities there.
    matched : ndarray, bool, (N,)
        The truth.

    Returns
    -------
    Figure or None
        None where no epoch kept a fitted mixture.
    """
    from scipy.stats import beta

    fitted = {e: a for e, a in epochs.items() if "mixture" in a or "density" in a}
    figure = pairs_by_epoch(fitted, "loss", matched, xlabel="loss of the pair, scaled to 0..1", bins=60)
    if figure is None:
        return None
    shown = sorted({min(fitted), max(fitted)})
    for axis, epoch in zip(figure.axes, shown, strict=True):
        arrays = fitted[epoch]
        if "mixture" in arrays:
            x = np.linspace(0.002, 0.998, 400)
            weights, a, b = arrays["mixture"]
            low, high = (weights[k] * beta.pdf(x, a[k], b[k]) for k in (0, 1))
        else:
            x, low, high = arrays["density"].T
        axis.plot(x, low, color=MATCHED, label="matched component")
        axis.plot(x, high, "--", color=MISMATCHED, label="mismatched component")
        # A mixture may grow without bound at 0; the scale follows the histogram without its first bin.
        axis.set_ylim(0, 1.25 * np.histogram(arrays["loss"], 60, (0, 1), density=True)[0][1:].max())
    figure.axes[0].legend(fontsize=8)
    return figure


def cost_distributions(epochs: Mapping[int, Mapping[str, np.ndarray]], matched: np.ndarray) -> Figure | None:
    """Draw the transport cost of the given pairs, early, midway and late (L2RM, Fig. 6).

    Parameters
    ----------
    epochs : mapping of int to arrays
        From ``epoch_arrays``; an epoch with a learned cost has ``cost``, (N,).
    matched : ndarray, bool, (N,)
        The truth.

    Returns
    -------
    Figure or None
        None where no epoch used a learned cost.
    """
    label = "transport cost of the given pair"
    return pairs_by_epoch(epochs, "cost", matched, xlabel=label, bins=50, middle=True)


def ranked_alignment(arrays: Mapping[str, np.ndarray], top: int = 32) -> Figure | None:
    """Draw the mean refined alignment of a row, sorted (L2RM, Fig. 7), by how much of its mass moved.

    In every batch of B pairs that are taken for mismatched, L2RM moves mass from images to captions by
    partial transport. A row of its plan is an image's: how much goes to each caption of the batch. Divided
    by its sum, a row is the image's refined alignment, which is sorted, largest first. Each image could give
    1/B. *Mass moved* is what the row gives in all; the left panel averages rows that gave more than half of
    1/B, the right panel the others.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Kept arrays of one epoch (``epoch_arrays``): ``ranked_moved`` and ``ranked_unmoved``, (B,), the mean
        sorted rows of both kinds.
    top : int
        Ranks shown, from the first.

    Returns
    -------
    Figure or None
        None where nothing was rematched in that epoch. The dotted line is a uniform row, 1/B.

    Raises
    ------
    ValueError
        When ``top`` is less than 1.
    """
    check_count("top", top)
    if "ranked_moved" not in arrays:
        return None
    figure, (axes,) = panels(1, 2, height=2.9)
    names = ("ranked_moved", "ranked_unmoved")
    titles = ("More than half of the mass moved", "Half of it or less moved")
    for axis, name, title, colour in zip(axes, names, titles, (ACCENT, NEUTRAL), strict=True):
        values = arrays[name]
        axis.bar(np.arange(1, min(top, len(values)) + 1), values[:top], color=colour)
        axis.axhline(1 / len(values), color="#444444", ls=":", lw=1.5)
        axis.text(top, 1 / len(values), " uniform", ha="right", va="bottom", color="#444444", fontsize=9)
        top_of_axis = max(0.05, values.max() * 1.1)
        axis.set(xlabel="rank of the caption in the row", title=title, ylim=(0, top_of_axis))
    axes[0].set_ylabel("mean alignment")
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
    bars(axis, table, [method_style(name)["color"] for name in records], digits=0)
    axis.set(ylabel="recall in %", ylim=(0, 108))
    axis.legend(loc="upper left", ncols=len(records))
    return figure
