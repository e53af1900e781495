"""SCAN: stacked cross attention (Lee et al., ECCV 2018, arXiv 1803.08024), all pairs of a batch at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nclib.batch import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding
from nclib.models.cross import POOLS, attention, context_cosine, gram, raw_scores
from nclib.models.encoders import RegionEncoder, TextEncoder
from nclib.models.pairwise import FragmentMatcher
from nclib.models.registry import MODELS, choice, positive

TEMPERATURES = {"t2i": 9.0, "i2t": 4.0}
"""Attention temperatures (lambda 1) of the published settings."""

SHARPNESS = {"t2i": 6.0, "i2t": 5.0}
"""LogSumExp factors (lambda 2) of the published Flickr30K settings; COCO uses 20 for i2t."""


@MODELS.register("scan", summary="stacked cross attention between words and regions", paper="ECCV 2018")
class SCAN(FragmentMatcher):
    """Each query attends over the other side; the score pools the cosines with the attended contexts.

    Parameters
    ----------
    feature_dim, vocab_size, n_regions : int
        Width of a region feature, number of token ids, regions per image (any number may be given later).
    embed_dim, word_dim : int
        Width of the common space and of a word embedding.
    sim_dim : int
        Not used; accepted so that all models are built by the same call.
    direction : {"t2i", "i2t"}
        Words attend over regions, or regions over words.
    pooling : {"lse", "mean", "max", "sum"}
        How the cosines of a pair become its score. With "lse" scores can exceed 1.
    temperature, sharpness : float, optional
        Attention temperature (lambda 1) and LogSumExp factor (lambda 2); the published values by default.
    dropout : float
        Dropout on the word embeddings while training.
    """

    def __init__(
        self,
        *,
        feature_dim: int,
        vocab_size: int,
        n_regions: int = 12,
        embed_dim: int = 1024,
        sim_dim: int = 256,
        word_dim: int = 300,
        direction: str = "t2i",
        pooling: str = "lse",
        temperature: float | None = None,
        sharpness: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(feature_dim=feature_dim, vocab_size=vocab_size, n_regions=n_regions)
        self.direction = choice("direction", direction, TEMPERATURES)
        self.pooling = choice("pooling", pooling, POOLS)
        self.temperature = TEMPERATURES[direction] if temperature is None else temperature
        self.sharpness = SHARPNESS[direction] if sharpness is None else sharpness
        positive(temperature=self.temperature, sharpness=self.sharpness)
        self.score_range = (-1.0, 1.0) if pooling in ("mean", "max") else (-math.inf, math.inf)
        self.image_encoder = RegionEncoder(feature_dim, embed_dim)
        self.text_encoder = TextEncoder(vocab_size, word_dim, embed_dim, dropout=dropout)

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Encode region features (B, R, feature_dim) as unit regions (B, R, D)."""
        regions = self.image_encoder(self.check_images(images))
        return ImageEncoding(regions.mean(1), regions)

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Encode captions as unit words (C, W, D)."""
        words, last = self.text_encoder(self.check_tokens(tokens))
        return CaptionEncoding(last, tokens.lengths, words)

    def _pairs(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        pool = POOLS[self.pooling]
        if self.direction == "t2i":
            raw = raw_scores(regions, words)  # (B, R, n, w)
            share = attention(raw, mask, None, self.temperature)
            norm = torch.linalg.vector_norm(words, dim=-1)
            return pool(context_cosine(share, raw, gram(regions), norm), mask, self.sharpness)
        raw = raw_scores(words, regions)  # (n, w, B, R)
        share = attention(raw, None, mask, self.temperature)
        norm = torch.linalg.vector_norm(regions, dim=-1)
        return pool(context_cosine(share, raw, gram(words), norm), None, self.sharpness).t()

    def _bytes(self, regions: Tensor) -> tuple[int, int]:
        return 8 * regions.shape[0] * regions.shape[1] * regions.element_size(), 0
