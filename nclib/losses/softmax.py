"""Losses of the softmax over a batch: InfoNCE, its robust relatives, rematching (L2RM), complementary."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from nclib.common.checks import check_number
from nclib.losses.checks import Family, scores


def log_probabilities(S: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the softmax of similarities in both directions.

    Parameters
    ----------
    S : Tensor, (B, B)
    tau : float, > 0
        Temperature, in units of the similarity.

    Returns
    -------
    two Tensors, (B, B)
        Of p_v2t (captions of an image) and p_t2v (images of a caption), one query per row.

    Raises
    ------
    ValueError
        If ``S`` is not a square floating matrix or ``tau`` not positive.
    """
    S = scores(S)
    check_number("tau", tau, above=0)
    logits = S / tau
    return log_softmax(logits, 1), log_softmax(logits.T, 1)


def info_nce(S: Tensor, tau: float) -> Tensor:
    """Symmetric InfoNCE (L2RM Eq. 3): ``-log p_v2t_ii - log p_t2v_ii``.

    Parameters
    ----------
    S, tau
        With the errors of :func:`log_probabilities`.

    Returns
    -------
    Tensor, (B,)
        Zero when B is 1.

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
    S, tau
        With the errors of :func:`log_probabilities`.
    eps : float, > 0
        What replaces the zeros of the one-hot label.

    Returns
    -------
    Tensor, (B,)
    """
    check_number("eps", eps, above=0)
    off, on = math.log(eps), math.log1p(eps)
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
    S, tau
        With the errors of :func:`log_probabilities`.
    q : float in (0, 1]
        Near 0 it is InfoNCE, at 1 the mean absolute error.

    Returns
    -------
    Tensor, (B,)
        At most ``2 / q``.

    Examples
    --------
    >>> import torch
    >>> from nclib import losses
    >>> losses.generalised_cross_entropy(torch.tensor([[0.9, 0.1], [0.2, 0.7]]), tau=0.5)
    tensor([0.3768, 0.5217])
    """
    check_number("q", q, above=0, high=1)
    v2t, t2v = log_probabilities(S, tau)
    return -(torch.expm1(q * v2t.diagonal()) + torch.expm1(q * t2v.diagonal())) / q


def rince(S: Tensor, tau: float, q: float = 0.5, lam: float = 0.01) -> Tensor:
    r"""Robust InfoNCE in both directions (RINCE; Chuang et al., CVPR 2022).

    :math:`-e^{q s_{ii}} / q + (\lambda \sum_j e^{s_{ij}})^q / q` with :math:`s = S / \tau`. This is
    :math:`(\lambda^q - p_{ii}^q) / q` times the partition sum to the power q: generalised cross entropy whose
    queries weigh by their partition sum, so that it is not bounded.

    Parameters
    ----------
    S, tau
        With the errors of :func:`log_probabilities`.
    q : float in (0, 1]
        Near 0 it has the gradient of InfoNCE; the paper recommends 0.1 to 0.5.
    lam : float in (0, 1]
        :math:`\lambda`, weight of the partition sum; smaller values put more weight on the positives.

    Returns
    -------
    Tensor, (B,)
        Negative where :math:`p_{ii} > \lambda`.
    """
    check_number("q", q, above=0, high=1)
    check_number("lam", lam, above=0, high=1)
    v2t, t2v = log_probabilities(S, tau)
    logits = scores(S) / tau
    both = torch.stack([v2t.diagonal(), t2v.diagonal()])  # (2, B)
    sums = torch.stack([logits.logsumexp(1), logits.logsumexp(0)])
    return ((q * sums).exp() * (lam**q - (q * both).exp()) / q).sum(0)


# ------------------------------------------------------------- against a transport plan: rematching (L2RM)


def _with_targets(S: Tensor, plan: Tensor, tau: float, floor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities in both directions; rows and columns of the plan as distributions; (B, B) each."""
    v2t, t2v = log_probabilities(S, tau)
    if not isinstance(plan, Tensor) or plan.shape != S.shape:
        shape = getattr(plan, "shape", ())
        raise ValueError(
            f"plan must be a torch.Tensor of the shape of S, {tuple(S.shape)}, got {type(plan).__name__} "
            f"{tuple(shape)}"
        )
    check_number("floor", floor, above=0)
    # The floor is too small for half precision, so both are raised before it is applied.
    kept = plan.detach().to(torch.promote_types(plan.dtype, torch.float32)).clamp_min(floor)
    rows = kept / kept.sum(1, keepdim=True)
    columns = (kept / kept.sum(0, keepdim=True)).T
    return v2t, t2v, rows.to(v2t.dtype), columns.to(v2t.dtype)


