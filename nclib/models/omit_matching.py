"""Matching types and marginals of OMIT: its tables' comparisons (arXiv 2603.14349, Tables 3 to 5).

Captions are always the last axis: cosines are (B, n, m, C), images, regions, words, captions. A side of a
comparison is a dict of tensors: ``regions`` (B, K, D) or ``words`` (C, W, D) of unit length, their
``vectors`` (B, D) or (C, D), unit globals; ``keys`` (B, n, D) or ``queries`` (C, m, D), the same fragments
after the dustbin if there is one; for captions ``mask`` (C, W), 1 at words; ``norms`` where known;
``flat`` (m C, D), the queries word by word, where no gradients are wanted; ``mean_scale`` (C,) where the
dustbin is the scaled mean of the queries, which then stand without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.models.base import CaptionEncoding, ImageEncoding
from nclib.models.grouping import accelerated

Side = dict[str, Tensor]


@dataclass(frozen=True)
class OMITImages(ImageEncoding):
    """Encoded images: unit regions, their lengths before that, and their unit mean.

    For ``matching="pem"`` also the logarithm of the standard deviations, ``spread``.
    """

    norms: Tensor | None = None  # (B, K)
    spread: Tensor | None = None  # (B, D)

    ragged: ClassVar[tuple[str, ...]] = ("regions", "norms")  # training masks some of them


@dataclass(frozen=True)
class OMITCaptions(CaptionEncoding):
    """Encoded captions: unit words and their unit mean, the rest as in :class:`OMITImages`."""

    norms: Tensor | None = None
    spread: Tensor | None = None

    ragged: ClassVar[tuple[str, ...]] = ("words", "norms")


#: Rows of a product begin at multiples of this many numbers; otherwise products take up to twice as long.
ALIGNED = 16


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def _cosines(regions: Tensor, words: Tensor) -> Tensor:
    """Inner products (B, n, m, C) of all unit regions (B, n, D) and words (C, m, D)."""
    flat = words.transpose(0, 1).reshape(-1, words.shape[-1])  # (m C, D)
    extra = _aligned(len(flat)) - len(flat)
    if accelerated(flat.device):  # some rows always: without any a compiler would make another graph
        extra = ALIGNED - len(flat) % ALIGNED
    padded = F.pad(flat, (0, 0, 0, extra))
    product = (regions.reshape(-1, regions.shape[-1]) @ padded.t())[:, : len(flat)]
    return product.to(regions.dtype).unflatten(1, (words.shape[1], -1)).unflatten(0, regions.shape[:2])


def compare(images: Side, captions: Side) -> Tensor:
    """Cosines of keys and queries, dustbins first where they exist.

    With ``flat`` among the captions, without gradients. A dustbin that is the words' mean then costs no
    product: its inner products are the scaled sums of the words' inner products.

    Parameters
    ----------
    images, captions : dict of str to Tensor

    Returns
    -------
    Tensor, (B, n, m, C)
    """
    keys, flat, scale = images["keys"], captions.get("flat"), captions.get("mean_scale")
    if flat is None:
        return _cosines(keys, captions["queries"])
    lead = 0 if scale is None else len(scale)
    start = _aligned(lead)
    stop = start + len(flat)
    rows = keys.new_empty(keys.shape[0] * keys.shape[1], _aligned(stop))
    torch.mm(keys.reshape(-1, keys.shape[-1]), flat.t(), out=rows[:, start:stop])
    s = rows[:, start - lead : stop].view(*keys.shape[:2], -1, len(captions["queries"]))
    if scale is not None:
        torch.sum(s[:, :, 1:], 2, out=s[:, :, 0]).mul_(scale)
    return s


def mean_scale(words: Tensor, vectors: Tensor) -> Tensor | None:
    """Factors that scale the sums of the words to the global vectors.

    Parameters
    ----------
    words, vectors : Tensor, (C, W, D) and (C, D)
        Words, zero where padded, and unit global vectors.

    Returns
    -------
    Tensor, (C,), or None
        None where the vectors are not the words' scaled means: a component differs by more than 5e-7.
    """
    total = words.sum(1)
    scale = torch.linalg.vector_norm(total, dim=-1).clamp_min(1e-12).reciprocal()
    return scale if torch.allclose(total * scale[:, None], vectors, rtol=0, atol=5e-7) else None


# -- marginals (Table 5) ------------------------------------------------------------------------------------
# Each returns p (B or 1, K, C or 1) and q (B or 1, W, C): the weights of regions and words, sums of 1, zero
# at padding. ``tau`` is the temperature of the softmax where there is one.


def _share(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the words, dimension 1 of (B or 1, W, C); padding gets 0."""
    return scores.masked_fill(mask == 0, -torch.inf).softmax(1)


