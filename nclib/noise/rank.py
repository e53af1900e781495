r"""Rank correlation of a pair's distances to a bank of matched pairs (REPAIR, Eqs. 6-9).

A bank holds M pairs that are predicted to be matched. A new pair's image has a distance to every image of the
bank, its caption one to every caption. If the pair is matched, both rank the bank alike; the Spearman
coefficient of the two rankings measures how much. No similarity network takes part, so none can confirm its
own mistakes.

Everything is batched and stays on its device; ranks are whole numbers, so ties are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nclib.common.options import Rule, check


class RankCorrespondence(NamedTuple):
    r"""Correlations :math:`corre` of pairs (Eq. 8), their soft labels :math:`y^*` and the anchors (Eq. 9)."""

    correlation: Tensor  # (B,), in [-1, 1]
    label: Tensor  # (B,), in [0, 1]
    mu: Tensor  # scalar
    gamma: Tensor  # scalar


# ------------------------------------------------------------------------------------------------- checks


def _numbers(x: Tensor, name: str, shape: str = "(..., M)", finite: bool = True) -> Tensor:
    """Detached floating numbers, half precision raised; refuses NaN and infinity on a CPU.

    ``shape`` says how many dimensions there must be; with dots at least one.
    """
    floating = isinstance(x, Tensor) and x.is_floating_point()
    wanted = 0 if "..." in shape else len(shape.strip("(),").split(","))
    if not floating or (x.ndim != wanted if wanted else x.ndim < 1):
        got = f"{x.dtype}, {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name} must be a tensor of floating numbers, {shape}, got {got}")
    x = x.detach()
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    # Reading a value back would stall an accelerator; there NaN shows in the loss.
    # A sum is finite exactly when all terms are, unless it overflows: only then look at every value.
    if finite and x.device.type == "cpu" and not bool(x.sum().isfinite()) and not bool(x.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinite values; has the network diverged?")
    return x


def _alike(one: Sequence[int], two: Sequence[int], names: str, must: str) -> None:
    """Raise a ValueError unless two shapes are the same."""
    if tuple(one) != tuple(two):
        raise ValueError(f"{names} must {must}, got {tuple(one)} and {tuple(two)}")


def _features(x: Tensor, bank: Tensor, names: tuple[str, str]) -> tuple[Tensor, Tensor]:
    x, bank = _numbers(x, names[0], "(B, D)"), _numbers(bank, names[1], "(M, D)")
    _alike(x.shape[1:], bank.shape[1:], " and ".join(names), "have the same width")
    return x, bank.to(x.dtype)


# ---------------------------------------------------------------------------------------- distances, Eq. 6


def _representatives(bank: Tensor) -> Tensor | None:
    """Return for every row of the bank the first row equal to it, (M,), or None when no rows are equal.

    A product of matrices may round two equal rows differently; ranks must not tell them apart.
    """
    key, order = bank.sum(1).sort(stable=True)
    same = key[1:] == key[:-1]
    if bank.device.type == "cpu":
        near = same.nonzero()[:, 0]
        if len(near) == 0:
            return None
        low, high = (bank.index_select(0, order[places]) for places in (near, near + 1))
        same[near] = (low == high).all(1)
    else:
        same &= (bank[order[1:]] == bank[order[:-1]]).all(1)
    place = torch.arange(len(bank), device=bank.device)
    starts = torch.cat([same.new_zeros(1), same]).logical_not() * place
    first = torch.empty_like(order)
    first[order] = order[starts.cummax(0).values]
    return first


class _Distances(NamedTuple):
    """Numbers (B, K) that rank the K distinct features of a bank, and which of them each entry has, (M,).

    ``place`` is None when all entries differ, K = M.
    """

    values: Tensor
    place: Tensor | None = None

    def of_entries(self) -> Tensor:
        """Return the numbers of all entries, (B, M)."""
        return self.values if self.place is None else self.values.index_select(-1, self.place)


def _order_by_distance(x: Tensor, bank: Tensor) -> _Distances:
    """Return numbers that rank the bank as its Euclidean distances to each row of x do."""
    # |x - b|^2 without |x|^2, which shifts a whole row, and without the root, which is monotone.
    first = _representatives(bank)
    if first is None or bank.device.type != "cpu":
        return _Distances(_shifted_square(x, bank), first)
    # Where one near tie that falls otherwise moves whole groups of entries, rounding shows: in double.
    kept, place = first.unique(return_inverse=True)
    return _Distances(_shifted_square(x.double(), bank.index_select(0, kept).double()), place)


def _shifted_square(x: Tensor, bank: Tensor) -> Tensor:
    return torch.addmm(bank.square().sum(1)[None], x, bank.t(), alpha=-2)


def bank_distances(x: Tensor, bank: Tensor) -> Tensor:
    """Euclidean distances of features to the entries of a bank (Eq. 6).

    Parameters
    ----------
    x, bank : Tensor, (B, D) and (M, D)
        Features of one modality.

    Returns
    -------
    Tensor, (B, M)
        Equal entries get equal distances.

    Raises
    ------
    ValueError
        For shapes that do not fit, or values that are not finite floating numbers.
    """
    x, bank = _features(x, bank, ("x", "bank"))
    d = _order_by_distance(x, bank).of_entries()
    return (d + x.to(d.dtype).square().sum(1, keepdim=True)).clamp_min(0).sqrt().to(x.dtype)


def nearest_entries(distances: Tensor, k: int) -> Tensor:
    """Return the ``k`` entries of a bank that are nearest (REPAIR, Eq. 10).

    An entry of a bank is a pair that is predicted to be matched, kept as the feature of its image and that
    of its caption; distances are within one modality.

    Parameters
    ----------
    distances : Tensor, (B, M)
        Of B queries to the M entries, from :func:`bank_distances`; negative values count as 0. Compared in
        single precision.
    k : int
        At least 1.

    Returns
    -------
    Tensor of int64, (B, min(k, M))
        Positions of entries in the bank, nearest first; of equally near ones the lower position first.

    Raises
    ------
    ValueError
        When ``distances`` is not a tensor of floating numbers, (B, M), or ``k`` is less than 1.

    Examples
    --------
    >>> nearest_entries(torch.tensor([[0.5, 0.1, 0.5, 0.3]]), 3)
    tensor([[1, 3, 0]])
    """
    check({"k": Rule(int, low=1)}, k=k)
    d = _numbers(distances, "distances", "(B, M)", finite=False)
    # Non-negative floats are ordered as their bits are: one whole number per entry says distance and place.
    bits = d.clamp_min(0).float().contiguous().view(torch.int32).to(torch.int64)
    key = (bits << 32) | torch.arange(d.shape[1], device=d.device)
    return key.topk(min(k, d.shape[1]), dim=1, largest=False).values & 0xFFFFFFFF


# ------------------------------------------------------------------------- ranks and correlation, Eqs. 7-8


def _argsort(d: Tensor) -> Tensor:
    if d.device.type == "cpu":  # the same memory, and twice the speed of torch's sort
        return torch.from_numpy(np.argsort(d.numpy(), axis=-1))
    return d.argsort(-1)


def _places(d: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the ascending order of each row, (..., K), and the rank (Eq. 7) at each place of that order.

    None in place of the ranks says that they are 1, 2, ..., K: no ties.
    """
    order = _argsort(d)
    s = d.gather(-1, order)
    tied = s[..., 1:] == s[..., :-1]
    if place is None:
        rank, n = _counting(s), s.shape[-1]
    else:
        # A bincount would wait for the device.
        count = place.new_zeros(s.shape[-1]).index_add_(0, place, torch.ones_like(place))
        rank, n = count[order].cumsum(-1), len(place)
    if d.device.type == "cpu" and not bool(tied.any()):
        return order, None if place is None else rank
    # Equal values share the rank of the last of them: the smallest such rank at or after each place.
    last = torch.cat([~tied, tied.new_ones(*s.shape[:-1], 1)], dim=-1)
    return order, rank.where(last, n).flip(-1).cummin(-1).values.flip(-1)


