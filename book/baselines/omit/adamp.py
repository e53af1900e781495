r"""AdamP (Heo et al., ICLR 2021, arXiv 2006.08217), the optimiser of PCME.

It takes Adam's step without its part along the weights, where the weights are scale-invariant, as before a
normalisation. There that part only makes them longer, and so all later steps shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.runs.optimizers import OPTIMIZERS

DECAY_SHARE = 0.1  # of the weight decay, for weights that are taken to be scale-invariant


class AdamP(torch.optim.Optimizer):
    r"""AdamP: Adam's step :math:`p`, projected where weights are taken to be scale-invariant (Algorithm 2).

    :math:`w \leftarrow w-\eta q` with :math:`q=p-(\hat w\cdot p)\,\hat w`,
    :math:`\hat w=w/\lVert w\rVert`, where :math:`|\cos(w,\nabla f)|<\delta/\sqrt{\dim w}`, and :math:`q=p`
    elsewhere. As in the official code, :math:`w` is every row of a weight if all rows pass that test, else
    the whole weight if it does; biases are never projected.

    Parameters
    ----------
    groups : iterable
        Weights, or groups of weights, as other optimisers take them.
    lr : float, > 0
        Learning rate :math:`\eta`.
    weight_decay : float, >= 0
        Decoupled as in AdamW; a tenth of it for projected weights.
    betas, eps, delta : tuple of float, float, float
        Adam's, and the threshold :math:`\delta`.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        lr: float,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        delta: float = 0.1,
    ) -> None:
        values = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps, "delta": delta}
        super().__init__(groups, values)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all weights that have a gradient."""
        for group in self.param_groups:
            lr, eps, (beta1, beta2) = group["lr"], group["eps"], group["betas"]
            for w in group["params"]:
                if w.grad is None:
                    continue
                state = self.state[w]
                if not state:
                    state |= {"step": 0, "mean": torch.zeros_like(w), "square": torch.zeros_like(w)}
                state["step"] += 1
                mean = state["mean"].lerp_(w.grad, 1 - beta1)
                square = state["square"].mul_(beta2).addcmul_(w.grad, w.grad, value=1 - beta2)
                root = (square / (1 - beta2 ** state["step"])).sqrt() + eps
                step, share = mean / (1 - beta1 ** state["step"]) / root, 1.0
                if w.ndim > 1:
                    step, share = projected_step(step, w, w.grad, group["delta"], eps)
                if group["weight_decay"]:
                    w.mul_(1 - lr * group["weight_decay"] * share)
                w.sub_(lr * step)


def projected_step(step: Tensor, w: Tensor, gradient: Tensor, delta: float, eps: float) -> tuple[Tensor, Any]:
    """Return the step of one weight, projected where it is due, and its share of the weight decay.

    Parameters
    ----------
    step, w, gradient : Tensor, (n, ...)
    delta, eps : float
        As in :class:`AdamP`.

    Returns
    -------
    step : Tensor, (n, ...)
    share : Tensor, ()
    """
    moved, share = step, step.new_ones(())
    for rows in (1, len(w)):  # the test by rows comes first where both hold
        weight, along = w.reshape(rows, -1), step.reshape(rows, -1)
        cosine = F.cosine_similarity(gradient.reshape(rows, -1), weight, dim=1, eps=eps).abs().max()
        invariant = cosine < delta / math.sqrt(weight.shape[1])  # stays on the device
        unit = weight / (torch.linalg.vector_norm(weight, dim=1, keepdim=True) + eps)
        tangent = along - unit * (unit * along).sum(1, keepdim=True)
        moved = torch.where(invariant, tangent.view_as(step), moved)
        share = torch.where(invariant, DECAY_SHARE, share)
    return moved, share


OPTIMIZERS["adamp"] = AdamP
