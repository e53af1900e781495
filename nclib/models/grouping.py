"""Captions grouped by length, so that all pairs of a group are one dense block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

GROUP_BYTES = 2e9
"""What one more group of captions costs on an accelerator, where all calls are made once more: as much as
padding that leaves this number of bytes of results (estimated from one H100: 0.5 to 1 ms)."""


def accelerated(device: torch.device) -> bool:
    """Whether a device is an accelerator, where a call costs more than the work on padding."""
    return device.type != "cpu"


@dataclass(frozen=True)
class Group:
    """Captions that are compared together: which, their valid words, and the longest of these."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    width: int

    @property
    def padded(self) -> bool:
        """Whether some caption is shorter than the group's width."""
        return min(self.lengths) < self.width

    @property
    def words(self) -> int:
        """Words of all captions, padding included."""
        return len(self.rows) * self.width


class Grouped:
    """Cuts tensors with one row per caption into groups, and puts columns of scores back in order.

    On an accelerator, where every call counts, the rows of a single group stay in their order.
    """

    def __init__(self, groups: Sequence[Group], device: torch.device) -> None:
        self.whole = len(groups) == 1 and accelerated(device)
        if self.whole:
            return
        order = torch.tensor([row for group in groups for row in group.rows])
        self.order = order.to(device, non_blocking=True)
        self.sizes = [len(group.rows) for group in groups]

    def split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return the rows (C, ...) of each group."""
        return (tensor,) if self.whole else tensor.index_select(0, self.order).split(self.sizes)

    def join(self, tensors: Sequence[Tensor], dim: int = 1) -> Tensor:
        """Concatenate the groups' results along ``dim``, captions in their first order."""
        if self.whole:
            return tensors[0]
        back = torch.empty_like(self.order)
        back[self.order] = torch.arange(len(self.order), device=self.order.device)
        return torch.cat(list(tensors), dim).index_select(dim, back)

    @staticmethod
    def compute(function: Callable[..., Any], *inputs: Any, again: bool) -> Any:
        """Call a function without random numbers; ``again``: keep no results for the backward pass."""
        if again:
            return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
        return function(*inputs)


def buckets(counts: dict[int, int], *, group_cost: float) -> list[tuple[int, int]]:
    """Cut the lengths in use into runs with the least total cost.

    A run of lengths ``a..b`` with ``n`` captions costs ``group_cost + n * (b + 1)``. Few runs save calls,
    many runs save work on padding; dynamic programming finds the best cut.

    Parameters
    ----------
    counts, group_cost : dict, float
        Captions per length; fixed cost of a run, in units of one word of one caption.

    Returns
    -------
    list of (int, int)
        Shortest and longest length of each run, ascending.
    """
    lengths = sorted(counts)
    best: list[float] = [0.0]
    cut: list[int] = [0]
    for end in range(1, len(lengths) + 1):
        width = lengths[end - 1] + 1
        n, low, where = 0, float("inf"), end - 1
        for start in range(end - 1, -1, -1):
            n += counts[lengths[start]]
            cost = best[start] + group_cost + n * width
            if cost < low:
                low, where = cost, start
        best.append(low)
        cut.append(where)
    runs: list[tuple[int, int]] = []
    end = len(lengths)
    while end > 0:
        runs.append((lengths[cut[end]], lengths[end - 1]))
        end = cut[end]
    return runs[::-1]


def group_captions(lengths: tuple[int, ...], *, group_cost: float, max_words: int) -> list[Group]:
    """Group captions by length.

    Parameters
    ----------
    lengths, group_cost : tuple of int, float
        Valid words per caption; see :func:`buckets`, 0 gives one group per length.
    max_words : int
        Largest number of nodes (words and one more per caption) in a group.

    Returns
    -------
    list of Group
        Every caption once; short captions first.
    """
    counts = Counter(lengths)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[Group] = []
    start = 0
    for low, high in buckets(counts, group_cost=group_cost):
        stop = start + sum(counts[length] for length in range(low, high + 1))
        most = max(1, max_words // (high + 1))
        parts = -(-(stop - start) // most)
        for part in range(parts):  # parts of even size: no small remainder
            first = start + part * (stop - start) // parts
            last = start + (part + 1) * (stop - start) // parts
            rows = tuple(order[first:last])
            groups.append(Group(rows, tuple(lengths[r] for r in rows), max(lengths[r] for r in rows)))
        start = stop
    return groups
