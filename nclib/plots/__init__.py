"""The book's figures: one visual language, colour-blind safe, vector, readable on light and dark pages.

Every function draws from records, kept arrays or plain arrays, returns a matplotlib figure, and computes
nothing that belongs into a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nclib.data import Split
    from nclib.runs.record import Record

# Okabe and Ito's colours: distinguishable with every common form of colour blindness.
MATCHED, MISMATCHED, ACCENT, THIRD, NEUTRAL = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A7A7A"
METHOD_STYLES = {
    "plain": (MISMATCHED, "s"),
    "plain (triplet)": (MISMATCHED, "s"),
    "plain (infonce)": ("#E69F00", "P"),
    "l2rm": (MATCHED, "o"),
    "ncr": ("#56B4E9", "^"),
    "decl": ("#8C6D31", "D"),
    "bicro": ("#6F63B5", "v"),
    "rcl": (ACCENT, "X"),
    "mscn": ("#A89400", "p"),
    "repair": (THIRD, "h"),
}
"""Colour and marker of each method, the same in every figure."""
RECALL_NAMES = {
    "i2t_r1": "image → text R@1",
    "i2t_r5": "R@5",
    "i2t_r10": "R@10",
    "t2i_r1": "text → image R@1",
    "t2i_r5": "R@5",
    "t2i_r10": "R@10",
}


def use() -> None:
    """Set the book's figure style; in a notebook also vector output without dates or random ids."""
    import matplotlib as mpl

    mpl.rcParams.update(
        {
            "figure.figsize": (8.0, 3.2),
            "figure.facecolor": "white",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": "#444444",
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e6e6e6",
            "grid.linewidth": 0.8,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 10,
            "font.size": 10,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "lines.linewidth": 2.0,
            "svg.hashsalt": "nclib",
            "svg.fonttype": "path",
        }
    )
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None}, facecolor="white")


def _axes(n: int, height: float = 3.2, width: float = 8.4) -> tuple[Figure, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, n, figsize=(width, height), squeeze=False)
    plt.close(figure)  # the caller shows it once, as the value of the cell
    return figure, list(axes[0])


def method_style(name: str) -> dict[str, Any]:
    """Return colour, marker and line of a method; ``"ncr (one network)"`` is NCR's with a dashed line.

    A name that is not in :data:`METHOD_STYLES` is drawn in grey.
    """
    base = name.removesuffix(" (one network)")
    colour, mark = METHOD_STYLES.get(base, (NEUTRAL, "o"))
    return {"color": colour, "marker": mark, "ls": "-" if base == name else "--"}


def learning_curves(records: Mapping[str, Record]) -> Figure:
    """Draw validation rSum and the loss terms by epoch; warm-up is shaded.

    Parameters
    ----------
    records : mapping of str to Record
        The first one's losses are drawn.
    """
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = _axes(2)
    first = next(iter(records.values()))
    for name, record in records.items():
        rows = record.curves
        left.plot(
            [r["epoch"] for r in rows],
            [r["val_rsum"] for r in rows],
            ms=4,
            label=name,
            **method_style(name),
        )
    left.set(xlabel="epoch", ylabel="rSum on validation (max 600)", title="Validation", ylim=(0, None))
    left.legend()
    terms = sorted({k for r in first.curves for k in r if k.startswith("loss_")})
    for term, style, colour in zip(
        terms, ("-", "--", ":", "-."), (NEUTRAL, MATCHED, MISMATCHED, ACCENT), strict=False
    ):
        rows = [r for r in first.curves if term in r]
        # Each term in units of its first value: sums and means over the batch differ by its size.
        start = abs(rows[0][term]) or 1.0
        right.plot(
            [r["epoch"] for r in rows],
            [r[term] / start for r in rows],
            style,
            color=colour,
            marker="o",
            ms=3,
            label=f"{term[5:]} ({start:.3g} at first)",
        )
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


