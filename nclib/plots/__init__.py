"""Figures in one style: safe for colour-blind readers, vector graphics, readable on light and dark pages.

Each function styles matplotlib, or draws plain arrays on its axes.
"""

from importlib.util import find_spec

from nclib.common.extras import needs
from nclib.plots.style import (
    ACCENT,
    CAPTIONS,
    CYCLE,
    IMAGES,
    MARKS,
    MATCHED,
    METHOD_STYLES,
    MISMATCHED,
    NAMES,
    NEUTRAL,
    THIRD,
    by_truth,
    colours,
    heatmap,
    method_style,
    panels,
    reader,
    use,
)

if find_spec("matplotlib") is None:  # each function imports it where it draws
    raise needs("nclib.plots", "matplotlib")

__all__ = [
    "ACCENT", "CAPTIONS", "CYCLE", "IMAGES", "MARKS", "MATCHED", "METHOD_STYLES", "MISMATCHED", "NAMES",
    "NEUTRAL", "THIRD", "by_truth", "colours", "heatmap", "method_style", "panels", "reader", "use",
]  # fmt: skip
