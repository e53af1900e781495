"""The book's figures: one visual language, colour-blind safe, vector, readable on light and dark pages.

Every function draws from records, kept arrays or plain arrays, returns a matplotlib figure, and computes
nothing that belongs into a record.
"""

from nclib.plots.pairs import (
    captioned_pictures,
    cost_distributions,
    division,
    learning_curves,
    pairs_by_epoch,
    ranked_alignment,
    rates,
    recall_bars,
)
from nclib.plots.style import (
    ACCENT,
    CYCLE,
    MARKS,
    MATCHED,
    METHOD_STYLES,
    MISMATCHED,
    NEUTRAL,
    THIRD,
    bars,
    by_truth,
    heatmap,
    histograms,
    method_style,
    over_setting,
    panels,
    use,
)

__all__ = [
    "ACCENT",
    "CYCLE",
    "MARKS",
    "MATCHED",
    "METHOD_STYLES",
    "MISMATCHED",
    "NEUTRAL",
    "THIRD",
    "bars",
    "by_truth",
    "captioned_pictures",
    "cost_distributions",
    "division",
    "heatmap",
    "histograms",
    "learning_curves",
    "method_style",
    "over_setting",
    "pairs_by_epoch",
    "panels",
    "ranked_alignment",
    "rates",
    "recall_bars",
    "use",
]
