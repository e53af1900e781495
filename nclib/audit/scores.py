"""Scores of fit between a caption and a picture; larger fits better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nclib.audit.pairs import Indices, Pairs, blocks
from nclib.audit.partners import Neighbours

Scores = NDArray[np.float32]
#: ``f(pairs, neighbours, captions=None, images=None)``: scores of these captions with these pictures, (Q,);
#: by default of the given pairs, (M,).
Score = Callable[..., Scores]
SCORES: dict[str, Score] = {}


def score(name: str) -> Callable[[Score], Score]:
    """Return a decorator that registers a score under ``name``."""

    def add(function: Score) -> Score:
        SCORES[name] = function
        return function

    return add


def _queries(pairs: Pairs, captions: Indices | None, images: Indices | None) -> tuple[Any, Any]:
    if captions is None:
        return np.arange(len(pairs)), pairs.image_of
    return captions, pairs.image_of[captions] if images is None else images


@score("cosine")
def cosine(
    pairs: Pairs, neighbours: Neighbours, captions: Indices | None = None, images: Indices | None = None
) -> Scores:
    r"""Cosine of the two embeddings, :math:`\cos(x_i, y_j)`."""
    rows, of = _queries(pairs, captions, images)
    out = np.empty(len(rows), np.float32)
    for part in blocks(len(rows)):
        x, y = pairs.unit_images(of[part]), pairs.unit_captions(rows[part])
        out[part] = torch.linalg.vecdot(x, y).numpy()
    return out
