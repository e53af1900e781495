"""Losses of the softmax over a batch: InfoNCE, its robust relatives, and complementary losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nclib.losses.checks import Family, log_probabilities, positive


def info_nce(S: Tensor, tau: float) -> Tensor:
    """Symmetric InfoNCE (L2RM Eq. 3): ``-log p_v2t_ii - log p_t2v_ii``.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    tau : float, > 0
        Temperature, in units of the similarity.

    Returns
    -------
    Tensor, (B,)
        Loss of each pair; zero when B is 1.

    Raises
    ------
    ValueError, TypeError
        If ``S`` is not a square floating matrix or ``tau`` not positive.

    Examples
    --------
    >>> import torch
    >>> from nclib import losses
    >>> losses.info_nce(torch.tensor([[0.9, 0.1], [0.2, 0.7]]), tau=0.5)
    tensor([0.4043, 0.5765])
    """
    v2t, t2v = log_probabilities(S, tau)
    return -(v2t.diagonal() + t2v.diagonal())


def reverse_cross_entropy(S: Tensor, tau: float, eps: float = 1e-7) -> Tensor:
    """Reverse cross entropy in both directions (L2RM Eq. 5; Wang et al., ICCV 2019).

    ``-sum_j p_ij log Y_ij`` with the softened one-hot ``Y = I + eps``. It is bounded by ``-2 log eps``, so
    that a pair of low probability cannot dominate the batch.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    tau : float, > 0
        Temperature.
    eps : float, > 0
        What replaces the zeros of the one-hot label.

    Returns
    -------
    Tensor, (B,)
    """
    off, on = math.log(positive("eps", eps)), math.log1p(eps)
    v2t, t2v = log_probabilities(S, tau)
    both = torch.stack([v2t.diagonal(), t2v.diagonal()])  # (2, B)
    # The off-diagonal probabilities of a row sum to 1 - p_ii.
    return (torch.expm1(both) * off - both.exp() * on).sum(0)


def infonce_rce(S: Tensor, tau: float, eps: float = 1e-7) -> Tensor:
    """Half of InfoNCE plus reverse cross entropy: the warm-up loss of L2RM's official code.

    The paper (Eq. 6) prints the sum without the half; the half matters because the gradient norm is clipped.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    tau : float, > 0
        Temperature.
    eps : float, > 0
        See :func:`reverse_cross_entropy`.

    Returns
    -------
    Tensor, (B,)
    """
    return 0.5 * (info_nce(S, tau) + reverse_cross_entropy(S, tau, eps))


def generalised_cross_entropy(S: Tensor, tau: float, q: float = 0.7) -> Tensor:
    """Generalised cross entropy in both directions (Zhang and Sabuncu, NeurIPS 2018): ``(1 - p_ii^q) / q``.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    tau : float, > 0
        Temperature.
    q : float in (0, 1]
        Near 0 it is InfoNCE, at 1 the mean absolute error.

    Returns
    -------
    Tensor, (B,)
        Loss of each pair, at most ``2 / q``.

    Raises
    ------
    ValueError, TypeError
        If ``S`` is not a square floating matrix, ``tau`` not positive or ``q`` outside (0, 1].

    Examples
    --------
    >>> import torch
    >>> from nclib import losses
    >>> losses.generalised_cross_entropy(torch.tensor([[0.9, 0.1], [0.2, 0.7]]), tau=0.5)
    tensor([0.3768, 0.5217])
    """
    if not 0 < q <= 1:
        raise ValueError(f"q must lie in (0, 1], got {q}")
    v2t, t2v = log_probabilities(S, tau)
    return -(torch.expm1(q * v2t.diagonal()) + torch.expm1(q * t2v.diagonal())) / q


def _complement(log_p: Tensor) -> Tensor:
    """Return ``1 - p``, (B, B), without cancellation where p is near 1 (at most one place per row)."""
    if log_p.shape[1] == 1:
        return log_p * 0  # p is 1, and the gradient stays connected
    top = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, log_p.argmax(1, keepdim=True), True)
    rest = log_p.masked_fill(top, -math.inf).logsumexp(1, keepdim=True).exp()  # (B, 1), sum of the others
    return torch.where(top, rest, -torch.expm1(log_p))


EPS = 1e-10  # bounds the logarithm: a negative of probability one costs at most 23.03

COMPLEMENTARY = Family(
    "complementary loss",
    {
        "log": lambda p, rest, q: -(rest + EPS).log(),
        "tan": lambda p, rest, q: p.tan(),
        "abs": lambda p, rest, q: p,
        "exp": lambda p, rest, q: (-rest).exp(),
        "gce": lambda p, rest, q: (1 - (rest + EPS) ** q) / q,
    },
)
"""Functions f of a negative's probability (RCL): ``f(p, 1 - p, q)``, elementwise; ``q`` is the exponent of
"gce". Both p and 1 - p are given, since 1 - p of a probability near one cannot be had from p in float32."""


def complementary(
    S: Tensor,
    loss: str = "log",
    tau: float = 0.05,
    *,
    q: float = 0.2,
    negatives: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Complementary contrastive loss, both directions added (RCL; Hu et al., TPAMI 2023).

    ``sum_{j != i} f(p_ij)``: only negatives are supervised, so that a wrong positive never pulls together.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows, the given pairs on the diagonal.
    loss : {"log", "tan", "abs", "exp", "gce"}
        The function f of the negatives' probabilities, one of :data:`COMPLEMENTARY`.
    tau : float, > 0
        Temperature, in units of the similarity.
    q : float in (0, 1]
        Exponent of ``"gce"``.
    negatives : two Tensors of bool, (B, B), optional
        Those that count, for images as queries and for captions as queries, one query per row; all when not
        given. The diagonal never counts.

    Returns
    -------
    Tensor, (B,)
        The sum over the negatives of each pair; zero when B is 1.

    Raises
    ------
    ValueError, TypeError
        For an unknown loss, a temperature or an exponent out of range, or a matrix that is not square.
    """
    f, per_direction = COMPLEMENTARY[loss], []
    if not 0 < q <= 1:
        raise ValueError(f"q must lie in (0, 1], got {q}")
    for direction, log_p in enumerate(log_probabilities(S, tau)):  # p_v2t, then p_t2v, queries in rows
        values = f(log_p.exp(), _complement(log_p), q)  # (B, B)
        out = torch.eye(len(S), dtype=torch.bool, device=S.device)
        if negatives is not None:
            out = out | ~negatives[direction]
        per_direction.append(values.masked_fill(out, 0.0).sum(1))  # (B,)
    return per_direction[0] + per_direction[1]
