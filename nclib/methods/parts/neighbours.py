"""IN2R's queue of trusted pairs, and the log of the neighbours that noisy pairs found in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nclib.methods.base import Truth
from nclib.methods.parts.replacing import relevance_of

KEPT = 1000  # rectified pairs of an epoch, the last ones, whose neighbours are kept


class Queue:
    """The last ``size`` trusted pairs of a network as unit vectors, on its device; the oldest leave first."""

    def __init__(self, size: int) -> None:
        self.size, self.count, self._next = size, 0, 0
        self._room = [torch.empty(0)] * 3  # for images, captions and numbers

    def __len__(self) -> int:
        return self.count

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors of images and of captions, (len, D) each, and the numbers of the pairs, (len,)."""
        v, t, pairs = (room[: self.count] for room in self._room)
        return v, t, pairs

    @torch.no_grad()
    def push(self, v: Tensor, t: Tensor, index: Tensor, chosen: Tensor) -> None:
        """Append the ``chosen`` ones, bool (B,), of B pairs; it and ``index`` (B,) are on the host."""
        rows = chosen.nonzero()[:, 0][-self.size :]
        if not self.count:
            self._make(v)
        slots = (self._next + torch.arange(len(rows))) % self.size
        there, here, numbers = (x.to(v.device, non_blocking=True) for x in (slots, rows, index[rows]))
        for room, new in zip(self._room, (v[here], t[here], numbers), strict=True):
            room.index_copy_(0, there, new)
        self._next = (self._next + len(rows)) % self.size
        self.count = min(self.count + len(rows), self.size)

    def _make(self, like: Tensor) -> None:
        vectors = (like.new_zeros(self.size, like.shape[1]) for _ in range(2))
        self._room = [*vectors, torch.zeros(self.size, dtype=torch.int64, device=like.device)]

    def state(self) -> dict[str, Any]:
        """Return everything :meth:`load_state` needs."""
        v, t, pairs = self.rows()
        return {"next": self._next, "v": v, "t": t, "pairs": pairs}

    def load_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore what :meth:`state` returned, on ``device``."""
        self._next, self.count = state["next"], len(state["v"])
        if self.count:
            self._make(state["v"].to(device))
            for mine, name in zip(self.rows(), ("v", "t", "pairs"), strict=True):
                mine.copy_(state[name])


class NeighbourLog:
    """Collects the rectified pairs of one epoch; nothing is read back before it ends."""

    def __init__(self) -> None:
        self._found: list[tuple[Tensor, Tensor]] = []

    def add(self, pair: Tensor, neighbours: Tensor) -> None:
        """Note noisy pairs, (B,) on the host, and the trusted pairs nearest to their images, (B, K)."""
        self._found.append((pair, neighbours))

    def arrays(self) -> dict[str, Tensor]:
        """Return ``rectified_pair``, (R,), and ``rectified_by``, (R, K), of the last pairs of the epoch."""
        if not self._found:
            return {}
        K = self._found[-1][1].shape[1]  # fewer while the queue was nearly empty
        last = [(pair, by) for pair, by in self._found if by.shape[1] == K]
        pair, by = (torch.cat(parts)[-KEPT:] for parts in zip(*last, strict=True))
        return {"rectified_pair": pair, "rectified_by": by.cpu()}

    def report(self, truth: Truth) -> dict[str, float]:
        """Score the neighbours against the ground truth.

        ``rectified``: number of rectified pairs of the epoch (both networks; a pair counts each time).
        ``rectified_precision``: share of truly mismatched ones. ``given_relevance`` and
        ``neighbour_relevance``: mean share of the facts of the given caption, and of the neighbours'
        captions, that hold for the image; only where the data know relevance. The last three are of the last
        pairs only (:data:`KEPT`).
        """
        arrays = self.arrays()
        if not arrays:
            return {"rectified": 0}
        pair, by = arrays["rectified_pair"], arrays["rectified_by"]
        result = {
            "rectified": sum(len(each) for each, _ in self._found),
            "rectified_precision": float(1 - truth.matched[pair.numpy()].mean()),
        }
        if truth.relevance is not None:
            image = pair.repeat_interleave(by.shape[1])
            result["given_relevance"] = float(relevance_of(truth, pair, pair).mean())
            result["neighbour_relevance"] = float(relevance_of(truth, image, by.flatten()).mean())
        return result
