"""Losses of a batch, as functions of its similarity matrix.

Every loss takes ``S``, (B, B): images in rows, captions in columns, the given pairs on the diagonal. It
returns one value per pair, (B,); the caller takes the mean or the sum, as its paper does. Both retrieval
directions are added, never averaged, unless a formula says otherwise. Half precision scores are raised to
float32 first, and nothing here waits for the device.

Symbols: ``tau`` temperature, ``margin`` alpha, ``plan`` the transport plan of the batch (rows images),
``p_v2t`` the softmax of ``S / tau`` over the captions of an image, ``p_t2v`` over the images of a caption.

Three families are filed by name, each with one call signature, so that a method can take a name as option:

======== ==================================== ========================================
family   call                                 names
======== ==================================== ========================================
WARMUP   ``loss(S, tau=..., margin=...)``     infonce_rce, infonce, rce, triplet, ...
REMATCH  ``loss(S, plan, tau, floor=1e-10)``  sym_kl, kl, infonce
SPLIT    ``loss(S, margin=..., tau=...)``     mean, hardest, infonce
======== ==================================== ========================================
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

__all__ = [
    "REMATCH",
    "SOFT_MARGIN",
    "SPLIT",
    "WARMUP",
    "complementary_log",
    "generalised_cross_entropy",
    "info_nce",
    "infonce_rce",
    "rematch_infonce",
    "rematch_kl",
    "rematch_sym_kl",
    "reverse_cross_entropy",
    "soft_margin_triplet",
    "soft_margins",
    "triplet",
]


class Family(dict[str, Callable[..., Tensor]]):
    """Losses by name; a wrong name is answered with the right ones.

    Parameters
    ----------
    kind : str
        Word used in the error message.
    losses : dict
        Name to function.
    """

    def __init__(self, kind: str, losses: dict[str, Callable[..., Tensor]]) -> None:
        super().__init__(losses)
        self.kind = kind

    def __missing__(self, name: str) -> Callable[..., Tensor]:
        near = difflib.get_close_matches(str(name), self, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {self.kind} {name!r}{hint} Available: {', '.join(self)}.")


# ------------------------------------------------------------------------------------------------ checks


def _scores(S: Tensor) -> Tensor:
    if not isinstance(S, Tensor):
        raise TypeError(f"S must be a torch.Tensor of similarities, got {type(S).__name__}")
    if S.ndim != 2 or S.shape[0] != S.shape[1] or S.shape[0] == 0:
        raise ValueError(
            f"S must be square, (B, B) with B >= 1 and the given pairs on its diagonal, got {tuple(S.shape)}"
        )
    if not S.is_floating_point():
        raise TypeError(f"S must have a floating dtype, got {S.dtype}")
    return S.float() if S.dtype in (torch.float16, torch.bfloat16) else S


def _positive(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return value


def log_probabilities(S: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the softmax of similarities in both directions.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    tau : float, > 0
        Temperature, in units of the similarity.

    Returns
    -------
    two Tensors, (B, B)
        Of p_v2t (captions of an image) and p_t2v (images of a caption), one query per row.

    Raises
    ------
    ValueError, TypeError
        If ``S`` is not a square floating matrix or ``tau`` not positive.
    """
    logits = _scores(S) / _positive("tau", tau)
    return log_softmax(logits, 1), log_softmax(logits.T, 1)


# --------------------------------------------------------------------------------------- triplet ranking


def _hardest(cost: Tensor, axis: int) -> Tensor:
    return cost.amax(axis)


def _mean(cost: Tensor, axis: int) -> Tensor:
    return cost.sum(axis) / cost.shape[axis]


def _sum(cost: Tensor, axis: int) -> Tensor:
    return cost.sum(axis)


_NEGATIVES = Family("negatives", {"hardest": _hardest, "mean": _mean, "sum": _sum})


