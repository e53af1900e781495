"""Losses of a batch against a transport plan (L2RM)."""

from __future__ import annotations

import torch
from torch import Tensor

from nclib.losses.checks import log_probabilities, positive, scores


def _targets(plan: Tensor, S: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return rows and (transposed) columns of the plan as distributions, (B, B) each, without gradient."""
    if not isinstance(plan, Tensor):
        raise TypeError(f"plan must be a torch.Tensor, got {type(plan).__name__}")
    if plan.shape != S.shape:
        raise ValueError(f"plan must have the shape of S, {tuple(S.shape)}, got {tuple(plan.shape)}")
    positive("floor", floor)
    # The floor is too small for half precision, so both are raised before it is applied.
    dtype = scores(S).dtype
    kept = plan.detach().to(torch.promote_types(plan.dtype, torch.float32)).clamp_min(floor)
    rows = kept / kept.sum(1, keepdim=True)
    columns = (kept / kept.sum(0, keepdim=True)).T
    return rows.to(dtype), columns.to(dtype)


def rematch_sym_kl(S: Tensor, plan: Tensor, tau: float, floor: float = 1e-10) -> Tensor:
    """Symmetric Kullback-Leibler rematching loss (L2RM Eq. 10).

    ``1/2 [KL(r_i || p_v2t_i) + KL(p_v2t_i || r_i) + KL(c_i || p_t2v_i) + KL(p_t2v_i || c_i)]``, where ``r``
    and ``c`` are the rows and columns of ``max(plan, floor)``, each scaled to sum to one. A row without mass
    becomes uniform, its own pair included: label smoothing for the pairs that nothing was matched to.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    plan : Tensor, (B, B)
        Transport plan, same layout, entries >= 0. No gradient flows through it.
    tau : float, > 0
        Temperature.
    floor : float, > 0
        Smallest plan entry, before scaling. It sets the size of the reverse terms.

    Returns
    -------
    Tensor, (B,)
        Value of row i plus value of column i.

    Raises
    ------
    ValueError, TypeError
        If the shapes differ, ``S`` is not square, or a number is out of range.
    """
    v2t, t2v = log_probabilities(S, tau)
    r, c = _targets(plan, S, floor)
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
    ValueError, TypeError
        As :func:`rematch_sym_kl`.
    """
    v2t, t2v = log_probabilities(S, tau)
    r, c = _targets(plan, S, floor)
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
    ValueError, TypeError
        As :func:`rematch_sym_kl`.
    """
    v2t, t2v = log_probabilities(S, tau)
    r, c = _targets(plan, S, floor)
    return -(r * v2t).sum(1) - (c * t2v).sum(1)
