"""Triplet ranking losses, with one margin for all pairs or one for each."""

from __future__ import annotations

import torch
from torch import Tensor

from nclib.common.checks import check_number
from nclib.losses.checks import Family, scores


def _mean(cost: Tensor, axis: int) -> Tensor:
    return cost.sum(axis) / cost.shape[axis]


_NEGATIVES = Family("negatives", {"hardest": torch.amax, "mean": _mean, "sum": torch.sum})


def triplet(S: Tensor, margin: float = 0.2, negatives: str = "hardest") -> Tensor:
    """Hinge triplet ranking loss in both directions (L2RM Eq. 2; Faghri et al. 2018).

    For negatives j != i ``[margin + S_ij - S_ii]_+`` over captions, plus ``[margin + S_ji - S_ii]_+``.

    Parameters
    ----------
    S : Tensor, (B, B)
    margin : float, >= 0
        alpha, in units of the similarity.
    negatives : {"hardest", "mean", "sum"}
        The largest term, the sum of all terms divided by the batch size B (not by B - 1; this is the loss
        that L2RM divides the data with), or the sum.

    Returns
    -------
    Tensor, (B,)
        Zero when B is 1.

    Raises
    ------
    ValueError
        If ``S`` is not a square floating matrix, or an argument is out of range.

    Examples
    --------
    >>> import torch
    >>> from nclib import losses
    >>> losses.triplet(torch.tensor([[0.5, 0.4], [0.1, 0.7]]), margin=0.2)
    tensor([0.1000, 0.0000])
    """
    S = scores(S)
    check_number("margin", margin, low=0)
    reduce = _NEGATIVES[negatives]
    to_captions, to_images = hinges(S, margin)
    return reduce(to_captions, 1) + reduce(to_images, 0)


def hinges(S: Tensor, margin: float | Tensor, ignore: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the hinge of every negative caption and of every negative image, before any reduction.

    Parameters
    ----------
    S : Tensor, (B, B)
    margin : float or Tensor, (B,)
        One for all pairs or one for each, in units of the similarity.
    ignore : Tensor of bool, (B, B), optional
        Entries that do not count as negatives.

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


def soft_margins(y: Tensor, margin: float = 0.2, base: float = 10.0) -> Tensor:
    """Turn soft correspondence labels into margins, ``margin (base^y - 1) / (base - 1)`` (NCR Eq. 10).

    Parameters
    ----------
    y : Tensor, (B,), in [0, 1]
        Soft label: 1 for a pair that surely corresponds.
    margin : float, >= 0
        alpha, the margin at ``y = 1``.
    base : float, > 1
        m.

    Returns
    -------
    Tensor, (B,), in [0, margin]

    Raises
    ------
    ValueError
        For a base that is not allowed.
    """
    check_number("base", base, above=1)
    return margin * ((base**y - 1) / (base - 1))


def soft_margin_triplet(S: Tensor, margins: Tensor, ignore: Tensor | None = None) -> Tensor:
    """Hardest-negative triplet loss with a margin for every pair (NCR Eq. 9).

    The margin is that of the positive pair in both directions:
    ``[a_i + max_j S_ij - S_ii]_+ + [a_i + max_j S_ji - S_ii]_+``.

    Parameters
    ----------
    S, ignore
        As in :func:`hinges`.
    margins : Tensor, (B,)

    Returns
    -------
    Tensor, (B,)
        Zero when B is 1.

    Raises
    ------
    ValueError
        If ``S`` is not a square floating matrix or ``margins`` has another length.
    """
    S = scores(S)
    if margins.shape != S.shape[:1]:
        raise ValueError(f"margins must be ({S.shape[0]},), one per pair, got {tuple(margins.shape)}")
    to_captions, to_images = hinges(S, margins.to(S.dtype), ignore)
    return to_captions.amax(1) + to_images.amax(0)
