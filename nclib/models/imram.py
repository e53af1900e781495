"""IMRAM: iterative matching with recurrent attention memory (Chen et al., CVPR 2020, arXiv 2003.03772)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.models.base import option
from nclib.models.cross import POOLS, PUBLISHED, attention, context_cosine, raw_scores
from nclib.models.grouping import accelerated
from nclib.models.region_words import FragmentMatcher
from nclib.models.registry import register

BRANCHES: dict[str, tuple[str, ...]] = {"text": ("text",), "image": ("image",), "full": ("text", "image")}


class MemoryUnit(nn.Module):
    """Mixes a query with its attended context under a gate (IMRAM, Sec. 3.3).

    u = tanh(W_o [q; c] + b_o), g = sigmoid(W_g [q; c] + b_g), new query g q + (1 - g) u.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.output = nn.Linear(2 * dim, dim)
        self.gate = nn.Linear(2 * dim, dim)

    def halves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights for the query and for the context, both maps stacked (2 D, D), and their biases (2 D)."""
        weight = torch.cat([self.output.weight, self.gate.weight])
        query, context = weight.chunk(2, dim=1)
        return query, context, torch.cat([self.output.bias, self.gate.bias])


@register("imram", summary="iterative cross attention with a gated memory", paper="CVPR 2020")
class IMRAM(FragmentMatcher):
    """Rounds of cross attention whose queries take up what they attended to; scores of all rounds are summed.

    Parameters
    ----------
    branch : {"full", "text", "image"}
        Words query regions ("text"), regions query words ("image"), or the sum of both.
    steps, temperature : int, float
        Rounds; attention temperature, 9 for Flickr30K and 11 for COCO in the official code.
    **common
        Sizes and encoders; see :class:`~nclib.models.region_words.RegionWordMatcher`.
    """

    branch: str = option("full", choices=BRANCHES)
    steps: int = option(3, low=1)
    temperature: float = option(9.0, above=0)

    group_bytes: ClassVar = 2 << 30  # a batch of the papers' size would take 20 GB at once

    settings: ClassVar = PUBLISHED

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        sides = BRANCHES[self.branch]
        reach = float(self.steps * len(sides))
        self.score_range = (-reach, reach)
        self.memory = nn.ModuleDict({side: MemoryUnit(self.embed_dim) for side in sides})

    def _side(self, side: str, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Scores (B, n) of one branch.

        The sum over the rounds of the mean cosine of the first queries with their attended contexts. These
        are never formed: their cosines need inner products only, and the maps are applied to the sources
        before mixing, W c = sum_k a_k W r_k.
        """
        unit: Any = self.memory[side]
        sets = (regions, None, words, mask) if side == "text" else (words, mask, regions, None)
        sources, source_mask, queries, query_mask = sets
        n_sets, n_sources, dim = sources.shape
        n_queries, size, _ = queries.shape
        of_query, of_context, bias = unit.halves()
        mapped = F.linear(sources, of_context)  # (G, K, 2 D)
        first = raw_scores(sources, queries)  # (G, K, H, Q)
        mean, gram, norm = POOLS["mean"], sources @ sources.mT, torch.linalg.vector_norm(queries, dim=-1)
        raw, current = first, queries.reshape(1, n_queries * size, dim)  # the same for all sets in round 1
        rounds = []
        for step in range(self.steps):
            share = attention(raw, query_mask, source_mask, self.temperature)
            rounds.append(mean(context_cosine(share, first, gram, norm), query_mask, 0.0))
            if step < self.steps - 1:
                mixed = share.flatten(2).transpose(1, 2) @ mapped  # (G, H Q, 2 D)
                output, gate = (mixed + F.linear(current, of_query, bias)).chunk(2, dim=-1)
                gate = torch.sigmoid(gate)
                current = gate * current + (1 - gate) * torch.tanh(output)  # (G, H Q, D)
                raw = (sources @ current.transpose(1, 2)).view(n_sets, n_sources, n_queries, size)
        scores = torch.stack(rounds).sum(0)
        return scores if side == "text" else scores.t()

    def pair_scores(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        scores = [self._side(side, regions, words, mask) for side in BRANCHES[self.branch]]
        return torch.stack(scores).sum(0)

    def training_bytes(self, regions: Tensor) -> tuple[int, int]:
        n_images, n_regions, dim = regions.shape
        # of the width of a query: nine arrays a round; a compiler keeps three of them (one H200, two groups)
        arrays = 3 if accelerated(regions.device) else 9
        query = n_images * arrays * dim * (self.steps - 1) * regions.element_size()
        sides = BRANCHES[self.branch]
        shares = n_images * n_regions * 8 * self.steps * len(sides) * regions.element_size()
        return shares + query * ("text" in sides), query * n_regions * ("image" in sides)