def triplet(S: Tensor, margin: float = 0.2, negatives: str = "hardest") -> Tensor:
    """Hinge triplet ranking loss in both directions (L2RM Eq. 2; Faghri et al. 2018).

    For pair i and negatives j != i:
    ``[margin + S_ij - S_ii]_+`` over captions, plus ``[margin + S_ji - S_ii]_+`` over images.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    margin : float, >= 0
        alpha, in units of the similarity.
    negatives : {"hardest", "mean", "sum"}
        The largest term, the sum of all terms divided by the batch size B (not by B - 1; this is the loss
        that L2RM divides the data with), or the sum.

    Returns
    -------
    Tensor, (B,)
        Loss of each pair; zero when B is 1.

    Raises
    ------
    ValueError, TypeError
        If ``S`` is not a square floating matrix, or an argument is out of range.
    """
    S = _scores(S)
    if not (margin >= 0 and math.isfinite(margin)):
        raise ValueError(f"margin must be finite and not negative, got {margin}")
    reduce = _NEGATIVES[negatives]
    to_captions, to_images = hinges(S, margin)
    return reduce(to_captions, 1) + reduce(to_images, 0)


def hinges(S: Tensor, margin: float | Tensor, ignore: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the hinge of every negative caption and of every negative image, before any reduction.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows, the given pairs on the diagonal.
    margin : float or Tensor, (B,)
        Margin, in units of the similarity; one for all pairs or one for each.
    ignore : Tensor of bool, (B, B), optional
        Entries that are no negatives.

    Returns
    -------
    to_captions, to_images : Tensor, (B, B)
        ``[a_i + S_ij - S_ii]_+`` and ``[a_j + S_ij - S_jj]_+``, zero on the diagonal.
    """
    out = torch.eye(S.shape[0], dtype=torch.bool, device=S.device)
    if ignore is not None:
        out = out | ignore
    gap = margin - S.diagonal()  # (B,)
    to_captions = (S + gap[:, None]).masked_fill(out, 0.0).clamp_min(0)  # (B, B)
    to_images = (S + gap[None]).masked_fill(out, 0.0).clamp_min(0)  # (B, B)
    return to_captions, to_images


def _exponential(y: Tensor, base: float) -> Tensor:
    return (base**y - 1) / (base - 1)


def _linear(y: Tensor, base: float) -> Tensor:
    return y


def _sine(y: Tensor, base: float) -> Tensor:
    return torch.sin(math.pi * y - math.pi / 2) / 2 + 0.5


SOFT_MARGIN = Family("soft margin", {"exponential": _exponential, "linear": _linear, "sine": _sine})


def soft_margins(y: Tensor, margin: float = 0.2, base: float = 10.0, kind: str = "exponential") -> Tensor:
    """Turn soft correspondence labels into margins (NCR Eq. 10).

    Parameters
    ----------
    y : Tensor, (B,), in [0, 1]
        Soft label: 1 for a pair that surely corresponds.
    margin : float, >= 0
        alpha, the margin at ``y = 1``.
    base : float, > 1
        m of the exponential form ``alpha (m^y - 1) / (m - 1)``.
    kind : {"exponential", "linear", "sine"}
        Form of the margin; all give 0 at 0 and alpha at 1.

    Returns
    -------
    Tensor, (B,), in [0, margin]

    Raises
    ------
    ValueError
        For a base that is not above 1 or an unknown kind.
    """
    if not base > 1:
        raise ValueError(f"base must be above 1, got {base}")
    return margin * SOFT_MARGIN[kind](y, base)


def soft_margin_triplet(S: Tensor, margins: Tensor, ignore: Tensor | None = None) -> Tensor:
    """Hardest-negative triplet loss with a margin for every pair (NCR Eq. 9).

    The margin is that of the positive pair in both directions:
    ``[a_i + max_j S_ij - S_ii]_+ + [a_i + max_j S_ji - S_ii]_+``.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    margins : Tensor, (B,)
        Margin of each pair, in units of the similarity.
    ignore : Tensor of bool, (B, B), optional
        Entries that are no negatives.

    Returns
    -------
    Tensor, (B,)
        Loss of each pair; zero when B is 1.

    Raises
    ------
    ValueError, TypeError
        If ``S`` is not a square floating matrix or ``margins`` has another length.
    """
    S = _scores(S)
    if margins.shape != S.shape[:1]:
        raise ValueError(f"margins must be ({S.shape[0]},), one per pair, got {tuple(margins.shape)}")
    to_captions, to_images = hinges(S, margins.to(S.dtype), ignore)
    return to_captions.amax(1) + to_images.amax(0)


# ------------------------------------------------------------------------------------------ softmax losses


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
    """
    v2t, t2v = log_probabilities(S, tau)
    return -(v2t.diagonal() + t2v.diagonal())


def reverse_cross_entropy(S: Tensor, tau: float, eps: float = 1e-7) -> Tensor:
    """Reverse cross entropy in both directions (L2RM Eq. 5; Wang et al., ICCV 2019).

    ``-sum_j p_ij log Y_ij`` with the softened one-hot ``Y = I + eps``. It is bounded by ``-2 log eps``, so
    that a pair the model disbelieves cannot dominate the batch.

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
    off, on = math.log(_positive("eps", eps)), math.log1p(eps)
    v2t, t2v = log_probabilities(S, tau)
    both = torch.stack([v2t.diagonal(), t2v.diagonal()])  # (2, B)
    # The off-diagonal probabilities of a row sum to 1 - p_ii.
    return (torch.expm1(both) * off - both.exp() * on).sum(0)


def infonce_rce(S: Tensor, tau: float, eps: float = 1e-7) -> Tensor:
    """Half of InfoNCE plus reverse cross entropy: the warm-up loss of L2RM's released code.

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

COMPLEMENTARY: Family = Family(
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


def complementary_log(S: Tensor, tau: float) -> Tensor:
    """Return :func:`complementary` in its log form, (B,), as a loss of the temperature alone."""
    return complementary(S, "log", tau)


# ---------------------------------------------------------------------------------------------- rematching


def _targets(plan: Tensor, S: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return rows and (transposed) columns of the plan as distributions, (B, B) each, without gradient."""
    if not isinstance(plan, Tensor):
        raise TypeError(f"plan must be a torch.Tensor, got {type(plan).__name__}")
    if plan.shape != S.shape:
        raise ValueError(f"plan must have the shape of S, {tuple(S.shape)}, got {tuple(plan.shape)}")
    _positive("floor", floor)
    # The floor is too small for half precision, so both are raised before it is applied.
    dtype = _scores(S).dtype
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

    Parameters, shapes and errors as :func:`rematch_sym_kl`.
    """
    v2t, t2v = log_probabilities(S, tau)
    r, c = _targets(plan, S, floor)
    return (r * (r.log() - v2t)).sum(1) + (c * (c.log() - t2v)).sum(1)


def rematch_infonce(S: Tensor, plan: Tensor, tau: float, floor: float = 1e-10) -> Tensor:
    """InfoNCE with the plan as soft target: ``H(r_i, p_v2t_i) + H(c_i, p_t2v_i)`` (L2RM Table 3).

    Parameters, shapes and errors as :func:`rematch_sym_kl`. The plan carries no gradient, so this differs
    from :func:`rematch_kl` by the entropy of the targets alone and trains the same network.
    """
    v2t, t2v = log_probabilities(S, tau)
    r, c = _targets(plan, S, floor)
    return -(r * v2t).sum(1) - (c * t2v).sum(1)


# ------------------------------------------------------------------------------------------------ by name


def _by_temperature(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(S: Tensor, *, tau: float = 0.05, margin: float = 0.2) -> Tensor:
        return loss(S, tau)

    call.__doc__ = loss.__doc__
    return call


def _by_margin(negatives: str) -> Callable[..., Tensor]:
    def call(S: Tensor, *, tau: float = 0.05, margin: float = 0.2) -> Tensor:
        return triplet(S, margin, negatives)

    call.__doc__ = triplet.__doc__
    return call


_RANKING: dict[str, Any] = {"infonce": _by_temperature(info_nce)}

WARMUP = Family(
    "warm-up loss",
    {
        "infonce_rce": _by_temperature(infonce_rce),
        **_RANKING,
        "rce": _by_temperature(reverse_cross_entropy),
        "triplet": _by_margin("hardest"),
        "triplet_mean": _by_margin("mean"),
        "triplet_sum": _by_margin("sum"),
        "complementary_log": _by_temperature(complementary_log),
        "gce": _by_temperature(generalised_cross_entropy),
    },
)
"""Losses on all pairs as given; ``WARMUP[name](S, tau=0.05, margin=0.2)``. Each uses what it needs."""

REMATCH = Family("rematch loss", {"sym_kl": rematch_sym_kl, "kl": rematch_kl, "infonce": rematch_infonce})
"""Losses of the mismatched pairs against a transport plan; ``REMATCH[name](S, plan, tau, floor=1e-10)``."""

SPLIT = Family("split loss", {"mean": _by_margin("mean"), "hardest": _by_margin("hardest"), **_RANKING})
"""Per-pair losses that a mixture divides; ``SPLIT[name](S, margin=0.2, tau=0.05)``."""
