"""SBE: sets of embeddings by slot attention, smooth Chamfer similarity (CVPR 2023, arXiv 2211.16761)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from baselines.omit.pvse import SetEncoding, discrepancy
from nclib.common.tokens import Tokens
from nclib.losses import triplet
from nclib.models.base import option
from nclib.models.encoders import l2, word_mask, xavier_linear
from nclib.models.registry import register
from nclib.models.vse_inf import ThinnedFragments

HEADS = 4
"""Heads of the attention, each half as wide as the common space."""

WIDER = 4
"""Width of the hidden layer after the attention, in widths of the common space."""

MARGIN = 0.2
"""Margin of the ranking loss, in the official code."""

# The official command, which is for regions, BiGRU and MS-COCO. There a batch holds 200 images with all their
# captions, word vectors start from GloVe (`word_vectors`), and the cosine falls at every step.
PUBLISHED = {
    "loss": "own",
    "batch_size": 200,
    "warmup_epochs": 0,
    "epochs": 80,
    "decay": "cosine",
    "decay_every": 80,
    "lr": 1e-4,
    "weight_decay": 1e-4,
    "grad_clip": 1.0,
    "model_options": {"words_rate": 10.0},
}


def relative_codes(lengths: tuple[int, ...], width: int, like: Tensor) -> Tensor:
    """Sine and cosine codes of the places of words, relative to the length of their caption.

    Word j of n, from 1 on, is at 2 pi j / n; it and its parts by powers of 10000 are coded.

    Parameters
    ----------
    lengths, width : tuple of int, length C, and int
    like : Tensor
        Gives number type and device.

    Returns
    -------
    Tensor, (C, max(lengths), width)
        Sines in the even columns.
    """
    place = torch.arange(1, max(lengths) + 1) / torch.tensor(lengths)[:, None]  # (C, W)
    rate = 10000.0 ** (-torch.arange(0, width, 2, device=like.device, dtype=like.dtype) / width)
    angle = 2 * math.pi * place.to(like.device, like.dtype, non_blocking=True)[..., None] * rate
    return torch.stack([angle.sin(), angle.cos()], 3).flatten(2)[..., :width]


class RefinedRegions(nn.Module):
    """Linear map of every region, plus a two-layer network of the result: x + MLP(x), x = A f + b."""

    def __init__(self, feature_dim: int, embed_dim: int) -> None:
        super().__init__()
        hidden = max(1, embed_dim // 2)
        self.fc = xavier_linear(feature_dim, embed_dim)
        self.first = nn.Linear(embed_dim, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, R, feature_dim) to (B, R, embed_dim); the batch norm is over all regions of the batch."""
        x = self.fc(images)
        hidden = self.norm(self.first(x).flatten(0, 1)).view(*x.shape[:2], -1)
        return x + self.second(torch.relu(hidden))


class SetPrediction(nn.Module):
    """Element slots that compete for the fragments of a sample, in steps with the same weights (Sec. 3.2).

    A fragment's attention is a softmax over the slots; then each slot's is scaled to sum to one over the
    fragments. A slot adds what it read, and a two-layer network of itself.
    """

    def __init__(self, fragment_dim: int, dim: int, *, slots: int, steps: int, dropout: float) -> None:
        super().__init__()
        self.steps, inner = steps, HEADS * max(1, dim // 2)
        self.slots = nn.Parameter(torch.randn(slots, dim))
        self.slot_norm, self.fragment_norm = nn.LayerNorm(dim), nn.LayerNorm(fragment_dim)
        self.query = nn.Linear(dim, inner, bias=False)
        self.key = nn.Linear(fragment_dim, inner, bias=False)
        self.value = nn.Linear(fragment_dim, inner, bias=False)
        self.out = nn.Linear(inner, dim)
        self.drop = nn.Dropout(dropout)
        self.network = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, WIDER * dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(WIDER * dim, dim),
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor, codes: Tensor | None = None) -> Tensor:
        """Read fragments (B, n, d), ``mask`` (B, n) 1 at valid ones, into slots (B, K, D).

        ``codes`` (B, n, d) of places are added to the fragments for the keys only.
        """
        x, z = self.fragment_norm(x), self.slots.expand(len(x), -1, -1)
        key, value = _heads(self.key(x if codes is None else x + codes)), _heads(self.value(x))
        for _ in range(self.steps):
            query = _heads(self.query(self.slot_norm(z)))  # (B, heads, K, d)
            share = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), 2) * mask[:, None, None]
            share = share / (share.sum(3, keepdim=True) + 1e-7)
            z = z + self.drop(self.out((share @ value).transpose(1, 2).flatten(2)))
            z = z + self.network(z)
        slots: Tensor = self.norm(z)
        return slots


