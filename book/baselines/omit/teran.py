"""TERAN: transformers over regions and over words, then best regions (Messina et al., ACM TOMM 2021)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.omit.hrem import RelationLayer
from nclib.common.tokens import Tokens
from nclib.models.base import option, used_with
from nclib.models.cross import POOLS, raw_scores
from nclib.models.encoders import l2, word_mask
from nclib.models.region_words import FragmentMatcher
from nclib.models.registry import register
from nclib.models.vse import mean_of_words

HEADS, HIDDEN = 4, 2048
"""Heads of the attention; width of the network in a layer, but at most twice that of the layer."""

REGION_LAYERS, COMMON_LAYERS = 4, 2
"""Layers over the features of regions; layers in the common space, for regions and for words."""

BERT_LAYERS = 6
"""Layers of BERT that are read."""

# The official runs: hardest negatives from the first epoch on. That on Flickr30K fades the rate in over its
# first 1,000 steps, a fifth of an epoch, which is left out here.
PUBLISHED: dict[str, Any] = {
    "warmup_epochs": 0,
    "epochs": 30,
    "decay_every": 20,
    "lr": 1e-5,
    "model_options": {"tail": 2},
}


class Reasoning(nn.Module):
    """Transformer layers over sets of vectors (B, n, dim)."""

    def __init__(self, dim: int, layers: int, dropout: float) -> None:
        super().__init__()
        hidden = min(HIDDEN, 2 * dim)
        self.layers = nn.ModuleList(
            RelationLayer(dim, dropout, heads=HEADS, hidden=hidden) for _ in range(layers)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map (B, n, dim) to (B, n, dim); members where ``mask`` (B, n) is 0 are not attended to."""
        bias = x.new_zeros(1, 1, 1)
        if mask is not None:
            bias = torch.zeros_like(mask).masked_fill(mask == 0, -math.inf)[:, None]  # (B, 1, n)
        for layer in self.layers:
            x = layer(x, bias)
        return x


class ReasoningRegionEncoder(nn.Module):
    """Regions with their places, and an empty one before them for the whole picture, that see each other.

    A network of two layers mixes features and place; then come transformer layers and a linear map. Their
    width is that of the features, down to a multiple of 16: 2,048 with the five numbers of a box or without.
    """

    def __init__(self, feature_dim: int, embed_dim: int, dropout: float) -> None:
        super().__init__()
        width = max(feature_dim - feature_dim % 16, HEADS)
        self.place = nn.Sequential(nn.Linear(feature_dim, width), nn.ReLU(), nn.Linear(width, width))
        self.reason = Reasoning(width, REGION_LAYERS, dropout)
        self.fc = nn.Linear(width, embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, R, feature_dim) to (B, 1 + R, embed_dim)."""
        x: Tensor = self.fc(self.reason(self.place(F.pad(images, (0, 0, 1, 0)))))
        return x


@register(
    "teran", summary="transformers over regions and over words; each word's best region", paper="TOMM 2021"
)
class TERAN(FragmentMatcher):
    """A pair scores the sum over its words of their largest cosine with a region.

    Regions and words become what they are among themselves (self-attention), and meet in the cosines only.
    The official code also reads the box of each region, which the option ``boxes`` of the data appends to its
    features: the first map takes all numbers of a region, so that the model needs no option for boxes. The
    bundled drawings have the place of a region among its features.

    At the rate of other models, 2e-3, training on synthetic data stays at chance; ``settings`` has a smaller
    one for the presets ``quick`` and ``standard``.

    Regions, words and scores agree with the official modules to 2e-7 on random weights.

    Parameters
    ----------
    layer_dropout : float
        Dropout in the transformer layers, in [0, 1).
    shared : bool
        The same layers for regions and words in the common space, as in some of the official runs.
    tail : int
        Tokens at the end of a caption that do not score, nor does its first one: 1 leaves out the token that
        ends it; the official code leaves out the one before too, mostly a full stop. All tokens of a caption
        score where none would.
    bert_layers : int
        With ``text="bert"``: the first layers of BERT, behind which the words are read. In the official runs
        all of the network is trained at one rate (``finetune``, ``text_rate`` 1).
    **common
        Sizes and encoders; see :class:`~nclib.models.region_words.RegionWordMatcher`.
    """

    layer_dropout: float = option(0.1, low=0, below=1)
    shared: bool = option(False)
    tail: int = option(1, low=0)
    bert_layers: int = option(BERT_LAYERS, low=1)

    score_range = (-math.inf, math.inf)
    settings: ClassVar = {
        "quick": {"lr": 5e-4},
        "standard": {"lr": 5e-4},
        "f30k": {**PUBLISHED, "batch_size": 30},
        "coco": {**PUBLISHED, "batch_size": 40},
    }

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        used_with("bert_layers", self.bert_layers, "text", self.text, "bert", usual=BERT_LAYERS)
        self.common = nn.ModuleList(
            Reasoning(self.embed_dim, COMMON_LAYERS, self.layer_dropout) for _ in range(2 - self.shared)
        )

    def region_encoder(self, width: int) -> nn.Module:
        return ReasoningRegionEncoder(width, self.embed_dim, self.layer_dropout)

    def word_encoder(self) -> nn.Module:
        found: Any = super().word_encoder()
        found.unit = False
        if self.text == "bert":
            del found.tower.encoder.layer[self.bert_layers :]
        encoder: nn.Module = found
        return encoder

    def encode_regions(self, images: Tensor) -> Tensor:
        """Encode region features (B, R, feature_dim) as unit regions (B, R, D)."""
        regions: Tensor = l2(self.common[0](super().encode_regions(images)))
        return regions[:, 1:]

    def encode_words(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Encode captions as unit words (C, W, D), zero beyond their lengths, and their means (C, D)."""
        words, _ = super().encode_words(tokens)
        mask = word_mask(tokens.lengths, words.shape[1], words)
        words = l2(self.common[-1](words, mask)) * mask[..., None]
        return words, mean_of_words(words, tokens.lengths)

    def pair_scores(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        best = raw_scores(regions, words).amax(1)  # (B, n, w)
        return POOLS["sum"](best, self._scoring(mask), 0.0)

    def _scoring(self, mask: Tensor) -> Tensor:
        """Mask of the tokens that score, from that of all of a caption's tokens, (n, w) both."""
        before = mask.cumsum(1)  # tokens up to each one
        behind = mask.sum(1, keepdim=True) - before
        inner = mask * (before > 1) * (behind >= self.tail)
        return torch.where((inner > 0).any(1, keepdim=True), inner, mask)
