"""Padded caption tokens, the form in which captions go from a data set to a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Captions of a batch as padded token ids.

    Parameters
    ----------
    ids : Tensor, int64, (C, W)
        Token ids, padding id 0 on the right.
    lengths : tuple of int, length C
        Valid tokens per caption, start and end token included. Kept on the host, so that grouping
        captions by length never waits for the device.
    """

    ids: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        shape, n = tuple(self.ids.shape), len(self.lengths)
        least, most = min(self.lengths, default=1), max(self.lengths, default=0)
        if len(shape) != 2 or shape[0] != n or least < 1 or most > shape[1]:
            raise ValueError(
                "Tokens: ids must be (captions, words), lengths one number per caption in 1..words, got "
                f"{shape} and {n} lengths from {least} to {most}; is a caption empty?"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> Tokens:
        """Return the same captions with ``ids`` on ``device``."""
        return Tokens(self.ids.to(device, non_blocking=True), self.lengths)
