"""CHAN: each word is coded by its best region alone (Pan, Wu and Zhang, CVPR 2023), all pairs at once."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, option
from nclib.models.cross import POOLS, raw_scores
from nclib.models.encoders import RegionEncoder, l2, word_mask
from nclib.models.region_words import FragmentMatcher
from nclib.models.registry import register
from nclib.models.vse_inf import keep_rows, thinned

HEADS = 8
"""Heads of the self-attention; fewer where they do not divide the width."""

# The official run with a BiGRU: 25 epochs, the first on all violations; the rate falls after the 15th. Its
# margin is 0.05 and its gradients are clipped at 2 on scores without the factor 1 / lambda; both are a tenth
# with it.
PUBLISHED = {
    "batch_size": 384,
    "warmup_epochs": 1,
    "epochs": 24,
    "decay_every": 14,
    "lr": 5e-4,
    "weight_decay": 1e-2,
    "margin": 0.005,
    "grad_clip": 0.2,
}


class AttendingRegionEncoder(RegionEncoder):
    """Linear map of every region, x, then self-attention of the regions, x + MHA(LN(x)), to unit length."""

    def __init__(self, feature_dim: int, embed_dim: int) -> None:
        super().__init__(feature_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim)
        self.attend = nn.MultiheadAttention(embed_dim, math.gcd(HEADS, embed_dim), batch_first=True)

    def forward(self, images: Tensor, absent: Tensor | None = None) -> Tensor:
        """Map (B, R, feature_dim) to (B, R, embed_dim); rows ``absent`` (B, R) are not attended to."""
        x = self.fc(images)
        y = self.norm(x)
        # with weights: the kernel without them cannot be differentiated twice
        attended, _ = self.attend(y, y, y, key_padding_mask=absent, need_weights=True)
        return l2(x + attended)


@register("chan", summary="each word scores by its best region; fast, no attention", paper="CVPR 2023")
class CHAN(FragmentMatcher):
    """Hard assignment: a word's score is its largest cosine with a region; a pool of the words' scores.

    In training, regions and tokens are dropped as in VSE∞. Regions and scores agree with the official
    modules to 5e-7 on random weights, but that the official "lse" has no factor 1 / lambda.

    Parameters
    ----------
    pooling, sharpness : {"lse", "mean", "max", "sum"}, float
        How the words' scores become the score of a pair, and the factor lambda of "lse". The official runs
        take "lse" with a BiGRU and "mean" with BERT. With "lse" scores can exceed 1.
    attend, drop : bool, float
        Self-attention over regions, which the official runs with BERT leave out; probability of dropping a
        region or a token, in [0, 1).
    **common
        Sizes and encoders; see :class:`~nclib.models.region_words.RegionWordMatcher`.
    """

    pooling: str = option("lse", choices=POOLS)
    sharpness: float = option(10.0, above=0)
    attend: bool = option(True)
    drop: float = option(0.2, low=0, below=1)

    draws_in_training = True

    settings: ClassVar = {"f30k": PUBLISHED, "coco": PUBLISHED}

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.score_range = (-1.0, 1.0) if self.pooling in ("mean", "max") else (-math.inf, math.inf)

    def region_encoder(self, width: int) -> RegionEncoder:
        encoder = AttendingRegionEncoder if self.attend else RegionEncoder
        return encoder(width, self.embed_dim)

    def encode_regions(self, images: Tensor) -> Tensor:
        """Encode region features (B, R, feature_dim) as unit regions (B, R, D).

        In training the place of a dropped region is taken by the first one that is kept, which changes no
        maximum.
        """
        features = self.cells(images)
        encoder = self.image_encoder
        if not (self.training and self.drop):
            regions: Tensor = encoder(features)
            return regions
        keep = torch.rand(features.shape[:2]) >= self.drop
        keep[:, 0] |= ~keep.any(1)
        features, sizes = keep_rows(keep, features)
        absent = word_mask(sizes, features.shape[1], features) == 0
        regions = encoder(features, absent) if self.attend else encoder(features)
        filled = torch.where(absent[..., None], regions[:, :1], regions)
        left = keep.shape[1] - filled.shape[1]
        return torch.cat([filled, filled[:, :1].expand(-1, left, -1)], dim=1)

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Encode captions as unit words (C, W, D) and sentence vectors (C, D)."""
        if self.training and self.drop:
            tokens = thinned(self.check_tokens(tokens), self.drop, self.text_encoder, self.vocab_size)
        return super().encode_captions(tokens)

    def pair_scores(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        best = raw_scores(regions, words).amax(1)  # (B, n, w)
        return POOLS[self.pooling](best, mask, self.sharpness)