def _two_histograms(axis: Axes, values: np.ndarray, matched: np.ndarray, bins: np.ndarray) -> None:
    for flag, colour, name, hatch in (
        (True, MATCHED, "really matched", ""),
        (False, MISMATCHED, "really mismatched", "///"),
    ):
        part = values[matched == flag]
        if len(part):
            axis.hist(
                part,
                bins.tolist(),
                weights=np.full(len(part), 1 / (len(values) * (bins[1] - bins[0]))),
                color=colour,
                edgecolor=colour,
                alpha=0.45,
                hatch=hatch,
                histtype="stepfilled",
                label=f"{name} ({len(part):,})",
            )


def division(epochs: Mapping[int, Mapping[str, np.ndarray]], matched: np.ndarray) -> Figure:
    """Draw the per-pair losses and the beta mixture at the first and at the last division.

    Parameters
    ----------
    epochs : mapping of int to arrays
        From ``epoch_arrays``; needs ``loss`` (N,) and ``mixture`` (3, 2): weights, a, b.
    matched : ndarray, bool, (N,)
        The truth.
    """
    from scipy.stats import beta

    used = [e for e in epochs if "mixture" in epochs[e]]
    chosen = sorted({used[0], used[-1]})
    figure, axes = _axes(len(chosen))
    x = np.linspace(0.002, 0.998, 400)
    for axis, epoch in zip(axes, chosen, strict=True):
        arrays = epochs[epoch]
        _two_histograms(axis, arrays["loss"], matched, np.linspace(0, 1, 61))
        weights, a, b = arrays["mixture"]
        for k, (colour, style, name) in enumerate(
            ((MATCHED, "-", "matched component"), (MISMATCHED, "--", "mismatched component"))
        ):
            axis.plot(x, weights[k] * beta.pdf(x, a[k], b[k]), style, color=colour, label=name)
        axis.set(
            xlabel="loss of the pair, scaled to 0..1", ylabel="density", title=f"Epoch {epoch}", xlim=(0, 1)
        )
        top = np.histogram(arrays["loss"], 61, (0, 1), density=True)[0][1:].max()
        axis.set_ylim(0, 1.25 * top)
    axes[0].legend()
    return figure


