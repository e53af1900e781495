"""Recall and mean average precision.

Similarities are (n_images, n_captions) with images in rows; larger is better; caption ``j`` belongs to image
``j // captions_per_image``. A rank is the number of items above the best true one, so it is counted, never
sorted for. Two traps of the field's evaluation code are closed: a NaN score is refused (reversed sorting
puts it first), and ties follow a stated rule (counting strictly larger scores alone would give a collapsed,
constant model a recall of 100).

Everything runs on the host in blocks of rows; a matrix on another device is brought over block by block.
"""

from __future__ import annotations

from nclib.evaluation._category import mean_average_precision
from nclib.evaluation._dual_softmax import dual_softmax
from nclib.evaluation._recall import TIES, ranks, recall
from nclib.evaluation._relevance import map_at_r, precision_at_r, relevant_recall

__all__ = [
    "TIES",
    "dual_softmax",
    "map_at_r",
    "mean_average_precision",
    "precision_at_r",
    "ranks",
    "recall",
    "relevant_recall",
]