def _uniform(images: Side, captions: Side, tau: float) -> tuple[Tensor, Tensor]:
    """Uniform marginals (1, K, 1) and (1, W, C): all regions alike, all words alike."""
    n_regions, mask = images["regions"].shape[1], captions["mask"].t()[None]  # (1, W, C)
    p = mask.new_full((1, n_regions, 1), 1 / n_regions)
    return p, mask / mask.sum(1, keepdim=True)


def _intra(images: Side, captions: Side, tau: float) -> tuple[Tensor, Tensor]:
    """Marginals (B, K, 1) and (1, W, C) by the cosine with the global vector of the same side (Eq. 7)."""
    own_p = (images["regions"] * images["vectors"][:, None]).sum(-1)  # (B, K)
    own_q = (captions["words"] * captions["vectors"][:, None]).sum(-1)  # (C, W)
    p = (own_p / tau).softmax(1)[..., None]
    return p, _share(own_q.t()[None] / tau, captions["mask"].t()[None])


def _inter(images: Side, captions: Side, tau: float) -> tuple[Tensor, Tensor]:
    """Marginals (B, K, C) and (B, W, C) by the cosine with the global vector of the other side."""
    p = _cosines(images["regions"], captions["vectors"][:, None]).squeeze(2)  # (B, K, C)
    q = _cosines(images["vectors"][:, None], captions["words"]).squeeze(1)  # (B, W, C)
    return (p / tau).softmax(1), _share(q / tau, captions["mask"].t()[None])


def _norm(images: Side, captions: Side, tau: float) -> tuple[Tensor, Tensor]:
    """Marginals (B, K, 1) and (1, W, C) by the length of a fragment before its scaling to unit length."""
    if "norms" not in images or "norms" not in captions:
        raise ValueError("marginals='norm' needs the lengths of the fragments: encode with this model")
    p, q = images["norms"], captions["norms"] * captions["mask"]
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    return p[..., None], q.t()[None]


MARGINALS: dict[str, Callable[[Side, Side, float], tuple[Tensor, Tensor]]] = {
    "uni": _uniform,
    "intra": _intra,
    "inter": _inter,
    "norm": _norm,
}


