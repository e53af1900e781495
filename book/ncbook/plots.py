"""The book's figure style: one palette that colour-blind readers can tell apart, one style per method."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib import pyplot, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from nclib.common.checks import check_array, check_choice

# Okabe and Ito's colours: distinguishable with every common form of colour blindness.
MATCHED, MISMATCHED, ACCENT, THIRD, NEUTRAL = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A7A7A"
# Right and wrong are MATCHED and MISMATCHED, in every figure. Images and captions have colours of their own:
# as points, as directions of a search, as what the noise exchanges. Other series take ACCENT and THIRD.
IMAGES, CAPTIONS = "#5E3C99", "#C49A00"
# Series that are neither: no colour of right and wrong among them.
CYCLE = (ACCENT, THIRD, "#E69F00", "#56B4E9", "#8C6D31", "#6F63B5", "#A89400", "#882255", "#243B6B")
MARKS = "osXh^PDvp"
# Colours of no method in METHOD_STYLES (Paul Tol's muted scheme).
OTHERS = ("#332288", "#AA4499", "#44AA99", "#999933", "#661100", "#6699CC")
METHOD_STYLES = {
    "plain": (NEUTRAL, "s"), "plain (triplet)": (NEUTRAL, "s"),
    "plain (infonce)": ("#E69F00", "P"), "l2rm": ("#C2185B", "o"),
    "plain (gce)": ("#6D4C41", "d"), "plain (infonce_rce)": ("#117733", "<"),
    "ncr": ("#56B4E9", "^"), "decl": ("#8C6D31", "D"),
    "bicro": ("#6F63B5", "v"), "rcl": (ACCENT, "X"),
    "sps": ("#243B6B", "<"), "pcsr": ("#882255", "d"),
    "mscn": ("#A89400", "p"), "repair": (THIRD, "h"),
    "crank": ("#111111", "8"), "crank_plus": ("#8E0000", "H"),
    "crcl": ("#00707A", "8"),
    "in2r": ("#A65E2E", "H"),
    "gsc": ("#6B8E23", ">"), "gsc_plus": ("#33691E", "d"),
    "cream": ("#2E8B8B", "*"),
    "uot_rcl": ("#C2185B", "o"), "elrcmr": (NEUTRAL, "s"),
    "mrl": (ACCENT, "^"), "dscmr": (THIRD, "D"),
    "sdml": ("#E69F00", "v"), "deep_sm": ("#56B4E9", "p"),
    "mcca": ("#8C6D31", "X"), "pls": ("#6F63B5", "P"), "nirnl": ("#243B6B", "<"),
    "linear": ("#7B1FA2", "*"),
}  # fmt: skip
"""Colour and marker of the methods that the book discusses; no colour of theirs means right or wrong."""
NAMES = {
    "triplet": "plain (triplet)", "InfoNCE": "plain (infonce)", "GCE": "plain (gce)",
    "InfoNCE + RCE": "plain (infonce_rce)", "L2RM": "l2rm", "L2RM without rematching": "l2rm, dropped",
    "BiCro": "bicro", "IN2R": "in2r", "CRANK+": "crank_plus", "GSC+": "gsc_plus", "CREAM": "cream",
    "UOT-RCL": "uot_rcl", "Deep-SM": "deep_sm", "linear": "linear",
    **{name.upper(): name for name in ("ncr", "decl", "rcl", "sps", "pcsr", "mscn", "repair", "crank", "crcl",
                                       "gsc", "elrcmr", "mrl", "dscmr", "sdml", "mcca", "pls", "nirnl")},
}  # fmt: skip
"""Names of methods and plain losses for readers, and their labels in :data:`METHOD_STYLES`."""


def use() -> None:
    """Set the book's figure style; in a notebook also vector output without dates or random ids."""
    style.use(Path(__file__).with_name("book.mplstyle"))
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None}, facecolor="white")


