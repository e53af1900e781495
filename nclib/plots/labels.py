"""Figures of category retrieval, in the book's visual language (:mod:`nclib.plots`)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nclib.plots.style import MATCHED, MISMATCHED, method_style, picture
from nclib.plots.style import panels as grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nclib.data import CategorySplit

DIRECTIONS = {"map_i2t": "image to text", "map_t2i": "text to image"}
Curves = Mapping[str, Sequence[Mapping[str, Any]]]


def validation_curves(panels: Mapping[str, Curves], *, height: float = 2.9) -> Figure:
    """Draw validation mAP by epoch, both directions apart: a column per panel, or side by side for one.

    Parameters
    ----------
    panels : mapping of str to mapping of str to rows
        Title of the panel, then label of the run and the ``curves`` of its record.
    height : float
        Of one panel in inches; several panels in two rows take 1.6 times as much.
    """
    from matplotlib.ticker import MaxNLocator

    alone = len(panels) == 1
    figure, axes = grid(1, 2, 8.4, height) if alone else grid(2, len(panels), 2.5 * len(panels), 1.6 * height)
    axes = axes.T if alone else axes  # (direction, panel)
    for column, (title, runs) in enumerate(panels.items()):
        for row, (key, direction) in enumerate(DIRECTIONS.items()):
            axis = axes[row, column]
            for label, curves in runs.items():
                style = method_style(label)
                x, y = [r["epoch"] for r in curves], [r[f"val_{key}"] for r in curves]
                axis.plot(x, y, color=style["color"], lw=1.8, label=label)
                axis.plot(x[-1:], y[-1:], style["marker"], color=style["color"], ms=5)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            axis.set(xlabel="epoch" if row or alone else "", title="" if row else title)
            if column == 0:
                axis.set_ylabel(f"mAP, {direction}")
            else:
                axis.sharey(axes[row, 0])
                axis.tick_params(labelleft=False)
    axes[0, 0].legend(fontsize=8)
    return figure


def confusions(matrices: Mapping[str, np.ndarray], names: Sequence[str]) -> Figure:
    """Draw true classes against corrected ones, one heat map per title.

    Parameters
    ----------
    matrices : mapping of str to ndarray, (K, K)
        Shares in [0, 1]: true classes in rows, which sum to 1, classes by label in columns.
    names : sequence of K str
    """
    columns = min(2, len(matrices))
    rows = -(-len(matrices) // columns)
    figure, axes = grid(rows, columns, 1.7 + 1.7 * columns, 0.9 + 2.1 * rows, sharex=True, sharey=True)
    image = None
    for axis, (title, matrix) in zip(axes.flat, matrices.items(), strict=False):
        image = axis.imshow(matrix, cmap="cividis", vmin=0, vmax=1)
        axis.set_title(title)
        axis.set_xticks(range(len(names)), range(1, len(names) + 1), fontsize=8)
        axis.grid(False)
    for axis in axes.flat[len(matrices) :]:
        axis.set_visible(False)
    short = [f"{textwrap.shorten(name, 20, placeholder='…')} {k}" for k, name in enumerate(names, 1)]
    axes[0, 0].set_yticks(range(len(names)), short)
    figure.supxlabel("class by label", fontsize=9)
    if image is not None:
        figure.colorbar(
            image, ax=axes, location="top", shrink=0.6, aspect=30, label="share of the class's mass"
        )
    return figure


def retrieved_texts(
    split: CategorySplit, queries: Sequence[int], found: np.ndarray, names: Sequence[str]
) -> Figure:
    """Draw image queries with the texts found for them; right ones blue with a tick, wrong ones orange.

    Parameters
    ----------
    split : CategorySplit
        With pictures and texts.
    queries : sequence of int
        Rows of the split.
    found : ndarray, int, (len(queries), k)
        Rows of the texts, best first.
    names : sequence of K str
    """
    figure = _page(8.6, 1.75 * len(queries))
    for k, (query, rows) in enumerate(zip(queries, found, strict=True)):
        bottom, height = 1 - (k + 1) / len(queries), 0.9 / len(queries)
        axis = figure.add_axes((0.0, bottom + 0.02, 0.17, height - 0.04))
        _show(axis, split, query, names[split.labels[query]])
        for j, row in enumerate(rows):
            y = bottom + height * (0.93 - j * 0.93 / len(rows))
            mark, colour = _verdict(split, row, query)
            words = f"{mark} {textwrap.shorten(split.text(row), 92, placeholder=' …')}"
            figure.text(0.2, y, words, va="top", fontsize=8.5, color=colour, family="DejaVu Sans")
    return figure


def _page(width: float, height: float) -> Figure:
    """Return an empty figure whose parts are placed by hand."""
    figure, axes = grid(1, 1, width, height, layout="none")
    axes[0, 0].remove()
    return figure


def _verdict(split: CategorySplit, row: int, query: int) -> tuple[str, str]:
    """Return mark and colour of an answer: a row of the right class or not."""
    return ("✓", MATCHED) if split.labels[row] == split.labels[query] else ("✗", MISMATCHED)


def _show(axis: Any, split: CategorySplit, row: int, title: str, **style: Any) -> None:
    picture(axis, split, row)
    axis.set_title(title, fontsize=8.5, **style)
