"""Optimisers of pairs: Adam and AMSGrad, each with decoupled weight decay where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch


def adam(
    groups: Iterable[Any], lr: float, *, weight_decay: float, amsgrad: bool = False
) -> torch.optim.Optimizer:
    """Return Adam; AdamW where weights decay, which they then do by themselves, not by their gradient."""
    kind, groups = torch.optim.AdamW if weight_decay else torch.optim.Adam, list(groups)
    weights = [w for group in groups for w in (group["params"] if isinstance(group, dict) else [group])]
    # Otherwise torch counts the steps of every weight on the host.
    fused = all(w.is_cuda and w.is_floating_point() for w in weights) or None
    return kind(groups, lr=lr, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": adam,
    "amsgrad": partial(adam, amsgrad=True),
}
"""Optimisers by name, called with weights or groups of these, ``lr`` and ``weight_decay``.
``book/baselines/omit`` adds AdamP."""


def build(name: str, groups: Iterable[Any], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return a new optimiser of weights, or groups of weights, by its name in :data:`OPTIMIZERS`."""
    return OPTIMIZERS[name](groups, lr, weight_decay=weight_decay)
