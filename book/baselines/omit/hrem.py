"""HREM: relations within a sample, and in training between samples (Fu et al., CVPR 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import Encoding, option
from nclib.models.cross import LEAK, raw_scores
from nclib.models.encoders import EPS, l2, word_mask
from nclib.models.registry import register
from nclib.models.vse import mean_of_words
from nclib.models.vse_inf import ThinnedMatcher

HEADS = 16
"""Heads of the attention; fewer where they do not divide ``embed_dim``."""

LARGEST = 2
"""Values of each dimension in the mean that is the first embedding of a sample."""

MARGIN = 0.2
"""Margin of the ranking losses."""

SPHERE, NEAREST = 512, 0.5
"""Dimension in the weights of negatives, and the distance below which a negative counts as that far."""

# The official runs.
PUBLISHED = {
    "loss": "own",
    "warmup_epochs": 0,
    "epochs": 30,
    "decay_every": 15,
    "decay_again": 25,
    "lr": 5e-4,
    "weight_decay": 1e-4,
}


@dataclass(frozen=True)
class FragmentEncoding(Encoding):
    """Unit vectors (B, D), lengths, and, in training, the fragments (B, n, D), zero beyond the lengths."""

    lengths: tuple[int, ...]
    fragments: Tensor | None = None

    ragged: ClassVar[tuple[str, ...]] = ("fragments",)


class RelationLayer(nn.Module):
    """Transformer layer (attention, two-layer network, both residual and normalised afterwards) over sets.

    A bias is added to the logits of the attention; -inf keeps two members apart. There are fewer heads where
    they do not divide ``dim``; the network is ``hidden`` wide, by default as wide as the layer.
    """

    def __init__(self, dim: int, dropout: float, *, heads: int = HEADS, hidden: int = 0) -> None:
        super().__init__()
        self.heads = math.gcd(heads, dim)
        self.mix, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.first, self.second = nn.Linear(dim, hidden or dim), nn.Linear(hidden or dim, dim)
        self.attended_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map sets (B, n, D) to (B, n, D) under a bias that broadcasts to (B, n, n), rows the queries."""
        parts = self.mix(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, heads, n, d)
        query, key, value = parts.unbind()
        logits = query @ key.mT / math.sqrt(query.shape[-1]) + bias[:, None]
        shares = self.drop(torch.softmax(logits, -1))
        attended = self.out((shares @ value).transpose(1, 2).flatten(2))
        x = self.attended_norm(x + self.drop(attended))
        update = self.second(self.drop(torch.relu(self.first(x))))
        return self.norm(x + self.drop(update))


