"""Scores of all pairs of regions and words, group by group, within a memory budget."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nclib.models.base import CaptionEncoding, ImageEncoding, fragments, same_count
from nclib.models.encoders import word_mask
from nclib.models.grouping import Grouped, group_captions
from nclib.models.region_words import RegionWordMatcher


def padded_with_ones(words: Tensor, mask: Tensor) -> Tensor:
    """Fill padded words with ones.

    No score depends on these rows, but the length of a zero row has no second derivative.

    Parameters
    ----------
    words : Tensor, (n, w, D)
        Encoded words.
    mask : Tensor, (n, w)
        1 at words, 0 at padding.

    Returns
    -------
    Tensor, (n, w, D)
        A copy.
    """
    return words.masked_fill(mask[..., None] == 0, 1.0)


class FragmentMatcher(RegionWordMatcher):
    """A model that compares regions with words; a subclass gives :meth:`pair_scores`.

    Captions are cut into groups that fit the memory budget. If all groups of a training step together do not
    fit, each group is computed again in the backward pass.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._measured: dict[tuple[Any, ...], tuple[int, int]] = {}

    @abstractmethod
    def pair_scores(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Compare every image with every caption of a group.

        Parameters
        ----------
        regions : Tensor, (B, R, D)
            Regions of the images.
        words : Tensor, (n, w, D)
            Words of captions of nearly equal length, rows of ones at padding.
        mask : Tensor, (n, w)
            1 at words, 0 at padding, which must not change a score.

        Returns
        -------
        Tensor, (B, n)
            Scores.
        """

    def training_bytes(self, regions: Tensor) -> tuple[int, int]:
        """Return the bytes that one word, and one caption whatever its length, leave in memory in training.

        Groups of captions are chosen by them to fit :attr:`memory_budget`. They are measured: three small
        trials of :meth:`pair_scores` on the given images count what autograd keeps for the backward pass,
        once for each shape of images. A model that knows a formula overrides the method.
        """
        key = (*regions.shape, regions.dtype, regions.device.type)
        if key not in self._measured:
            short, long, two = (self._kept(regions, n, w) for n, w in ((1, 4), (1, 8), (2, 4)))
            per_word = max(1, (long - short) // 4)
            self._measured[key] = per_word, max(0, two - short - 4 * per_word)
        return self._measured[key]

    def _kept(self, regions: Tensor, n: int, w: int) -> int:
        """Bytes of the results that autograd keeps from scoring ``n`` captions of ``w`` words."""
        regions = regions.detach().requires_grad_()
        words = torch.ones(n, w, regions.shape[2], dtype=regions.dtype, device=regions.device)
        words.requires_grad_()
        given = {regions.untyped_storage().data_ptr(), words.untyped_storage().data_ptr()}
        given |= {p.untyped_storage().data_ptr() for p in self.parameters()}
        kept: dict[int, tuple[int, Tensor]] = {}  # tensors are held, so that no address is used twice

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in given:
                kept[storage.data_ptr()] = storage.nbytes(), tensor
            return tensor

        devices = [regions.device] if regions.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices=devices),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            scores = self.pair_scores(regions, words, words.new_ones(n, w))
        if scores.shape != (len(regions), n):
            raise TypeError(
                f"{type(self).__name__}.pair_scores must be (images, captions), ({len(regions)}, {n}), got "
                f"{tuple(scores.shape)}"
            )
        return scores.nbytes + sum(size for size, _ in kept.values())

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
            per_word, per_caption = self.training_bytes(regions)
            word = per_word + per_caption * len(lengths) // sum(lengths)
            again = torch.is_grad_enabled() and word * sum(lengths) > self.memory_budget
            budget = self.memory_budget if torch.is_grad_enabled() else min(self.memory_budget, 1 << 28)
            # a group costs about as much as 30 words of padding: mask, gather, and some forty calls
            groups = group_captions(
                lengths, group_cost=30.0, max_words=max(1, budget // word), max_captions=chunk
            )
            grouped, columns = Grouped(groups, words.device), []
            for group, part in zip(groups, grouped.split(words), strict=True):
                mask = word_mask(group.lengths, group.width, part)
                inputs = (regions, padded_with_ones(part[:, : group.width], mask), mask)
                if again:
                    scores = checkpoint(
                        self.pair_scores, *inputs, use_reentrant=False, preserve_rng_state=False
                    )
                else:
                    scores = self.pair_scores(*inputs)
                columns.append(scores)
            return grouped.join(columns)

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
            scores: Tensor = torch.vmap(self.pair_scores)(*(part[:, None] for part in sets))
            return scores.flatten()