def panels(
    rows: int, columns: int, width: float = 8.4, height: float = 3.2, **options: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure and its axes, (rows, columns); a notebook draws it once, as the value of its cell.

    Parameters
    ----------
    rows, columns : int
    width, height : float
        Of the whole figure in inches.
    **options
        Passed to ``matplotlib.pyplot.subplots``.

    Returns
    -------
    figure : Figure
    axes : ndarray of Axes, (rows, columns)
    """
    options.setdefault("layout", "constrained")
    figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, **options)
    pyplot.close(figure)
    return figure, axes


def method_style(name: str) -> dict[str, Any]:
    """Return colour, marker and line of a method; a variant of a method has its colours and a dashed line.

    Variants are ``"ncr (one network)"``, ``"GCE, averaged"`` and ``"l2rm, dropped"``.

    A method that is not in :data:`METHOD_STYLES` gets a colour that none of those has, and a marker; both
    depend on its name alone.

    Parameters
    ----------
    name : str
        Name or label of a method.

    Returns
    -------
    dict
        ``color``, ``marker`` and ``ls``, as matplotlib's ``plot`` takes them.

    Examples
    --------
    >>> method_style("ncr (one network)")
    {'color': '#56B4E9', 'marker': '^', 'ls': '--'}
    """
    base = name.removesuffix(" (one network)").removesuffix(", averaged")
    name, base = name if base != name else NAMES.get(name, name), NAMES.get(base, base)
    base = base.removesuffix(", dropped")
    row, column = divmod(zlib.crc32(base.encode()) % (len(OTHERS) * len(MARKS)), len(OTHERS))
    colour, mark = METHOD_STYLES.get(base, (OTHERS[column], MARKS[row]))
    return {"color": colour, "marker": mark, "ls": "-" if base == name else "--"}


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each method, as ``palette`` of seaborn's functions takes them.

    Parameters
    ----------
    names : iterable of str
        Labels of methods or their names for readers, :data:`NAMES`.

    Examples
    --------
    >>> colours(["InfoNCE", "plain (infonce)"])
    {'InfoNCE': '#E69F00', 'plain (infonce)': '#E69F00'}
    """
    return {name: method_style(name)["color"] for name in names}


def reader(label: str) -> str:
    """Return the name for readers of a method or plain loss, the label itself where it has none.

    Examples
    --------
    >>> reader("uot_rcl"), reader("plain (infonce)")
    ('UOT-RCL', 'InfoNCE')
    """
    return next((name for name, known in NAMES.items() if known == label), label)


def by_truth(
    axis: Axes, values: np.ndarray, matched: np.ndarray, bins: np.ndarray, unit: str = "density"
) -> None:
    """Draw two histograms of the pairs' values on ``axis``: really matched and really mismatched.

    Parameters
    ----------
    axis : Axes
    values : ndarray, (N,)
    matched : ndarray, bool, (N,)
        The truth.
    bins : ndarray
        Edges of equally wide bins.
    unit : {"density", "% of kind"}
        Height of a bar: density of all pairs together, or percent of those of its kind.

    Raises
    ------
    ValueError
        For another unit.
    """
    check_choice("unit", unit, ("density", "% of kind"))
    kinds = ((True, MATCHED, "", "really matched"), (False, MISMATCHED, "///", "really mismatched"))
    for flag, colour, hatch, name in kinds:
        if n := len(own := values[matched == flag]):
            height = 100 / n if unit == "% of kind" else 1 / (len(values) * (bins[1] - bins[0]))
            axis.hist(
                own, bins.tolist(), weights=np.full(n, height), histtype="stepfilled", color=colour,
                edgecolor=colour, alpha=0.45, hatch=hatch, label=f"{name} ({n:,})",
            )  # fmt: skip


def heatmap(matrix: ArrayLike, axis: Axes, title: str = "", **options: Any) -> None:
    """Draw a similarity matrix or a transport plan on ``axis``, brighter where the value is larger.

    Parameters
    ----------
    matrix : array, (n_images, n_captions)
        A row per image and a column per caption: their similarity, or the mass that the plan moves from the
        image to the caption (as in L2RM and OMIT). A tensor must lie on the CPU and need no gradient.
    axis : Axes
        Drawn on; its labels say image and caption.
    title : str
    **options
        Passed to ``seaborn.heatmap``; they override what this function chooses.

    Raises
    ------
    ValueError
        When ``matrix`` has not two dimensions.
    """
    usual = {"cmap": "cividis", "square": True, "cbar": False, "xticklabels": False, "yticklabels": False}
    values = np.asarray(matrix)
    check_array("matrix", values, "numbers or booleans", "n_images", "n_captions")
    sns.heatmap(values, ax=axis, **{**usual, **options})
    axis.set(xlabel="caption", ylabel="image", title=title)
