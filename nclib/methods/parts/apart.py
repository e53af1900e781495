"""A loss term with a backward pass of its own, whose gradients are added for all weights at once.

Two batches that a network compares apart share its weights alone. One backward pass through both adds the
gradients weight by weight, a launch for each on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from nclib.models.grouping import accelerated


def apart(term: Tensor, weights: Iterable[Tensor]) -> Tensor:
    """Return a term of a step, on a GPU with a backward pass of its own within that of the step.

    Parameters
    ----------
    term : Tensor, ()
        Shares with the other terms of its step nothing but weights.
    weights : iterable of Tensor
        All that the term trains.

    Returns
    -------
    Tensor, ()
        The same value. Its gradients cannot be differentiated.
    """
    if not accelerated(term.device):
        return term
    found: Tensor = _Apart.apply([term], *(w for w in weights if w.requires_grad))
    return found


class _Apart(torch.autograd.Function):
    """See :func:`apart`; the term is in a list, so that its graph does not become a part of this one."""

    @staticmethod
    def forward(ctx: Any, term: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.term, ctx.weights = term, weights
        return term[0].detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        found = torch.autograd.grad(ctx.term, ctx.weights, grads, allow_unused=True)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: _add(ctx.weights, found))  # once the other gradients are there
        return (None,) * (1 + len(found))


def _add(weights: Iterable[Tensor], gradients: Iterable[Tensor | None]) -> None:
    """Add gradients to those of the weights, in the layout of these, which fused optimisers want."""
    pairs = [(w, g.contiguous()) for w, g in zip(weights, gradients, strict=True) if g is not None]
    both = [(w.grad, g) for w, g in pairs if w.grad is not None]
    for w, gradient in pairs:
        if w.grad is None:
            w.grad = gradient
    if both:
        torch._foreach_add_(*map(list, zip(*both, strict=True)))
