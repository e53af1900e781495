"""SGR, SAF and their ensemble (Diao et al., AAAI 2021, arXiv 2101.01368), all pairs of a batch at once.

A pair is described by similarity vectors ("nodes"): one global, one per word. SGR lets the nodes of a pair
exchange information in a small graph network; SAF averages them under gates. A linear map and a sigmoid give
the score. Results equal those of a loop over captions.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, fragments, option
from nclib.models.compiled import alike, call, comparing, exact_linear, wanted
from nclib.models.encoders import (
    EPS,
    GlobalPooling,
    l2,
    mask_of,
    sizes_on,
    word_mask,
    xavier_linear,
)
from nclib.models.grouping import GROUP_BYTES, Group, Grouped, accelerated, group_captions
from nclib.models.region_words import RegionWordMatcher
from nclib.models.registry import register
from nclib.models.sgraf_nodes import Linear, pair_nodes, plain_nodes, plain_reasoning, reason_over_pairs

BLOCK_VALUES = 300_000
"""Values of the attended contexts of one block of images on a CPU, so that they fit in the cache (1.2 MB)."""

GRAPH_VALUES = 200_000
"""Values of the nodes of one block of pairs in graph reasoning, likewise."""

GROUP_NODES = 60_000
"""Nodes (over all images) of one group of captions, likewise."""

GROUP_COST = 400.0
"""Fixed cost of a group of captions on a CPU, in nodes of one pair: so small that nearly every length gets a
group of its own, and nothing is padded. On an accelerator see :data:`nclib.models.grouping.GROUP_BYTES`."""

IMAGES_AT_ONCE = 1024
"""Images of one group without gradients on an accelerator, so that it holds many captions."""

MOMENTUM = 0.1
"""Weight of one caption's statistics in the running batch norm of SAF."""

Moments = tuple[Tensor, Tensor] | None
"""Mean and unbiased variance that each caption of a group contributes to a running batch norm."""


class GraphStep(nn.Module):
    """Query, key and update maps of one step of message passing."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.update = (xavier_linear(dim, dim) for _ in range(3))

    def maps(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return M, r, A_u and b_u of :mod:`nclib.models.sgraf_nodes`."""
        merged, shift = self.query.weight.t() @ self.key.weight, self.query.bias @ self.key.weight
        return merged, shift, self.update.weight.t(), self.update.bias