class FragmentPooling(nn.Module):
    """Weighted sum of the mean of the largest values and the mean of related fragments (Sec. 3.2)."""

    def __init__(self, dim: int, residual: float, dropout: float) -> None:
        super().__init__()
        self.residual = residual
        self.layer = RelationLayer(dim, dropout)

    def forward(self, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Pool fragments (B, n, D), with ``lengths`` valid rows each, to vectors (B, D)."""
        mask = word_mask(lengths, x.shape[1], x)  # (B, n)
        absent = mask == 0
        largest = x.masked_fill(absent[..., None], -math.inf).topk(min(LARGEST, x.shape[1]), 1).values
        first = largest.masked_fill(largest == -math.inf, 0.0).sum(1) / mask.sum(1, True).clamp(max=LARGEST)
        bias = torch.zeros_like(mask).masked_fill(absent, -math.inf)[:, None]  # (B, 1, n)
        related = mean_of_words(self.layer(x, bias), lengths)
        return self.residual * first + (1 - self.residual) * related


class SampleRelations(nn.Module):
    """Relations of all images and captions of a batch, and their vectors under these relations (Sec. 3.3).

    A sample is connected with the nearest ``share`` of each modality. Relevance within a modality is
    exp(-|x - y|); between modalities it is the mean match of the fragments plus the output of a small network
    for the ``top`` best ones. Relevance times ``weight`` biases the attention among connected samples.
    """

    def __init__(self, dim: int, *, top: int, share: float, weight: float, dropout: float) -> None:
        super().__init__()
        self.top, self.share, self.weight = top, share, weight
        self.layer = RelationLayer(dim, dropout)
        self.of_words, self.of_regions = (
            nn.Sequential(nn.Linear(top, top), nn.ReLU(), nn.Linear(top, 1)) for _ in range(2)
        )

    def matches(
        self, images: FragmentEncoding, captions: FragmentEncoding, budget: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Match fragments of all images and captions; no gradient reaches the fragments.

        As in SCAN, cosines are clipped and scaled to unit length over the words of a caption, or the regions
        of an image. A word's match is its largest value over the regions, and the other way round.

        Returns
        -------
        word_mean, word_top : Tensor, (C, B) and (C, B, K)
            Mean over the words of a caption, and the ``top`` best, zero where there are fewer words.
        region_mean, region_top : Tensor, (B, C) and (B, C, K)
            The same over the regions of an image.
        """
        assert images.fragments is not None and captions.fragments is not None  # noqa: PT018
        regions, words = l2(images.fragments.detach()), l2(captions.fragments.detach())
        region_in = word_mask(images.lengths, regions.shape[1], regions)[:, :, None, None]  # (B, R, 1, 1)
        word_in = word_mask(captions.lengths, words.shape[1], words)  # (C, W)
        cell = regions.shape[0] * regions.shape[1] * words.shape[1] * words.element_size()
        found: list[tuple[Tensor, ...]] = []
        size = max(1, budget // (6 * cell))  # captions at a time
        for part, valid in zip(words.split(size), word_in.split(size), strict=True):
            raw = F.leaky_relu(raw_scores(regions, part), LEAK)  # (B, R, n, W), zero at padding
            over_words = raw / (torch.linalg.vector_norm(raw, dim=3, keepdim=True) + EPS)
            over_regions = raw / (torch.linalg.vector_norm(raw, dim=1, keepdim=True) + EPS)
            of_words = over_words.masked_fill(region_in == 0, -math.inf).amax(1).transpose(0, 1)  # (n, B, W)
            of_regions = over_regions.masked_fill(valid == 0, -math.inf).amax(3).transpose(1, 2)  # (B, n, R)
            found.append(
                (
                    *self._mean_and_top(of_words, valid[:, None]),
                    *self._mean_and_top(of_regions, region_in[:, None, :, 0, 0]),
                )
            )
        word_mean, word_top, region_mean, region_top = zip(*found, strict=True)
        return torch.cat(word_mean), torch.cat(word_top), torch.cat(region_mean, 1), torch.cat(region_top, 1)

    def _mean_and_top(self, match: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (...) and largest values (..., K) of matches (..., n) where ``valid`` is 1."""
        mean = (match * valid).sum(-1) / valid.sum(-1)
        match = match.masked_fill(valid == 0, -math.inf)
        top = F.pad(match, (0, max(0, self.top - match.shape[-1])), value=-math.inf).topk(self.top, -1).values
        return mean, top.masked_fill(top == -math.inf, 0.0)

    def forward(
        self, images: FragmentEncoding, captions: FragmentEncoding, budget: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return unit vectors of images and captions under their relations, (B, D) each, and a penalty ().

        The penalty is the divergence of the softmax of relevances between the modalities from that of
        exp(-|v - t|), mean over the rows, summed over both directions.
        """
        v, t = images.vectors, captions.vectors
        word_mean, word_top, region_mean, region_top = self.matches(images, captions, budget)
        to_images = self.of_words(word_top).squeeze(-1) + word_mean  # (C, B), captions ask
        to_captions = self.of_regions(region_top).squeeze(-1) + region_mean  # (B, C), images ask
        relevance = _blocks(_nearness(v, v), to_captions, to_images, _nearness(t, t))
        with torch.no_grad():
            near = [self._nearest(s) for s in (v @ v.t(), region_mean, word_mean, t @ t.t())]
        bias = (self.weight * relevance).masked_fill(~_blocks(*near), -math.inf)
        related = l2(self.layer(torch.cat([v, t])[None], bias[None]).squeeze(0))
        guide = _nearness(v, t).detach()
        penalty = _divergence(to_captions, guide) + _divergence(to_images, guide.t())
        return related[: len(v)], related[len(v) :], penalty

    def _nearest(self, scores: Tensor) -> Tensor:
        """Whether a score (n, m) is among the largest share of its row, ties included."""
        count = max(1, int(scores.shape[1] * self.share))
        return scores >= scores.topk(count, 1).values[:, -1:]


@register("hrem", summary="fragments related by attention; samples related in training", paper="CVPR 2023")
class HREM(ThinnedMatcher):
    """Regions and words related by a Transformer layer and pooled; cosine.

    In training with :meth:`own_loss` the samples of a batch are related too, images and captions in one graph
    (the paper's fusion mechanism). When testing each sample is encoded alone. Agrees with the official
    modules to 2e-8 on random weights in double precision. There, padding counts where a caption has fewer
    than ``top`` words or regions were dropped, and captions of one image are not each other's negatives.

    Parameters
    ----------
    residual, attention_dropout : float
        Share of the unrelated fragments in a vector; dropout in the Transformer layers while training.
    relations_after : int
        Steps of :meth:`own_loss` before samples are related.
    top, share : int, float
        Best matches of fragments that the relevance of an image and a caption is learned from; share of each
        modality that a sample is connected with.
    relation_weight, relation_penalty : float
        Factor of the relevance in the attention; weight of the penalty that holds it near the distances of
        the vectors.
    farthest : float
        Negatives at this distance or farther are never drawn, above 0.5 and below 2.
    **common
        Sizes, encoders and ``drop``; see :class:`~nclib.models.vse_inf.ThinnedFragments`.
    """

    residual: float = option(0.8, low=0, high=1)
    attention_dropout: float = option(0.1, low=0, below=1)
    relations_after: int = option(8000, low=0)
    top: int = option(10, low=1)
    share: float = option(0.5, above=0, high=1)
    relation_weight: float = option(1.0, low=0)
    relation_penalty: float = option(10.0, low=0)
    farthest: float = option(1.7, above=NEAREST, below=2)

    settings: ClassVar = {
        "f30k": PUBLISHED,
        "coco": PUBLISHED | {"batch_size": 256, "model_options": {"relation_weight": 1.5, "farthest": 1.9}},
    }

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        dim, dropout = self.embed_dim, self.attention_dropout
        self.image_pool = FragmentPooling(dim, self.residual, dropout)
        self.text_pool = FragmentPooling(dim, self.residual, dropout)
        self.relations = SampleRelations(
            dim, top=self.top, share=self.share, weight=self.relation_weight, dropout=dropout
        )
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    # one kind of encoding for both: images keep as many regions as were not left out
    def encode_images(self, images: Tensor) -> FragmentEncoding:  # type: ignore[override]
        """Encode region features (B, R, feature_dim) as unit vectors (B, D)."""
        return self._encoding(self.image_pool, *self.kept_regions(images))

    def encode_captions(self, tokens: Tokens) -> FragmentEncoding:  # type: ignore[override]
        """Encode captions as unit vectors (C, D)."""
        return self._encoding(self.text_pool, *self.kept_words(tokens))

    def _encoding(self, pool: nn.Module, x: Tensor, lengths: tuple[int, ...]) -> FragmentEncoding:
        fragments = x * word_mask(lengths, x.shape[1], x)[..., None]
        return FragmentEncoding(l2(pool(fragments, lengths)), lengths, fragments if self.training else None)

    def own_loss(self, images: FragmentEncoding, captions: FragmentEncoding) -> dict[str, Tensor]:
        """Return the ranking loss, that of the related vectors, and the weighted penalty of the relevances.

        Ranking: :func:`drawn_triplet` of the vectors v and t. Related: the same of (v, t'), (v', t) and
        (v', t'), where v' and t' are related to the batch; it and the penalty are zero in the first
        ``relations_after`` steps.

        Raises
        ------
        ValueError
            If there are not as many images as captions, or they were not encoded in training mode.
        """
        self.check_pairs(images, captions)
        if images.fragments is None or captions.fragments is None:
            raise ValueError("own_loss needs encodings made in training mode; call train() before encoding")
        v, t = images.vectors, captions.vectors
        v2, t2, penalty = self.relations(images, captions, self.memory_budget)
        on = (self.steps >= self.relations_after).to(v.dtype)
        self.steps += 1
        related = sum(drawn_triplet(a @ b.t(), self.farthest).sum() for a, b in ((v, t2), (v2, t), (v2, t2)))
        return {
            "ranking": drawn_triplet(v @ t.t(), self.farthest).sum(),
            "related": on * related,
            "penalty": on * self.relation_penalty * penalty,
        }


def drawn_triplet(S: Tensor, farthest: float) -> Tensor:
    """Hinge triplet loss with one negative per query and direction, drawn by its distance (Wu et al. 2017).

    The weight of a negative at distance d = sqrt(2 - 2 s) of unit vectors is the inverse density of distances
    on a sphere, d^(2 - n) (1 - d^2 / 4)^((3 - n) / 2); nearer ones count as at distance 0.5.

    Parameters
    ----------
    S : Tensor, (B, B)
        Cosines, images in rows, the given pairs on the diagonal.
    farthest : float
        Negatives at this distance or farther are never drawn.

    Returns
    -------
    Tensor, (B,)
        Sum of both directions; a query without negatives adds nothing.
    """
    return _drawn_hinge(S, farthest) + _drawn_hinge(S.t(), farthest)


def _drawn_hinge(S: Tensor, farthest: float) -> Tensor:
    n = len(S)
    with torch.no_grad():
        d = (2 - 2 * S.float()).clamp_min(NEAREST**2).sqrt()
        log_weight = (2 - SPHERE) * d.log() + (3 - SPHERE) / 2 * (1 - d.square() / 4).log()
        never = (d >= farthest) | torch.eye(n, dtype=torch.bool, device=S.device)
        weight = torch.softmax(log_weight.masked_fill(never, -math.inf), 1).nan_to_num(0.0)
        draw = torch.rand(n, 1).to(S.device, non_blocking=True)
        below = weight.cumsum(1)
        chosen = (below <= draw * below[:, -1:]).sum(1, keepdim=True).clamp_max(n - 1)
    hinge = F.relu(MARGIN + S.gather(1, chosen).squeeze(1) - S.diagonal())
    return hinge.masked_fill(never.all(1), 0.0)


def _nearness(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x - y|) of all pairs of (n, D) and (m, D)."""
    return torch.exp(-torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"))


def _blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Images and captions in one matrix: [[a, b], [c, d]]."""
    return torch.cat([torch.cat([a, b], 1), torch.cat([c, d], 1)])


def _divergence(scores: Tensor, guide: Tensor) -> Tensor:
    """KL divergence of the softmax of ``scores`` from that of ``guide`` over the rows (n, m), mean."""
    p, q = scores.log_softmax(1), guide.log_softmax(1)
    return (p.exp() * (p - q)).sum(1).mean()
