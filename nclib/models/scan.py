"""SCAN: stacked cross attention (Lee et al., ECCV 2018, arXiv 1803.08024), all pairs of a batch at once."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib.models.base import option
from nclib.models.cross import POOLS, PUBLISHED, attention, context_cosine, raw_scores
from nclib.models.region_words import FragmentMatcher
from nclib.models.registry import register

TEMPERATURES = {"t2i": 9.0, "i2t": 4.0}
"""Attention temperatures (lambda 1) of the official code's settings."""

SHARPNESS = {"t2i": 6.0, "i2t": 5.0}
"""LogSumExp factors (lambda 2) of the official code's Flickr30K settings; COCO uses 20 for i2t."""


@register("scan", summary="stacked cross attention between words and regions", paper="ECCV 2018")
class SCAN(FragmentMatcher):
    """Each query attends over the other side; the score pools the cosines with the attended contexts.

    Parameters
    ----------
    direction, pooling : {"t2i", "i2t"}, {"lse", "mean", "max", "sum"}
        Words attend over regions, or regions over words; how the cosines of a pair become its score. With
        "lse" scores can exceed 1.
    temperature, sharpness : float, optional
        Attention temperature (lambda 1) and LogSumExp factor (lambda 2); by default the official code's.
    **common
        Sizes and encoders; see :class:`~nclib.models.region_words.RegionWordMatcher`.
    """

    direction: str = option("t2i", choices=TEMPERATURES)
    pooling: str = option("lse", choices=POOLS)
    temperature: float = option(None, kind=float, above=0)
    sharpness: float = option(None, kind=float, above=0)

    settings: ClassVar = PUBLISHED

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.temperature = self.temperature or TEMPERATURES[self.direction]
        self.sharpness = self.sharpness or SHARPNESS[self.direction]
        self.score_range = (-1.0, 1.0) if self.pooling in ("mean", "max") else (-math.inf, math.inf)

    def pair_scores(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        forth = self.direction == "t2i"
        sets = (regions, None, words, mask) if forth else (words, mask, regions, None)
        sources, source_mask, queries, query_mask = sets
        raw = raw_scores(sources, queries)  # (B, R, n, w), or (n, w, B, R)
        share = attention(raw, query_mask, source_mask, self.temperature)
        norm = torch.linalg.vector_norm(queries, dim=-1)
        cosine = context_cosine(share, raw, sources @ sources.mT, norm)
        scores = POOLS[self.pooling](cosine, query_mask, self.sharpness)
        return scores if forth else scores.t()

    def training_bytes(self, regions: Tensor) -> tuple[int, int]:
        return 8 * regions.shape[0] * regions.shape[1] * regions.element_size(), 0