class GraphReasoning(nn.Module):
    """Steps of message passing between the nodes of a pair (SGRAF, Sec. 3.3, Eqs. 6-8)."""

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(GraphStep(dim) for _ in range(steps))

    def forward(self, nodes: Tensor, absent: Tensor | None, linear: Linear | None = None) -> Tensor:
        """Map nodes (P, N, S) to node 0 after all steps, (P, S); ``absent`` (P, 1, N) is -inf at padding.

        ``linear``, which computes the maps: straight from the formulas, not block by block.
        """
        maps = [part for step in self.steps if isinstance(step, GraphStep) for part in step.maps()]
        if linear is not None:
            return plain_reasoning(nodes, absent, *maps, linear=linear)
        block = max(1, GRAPH_VALUES // (nodes.shape[1] * nodes.shape[2]))
        return reason_over_pairs(nodes, absent, maps, block=block)


class AttentionFiltration(nn.Module):
    """Gated average of the nodes of a pair (SGRAF, Sec. 3.4, Eqs. 9-10).

    The batch norm of the gates has one channel. In training its statistics are those of one caption with all
    images of the batch, as in a loop over captions.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.filter = xavier_linear(dim, 1)
        self.norm: Any = nn.BatchNorm1d(1, momentum=MOMENTUM)

    def forward(self, nodes: Tensor, mask: Tensor | None) -> tuple[Tensor, Moments]:
        """Average nodes (B, n, N, S) to (B, n, S); ``mask`` (n, N) is 1 at nodes and 0 at padding.

        Returns the average and, in training, each caption's statistics of the gate values.
        """
        value = F.linear(nodes, self.filter.weight, self.filter.bias).squeeze(-1)  # (B, n, N)
        moments: Moments = None
        if self.training:
            if mask is None:
                variance, centre = torch.var_mean(value, dim=(0, 2), correction=0)
                count: Tensor | int = value.shape[0] * value.shape[2]
            else:
                count = mask.sum(1) * value.shape[0]  # (n,)
                centre = (value * mask).sum((0, 2)) / count
                variance = ((value - centre[:, None]).square() * mask).sum((0, 2)) / count
            moments = centre.detach(), (variance * (count / (count - 1))).detach()
            centre, variance = centre[:, None], variance[:, None]
        else:
            centre, variance = self.norm.running_mean, self.norm.running_var
        scale = torch.rsqrt(variance + self.norm.eps) * self.norm.weight
        gate = torch.sigmoid((value - centre) * scale + self.norm.bias)
        if mask is not None:
            gate = gate * mask
        gate = gate / (gate.sum(-1, keepdim=True) + EPS)
        return l2((gate[:, :, None] @ nodes).squeeze(2)), moments

    @torch.no_grad()
    def remember(self, mean: Tensor, variance: Tensor) -> None:
        """Fold the captions' statistics into the running ones, in caption order.

        C updates r <- (1 - m) r + m s_c in a row are r (1 - m)^C + sum_c m (1 - m)^(C - 1 - c) s_c.
        """
        n = mean.shape[0]
        share = _shares(n, mean.dtype, mean.device)
        for running, values in ((self.norm.running_mean, mean), (self.norm.running_var, variance)):
            running.mul_((1 - MOMENTUM) ** n).add_(share @ values)
        self.norm.num_batches_tracked.add_(n)


@lru_cache(maxsize=16)
def _shares(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weights m (1 - m)^(n - 1 - c) of the captions' statistics."""
    with torch.inference_mode(False):
        age = torch.arange(n - 1, -1, -1, dtype=dtype)
        return (MOMENTUM * (1 - MOMENTUM) ** age).to(device, non_blocking=True)


class SimilarityNodes(RegionWordMatcher):
    """Common base of SGR and SAF: encoders, global vectors, similarity nodes and the final score.

    Parameters
    ----------
    dropout, temperature : float
        Dropout on word embeddings and in the two global poolings while training; inverse temperature of the
        words' attention over regions.
    **common
        As in :class:`~nclib.models.region_words.RegionWordMatcher`; batch norm fixes the number of regions.
    """

    _vectors_per_node: int  # similarity vectors that one node leaves in memory, for the memory budget

    dropout: float = option(0.4, low=0, high=1)
    temperature: float = option(9.0, above=0)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.needs_regions = self.n_regions
        embed_dim, sim_dim, dropout = self.embed_dim, self.sim_dim, self.dropout
        self.image_global = GlobalPooling(embed_dim, self.n_slots, dropout=dropout)
        self.text_global = GlobalPooling(embed_dim, dropout=dropout)
        self.local_similarity = xavier_linear(embed_dim, sim_dim)
        self.global_similarity = xavier_linear(embed_dim, sim_dim)
        self.score = xavier_linear(sim_dim, 1)

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Encode region features (B, R, feature_dim) as unit regions (B, R, D) and global vectors (B, D)."""
        cells = self.cells(images)
        regions, vectors = call(SimilarityNodes.encoded, self, cells, varying=[(cells, 0)])
        return ImageEncoding(vectors, regions)

    def encoded(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Return the regions and the global vectors of images: one graph for a compiler."""
        regions = self.image_encoder(cells)
        return regions, self.image_global(regions)

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Encode captions as unit words (C, W, D) and global vectors (C, D)."""
        words, vectors = self.text_encoder(self.check_tokens(tokens), self.text_global)
        return CaptionEncoding(vectors, tokens.lengths, words)

    def similarity(self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False) -> Tensor:
        """Compare every image with every caption: (B, C) in (0, 1), or the logits of these."""
        total = self._all_pairs(images, captions, scored=True)
        return total if logits else torch.sigmoid(total)

    @property
    def pair_dim(self) -> int:
        """Width of a similarity vector."""
        return self.sim_dim

    def pair_vectors(
        self, images: ImageEncoding, captions: CaptionEncoding, *, paired: bool = False
    ) -> Tensor:
        """Return what the final linear map sees of each pair: (B, C, S), or (B, S) if ``paired``.

        That is the global node after reasoning (SGR) or the filtered average (SAF). In training the batch
        norm of SAF takes the statistics of a caption with the images that it is compared with: all of the
        batch, or its own alone if ``paired``.
        """
        if not paired:
            return self._all_pairs(images, captions, scored=False)
        self.check_pairs(images, captions)
        vectors, regions, caption_vectors, words = self._parts(images, captions)
        with comparing(regions.device):
            mask = word_mask(captions.lengths, words.shape[1], words)
            sets = (vectors, regions, caption_vectors, words * mask[..., None])
            nodes = plain_nodes(*(x[:, None] for x in sets), *self._maps(), temperature=self.temperature)
            nodes = nodes.flatten(0, 2)[None]  # (1, n, w + 1, S)
            linear = F.linear if accelerated(nodes.device) else None
            result, moments = self._reason(nodes, F.pad(mask, (1, 0), value=1.0), linear)
        if moments is not None:
            self._remember(*moments)
        return result[0]

    def paired_similarity(
        self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False
    ) -> Tensor:
        """Compare image i with caption i only, (n,) in (0, 1), or the logits of these."""
        vectors = self.pair_vectors(images, captions, paired=True)
        with comparing(vectors.device):
            total = self.score(vectors).squeeze(-1)
        return total if logits else torch.sigmoid(total)

    def _parts(self, images: ImageEncoding, captions: CaptionEncoding) -> list[Tensor]:
        """Return the encodings in the weights' type.

        Under autocast the encoders work in low precision; normalised differences need the weights' own.
        """
        regions, words = fragments(images, captions)
        return [part.to(self.dtype) for part in (images.vectors, regions, captions.vectors, words)]

    def _maps(self) -> tuple[Tensor, ...]:
        """Weights and biases of the two maps to nodes."""
        whole, local = self.global_similarity, self.local_similarity
        return whole.weight, whole.bias, local.weight, local.bias

    def _all_pairs(self, images: ImageEncoding, captions: CaptionEncoding, *, scored: bool) -> Tensor:
        """Logits (B, C) of all pairs, or their vectors (B, C, S)."""
        vectors, regions, caption_vectors, words = self._parts(images, captions)
        with comparing(regions.device):
            at_once = len(regions)
            if accelerated(regions.device) and not torch.is_grad_enabled() and not self.training:
                at_once = min(at_once, IMAGES_AT_ONCE)
            groups, again = self._plan(regions[:at_once], captions.lengths)
            grouped = Grouped(groups, regions.device)
            moments: list[tuple[Tensor, Tensor]] = []
            sizes = sizes_on(captions.lengths, regions.device)
            parts = [grouped.split(x) for x in (caption_vectors, words, sizes)]
            rows = []
            for some_images in zip(vectors.split(at_once), regions.split(at_once), strict=True):
                columns: list[Tensor] = []
                for group, *some_captions in zip(groups, *parts, strict=True):
                    inputs = (*some_images, *some_captions, group, scored)
                    out, kept = grouped.compute(self._group, *inputs, again=again)
                    columns.append(out)
                    if kept is not None:
                        moments.append(kept)
                rows.append(grouped.join(columns))
            if moments:
                means, variances = zip(*moments, strict=True)
                self._remember(grouped.join(means, 0), grouped.join(variances, 0))
            return torch.cat(rows)

    def _plan(self, regions: Tensor, lengths: tuple[int, ...]) -> tuple[list[Group], bool]:
        """Cut the captions into groups, and say whether to compute each again in the backward pass."""
        (n_images, _, dim), training = regions.shape, torch.is_grad_enabled()
        values = self.sim_dim * self._vectors_per_node
        if accelerated(regions.device):  # the formulas form contexts; peaks as measured
            values = values + 5 * dim if training else values // 4 + 2 * dim
        node = n_images * values * regions.element_size()
        most, price = self.memory_budget // node, GROUP_BYTES / node
        if not accelerated(regions.device):
            most, price = min(most, GROUP_NODES // n_images), GROUP_COST / n_images
        groups = group_captions(lengths, group_cost=price, max_words=max(1, most))
        nodes = sum(group.words + len(group.rows) for group in groups)
        return groups, training and node * nodes > self.memory_budget

    def _group(
        self,
        image_vectors: Tensor,
        regions: Tensor,
        vectors: Tensor,
        words: Tensor,
        sizes: Tensor,
        group: Group,
        scored: bool,
    ) -> tuple[Tensor, Moments]:
        """Logits (B, n) or vectors (B, n, S) of one group of captions, with the head's statistics if any."""
        words, device = words[:, : group.width], words.device
        if accelerated(device):
            exact = wanted(device) and torch.get_float32_matmul_precision() == "highest"
            exact = exact and words.dtype == torch.float32 and not torch.is_autocast_enabled(device.type)
            given = (*alike(image_vectors, regions, vectors, words), sizes)
            output: tuple[Tensor, Moments] = call(
                SimilarityNodes.formulas, self, *given, scored, exact_linear if exact else F.linear,
                varying=[(x, 0) for x in given] + [(given[3], 1)],
            )  # fmt: skip
            return output
        mask: Tensor | None = None
        if group.padded:
            words, mask = self._masked(words, sizes)
        block = max(1, BLOCK_VALUES // words.numel())
        inputs = (image_vectors, regions, vectors, words, *self._maps())
        nodes = pair_nodes(*inputs, temperature=self.temperature, block=block)
        found_vectors, moments = self._reason(nodes, mask)
        return (self.score(found_vectors).squeeze(-1) if scored else found_vectors), moments

    @staticmethod
    def _masked(words: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Words (n, w, D), zero at padding, and the mask (n, w + 1) of nodes, 1 at the global one."""
        mask = mask_of(sizes, words.shape[1], words)
        return words * mask[..., None], F.pad(mask, (1, 0), value=1.0)

    def formulas(
        self,
        vectors: Tensor,
        regions: Tensor,
        captions: Tensor,
        words: Tensor,
        sizes: Tensor,
        scored: bool,
        linear: Linear,
    ) -> tuple[Tensor, Moments]:
        """Return what :meth:`_group` does, straight from the formulas: one graph for a compiler."""
        words, mask = self._masked(words, sizes)
        inputs = (vectors, regions, captions, words, *self._maps())
        nodes = plain_nodes(*inputs, temperature=self.temperature, linear=linear)
        reasoned, moments = self._reason(nodes, mask, linear)
        return (self.score(reasoned).squeeze(-1) if scored else reasoned), moments

    @abstractmethod
    def _reason(
        self, nodes: Tensor, mask: Tensor | None, linear: Linear | None = None
    ) -> tuple[Tensor, Moments]:
        """Reduce the nodes (B, n, w + 1, S) of each pair to one vector (B, n, S).

        ``linear``, which computes the maps: straight from the formulas, not block by block.
        """

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Update running statistics from the captions' own; only SAF has any."""


@register("sgr", summary="similarity graph reasoning between words and a global node", paper="AAAI 2021")
class SGR(SimilarityNodes):
    """Similarity graph reasoning (SGRAF, Sec. 3.3).

    Parameters
    ----------
    steps : int
        Steps of graph reasoning.
    **common
        Sizes, encoders, ``dropout`` and ``temperature``; see :class:`SimilarityNodes`.

    Examples
    --------
    >>> import torch
    >>> from nclib.models import Tokens, build
    >>> sizes = {"feature_dim": 8, "vocab_size": 20, "n_regions": 6, "embed_dim": 16, "sim_dim": 4}
    >>> model = build("sgr", **sizes).eval()
    >>> images = model.encode_images(torch.rand(2, 6, 8))
    >>> captions = model.encode_captions(Tokens(torch.tensor([[1, 5, 7, 2]]), (4,)))
    >>> scores = model.similarity(images, captions)
    >>> scores.shape, bool(((scores > 0) & (scores < 1)).all())
    (torch.Size([2, 1]), True)
    >>> model.pair_vectors(images, captions).shape  # one similarity vector per pair
    torch.Size([2, 1, 4])
    """

    steps: int = option(3, low=1)

    _vectors_per_node = 10

    # The official runs: hardest negatives from the first epoch on.
    settings: ClassVar = {
        "f30k": {"warmup_epochs": 0, "epochs": 40, "decay_every": 30},
        "coco": {"warmup_epochs": 0, "epochs": 20, "decay_every": 10},
    }

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.graph = GraphReasoning(self.sim_dim, self.steps)

    def _reason(
        self, nodes: Tensor, mask: Tensor | None, linear: Linear | None = None
    ) -> tuple[Tensor, Moments]:
        if linear is not None:  # tensor cores want rows in fours
            extra = -nodes.shape[2] % 4
            nodes = F.pad(nodes, (0, 0, 0, extra))
            mask = None if mask is None else F.pad(mask, (0, extra))
        n_images, n, size = nodes.shape[:3]
        absent = None
        if mask is not None:
            absent = torch.zeros_like(mask).masked_fill(mask == 0, -torch.inf)
            absent = absent[None].expand(n_images, n, size).reshape(-1, 1, size)
        vectors = self.graph(nodes.view(n_images * n, size, -1), absent, linear)
        return vectors.view(n_images, n, -1), None


@register("saf", summary="similarity attention filtration: gated average of nodes", paper="AAAI 2021")
class SAF(SimilarityNodes):
    """Similarity attention filtration (SGRAF, Sec. 3.4).

    Parameters
    ----------
    **common
        Sizes, encoders, ``dropout`` and ``temperature``; see :class:`SimilarityNodes`.
    """

    _vectors_per_node = 4

    settings: ClassVar = {
        "f30k": {"warmup_epochs": 0, "epochs": 30, "decay_every": 20},
        "coco": {"warmup_epochs": 0, "epochs": 20, "decay_every": 10},
    }

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.filtration = AttentionFiltration(self.sim_dim)

    def _reason(
        self, nodes: Tensor, mask: Tensor | None, linear: Linear | None = None
    ) -> tuple[Tensor, Moments]:
        return self.filtration(nodes, mask)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        self.filtration.remember(mean, variance)
