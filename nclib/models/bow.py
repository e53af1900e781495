"""Bag of words: the fastest dual encoder, for many runs on a few cores."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding
from nclib.models.encoders import l2
from nclib.models.region_words import DualEncoder
from nclib.models.registry import register
from nclib.models.vse import mean_of_words


@register("bow", summary="mean of regions, mean of word vectors, cosine; the fastest")
class BagOfWords(DualEncoder):
    """Dual encoder without recurrence: the order of words and the place of regions have no effect.

    An image is a linear map of its mean region, a caption one of the tanh of its mean word vector.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.image_map = nn.Linear(self.feature_dim, self.embed_dim)
        self.words = nn.Embedding(self.vocab_size, self.word_dim)
        self.text_map = nn.Linear(self.word_dim, self.embed_dim)

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Map region features (B, R, feature_dim) to unit vectors (B, D)."""
        return ImageEncoding(l2(self.image_map(self.check_images(images).mean(1))))

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Map captions to unit vectors (C, D)."""
        tokens = self.check_tokens(tokens)
        mean = mean_of_words(self.words(tokens.ids), tokens.lengths)
        return CaptionEncoding(l2(self.text_map(mean.tanh())), tokens.lengths)
