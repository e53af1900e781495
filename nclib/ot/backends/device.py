"""The torch backend: batches of problems on any device, in float64, at any regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nclib.ot.backends.cpu import NO_SLACK
from nclib.ot.backends.cpu_extended import MASS_TOL
from nclib.ot.backends.device_capped import Capped
from nclib.ot.backends.device_extended import Extended
from nclib.ot.backends.device_loop import Weights, staged
from nclib.ot.feasible import useful
from nclib.ot.problem import Potentials, Problem
from nclib.ot.transport import Buffers


def solve(
    problem: Problem,
    buffers: Buffers,
    index: Tensor,
    method: str,
    tol: float,
    max_iter: int,
    start: Potentials | None,
) -> Tensor:
    """Solve the problems of ``index`` into the buffers; return the indices that did not converge.

    Parameters
    ----------
    problem : Problem
        k problems on any device, cost (..., n, m).
    buffers : Buffers
        Filled in place, also where a problem did not converge.
    index : Tensor, int64, (r,)
        Problems to solve, in [0, k).
    method : {"scaling", "log"}
        Products of a stabilised kernel, or log-sum-exp.
    tol : float
        Tolerance relative to the mass.
    max_iter : int >= 1
        Limit of the iterations.
    start : Potentials or None
        Potentials of a similar problem, in the unit of the cost.

    Returns
    -------
    Tensor, int64, (r',)
        The part of ``index`` that did not converge.
    """
    # Plan: 1. costs and weights in float64, unreachable rows and columns without weight, slack that is only
    # rounding removed; 2. the smaller side as columns, since the Newton system has their size; 3. the staged
    # loop; 4. plan and potentials for the cost as given.
    reg, dtype, capped = problem.reg, problem.cost.dtype, problem.formulation == "capped"
    n, m = problem.cost.shape[-2:]
    cost = problem.cost.detach().reshape(-1, n, m)[index].double()
    p, q = problem.p.reshape(-1, n)[index], problem.q.reshape(-1, m)[index]
    mass = problem.mass.reshape(-1)[index]
    if problem.mask is not None:
        allowed = problem.mask.expand(problem.cost.shape).reshape(-1, n, m)[index]
        cost = torch.where(allowed, cost, torch.inf)
        allowed = allowed & useful(p, q)
        p, q = p * allowed.any(-1), q * allowed.any(-2)
    w, live = _weights(p, q, mass, dtype)
    wide = m > n
    first = None if start is None else _start(start, problem, index, wide, capped)
    if wide:
        cost, w = cost.mT, Weights(w.q, w.p, w.mass, w.slack_q, w.slack_p)
    form = Capped() if capped else Extended()
    state, shift = staged(form, cost, w, reg, tol, max_iter, method, first)
    x, y, eta, xi = state.x, state.y, state.eta, state.xi
    if capped:
        x, eta, xi = x + eta.unsqueeze(-1), -eta, torch.zeros_like(eta)
    error_x, error_y = torch.zeros_like(state.error), state.error
    if wide:
        cost, x, y, eta, xi, error_x, error_y = cost.mT, y, x, xi, eta, error_y, error_x
    plan = (x.unsqueeze(-1) + y.unsqueeze(-2) - (cost - shift[:, None, None] * reg) / reg).exp()
    x, eta = x + shift.unsqueeze(-1), eta - shift
    plan = torch.where(live[:, None, None], plan, 0.0)
    moved = (plan.sum((-2, -1)) - mass).abs() / torch.where(live, mass, 1.0)
    good = ~live | ((state.error <= tol) & (moved <= min(tol, MASS_TOL)))
    buffers.plan[index] = plan.to(dtype)
    nothing = torch.full_like(x[:, 0], -torch.inf)
    buffers.f[index] = torch.where(live.unsqueeze(-1), x * reg, nothing.unsqueeze(-1))
    buffers.g[index] = torch.where(live.unsqueeze(-1), y * reg, nothing.unsqueeze(-1))
    buffers.f_slack[index] = torch.where(live, xi * reg, nothing)
    buffers.g_slack[index] = torch.where(live, eta * reg, nothing)
    buffers.row_error[index] = torch.where(live, error_x, 0.0)
    buffers.col_error[index] = torch.where(live, error_y, 0.0)
    buffers.iterations[index] = torch.where(live, state.passes, 0)
    buffers.converged[index] = good
    return index[~good]


def _weights(p: Tensor, q: Tensor, mass: Tensor, dtype: torch.dtype) -> tuple[Weights, Tensor]:
    """Weights without rounding in their slack, and which problems move anything.

    An empty problem is solved as if it moved half of what it could, then thrown away.
    """
    live = mass > 0
    total_p, total_q = p.sum(-1), q.sum(-1)
    safe = torch.where(live, mass, torch.minimum(total_p, total_q) * 0.5)
    near_p = (total_p - safe).abs() <= NO_SLACK[dtype] * total_p
    near_q = (total_q - safe).abs() <= NO_SLACK[dtype] * total_q
    p = torch.where(near_p.unsqueeze(-1), p * (safe / total_p).unsqueeze(-1), p)
    q = torch.where(near_q.unsqueeze(-1), q * (safe / total_q).unsqueeze(-1), q)
    slack_p = torch.where(near_p, 0.0, total_p - safe)
    slack_q = torch.where(near_q, 0.0, total_q - safe)
    return Weights(p, q, safe, slack_p, slack_q), live


def _start(
    start: Potentials, problem: Problem, index: Tensor, wide: bool, capped: bool
) -> tuple[Tensor, Tensor]:
    """Potentials of the side that the loop calls columns, and of the other side's dummy."""
    side, other = (start.f, start.f_slack) if wide else (start.g, start.g_slack)
    if capped:
        side = side + (start.g_slack if wide else start.f_slack).unsqueeze(-1)
    size = problem.cost.shape[-2] if wide else problem.cost.shape[-1]
    batch = problem.mass.shape
    return side.expand(*batch, size).reshape(-1, size)[index], other.expand(batch).reshape(-1)[index]
