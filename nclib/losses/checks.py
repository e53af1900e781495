"""Families of losses, the check of a similarity matrix, and its softmax."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


class Family(dict[str, Callable[..., Tensor]]):
    """Dict of losses; an unknown name raises a ValueError that lists the valid ones.

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


def scores(S: Tensor) -> Tensor:
    """Return similarities of a batch, half precision raised to float32, or raise an error that names S.

    Parameters
    ----------
    S : Tensor, (B, B), B >= 1
        Similarities of a floating type, images in rows, the given pairs on the diagonal.

    Returns
    -------
    Tensor, (B, B)
        ``S`` itself unless it has half precision; gradients flow.

    Raises
    ------
    TypeError
        If ``S`` is not a floating tensor.
    ValueError
        If ``S`` is not square or is empty.
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


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is positive and finite, else raise a ValueError that names it.

    Parameters
    ----------
    name : str
        Word for the error message.
    value : float
        Above 0 and finite.

    Returns
    -------
    float
        ``value`` unchanged.

    Raises
    ------
    ValueError
        If ``value`` is not positive or not finite.
    """
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
    logits = scores(S) / positive("tau", tau)
    return log_softmax(logits, 1), log_softmax(logits.T, 1)
