"""Families of losses by name, and the check of a similarity matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nclib.common.options import did_you_mean


class Family(dict[str, Callable[..., Tensor]]):
    """Dict of losses; an unknown name raises a ValueError that lists the valid ones and names ``kind``."""

    def __init__(self, kind: str, losses: dict[str, Callable[..., Tensor]]) -> None:
        super().__init__(losses)
        self.kind = kind

    def __missing__(self, name: str) -> Callable[..., Tensor]:
        hint = did_you_mean(name, self) or "."
        raise ValueError(f"unknown {self.kind} {name!r}{hint} Available: {', '.join(self)}.")


def scores(S: Tensor) -> Tensor:
    """Return similarities of a batch, half precision raised to float32; gradients flow.

    Parameters
    ----------
    S : Tensor, (B, B), B >= 1
        Images in rows, the given pairs on the diagonal.

    Raises
    ------
    ValueError
        If ``S`` is not a floating tensor, not square, or empty.
    """
    floating = isinstance(S, Tensor) and S.is_floating_point()
    if not floating or S.ndim != 2 or S.shape[0] != S.shape[1] or S.shape[0] == 0:
        given = f"{S.dtype} {tuple(S.shape)}" if isinstance(S, Tensor) else type(S).__name__
        raise ValueError(
            "S must be a torch.Tensor of a floating dtype, square (B, B) with B >= 1 and the given pairs on "
            f"its diagonal, got {given}"
        )
    return S.float() if S.dtype in (torch.float16, torch.bfloat16) else S
