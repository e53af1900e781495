"""NAAF: attention that counts mismatched words against a pair (Zhang et al., CVPR 2022)."""

from __future__ import annotations

import math
from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib.models.base import CaptionEncoding, ImageEncoding, fragments, option
from nclib.models.cross import POOLS, attention, context_cosine, raw_scores
from nclib.models.encoders import word_mask
from nclib.models.region_words import FragmentMatcher
from nclib.models.registry import register

PACE = 0.7
"""Share of a new threshold in the running one, as in the official code."""

DEVIATIONS = 3.0
"""Standard deviations below the mean of matched words at which the official code puts the bound for tests."""


def learning_boundary(mean: Tensor, variance: Tensor, alpha: float) -> Tensor:
    """Threshold between the similarities of matched and of mismatched words with the least expected error.

    Both are taken as normal. The error is the mass of matched words below t plus ``alpha`` times the mass of
    mismatched words above it; at its minimum the density of the matched overtakes ``alpha`` times the other.

    Parameters
    ----------
    mean, variance : Tensor, (2,)
        Of matched and of mismatched words.
    alpha : float
        Weight of mismatched words taken for matched, above 0.

    Returns
    -------
    Tensor, ()
        NaN where the weighted densities never cross.
    """
    (mu, mu_not), (var, var_not) = mean, variance
    # log-densities are equal where a t^2 + b t + c = 0 (NAAF, Sec. 3.2)
    a = var - var_not
    b = 2 * (mu * var_not - mu_not * var)
    c = mu_not.square() * var - mu.square() * var_not + var * var_not * (var_not / (alpha**2 * var)).log()
    # (-b + root) / 2a, written so that equal variances need no special case
    return -2 * c / (b + (b.square() - 4 * a * c).sqrt())


