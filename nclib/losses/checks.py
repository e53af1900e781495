"""Families of losses by name, and the check of a similarity matrix."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import torch
from torch import Tensor


class Family(dict[str, Callable[..., Tensor]]):
    """Dict of losses; an unknown name raises a ValueError that lists the valid ones and names ``kind``."""

    def __init__(self, kind: str, losses: dict[str, Callable[..., Tensor]]) -> None:
        super().__init__(losses)
        self.kind = kind

    def __missing__(self, name: str) -> Callable[..., Tensor]:
        near = difflib.get_close_matches(str(name), self, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {self.kind} {name!r}{hint} Available: {', '.join(self)}.")


def scores(S: Tensor) -> Tensor:
    """Return similarities of a batch, half precision raised to float32; gradients flow.

    Parameters
    ----------
    S : Tensor, (B, B), B >= 1
        Images in rows, the given pairs on the diagonal.

    Raises
    ------
    TypeError, ValueError
        If ``S`` is not a floating tensor, not square, or empty.
    """
    if not isinstance(S, Tensor):
        raise TypeError(f"S must be a torch.Tensor of similarities, got {type(S).__name__}")
    if S.ndim != 2 or S.shape[0] != S.shape[1] or S.shape[0] == 0:
        raise ValueError(
            f"S must be square, (B, B) with B >= 1 and the given pairs on its diagonal, got {tuple(S.shape)}"
        )
    if not S.is_floating_point():
        raise TypeError(f"S must have a floating dtype, got {S.dtype}")
    return S.float() if S.dtype in (torch.float16, torch.bfloat16) else S
