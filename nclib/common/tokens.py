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
        if self.ids.ndim != 2 or self.ids.shape[0] != len(self.lengths):
            raise ValueError(
                f"Tokens: ids has shape {tuple(self.ids.shape)} but there are {len(self.lengths)} lengths; "
                "ids must be (captions, words)"
            )
        if self.lengths and not (min(self.lengths) >= 1 and max(self.lengths) <= self.ids.shape[1]):
            raise ValueError(
                f"Tokens: lengths must lie in 1..{self.ids.shape[1]} (the width of ids), "
                f"got {min(self.lengths)}..{max(self.lengths)}; is a caption empty?"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> Tokens:
        """Return the same captions with ``ids`` on ``device``."""
        return Tokens(self.ids.to(device, non_blocking=True), self.lengths)