def _heads(x: Tensor) -> Tensor:
    """(B, n, heads d) to (B, heads, n, d)."""
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


def smooth_chamfer(cosines: Tensor, alpha: float) -> Tensor:
    """Smooth Chamfer similarity of two sets (Eq. 4).

    The mean over each set of log sum exp(alpha c) / alpha over the other, averaged over both directions.

    Parameters
    ----------
    cosines : Tensor, (..., K, L)
        Of the members of two sets.
    alpha : float
        Sharpness, above 0; the larger, the nearer to the maximum.

    Returns
    -------
    Tensor, (...)
    """
    scaled = alpha * cosines
    return (scaled.logsumexp(-1).mean(-1) + scaled.logsumexp(-2).mean(-1)) / (2 * alpha)


@register("sbe", summary="sets of embeddings by slot attention, smooth Chamfer similarity", paper="CVPR 2023")
class SBE(ThinnedFragments):
    """Each image and caption is a set of unit embeddings, all of which count: smooth Chamfer similarity.

    An embedding is what an element slot read from the fragments, plus the layer norm of the global vector.
    Image: refined regions and their maximum. Caption: word vectors of the BiGRU, or the states of the
    pretrained encoder, and the sentence vector.

    Agrees with the official modules to 4e-8 on random weights where no caption is padded. There a padded word
    counts a K-th of a word for every slot, and places are relative to the longest caption of the batch.

    Parameters
    ----------
    n_embeds, steps : int
        Slots K, the embeddings of a sample; times T that they read.
    alpha : float
        Sharpness of the similarity.
    dropout : float
        On words, sentence vectors, refined regions and within the set prediction while training.
    words_rate : float
        What multiplies the learning rate of the text encoder; of BERT and CLIP, what stands after them.
    diversity, mmd : float
        Weights of the paper's two further terms in :meth:`own_loss`.
    **common
        Sizes, encoders and ``drop``; see :class:`~nclib.models.vse_inf.ThinnedFragments`.
    """

    n_embeds: int = option(4, low=1)
    steps: int = option(4, low=1)
    alpha: float = option(16.0, above=0)
    dropout: float = option(0.1, low=0, high=1)
    words_rate: float = option(1.0, above=0)
    diversity: float = option(0.01, low=0)
    mmd: float = option(0.01, low=0)

    settings: ClassVar = {"f30k": PUBLISHED, "coco": PUBLISHED}

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        dim, centre = self.embed_dim, math.log(self.n_embeds) / self.alpha
        self.score_range = (centre - 1, centre + 1)
        self.drop_values = nn.Dropout(self.dropout)
        self.image_set, self.text_set = (
            SetPrediction(d, dim, slots=self.n_embeds, steps=self.steps, dropout=self.dropout)
            for d in (dim, self.word_dim if self.text == "bigru" else dim)
        )
        self.image_norm, self.text_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def own_rates(self) -> dict[nn.Parameter, float]:
        """Return the weights of the text encoder, with what multiplies their learning rate."""
        return dict.fromkeys(self.text_encoder.parameters(), self.words_rate)

    def region_encoder(self, width: int) -> nn.Module:
        return RefinedRegions(width, self.embed_dim)

    # encodings of images and captions are of one kind: sets
    def encode_images(self, images: Tensor) -> SetEncoding:  # type: ignore[override]
        """Encode region features (B, R, feature_dim) as unit embeddings (B, K, D)."""
        regions, sizes = self.kept_regions(images)
        mask = word_mask(sizes, regions.shape[1], regions)
        slots = self.image_set(self.drop_values(regions), mask)
        whole = self.drop_values(regions).masked_fill(mask[..., None] == 0, -math.inf).amax(1)
        return self._encoding(self.image_norm(whole), slots)

    def encode_captions(self, tokens: Tokens) -> SetEncoding:  # type: ignore[override]
        """Encode captions as unit embeddings (C, K, D)."""
        tokens = self.kept_tokens(tokens)
        words, whole = self.encode_words(tokens)
        if self.text == "bigru":
            words = self.drop_values(self.text_encoder.embedding(tokens.ids[:, : max(tokens.lengths)]))
            whole = self.drop_values(whole)
        mask = word_mask(tokens.lengths, words.shape[1], words)
        codes = relative_codes(tokens.lengths, words.shape[2], words)
        return self._encoding(self.text_norm(whole), self.text_set(words, mask, codes))

    @staticmethod
    def _encoding(whole: Tensor, slots: Tensor) -> SetEncoding:
        unit = l2(whole[:, None] + slots)
        return SetEncoding(unit.mean(1), unit, slots)

    def similarity(self, images: SetEncoding, captions: SetEncoding, *, logits: bool = False) -> Tensor:
        """Return the smooth Chamfer similarity of each pair, (B, C); ``logits`` changes nothing.

        It lies within 1 of log(K) / alpha.
        """
        n_images, k, _ = images.members.shape
        cell = n_images * k * k * images.members.element_size()
        flat, size = images.members.flatten(0, 1), max(1, self.memory_budget // (4 * cell))
        columns = []
        for part in captions.members.split(size):
            cosines = (flat @ part.flatten(0, 1).t()).view(n_images, k, len(part), -1)  # (B, K, n, K)
            columns.append(smooth_chamfer(cosines.transpose(1, 2), self.alpha))
        return torch.cat(columns, 1)

    def paired_similarity(
        self, images: SetEncoding, captions: SetEncoding, *, logits: bool = False
    ) -> Tensor:
        """Return the smooth Chamfer similarity of image i and caption i, (n,)."""
        self.check_pairs(images, captions)
        return smooth_chamfer(images.members @ captions.members.mT, self.alpha)

    def own_loss(self, images: SetEncoding, captions: SetEncoding) -> dict[str, Tensor]:
        """Return the ranking loss and the weighted terms for diversity and the distance of the modalities.

        Ranking: triplet with the hardest negatives, mean over the batch. Diversity: mean of
        exp(-2 |u - u'|^2) over pairs of a sample's unit slots u, images plus captions. MMD: as in
        :meth:`baselines.omit.pvse.PVSE.own_loss`, of all embeddings of images and of captions.
        """
        apart = discrepancy(images.members.flatten(0, 1), captions.members.flatten(0, 1))
        near = _nearness(images.detail) + _nearness(captions.detail)
        ranking = triplet(self.similarity(images, captions), MARGIN, "hardest").mean()
        return {"ranking": ranking, "diversity": self.diversity * near, "mmd": self.mmd * apart}


def _nearness(slots: Tensor) -> Tensor:
    """Mean of exp(-2 |u - u'|^2) over the pairs of unit slots of each sample (B, K, D); 0 for one slot."""
    unit, k = l2(slots), slots.shape[1]
    row, column = torch.triu_indices(k, k, 1, device=slots.device)
    gram = (unit @ unit.mT)[:, row, column]  # (B, pairs); |u - u'|^2 = 2 - 2 u.u'
    return torch.exp(4 * gram - 4).mean(0).sum() / max(1, k * (k - 1) // 2)