def _at_entries(order: Tensor, rank: Tensor | None, place: Tensor | None = None) -> Tensor:
    """Return the ranks in the order of the entries, (..., M)."""
    ranks = torch.empty_like(order).scatter_(-1, order, _counting(order) if rank is None else rank)
    return ranks if place is None else ranks.index_select(-1, place)


def _counting(like: Tensor) -> Tensor:
    return torch.arange(1, like.shape[-1] + 1, device=like.device).expand_as(like)


def max_ranks(values: Tensor) -> Tensor:
    r"""Ranks along the last axis, :math:`R(s_i) = \sum_j 1(s_j \le s_i)` (Eq. 7).

    Equal values all get the highest of their ranks (the usual Spearman coefficient would take the mean).

    Parameters
    ----------
    values : Tensor, (..., M)
        Finite floating numbers, else a ValueError.

    Returns
    -------
    Tensor of int64, (..., M), in 1..M
    """
    return _at_entries(*_places(_numbers(values, "values")))


def rank_correlation(d_image: Tensor, d_text: Tensor) -> Tensor:
    """Correlation of the two rankings of a bank (Eqs. 7 and 8).

    Parameters
    ----------
    d_image, d_text : Tensor, (..., M)
        Distances of each pair's image and caption to the M entries of the bank, or numbers in their order.

    Returns
    -------
    Tensor, (...), in [-1, 1]
        :math:`corre`; 0 where a ranking is constant, as with a bank of one entry or of none.

    Raises
    ------
    ValueError
        If the shapes differ or a value is not a finite floating number.
    """
    d_image, d_text = _numbers(d_image, "d_image"), _numbers(d_text, "d_text")
    _alike(d_image.shape, d_text.shape, "d_image and d_text", "have the same shape")
    return _correlation(_Distances(d_image), _Distances(d_text))


