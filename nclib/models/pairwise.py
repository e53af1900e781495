"""Scores of all pairs of regions and words, group by group, within a memory budget."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nclib.models.base import CaptionEncoding, ImageEncoding, fragments, same_count
from nclib.models.encoders import word_mask
from nclib.models.grouping import group_captions
from nclib.models.region_words import RegionWordMatcher


def padded_with_ones(words: Tensor, mask: Tensor) -> Tensor:
    """Fill the rows of ``words`` (n, w, D) where ``mask`` (n, w) is 0 with ones.

    Nothing depends on these rows, but the length of a zero row has no second derivative.
    """
    return words.masked_fill(mask[..., None] == 0, 1.0)


class FragmentMatcher(RegionWordMatcher):
    """A model that compares regions with words; subclasses give :meth:`_pairs` for captions side by side.

    Captions are cut into groups that fit the memory budget. If all groups of a training step together do not
    fit, each group is computed again in the backward pass.
    """

    @abstractmethod
    def _pairs(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Scores (B, n) of regions (B, R, D) and words (n, w, D); ``mask`` (n, w) is 1 at valid words."""

    @abstractmethod
    def _bytes(self, regions: Tensor) -> tuple[int, int]:
        """Bytes that one word, and one caption whatever its length, leave in memory in training."""

    def similarity(
        self,
        images: ImageEncoding,
        captions: CaptionEncoding,
        *,
        logits: bool = False,
        chunk: int | None = None,
    ) -> Tensor:
        """Compare every image with every caption: (B, C).

        ``logits`` changes nothing here: these scores do not saturate.
        """
        regions, words = fragments(images, captions)
        lengths = captions.lengths
        with torch.autocast(regions.device.type, enabled=False):
            regions, words = regions.to(self.dtype), words.to(self.dtype)
            per_word, per_caption = self._bytes(regions)
            word = per_word + per_caption * len(lengths) // sum(lengths)
            again = torch.is_grad_enabled() and word * sum(lengths) > self.memory_budget
            budget = self.memory_budget if torch.is_grad_enabled() else min(self.memory_budget, 1 << 28)
            # a group costs about as much as 30 words of padding: mask, gather, and some forty calls
            groups = group_captions(
                lengths, group_cost=30.0, max_words=max(1, budget // word), max_captions=chunk
            )
            order = torch.tensor([row for group in groups for row in group.rows])
            order = order.to(words.device, non_blocking=True)
            parts = words.index_select(0, order).split([len(group.rows) for group in groups])
            columns = []
            for group, part in zip(groups, parts, strict=True):
                mask = word_mask(group.lengths, group.width, part)
                inputs = (regions, padded_with_ones(part[:, : group.width], mask), mask)
                if again:
                    scores = checkpoint(self._pairs, *inputs, use_reentrant=False, preserve_rng_state=False)
                else:
                    scores = self._pairs(*inputs)
                columns.append(scores)
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            return torch.cat(columns, 1).index_select(1, back)

    def paired_similarity(
        self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False
    ) -> Tensor:
        """Compare image i with caption i only, (n,); ``logits`` changes nothing here."""
        same_count(images, captions)
        regions, words = fragments(images, captions)
        with torch.autocast(regions.device.type, enabled=False):
            regions, words = regions.to(self.dtype), words.to(self.dtype)
            mask = word_mask(captions.lengths, words.shape[1], words)
            sets = (regions, padded_with_ones(words, mask), mask)
            # one image and one caption at a time: (n, 1, 1)
            scores: Tensor = torch.vmap(self._pairs)(*(part[:, None] for part in sets))
            return scores.flatten()