def add_dustbins(p: Tensor, q: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Put a dustbin before the weights of either side; the others give way in proportion.

    A dustbin weighs as much as a uniform fragment, 1 / (K + 1) and 1 / (L + 1): the paper gives no masses.

    Parameters
    ----------
    p, q, mask : Tensor, (B or 1, K, C or 1), (B or 1, W, C) and (C, W)
        Marginals, with sums of 1 over dimension 1; 1 at words.

    Returns
    -------
    p : Tensor, (B or 1, K + 1, C or 1)
    q : Tensor, (B or 1, W + 1, C)
    """
    share_p, share_q = 1 / (p.shape[1] + 1), 1 / (mask.sum(1) + 1)  # a number, (C,)
    first_p = torch.full_like(p[:, :1], share_p)
    first_q = share_q.expand_as(q[:, :1])
    return torch.cat([first_p, p * (1 - share_p)], 1), torch.cat([first_q, q * (1 - share_q)], 1)


# -- matching types (Tables 3 and 4) ------------------------------------------------------------------------


@dataclass(frozen=True)
class Matching:
    """A matching type."""

    family: str  # "vector": compare one per side; "attention": from words to regions; "transport"
    dustbin: str = ""  # joins the fragments: "global": the global vectors; "prompt": two learned vectors
    collects_dustbins: bool = False  # similarity with a dustbin counts

    @property
    def skip(self) -> int:
        """Leading rows and columns that do not count."""
        return int(bool(self.dustbin) and not self.collects_dustbins)


MATCHINGS = {
    "vse": Matching("vector"),
    "pem": Matching("vector"),
    "cam": Matching("attention"),
    "partial_cam": Matching("attention", "global"),
    "ot": Matching("transport"),
    "full": Matching("transport", "global", collects_dustbins=True),
    "prompt": Matching("transport", "prompt"),
    "partial_ot": Matching("transport", "global"),
}


def attention(images: Side, captions: Side, tau: float) -> tuple[Tensor, Tensor]:
    """Attention of every word to an image's keys, its dustbin included (Eq. 11).

    Parameters
    ----------
    images, captions : dict of str to Tensor
    tau : float
        Positive temperature of the softmax.

    Returns
    -------
    share, s : Tensor, (B, n, W, C)
        Shares of the keys, which sum to one over dimension 1, and cosines of keys and words.
    """
    s = compare(images, captions)
    return (s / tau).softmax(1), s


def attention_scores(images: Side, captions: Side, tau: float, dustbin: bool) -> Tensor:
    """Mean over words of the cosine of a word and the mean region it attends to (Eqs. 10 and 11).

    With a dustbin, its share is missing from the word's inner product and present in the length of the mean:
    if it were missing from both, the cosine, blind to scale, would not notice it. The means themselves are
    not formed: their lengths follow from the Gram matrix of the regions.

    Parameters
    ----------
    images, captions, tau
        As in :func:`attention`.
    dustbin : bool
        Whether an image's first key is its dustbin.

    Returns
    -------
    Tensor, (B, C)
    """
    keys = images["keys"]
    share, s = attention(images, captions, tau)
    collected = (share * s)[:, int(dustbin) :].sum(1)  # (B, W, C)
    flat = share.flatten(2)
    square = (flat * (keys @ keys.transpose(1, 2) @ flat)).sum(1).reshape(collected.shape)
    mask = captions["mask"].t()  # (W, C)
    cosine = collected / square.clamp_min(1e-24).sqrt()
    return (cosine * mask).sum(1) / mask.sum(0)


class FragmentAttention(nn.Module):
    """Weighted means of fragments, the weights of each head a softmax of W_2 tanh(W_1 x)."""

    def __init__(self, dim: int, heads: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(dim, max(1, dim // 2), bias=False)
        self.second = nn.Linear(max(1, dim // 2), heads, bias=False)
        nn.init.xavier_uniform_(self.first.weight)
        nn.init.xavier_uniform_(self.second.weight)

    def logits(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (B, n, heads) of the weights of fragments (B, n, d); ``mask`` (B, n) is 1 at valid ones."""
        logits: Tensor = self.second(torch.tanh(self.first(x)))
        return logits if mask is None else logits.masked_fill(mask[..., None] == 0, -math.inf)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool (B, n, d) to (B, heads, d)."""
        return torch.softmax(self.logits(x, mask), 1).transpose(1, 2) @ x


def pooled(pool: FragmentAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean (B, D) of fragments (B, n, D), ``mask`` 1 at valid ones, under the weights of one head.

    As in PCME (arXiv 2101.05068, Sec. 3.2).
    """
    share = pool.logits(x, mask).squeeze(-1).softmax(1)  # (B, n)
    return (share[..., None] * x).sum(1)