def _correlation(image: _Distances, text: _Distances) -> Tensor:
    # Plan: 1. sort both sides; equal distances share the highest of their ranks; 2. without ties the ranks
    # are a permutation, whose correlation is one product of whole numbers; 3. with ties, the covariance of
    # the ranks over their spreads.
    n = image.values.shape[-1] if image.place is None else len(image.place)
    if n < 2:
        return image.values.new_zeros(image.values.shape[:-1])
    (order, a), (text_order, b) = _places(*image), _places(*text)
    wide = torch.float32 if image.values.device.type == "mps" else torch.float64
    if a is None and b is None:  # only on a CPU: whole numbers in float64, exact up to 200,000 entries
        steps = torch.arange(1, n + 1, dtype=wide)
        joint = torch.empty_like(order, dtype=wide).scatter_(-1, text_order, steps.expand_as(order))
        r = (joint.gather(-1, order) @ steps - n * (n + 1) ** 2 / 4) / (n * (n * n - 1) / 12)
        return r.to(image.values.dtype)
    a, b = (_at_entries(order, a, image.place).to(wide), _at_entries(text_order, b, text.place).to(wide))
    a, b = (rank - rank.mean(-1, keepdim=True) for rank in (a, b))
    spread = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    # Ranks that vary have a spread of at least 0.5; without variation the numerator is zero.
    return ((a * b).sum(-1) / spread.clamp_min(0.5)).to(image.values.dtype)


# ------------------------------------------------------------------------------------------- labels, Eq. 9


