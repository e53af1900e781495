"""Confident pairs, neighbour votes and relation costs of UOT-RCL (Eqs. 4 to 8 and 16).

Functions of embeddings and class probabilities, without networks or state.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_FLOOR = 1e-8  # of a vote, so that a class without votes costs -log(1e-8) = 18.42 and not infinity
SIMILARITY_FLOOR = 1e-3  # keeps the ratio of Eq. 7 defined for similarities of zero and below
ROWS = 2048  # rows of a similarity matrix at a time
ENTRIES = 2**24  # entries of the (rows, B, |G|) mixtures at a time


def _entropy(p: Tensor) -> Tensor:
    """Return the entropy of distributions along the last axis, natural logarithm, 0 log 0 = 0."""
    return torch.special.entr(p).sum(-1)


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of rows, (..., K) and (..., K) -> (...), Eq. 4; 0 to log 2."""
    return (_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2).clamp_min(0)


def confident_pairs(p_images: Tensor, p_texts: Tensor, per_class: int) -> Tensor:
    """Return the class-balanced confident set G: the pairs whose two predictions agree best (Eq. 5).

    Parameters
    ----------
    p_images, p_texts : Tensor, (N, K)
        Class probabilities of the two modalities.
    per_class : int
        Pairs kept for every class that the mean prediction names; fewer where fewer are named.

    Returns
    -------
    Tensor, int64, (|G|,)
        Ascending positions; among equal divergences the lowest position is kept.
    """
    named = ((p_images + p_texts) / 2).argmax(1)  # (N,)
    best_first = jensen_shannon(p_images, p_texts).argsort(stable=True)
    order = best_first[named[best_first].argsort(stable=True)]  # by class, best first within it
    sizes = torch.bincount(named, minlength=p_images.shape[1])
    first = (sizes.cumsum(0) - sizes)[named[order]]
    place = torch.arange(len(order), device=order.device) - first
    return order[place < per_class].sort().values


def consistency(z: Tensor, z_other: Tensor, confident: Tensor) -> Tensor:
    r"""Return the cross-modal consistency :math:`\mathcal C` of every pair (Eq. 7), (N,) in (0, 1].

    The nearest confident pair is searched in the modality of ``z``; its similarity there is compared with
    the similarity to the *same* pair in the other modality. The printed ratio grows when the other modality
    disagrees; here the smaller of it and its inverse counts, which is 1 when both agree. The confident pairs
    themselves have 1.

    Parameters
    ----------
    z, z_other : Tensor, (N, L)
        Unit embeddings of the modality that searches, and of the other one.
    confident : Tensor, int64, (|G|,)
        The confident set.
    """
    found = [(part @ z[confident].T).max(1) for part in z.split(ROWS)]  # (rows, |G|)
    nearest = confident[torch.cat([f.indices for f in found])]
    a = torch.cat([f.values for f in found]).clamp_min(SIMILARITY_FLOOR)
    b = (z_other * z_other[nearest]).sum(1).clamp_min(SIMILARITY_FLOOR)
    ratio = torch.minimum(a / b, b / a)
    ratio[confident] = 1.0
    return ratio


def neighbour_vote(z: Tensor, targets: Tensor, k: int, *, pool: Tensor | None = None) -> Tensor:
    r"""Return the votes of the nearest neighbours, the inner sum of Eq. 8, (N, K).

    :math:`q_i = \frac1k \sum_{j \in \mathcal N_i} \max(\sigma(z_i, z_j), 0)\, Y_j`.

    Parameters
    ----------
    z : Tensor, (N, L)
        Unit embeddings of one modality.
    targets : Tensor, (N, K)
        Current training targets Y of that modality.
    k : int
        Neighbours; at most as many as there are. A sample does not vote on itself.
    pool : Tensor, int64, (M,), optional
        Samples among which neighbours are searched; all unless given. Time grows with N M.
    """
    everyone = torch.arange(len(z), device=z.device)
    chosen = everyone if pool is None else pool
    k = min(k, len(chosen) - 1)
    if k < 1:
        return torch.zeros_like(targets)
    votes, table = targets[chosen], z[chosen].T.contiguous()
    parts = []
    for rows in everyone.split(ROWS):
        s = z[rows] @ table  # (rows, M)
        s.masked_fill_(rows[:, None] == chosen, float("-inf"))
        top = s.topk(k, dim=1)
        weight = top.values.clamp_min(0)
        parts.append(F.embedding_bag(top.indices, votes, per_sample_weights=weight, mode="sum") / k)
    return torch.cat(parts)


def semantic_cost(vote: Tensor) -> Tensor:
    """Return the cost of giving every sample every class (Eq. 8), float64 (N, K); the smallest entry is 0.

    From the votes, (N, K), weighted and summed over the modalities. A shift of the whole cost changes no plan
    of fixed mass, and keeps the printed values at or above zero.
    """
    cost = -vote.double().clamp_min(LOG_FLOOR).log()
    return cost - cost.min()


def relation_scores(z: Tensor, anchors: Tensor, tau: float = 1.0) -> Tensor:
    r"""Return the similarity profile of samples to the confident set (Eq. 16), (B, |G|), rows sum to 1.

    Parameters
    ----------
    z, anchors : Tensor, (B, L) and (|G|, L)
        Unit embeddings of the samples, and of the confident set in the same modality.
    tau : float
        :math:`\tau_2`.
    """
    return (z @ anchors.T / tau).softmax(1)


def relation_cost(r_images: Tensor, r_texts: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of every image profile and every text profile, (B, B)."""
    rows = max(1, ENTRIES // max(1, r_texts.numel()))
    h_images, h_texts = _entropy(r_images), _entropy(r_texts)
    mixed = [_mixture_entropy(part, r_texts) for part in r_images.split(rows)]  # (rows, B)
    return (torch.cat(mixed) - (h_images[:, None] + h_texts) / 2).clamp_min(0)


def _mixture_entropy(a: Tensor, b: Tensor) -> Tensor:
    """Entropy of the mean of every row of ``a`` and every row of ``b``; half the time of :func:`_entropy`."""
    m = (a[:, None] + b).mul_(0.5).clamp_min_(torch.finfo(a.dtype).tiny)  # (rows, B, |G|)
    return m.log().mul_(m).sum(-1).neg_()