def rematch_sym_kl(S: Tensor, plan: Tensor, tau: float, floor: float = 1e-10) -> Tensor:
    """Symmetric Kullback-Leibler rematching loss (L2RM Eq. 10).

    ``1/2 [KL(r_i || p_v2t_i) + KL(p_v2t_i || r_i) + KL(c_i || p_t2v_i) + KL(p_t2v_i || c_i)]``, where ``r``
    and ``c`` are the rows and columns of ``max(plan, floor)``, each scaled to sum to one. A row without mass
    becomes uniform, its own pair included: label smoothing for the pairs that nothing was matched to.

    Parameters
    ----------
    S, tau
        With the errors of :func:`log_probabilities`.
    plan : Tensor, (B, B)
        Transport plan, same layout, entries >= 0. No gradient flows through it.
    floor : float, > 0
        Smallest plan entry, before scaling. It sets the size of the reverse terms.

    Returns
    -------
    Tensor, (B,)
        Value of row i plus value of column i.

    Raises
    ------
    ValueError
        If the plan has another shape than ``S``, or a number is out of range.
    """
    v2t, t2v, r, c = _with_targets(S, plan, tau, floor)
    # KL(a || b) + KL(b || a) = sum (a - b)(log a - log b): every term is >= 0, so nothing cancels.
    rows = ((r - v2t.exp()) * (r.log() - v2t)).sum(1)
    columns = ((c - t2v.exp()) * (c.log() - t2v)).sum(1)
    return 0.5 * (rows + columns)


def rematch_kl(S: Tensor, plan: Tensor, tau: float, floor: float = 1e-10) -> Tensor:
    """One-sided rematching loss ``KL(r_i || p_v2t_i) + KL(c_i || p_t2v_i)`` (L2RM Table 3, "w KL").

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    plan : Tensor, (B, B)
        Transport plan, same layout, entries >= 0. No gradient flows through it.
    tau : float, > 0
        Temperature.
    floor : float, > 0
        Smallest plan entry, before scaling.

    Returns
    -------
    Tensor, (B,)
        Value of row i plus value of column i.

    Raises
    ------
    ValueError
        As :func:`rematch_sym_kl`.
    """
    v2t, t2v, r, c = _with_targets(S, plan, tau, floor)
    return (r * (r.log() - v2t)).sum(1) + (c * (c.log() - t2v)).sum(1)


def rematch_infonce(S: Tensor, plan: Tensor, tau: float, floor: float = 1e-10) -> Tensor:
    """InfoNCE with the plan as soft target: ``H(r_i, p_v2t_i) + H(c_i, p_t2v_i)`` (L2RM Table 3).

    The plan carries no gradient, so this differs from :func:`rematch_kl` by the entropy of the targets alone
    and trains the same network.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    plan : Tensor, (B, B)
        Transport plan, same layout, entries >= 0. No gradient flows through it.
    tau : float, > 0
        Temperature.
    floor : float, > 0
        Smallest plan entry, before scaling.

    Returns
    -------
    Tensor, (B,)
        Value of row i plus value of column i.

    Raises
    ------
    ValueError
        As :func:`rematch_sym_kl`.
    """
    v2t, t2v, r, c = _with_targets(S, plan, tau, floor)
    return -(r * v2t).sum(1) - (c * t2v).sum(1)


# --------------------------------------------------------------------------------------- of negatives (RCL)


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
) -> Tensor:
    """Complementary contrastive loss, both directions added (RCL; Hu et al., TPAMI 2023).

    ``sum_{j != i} f(p_ij)``: only negatives are supervised, so that a wrong positive never pulls together.

    Parameters
    ----------
    S, tau
        With the errors of :func:`log_probabilities`.
    loss : {"log", "tan", "abs", "exp", "gce"}
        The function f of the negatives' probabilities, one of :data:`COMPLEMENTARY`.
    q : float in (0, 1]
        Exponent of ``"gce"``.

    Returns
    -------
    Tensor, (B,)
        The sum over the negatives of each pair; zero when B is 1.
    """
    f, per_direction = COMPLEMENTARY[loss], []
    check_number("q", q, above=0, high=1)
    given = torch.eye(len(S), dtype=torch.bool, device=S.device)
    for log_p in log_probabilities(S, tau):  # p_v2t, then p_t2v, queries in rows
        values = f(log_p.exp(), _complement(log_p), q)  # (B, B)
        per_direction.append(values.masked_fill(given, 0.0).sum(1))  # (B,)
    return per_direction[0] + per_direction[1]
