"""VSE++: one vector per image and per caption, compared by their cosine (BMVC 2018, arXiv 1707.05612)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, option
from nclib.models.encoders import l2, word_mask
from nclib.models.region_words import CosineMatcher
from nclib.models.registry import register


def mean_of_words(words: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Mean (C, D) of the valid words of (C, W, D)."""
    mask = word_mask(lengths, words.shape[1], words)
    return torch.bmm(mask[:, None], words).squeeze(1) / mask.sum(1, keepdim=True)


REGION_POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda regions: regions.mean(1),  # (B, R, D) to (B, D)
    "max": lambda regions: regions.amax(1),
}
WORD_POOLS: dict[str, Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]] = {
    "mean": lambda words, last, lengths: mean_of_words(words, lengths),
    "last": lambda words, last, lengths: last,
}


@register("vse", summary="pooled regions, pooled BiGRU, cosine; fast", paper="VSE++, BMVC 2018")
class VSE(CosineMatcher):
    """Dual encoder on region features: linear map and pooling; BiGRU and pooling; cosine.

    Parameters
    ----------
    region_pool, word_pool : {"mean", "max"}, {"mean", "last"}
        How regions and words become one vector; ``"last"``: the final states of the two directions.
    **common
        Sizes and encoders; see :class:`~nclib.models.region_words.RegionWordMatcher`.
    """

    region_pool: str = option("mean", choices=REGION_POOLS)
    word_pool: str = option("mean", choices=WORD_POOLS)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.image_encoder.unit = self.text_encoder.unit = False

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Map region features (B, R, feature_dim) to unit vectors (B, D)."""
        return ImageEncoding(l2(REGION_POOLS[self.region_pool](self.encode_regions(images))))

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Map captions to unit vectors (C, D)."""
        words, last = self.encode_words(tokens)
        vectors = l2(WORD_POOLS[self.word_pool](words, last, tokens.lengths))
        return CaptionEncoding(vectors, tokens.lengths)
