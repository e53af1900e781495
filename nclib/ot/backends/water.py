"""Water filling: the common level at which capped weights add up to a given mass."""

from __future__ import annotations

import torch
from torch import Tensor


def water_level(level: Tensor, cap: Tensor, mass: Tensor) -> Tensor:
    """Solve ``sum_i min(exp(z + level_i), cap_i) = mass`` for z; exact, by sorting, differentiable.

    Parameters
    ----------
    level : Tensor, shape (..., n)
        Finite, or very low where there is nothing to fill.
    cap : Tensor, shape (..., n)
        Caps; entries of cap 0 take no part.
    mass : Tensor, shape (...)
        At most the sum of the caps.

    Returns
    -------
    Tensor, shape (...)
        If all caps are reached, the lowest such z.
    """
    live = cap > 0
    level = torch.where(live, level, -1e30)
    # entry i is full once z passes its threshold
    threshold = torch.where(live, cap.clamp_min(1e-300).log() - level, torch.inf)
    order = threshold.argsort(-1)
    threshold, cap, level = (t.gather(-1, order) for t in (threshold, torch.where(live, cap, 0.0), level))
    filled = cap.cumsum(-1)  # caps of the entries up to k
    tail = level.flip(-1).logcumsumexp(-1).flip(-1)  # log of what entries k and later hold at z = 0
    after = torch.cat([tail[..., 1:], torch.full_like(tail[..., :1], -torch.inf)], -1)
    at_threshold = filled + (threshold + after).clamp_max(700.0).exp()
    count = (torch.where(live.gather(-1, order), at_threshold, torch.inf) < mass.unsqueeze(-1)).sum(-1)
    n = cap.shape[-1]
    last = (count.unsqueeze(-1) - 1).clamp_min(0)
    done = torch.where(count > 0, filled.gather(-1, last).squeeze(-1), 0.0)
    rest = tail.gather(-1, count.clamp_max(n - 1).unsqueeze(-1)).squeeze(-1)
    z = (mass - done).clamp_min(1e-300).log() - rest
    n_live = live.sum(-1)
    top = threshold.gather(-1, (n_live.unsqueeze(-1) - 1).clamp_min(0)).squeeze(-1)
    # rounding can leave a sliver above the last cap: the level that fills everything is enough
    return torch.where(count >= n_live, top, torch.minimum(z, top))
