"""Recall and mean average precision.

Similarities are (n_images, n_captions) with images in rows; larger is better; caption ``j`` belongs to image
``j // captions_per_image``. The rank is the number of items above the best true one, found by counting
instead of sorting. Two traps of the field's evaluation code are avoided: a NaN score is refused (a reversed
sort puts it first), and ties follow a stated rule (counting strictly larger scores alone would give a
collapsed, constant model a recall of 100).

Everything runs on the host in blocks of rows; a matrix on another device is copied block by block.
"""

from __future__ import annotations

from nclib.evaluation.category import mean_average_precision
from nclib.evaluation.judgements import Judgements
from nclib.evaluation.neighbours import precision_at_k
from nclib.evaluation.ranking import TIES, error_correlation, ranks, recall, rsum
from nclib.evaluation.relevance import map_at_r, relevant_recall
from nclib.evaluation.scores import dual_softmax

__all__ = [
    "TIES",
    "Judgements",
    "dual_softmax",
    "error_correlation",
    "map_at_r",
    "mean_average_precision",
    "precision_at_k",
    "ranks",
    "recall",
    "relevant_recall",
    "rsum",
]
