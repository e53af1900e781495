"""IN2R's queue of trusted pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Queue:
    """The last ``size`` trusted pairs of a network as unit vectors, on its device; the oldest leave first."""

    def __init__(self, size: int) -> None:
        self.size, self.count, self._next = size, 0, 0
        self._room = [torch.empty(0)] * 2  # for images and captions

    def __len__(self) -> int:
        return self.count

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return vectors of images and of captions, (len, D) each."""
        v, t = (room[: self.count] for room in self._room)
        return v, t

    @torch.no_grad()
    def push(self, v: Tensor, t: Tensor, chosen: Tensor) -> None:
        """Append the ``chosen`` ones, bool (B,) on the host, of B pairs."""
        rows = chosen.nonzero()[:, 0][-self.size :]
        if not self.count:
            self._make(v)
        slots = (self._next + torch.arange(len(rows))) % self.size
        there, here = (x.to(v.device, non_blocking=True) for x in (slots, rows))
        for room, new in zip(self._room, (v, t), strict=True):
            room.index_copy_(0, there, new[here])
        self._next = (self._next + len(rows)) % self.size
        self.count = min(self.count + len(rows), self.size)

    def _make(self, like: Tensor) -> None:
        self._room = [like.new_zeros(self.size, like.shape[1]) for _ in range(2)]

    def state(self) -> dict[str, Any]:
        """Return everything :meth:`load_state` needs."""
        v, t = self.rows()
        return {"next": self._next, "v": v, "t": t}

    def load_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore what :meth:`state` returned, on ``device``."""
        self._next, self.count = state["next"], len(state["v"])
        if self.count:
            self._make(state["v"].to(device))
            for mine, name in zip(self.rows(), ("v", "t"), strict=True):
                mine.copy_(state[name])
