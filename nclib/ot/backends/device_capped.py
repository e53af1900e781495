"""Capped partial problem in torch: entropy on the moved mass only.

The plan is ``exp(L_ij + x_i + y_j + z)`` with L = -C / reg and x, y <= 0: a row (column) has potential 0
until it reaches its cap. For fixed y the rows and the mass are solved together by water filling, and the
same the other way round.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nclib.ot.backends.device_loop import BLOCKS, Formulation, Pass, State, Weights, newton_step
from nclib.ot.backends.water import water_level


def _fill(level: Tensor, cap: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials of one side and the level, given the log-sums of the other."""
    z = water_level(level, cap, mass)
    potential = (cap.log() - level - z.unsqueeze(-1)).clamp_max(0.0)
    return torch.where(cap > 0, potential, -torch.inf), z


def _measured(op: Pass, w: Weights, s: State) -> State:
    """State with its column sums and the relative violation of caps and of complementarity."""
    column = torch.where(w.q > 0, (s.y + op.cols(s.x) + s.eta.unsqueeze(-1)).clamp_max(600.0).exp(), 0.0)
    idle = (1 - s.y.exp()) * (w.q - column).clamp_min(0)
    return replace(s, column=column, error=((column - w.q).clamp_min(0) + idle).sum(-1) / w.mass)


class Capped(Formulation):
    """Entropy on the moved mass only; ``eta`` of the state is the level z."""

    first_damp, most_damp = 1e-5, 1e3  # as a share of the column weights

    def begin(self, w: Weights, start: tuple[Tensor, Tensor] | None, reg: float, lowest: Tensor) -> State:
        zero = torch.zeros_like(w.mass)
        x = torch.where(w.p > 0, 0.0, -torch.inf).to(w.p.dtype)
        y = torch.where(w.q > 0, 0.0, -torch.inf).to(w.q.dtype)
        if start is not None:
            y = torch.where(start[0].isfinite(), (start[0] / reg).clamp_max(0.0), y)
            y = torch.where(w.q > 0, y, -torch.inf)
        return State(x, y, zero, zero, w.q, zero + torch.inf, torch.zeros_like(zero, dtype=torch.int64))

    def enter(self, op: Pass, w: Weights, s: State) -> None:
        s.x, s.eta = _fill(op.rows(s.y), w.p, w.mass)

    def kernel(self, logk: Tensor, s: State) -> tuple[Tensor, Tensor]:
        return logk + s.eta[:, None, None], s.eta  # with the level in the kernel, a plan: nothing overflows

    def block(self, op: Pass, w: Weights, s: State) -> State:
        x, y, z = s.x, s.y, s.eta
        for _ in range(BLOCKS // 2):
            y, _ = _fill(op.cols(x), w.q, w.mass)
            x, z = _fill(op.rows(y), w.p, w.mass)
        return _measured(op, w, replace(s, x=x, y=y, eta=z))

    def newton(self, logk: Tensor, op: Pass, w: Weights, s: State, damp: Tensor) -> State:
        y = (s.y + self._direction(logk, w, s, damp)).clamp_max(0.0)
        x, z = _fill(op.rows(y), w.p, w.mass)
        return _measured(op, w, replace(s, x=x, y=y, eta=z))

    @staticmethod
    def _direction(logk: Tensor, w: Weights, s: State, damp: Tensor) -> Tensor:
        """Newton direction for the columns at (or above) their caps; rows and the level eliminated."""
        plan = (logk + s.x.unsqueeze(-1) + s.y.unsqueeze(-2) + s.eta[:, None, None]).exp()
        full = s.x < 0
        inverse = torch.where(full & (w.p > 0), 1 / w.p, 0.0)
        capped = plan * inverse.sqrt().unsqueeze(-1)
        system = -capped.mT @ capped
        spare = torch.where(full.unsqueeze(-1), 0.0, plan).sum(-2)  # (k, m) from rows below their caps
        total = spare.sum(-1)
        scale = torch.where(total > 1e-13 * w.mass, 1 / total, 0.0)[:, None, None]
        system = system - scale * spare.unsqueeze(-1) * spare.unsqueeze(-2)
        active = ((s.y < 0) | (s.column > w.q)) & (w.q > 0)
        keep = active.unsqueeze(-1) & active.unsqueeze(-2)
        diagonal = torch.where(active, s.column * (1 + 1e-12) + damp.unsqueeze(-1) * w.q, 1.0)
        system = torch.where(keep, system, 0.0) + torch.diag_embed(diagonal)
        return newton_step(system, torch.where(active, w.q - s.column, 0.0))

    def dual(self, w: Weights, s: State) -> Tensor:
        parts = torch.where(w.p > 0, w.p * s.x, 0.0).sum(-1) + torch.where(w.q > 0, w.q * s.y, 0.0).sum(-1)
        return parts + w.mass * s.eta
