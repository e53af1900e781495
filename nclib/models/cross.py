"""Cross attention of all query sets with all source sets (SCAN, arXiv 1803.08024, Eqs. 1-9, as in its code).

G sets of K sources meet H sets of Q queries. Words that look at regions are queries with the images as
sources; regions that look at words are the same with the roles exchanged. Attention is (G, K, H, Q).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.models.encoders import EPS

PUBLISHED = {
    "f30k": {"warmup_epochs": 0, "epochs": 30, "decay_every": 15},
    "coco": {"warmup_epochs": 0, "epochs": 20, "decay_every": 10, "lr": 5e-4},
}
"""The official runs of SCAN and IMRAM: hardest negatives from the first epoch on."""

LEAK = 0.1
"""Slope of the LeakyReLU on raw attention scores (the paper clips at zero, the official code leaks)."""


def raw_scores(sources: Tensor, queries: Tensor) -> Tensor:
    """Inner products of all sources and all queries.

    Parameters
    ----------
    sources, queries : Tensor, (G, K, D) and (H, Q, D)

    Returns
    -------
    Tensor, (G, K, H, Q)
    """
    flat = sources.reshape(-1, sources.shape[-1]) @ queries.reshape(-1, queries.shape[-1]).t()
    return flat.to(sources.dtype).view(*sources.shape[:2], *queries.shape[:2])  # of autocast, too


def attention(
    raw: Tensor, query_mask: Tensor | None, source_mask: Tensor | None, temperature: float
) -> Tensor:
    """Attention of each query to the sources.

    Scores are clipped by a LeakyReLU, scaled per source by their norm over the *queries* of a set, and turned
    into shares by a softmax over the sources.

    Parameters
    ----------
    raw : Tensor, (G, K, H, Q)
        Inner products.
    query_mask, source_mask : Tensor, (H, Q) and (G, K), optional
        1 where valid.
    temperature : float
        Factor before the softmax.

    Returns
    -------
    Tensor, (G, K, H, Q)
        Shares of the sources; they sum to one over dimension 1.
    """
    clipped = F.leaky_relu(raw, LEAK)
    if query_mask is not None:
        clipped = clipped * query_mask
    clipped = clipped / (torch.linalg.vector_norm(clipped, dim=-1, keepdim=True) + EPS)
    logits = temperature * clipped
    if source_mask is not None:
        logits = logits.masked_fill(source_mask[:, :, None, None] == 0, -math.inf)
    return torch.softmax(logits, dim=1)


def context_cosine(share: Tensor, raw: Tensor, gram: Tensor, query_norm: Tensor) -> Tensor:
    """Cosine of every query with its attended context, without forming the contexts.

    With c = sum_k a_k r_k, <q, c> is sum_k a_k <q, r_k> and |c|^2 is a^T G a with the Gram matrix G.

    Parameters
    ----------
    share, raw : Tensor, (G, K, H, Q)
        Attention, and inner products of sources and queries.
    gram, query_norm : Tensor, (G, K, K) and (H, Q)
        Inner products of the sources, lengths of the queries.

    Returns
    -------
    Tensor, (G, H, Q)
    """
    dot = (share * raw).sum(1)
    flat = share.flatten(2)
    square = (flat * (gram @ flat)).sum(1).view_as(dot)
    # below 1e-24 the norm is clamped by the denominator anyway; the root keeps a finite slope
    return dot / (square.clamp_min(1e-24).sqrt() * query_norm).clamp_min(1e-8)


# Pools of values (..., Q) over the last axis. The mask is 1 at valid values, at least one of them; None: all.


def _lse(values: Tensor, mask: Tensor | None, sharpness: float) -> Tensor:
    """(1 / sharpness) log sum exp(sharpness values): the larger the sharpness, the closer to the maximum."""
    logits = sharpness * values
    if mask is not None:
        logits = logits.masked_fill(mask == 0, -math.inf)
    return torch.logsumexp(logits, -1) / sharpness


def _mean(values: Tensor, mask: Tensor | None, sharpness: float) -> Tensor:
    return values.mean(-1) if mask is None else (values * mask).sum(-1) / mask.sum(-1)


def _maximum(values: Tensor, mask: Tensor | None, sharpness: float) -> Tensor:
    return (values if mask is None else values.masked_fill(mask == 0, -math.inf)).amax(-1)


def _total(values: Tensor, mask: Tensor | None, sharpness: float) -> Tensor:
    return (values if mask is None else values * mask).sum(-1)


POOLS = {"lse": _lse, "mean": _mean, "max": _maximum, "sum": _total}
