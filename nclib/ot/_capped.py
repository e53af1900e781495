"""Capped partial problem in torch: entropy on the moved mass only, batched, any device, any regularisation.

The plan is ``exp(L_ij + x_i + y_j + z)`` with L = -C / reg and x, y <= 0: a row (column) has potential 0
until it reaches its cap. For fixed y the rows and the mass are solved together by water filling, and the
same the other way round; a damped Newton step on the columns at their caps does the rest. Stages of falling
regularisation as in :mod:`nclib.ot._extended`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nclib.ot._extended import (
    BLOCKS,
    LONGEST,
    PASSES,
    STAGE_CYCLES,
    STAGE_RATIO,
    STAGE_TOL,
    LogPass,
    ScalingPass,
    Weights,
    stages,
)
from nclib.ot._water import water_level

#: First damping of a Newton step, as a share of the column weights.
FIRST_DAMP = 1e-5


@dataclass
class State:
    """Potentials of k problems in units of the regularisation, and how good they are."""

    x: Tensor  # (k, n)
    y: Tensor  # (k, m)
    z: Tensor  # (k,)
    error: Tensor  # (k,)
    passes: Tensor  # (k,) int64
    lowest: Tensor  # (k,) lowest cost, in units of the regularisation; z is for the cost from there on


def _fill(level: Tensor, cap: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials of one side and the level, given the log-sums of the other."""
    z = water_level(level, cap, mass)
    potential = (cap.log() - level - z.unsqueeze(-1)).clamp_max(0.0)
    return torch.where(cap > 0, potential, -torch.inf), z


def _residual(
    op: LogPass | ScalingPass, w: Weights, x: Tensor, y: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """Column sums and the relative violation of caps and of complementarity."""
    column = torch.where(w.q > 0, (y + op.cols(x) + z.unsqueeze(-1)).clamp_max(600.0).exp(), 0.0)
    idle = (1 - y.exp()) * (w.q - column).clamp_min(0)
    return column, ((column - w.q).clamp_min(0) + idle).sum(-1) / w.mass


def _newton(plan: Tensor, w: Weights, x: Tensor, y: Tensor, column: Tensor, damp: Tensor) -> Tensor:
    """Damped Newton direction for the columns at (or above) their caps; rows and the level eliminated."""
    full = x < 0
    inverse = torch.where(full & (w.p > 0), 1 / w.p, 0.0)
    capped = plan * inverse.sqrt().unsqueeze(-1)
    system = -capped.mT @ capped
    spare = torch.where(full.unsqueeze(-1), 0.0, plan).sum(-2)  # (k, m) from rows below their caps
    total = spare.sum(-1)
    scale = torch.where(total > 1e-13 * w.mass, 1 / total, 0.0)[:, None, None]
    system = system - scale * spare.unsqueeze(-1) * spare.unsqueeze(-2)
    active = ((y < 0) | (column > w.q)) & (w.q > 0)
    keep = active.unsqueeze(-1) & active.unsqueeze(-2)
    diagonal = torch.where(active, column * (1 + 1e-12) + damp.unsqueeze(-1) * w.q, 1.0)
    system = torch.where(keep, system, 0.0) + torch.diag_embed(diagonal)
    factor, info = torch.linalg.cholesky_ex(system)
    right = torch.where(active, w.q - column, 0.0)
    step = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    good = (info == 0) & step.isfinite().all(-1)
    step = torch.where(good.unsqueeze(-1), step, 0.0)
    return step * (LONGEST / step.abs().amax(-1, keepdim=True).clamp_min(LONGEST))


def _dual(w: Weights, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Dual value in units of the regularisation (up to a constant): what every step should raise."""
    parts = torch.where(w.p > 0, w.p * x, 0.0).sum(-1) + torch.where(w.q > 0, w.q * y, 0.0).sum(-1)
    return parts + w.mass * z


def _stage(logk: Tensor, w: Weights, state: State, tol: float, cycles: int, method: str, limit: int) -> State:
    done = State(*(getattr(state, field.name).clone() for field in fields(State)))
    index = torch.arange(len(logk), device=logk.device)
    x, y, z, passes = state.x, state.y, state.z, state.passes.clone()
    damp = torch.full_like(z, FIRST_DAMP)
    for _ in range(cycles):
        shifted, base = (
            logk + z[:, None, None],
            z,
        )  # with the level in the kernel, a plan: nothing is out of range
        op = PASSES[method](shifted, x, y)
        for _ in range(BLOCKS // 2):
            y, _ = _fill(op.cols(x), w.q, w.mass)
            x, z = _fill(op.rows(y), w.p, w.mass)
        column, error = _residual(op, w, x, y, z)
        plan = (shifted + x.unsqueeze(-1) + y.unsqueeze(-2) + z[:, None, None]).exp()
        op = PASSES[method](shifted, x, y)
        trial = (y + _newton(plan, w, x, y, column, damp)).clamp_max(0.0)
        trial_x, trial_z = _fill(op.rows(trial), w.p, w.mass)
        _, trial_error = _residual(op, w, trial_x, trial, trial_z)
        before, after = _dual(w, x, y, z), _dual(w, trial_x, trial, trial_z)
        noise = 1e-13 * before.abs()
        better = (after > before + noise) | (trial_error < 0.5 * error)
        better |= (trial_error < 0.9 * error) & (after > before - noise)
        better &= trial_error.isfinite()
        damp = torch.where(better, damp * 0.03, (damp * 10).clamp_max(1e3))
        pick = better.unsqueeze(-1)
        x, y = torch.where(pick, trial_x, x), torch.where(pick, trial, y)
        z, error = base + torch.where(better, trial_z, z), torch.where(better, trial_error, error)
        passes += BLOCKS // 2 + 2
        for name, value in (("x", x), ("y", y), ("z", z), ("error", error), ("passes", passes)):
            getattr(done, name)[index] = value
        keep = ((error > tol) & (passes < limit)).nonzero().squeeze(-1)  # the one synchronisation of a cycle
        if len(keep) == 0:
            break
        if len(keep) < len(index):
            index, logk, w = index[keep], logk[keep], w.take(keep)
            x, y, z, damp, passes = x[keep], y[keep], z[keep], damp[keep], passes[keep]
    return done


def solve(
    cost: Tensor,
    w: Weights,
    reg: float,
    tol: float,
    max_passes: int,
    method: str,
    start: tuple[Tensor, Tensor] | None = None,
) -> State:
    """Solve k problems; arguments as for :func:`nclib.ot._extended.solve`."""
    cost, lowest, levels = stages(cost, reg, start is not None)
    zero = torch.zeros_like(w.mass)
    x = torch.where(w.p > 0, 0.0, -torch.inf).to(w.p.dtype)
    y = torch.where(w.q > 0, 0.0, -torch.inf).to(w.q.dtype)
    if start is not None:
        y = torch.where(start[0].isfinite(), (start[0] / reg).clamp_max(0.0), y)
        y = torch.where(w.q > 0, y, -torch.inf)
    state = State(x, y, zero, zero + torch.inf, torch.zeros_like(zero, dtype=torch.int64), lowest)
    for level in levels:
        last = level == reg
        logk = -cost / level
        first = LogPass(logk, state.x, state.y)
        state.x, state.z = _fill(first.rows(state.y), w.p, w.mass)
        cycles = -(-max_passes // (BLOCKS // 2 + 2)) if last else STAGE_CYCLES
        state = _stage(logk, w, state, tol if last else max(tol, STAGE_TOL), cycles, method, max_passes)
        if not last:
            for name in ("x", "y", "z"):
                setattr(state, name, getattr(state, name) * STAGE_RATIO)
    return state
