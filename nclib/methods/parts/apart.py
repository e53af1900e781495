"""A loss term with a backward pass of its own, whose gradients are added for all weights at once.

Two batches that a network compares apart share its weights alone. One backward pass through both adds the
gradients weight by weight, a launch for each on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

from nclib.models.grouping import accelerated


def apart(term: Tensor, weights: Iterable[Tensor]) -> Tensor:
    """Return a term of a step, on a GPU with a backward pass of its own at the end of that of the step.

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
    shown, trained = term.detach().requires_grad_(), [w for w in weights if w.requires_grad]

    def add(of_all: Sequence[Tensor | None]) -> None:
        """Add the gradients in the layout of the weights, which fused optimisers want."""
        hook.remove()
        if of_all[0] is None:  # a backward pass without the term
            return
        gradients = torch.autograd.grad(term, trained, of_all[0], allow_unused=True)
        pairs = [(w, g.contiguous()) for w, g in zip(trained, gradients, strict=True) if g is not None]
        both = [(w.grad, g) for w, g in pairs if w.grad is not None]
        for w, gradient in pairs:
            if w.grad is None:  # no other term trains it, or its gradient is the last to come
                w.grad = gradient
        if both:
            torch._foreach_add_(*map(list, zip(*both, strict=True)))

    # called when the gradients of all these are known, all but the last of them in place
    hook = register_multi_grad_hook([shown, *trained], add)
    return shown