@register("naaf", summary="cross attention with a penalty for words that match no region", paper="CVPR 2022")
class NAAF(FragmentMatcher):
    """Words attend to regions; those below a learned threshold lower the score of the pair.

    With the cosine s_ij of word i and region j and the threshold t, a pair scores the mean over its words of

    - a penalty, max_j s_ij - t where the word matches no region, else 0. In evaluation mode a word counts as
      mismatched by the mean of this excess over the words that are like it (intra-modal propagation);
    - the cosine with the word's context, attention being a softmax over the regions with s_ij > t;
    - the mean of s_ij under SCAN's attention.

    In training, captions whose own image ranks first give the largest similarity of each word with the own
    image (matched) and with the last image (mismatched). When enough are collected, the threshold moves to
    :func:`learning_boundary`, and that of evaluation mode to three standard deviations below the mean of the
    matched, as in the official code. Both are buffers. The code moves them after each caption and starts from
    zero in each batch; here they move once per batch, and a small batch leaves its samples to the next.
    At given thresholds the scores agree with the official functions to 3e-7 on random weights.

    In the official code the word embeddings start from GloVe (``word_vectors``).

    Parameters
    ----------
    temperature, intra : float
        Factors of the softmax over regions and, in the intra-modal propagation, over words.
    alpha, samples : float, int
        Weight of mismatched words taken for matched; words that a new threshold needs.
    **common
        Sizes and encoders; see :class:`~nclib.models.region_words.RegionWordMatcher`.
    """

    temperature: float = option(20.0, above=0)
    intra: float = option(5.0, above=0)
    alpha: float = option(2.0, above=0)
    samples: int = option(200, low=2)

    score_range = (-3.0, 3.0)
    # The official runs: hardest negatives from the first epoch on.
    settings: ClassVar = {
        "f30k": {"warmup_epochs": 0, "epochs": 20, "decay_every": 10, "lr": 5e-4},
        "coco": {"batch_size": 256, "warmup_epochs": 0, "epochs": 20, "decay_every": 10, "lr": 5e-4},
    }

    thresholds: Tensor  # (2,): of training, and of evaluation mode
    collected: Tensor  # (3, 2): number, mean and sum of squares of matched and mismatched words
    _fixed: Tensor | None = None  # in place of the present threshold

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.register_buffer("thresholds", torch.zeros(2))
        self.register_buffer("collected", torch.zeros(3, 2))

    @property
    def threshold(self) -> Tensor:
        """The threshold of the present mode, ()."""
        return self.thresholds[0 if self.training else 1] if self._fixed is None else self._fixed

    def pair_scores(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        raw = raw_scores(regions, words)  # s_ij, (B, R, n, w)
        excess = raw - self.threshold
        most = excess.amax(1)  # s_i, (B, n, w)
        penalty = most * (self._propagated(most, words, mask) < 0)
        share = torch.exp(self.temperature * (excess - most[:, None])) * (excess > 0)
        share = share / share.sum(1, keepdim=True).clamp_min(1.0)  # the largest is 1; all 0 without a match
        norm = torch.linalg.vector_norm(words, dim=-1)
        aggregated = context_cosine(share, raw, regions @ regions.mT, norm)
        relevance = (attention(raw, mask, None, self.temperature) * raw).sum(1)
        return POOLS["mean"](penalty + aggregated + relevance, mask, 0.0)

    def _propagated(self, most: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Excess of each word, in evaluation mode averaged over the words of its caption by likeness."""
        if self.training:
            return most
        like = (self.intra * words @ words.mT).masked_fill(mask[:, None] == 0, -math.inf)
        return (torch.softmax(like, -1) @ most[..., None]).squeeze(-1)

    def similarity(self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False) -> Tensor:
        """Compare every image with every caption, (B, C); in training the thresholds learn from own pairs.

        As many images as captions are taken for pairs in order, and only with gradients.
        """
        view = copy(self)  # keeps its threshold: the backward pass may compare once more, after an update
        view._fixed = self.threshold.clone()
        scores = FragmentMatcher.similarity(view, images, captions, logits=logits)
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                ranked = scores.detach().t()  # (C, B)
                self._learn(ranked, self._extremes(images, captions, ranked))
        return scores

    def _extremes(self, images: ImageEncoding, captions: CaptionEncoding, ranked: Tensor) -> Tensor:
        """Number, mean and sum of squares, (C, 3, 2), of the words of each caption with two images.

        These are the first and the last image in ``ranked`` (C, B); of a word its largest similarity counts.
        """
        regions, words = (part.to(self.dtype) for part in fragments(images, captions))
        mask = word_mask(captions.lengths, words.shape[1], words)[:, None]  # (C, 1, W)
        two = torch.stack([ranked.argmax(1), ranked.argmin(1)], 1)  # (C, 2)
        with torch.autocast(regions.device.type, enabled=False):
            most = (words[:, None] @ regions[two].mT).amax(-1)  # (C, 2, W)
        number = mask.sum(-1)  # (C, 1)
        mean = (most * mask).sum(-1) / number
        squares = ((most - mean[..., None]).square() * mask).sum(-1)
        return torch.stack([number.expand_as(mean), mean, squares], 1)

    @torch.no_grad()
    def _learn(self, ranked: Tensor, extremes: Tensor) -> None:
        """Collect the words of captions (C, 3, 2) whose own image is first in ``ranked`` (C, B)."""
        if ranked.shape[0] != ranked.shape[1]:
            return
        own = torch.arange(len(ranked), device=ranked.device)
        right = (ranked.argmax(1) == own)[:, None, None]
        number, mean, squares = torch.cat([self.collected[None], extremes * right]).unbind(1)  # (C + 1, 2)
        total = number.sum(0)
        centre = (number * mean).sum(0) / total.clamp_min(1)
        spread = (squares + number * (mean - centre).square()).sum(0)
        variance = spread / (total - 1).clamp_min(1)
        found = torch.stack(
            [
                learning_boundary(centre, variance, self.alpha),
                centre[0] - DEVIATIONS * variance[0].sqrt(),
            ]
        )
        enough = total[0] >= self.samples
        crossing = enough & found[0].isfinite()
        found = found.where((found >= 0) & (found <= 1), torch.zeros_like(found))
        moved = PACE * found + (1 - PACE) * self.thresholds
        self.thresholds.copy_(moved.where(crossing, self.thresholds))
        kept = torch.stack([total, centre, spread])
        self.collected.copy_(torch.where(enough, torch.zeros_like(kept), kept))