def cost_distributions(epochs: Mapping[int, Mapping[str, np.ndarray]], matched: np.ndarray) -> Figure:
    """Draw the transport cost of the given pairs, early, midway and late (L2RM, Fig. 6)."""
    used = [e for e in epochs if "cost" in epochs[e]]
    chosen = sorted({used[0], used[len(used) // 2], used[-1]})
    figure, axes = _axes(len(chosen))
    for axis, epoch in zip(axes, chosen, strict=True):
        _two_histograms(axis, epochs[epoch]["cost"], matched, np.linspace(0, 1, 51))
        axis.set(xlabel="transport cost of the given pair", title=f"Epoch {epoch}", xlim=(0, 1))
    axes[0].set_ylabel("density")
    axes[0].legend()
    return figure


def ranked_alignment(arrays: Mapping[str, np.ndarray], top: int = 32) -> Figure:
    """Draw the mean refined alignment of a row, sorted (L2RM, Fig. 7), by how much of its mass moved.

    Parameters
    ----------
    arrays : mapping
        Kept arrays of one epoch with ``ranked_moved`` and ``ranked_unmoved``, (B,).
    top : int
        Ranks shown.
    """
    figure, axes = _axes(2, height=2.9)
    names = ("ranked_moved", "ranked_unmoved")
    titles = ("More than half of the mass moved", "Half of it or less moved")
    for axis, name, title, colour in zip(axes, names, titles, (ACCENT, NEUTRAL), strict=True):
        values = arrays[name]
        axis.bar(np.arange(1, min(top, len(values)) + 1), values[:top], color=colour)
        axis.axhline(1 / len(values), color="#444444", ls=":", lw=1.5)
        axis.text(top, 1 / len(values), " uniform", ha="right", va="bottom", color="#444444", fontsize=9)
        axis.set(
            xlabel="rank of the caption in the row", title=title, ylim=(0, max(0.05, values.max() * 1.1))
        )
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
    """
    import textwrap

    import matplotlib.pyplot as plt

    rows = -(-len(images) // columns)
    wrapped = [[(textwrap.wrap(t, 27) or [""], c) for t, c in lines] for lines in texts]
    deepest = max(sum(len(part) for part, _ in lines) for lines in wrapped)
    figure, axes = plt.subplots(
        rows, columns, figsize=(2.15 * columns, rows * (1.85 + 0.17 * deepest)), squeeze=False, layout="none"
    )
    figure.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.0, wspace=0.08, hspace=0.1)
    plt.close(figure)
    share = 1.75 / (1.85 + 0.17 * deepest)
    for k, axis in enumerate(axes.flat):
        axis.axis("off")
        if k >= len(images):
            continue
        inset = axis.inset_axes((0.0, 1 - share, 1.0, share))
        inset.imshow(split.picture(int(images[k])), interpolation="nearest")
        inset.set(xticks=[], yticks=[])
        inset.grid(False)
        inset.spines[:].set_visible(False)
        y = 1 - share - 0.02
        step = 0.17 / (1.85 + 0.17 * deepest)
        for part, colour in wrapped[k]:
            for line in part:
                axis.text(0.0, y, line, va="top", fontsize=8.5, color=colour, transform=axis.transAxes)
                y -= step
    return figure


def recall_bars(records: Mapping[str, Record | Mapping[str, float]]) -> Figure:
    """Draw the six recalls of several runs side by side."""
    figure, (axis,) = _axes(1, height=3.0)
    keys = list(RECALL_NAMES)
    width = 0.8 / len(records)
    for k, (name, record) in enumerate(records.items()):
        test = record if isinstance(record, Mapping) else record.metrics["test"]
        x = np.arange(len(keys)) + (k - (len(records) - 1) / 2) * width
        hatch = ("", "///", "...")[k % 3]
        bars = axis.bar(
            x, [test[m] for m in keys], width * 0.94, color=method_style(name)["color"], label=name,
            hatch=hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        axis.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
    axis.set_xticks(range(len(keys)), [RECALL_NAMES[m].replace(" R", "\nR") for m in keys])
    axis.set(ylabel="recall in %", ylim=(0, 108))
    axis.grid(axis="x", visible=False)
    axis.legend(loc="upper left", ncols=len(records))
    return figure


def rates(table: pd.DataFrame, group: str = "label", value: str = "rsum") -> Figure:
    """Draw a metric over the mismatch rate: mean of the seeds, every seed as a dot, spread as a band.

    Parameters
    ----------
    table : DataFrame
        One row per run with columns ``mrate``, ``group`` and ``value``.
    """
    figure, (axis,) = _axes(1, height=3.6)
    for name, part in table.groupby(group):
        by_rate = part.groupby("mrate")[value]
        mean, spread = by_rate.mean(), by_rate.std().fillna(0)
        style = method_style(str(name))
        colour = style["color"]
        axis.plot(mean.index, mean, label=str(name), **style)
        axis.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.15, lw=0)
        axis.scatter(part["mrate"], part[value], s=10, color=colour, alpha=0.6, zorder=3)
    axis.set(xlabel="mismatch rate", ylabel="rSum on test (max 600)", ylim=(0, None))
    axis.legend()
    return figure


def heatmap(matrix: Any, axis: Axes, title: str = "") -> None:
    """Draw a plan or a similarity matrix, images in rows, on ``axis``."""
    axis.imshow(np.asarray(matrix), cmap="cividis", aspect="equal")
    axis.set(xlabel="caption", ylabel="image", title=title)
    axis.grid(False)