def rank_anchors(correlation: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\mu` and :math:`\gamma` of Eq. 9 as scalars.

    :math:`\gamma` is the mean of the largest tenth of the correlations, :math:`\mu` the mean of the smallest
    hundredth, both counts rounded up: at least that many pairs of a data set are taken to be matched, and
    mismatched.

    Parameters
    ----------
    correlation : Tensor, (N,), N >= 1
        Correlations, best those of a whole data set.

    Returns
    -------
    mu, gamma : Tensor, scalar
        On the device of the correlations.

    Raises
    ------
    ValueError
        If there are none, or they are not finite floating numbers.
    """
    r = _numbers(correlation, "correlation", "(N,)")
    if (n := len(r)) == 0:
        raise ValueError("correlation must hold at least one number, got none")
    mu = r.topk((n + 99) // 100, largest=False).values.mean()
    gamma = r.topk((n + 9) // 10).values.mean()
    return mu, gamma


def _like(r: Tensor, value: Tensor | float) -> Tensor:
    """Return a scalar in the type and on the device of ``r``, without waiting for the device."""
    return torch.as_tensor(value, dtype=r.dtype).to(r.device, non_blocking=True)


def rank_labels(correlation: Tensor, mu: Tensor | float, gamma: Tensor | float) -> Tensor:
    r"""Soft correspondence labels :math:`y^*` (Eq. 9).

    With :math:`\mu^+ = \max(0, \mu)`: 0 up to :math:`\mu^+`, 1 above :math:`\gamma`, linear between. When
    :math:`\gamma \le \mu^+` nothing lies between, and the label says whether the correlation exceeds
    :math:`\gamma`.

    Parameters
    ----------
    correlation : Tensor, (B,)
    mu, gamma : float or scalar Tensor
        From :func:`rank_anchors`.

    Returns
    -------
    Tensor, (B,), in [0, 1]
    """
    r = _numbers(correlation, "correlation", "(B,)", finite=False)
    low, high = _like(r, mu), _like(r, gamma)
    low = low.clamp_min(0)
    above = (r > high).to(r.dtype)
    between = ((r - low) / (high - low).clamp_min(torch.finfo(r.dtype).tiny)).clamp(0, 1)
    return torch.where(high > low, torch.maximum(above, between), above)


def rank_correspondence(
    images: Tensor,
    texts: Tensor,
    bank_images: Tensor,
    bank_texts: Tensor,
    *,
    mu: Tensor | float | None = None,
    gamma: Tensor | float | None = None,
) -> RankCorrespondence:
    r"""Soft correspondence of pairs by the agreement of two rankings of a bank (Eqs. 6-9).

    Parameters
    ----------
    images, texts : Tensor, (B, D) and (B, D')
        Features of the pairs.
    bank_images, bank_texts : Tensor, (M, D) and (M, D')
        Features of the bank's M pairs, in the same order.
    mu, gamma : float or scalar Tensor, optional
        Anchors of Eq. 9; those of the given pairs unless given.

    Returns
    -------
    RankCorrespondence
        Without gradient.

    Raises
    ------
    ValueError
        As in :func:`bank_distances`.

    Examples
    --------
    >>> import torch
    >>> from nclib.noise import rank_correspondence
    >>> bank = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> images, texts = torch.tensor([[0.1], [0.1]]), torch.tensor([[-0.5], [4.0]])
    >>> rank_correspondence(images, texts, bank, bank).correlation
    tensor([ 1., -1.])
    """
    images, bank_images = _features(images, bank_images, ("images", "bank_images"))
    texts, bank_texts = _features(texts, bank_texts, ("texts", "bank_texts"))
    numbers = (len(images), len(bank_images)), (len(texts), len(bank_texts))
    _alike(*numbers, "images and texts, of the pairs and of the bank,", "come in pairs")
    orders = _order_by_distance(images, bank_images), _order_by_distance(texts, bank_texts)
    correlation = _correlation(*orders).to(images.dtype)
    if mu is None or gamma is None:
        own = rank_anchors(correlation)
        mu, gamma = own[0] if mu is None else mu, own[1] if gamma is None else gamma
    mu, gamma = (_like(correlation, v) for v in (mu, gamma))
    return RankCorrespondence(correlation, rank_labels(correlation, mu, gamma), mu, gamma)
