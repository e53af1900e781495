"""From a checked problem to a :class:`Transport`: choice of backend, preparation, packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot import _capped, _capped_cpu, _extended, _extended_cpu
from nclib.ot._feasible import useful
from nclib.ot.transport import Potentials, Problem, Transport

#: On a CPU, batches of at least this many problems with at most this many entries each go to torch.
MANY, TINY_ENTRIES = 16, 512
#: Entries that are solved at once in torch, by "on a CPU": several float64 copies of them are made.
CHUNK_ENTRIES = {True: 2**20, False: 2**25}
#: Slack below this share of the total weight is rounding: everything on that side is moved.
NO_SLACK = {torch.float32: 1e-6, torch.float64: 1e-12}
METHODS = ("auto", "scaling", "log")

Array = np.ndarray[Any, np.dtype[Any]]


class Result:
    """Buffers for k problems, filled problem by problem, then packed."""

    def __init__(self, problem: Problem) -> None:
        cost = problem.cost
        n, m = cost.shape[-2:]
        k = cost.shape[:-2].numel()
        like = torch.empty(0, dtype=torch.float64, device=cost.device)
        self.problem = problem
        self.plan = torch.zeros(k, n, m, dtype=cost.dtype, device=cost.device)
        self.f = like.new_full((k, n), -torch.inf)
        self.g = like.new_full((k, m), -torch.inf)
        self.f_slack = like.new_full((k,), -torch.inf)
        self.g_slack = like.new_full((k,), -torch.inf)
        self.row_error = like.new_zeros(k)
        self.col_error = like.new_zeros(k)
        self.iterations = torch.zeros(k, dtype=torch.int64, device=cost.device)
        self.converged = torch.ones(k, dtype=torch.bool, device=cost.device)

    def pack(self) -> Transport:
        batch, n, m = self.problem.cost.shape[:-2], *self.problem.cost.shape[-2:]
        potentials = Potentials(
            self.f.reshape(*batch, n),
            self.g.reshape(*batch, m),
            self.f_slack.reshape(batch),
            self.g_slack.reshape(batch),
        )
        return Transport(
            plan=self.plan.reshape(*batch, n, m),
            row_error=self.row_error.reshape(batch),
            col_error=self.col_error.reshape(batch),
            iterations=self.iterations.reshape(batch),
            converged=self.converged.reshape(batch),
            potentials=potentials,
            problem=self.problem,
        )


def solve(
    problem: Problem, *, method: str, tol: float, max_iter: int, start: Potentials | None = None
) -> Transport:
    """Solve an extended, capped or (without slack) balanced problem with the backend that fits it."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    cost = problem.cost
    n, m = cost.shape[-2:]
    result = Result(problem)
    k = len(result.plan)
    left = torch.arange(k, device=cost.device)
    tiny = k >= MANY and n * m <= TINY_ENTRIES
    if method != "log" and cost.device.type == "cpu" and not tiny:
        with np.errstate(all="ignore"):  # what overflows is judged afterwards, by the errors it leaves
            left = _on_cpu(problem, result, tol, max_iter, start)
    if len(left):
        order = {"auto": ("scaling", "log")}.get(method, (method,))
        for name in order:
            size = max(1, CHUNK_ENTRIES[cost.device.type == "cpu"] // (n * m))
            parts = [_in_torch(problem, result, i, name, tol, max_iter, start) for i in left.split(size)]
            left = torch.cat(parts)
            if len(left) == 0:
                break
    return result.pack()


def _side(weight: Array, mass: float, dtype: torch.dtype) -> Array:
    """Weights scaled by a rounding error at most, so that no slack is exactly no slack."""
    total = float(weight.sum())
    return weight * (mass / total) if abs(total - mass) <= NO_SLACK[dtype] * total else weight


def _on_cpu(problem: Problem, result: Result, tol: float, max_iter: int, start: Potentials | None) -> Tensor:
    """Solve one problem after the other in NumPy; return the indices of those left over."""
    cost, reg, dtype = problem.cost.detach(), problem.reg, problem.cost.dtype
    n, m = cost.shape[-2:]
    costs = cost.reshape(-1, n, m).numpy()
    k = len(costs)
    masks = None if problem.mask is None else problem.mask.expand(cost.shape).reshape(k, n, m).numpy()
    ps, qs = problem.p.reshape(k, n).numpy(), problem.q.reshape(k, m).numpy()
    masses = problem.mass.reshape(k).tolist()
    g0 = (
        None if start is None else start.g.detach().double().expand(*cost.shape[:-2], m).reshape(k, m).numpy()
    )
    plans, left = result.plan.numpy(), []
    capped = problem.formulation == "capped"
    backend = _capped_cpu.solve if capped else _extended_cpu.solve
    f, g = result.f.numpy(), result.g.numpy()
    f_slack, g_slack = result.f_slack.numpy(), result.g_slack.numpy()
    for i in range(k):
        c, p, q, mass = costs[i], ps[i], qs[i], masses[i]
        if mass == 0.0:
            continue
        allowed = None if masks is None else masks[i]
        rows, cols = p > 0, q > 0
        if allowed is not None:
            c = np.where(allowed, c, np.inf)
            used = allowed if rows.all() and cols.all() else allowed & rows[:, None] & cols
            rows &= used.any(1)
            cols &= used.any(0)
        whole = bool(rows.all() and cols.all())
        if not whole:
            c, p, q = c[rows][:, cols], p[rows], q[cols]
            allowed = None if allowed is None else allowed[rows][:, cols]
        if not capped:
            p, q = _side(p, mass, dtype), _side(q, mass, dtype)
        b0 = None
        if g0 is not None:
            b0 = g0[i] if whole else g0[i][cols]
            b0 = np.exp(np.maximum((b0 - b0.max()) / reg, -300.0)) if np.isfinite(b0).all() else None
        slack = max(float(p.sum()) - mass, 0.0), max(float(q.sum()) - mass, 0.0)
        s = None
        if dtype == torch.float32 and tol >= 1e-6 and not capped:
            b32 = None if b0 is None else np.maximum(b0, 1e-30)
            s = _extended_cpu.solve(
                c, p, q, mass, slack, reg, tol, allowed=allowed, newton=False, start=b32, max_blocks=max_iter
            )
        if s is None or not s.ok:
            c64 = c.astype(np.float64, copy=False)
            s = backend(c64, p, q, mass, slack, reg, tol, allowed=allowed, start=b0, max_blocks=max_iter)
        if not s.ok:
            left.append(i)
            continue
        plan = s.kernel
        plan *= s.a[:, None].astype(plan.dtype, copy=False)
        plan *= s.b.astype(plan.dtype, copy=False)
        if whole:
            plans[i] = plan
            f[i], g[i] = reg * np.log(s.a) + s.lowest, reg * np.log(s.b)
        else:
            plans[i][np.ix_(rows, cols)] = plan
            f[i, rows], g[i, cols] = reg * np.log(s.a) + s.lowest, reg * np.log(s.b)
        f_slack[i] = reg * np.log(s.alpha) if s.alpha > 0 else -np.inf
        g_slack[i] = reg * np.log(s.beta) - s.lowest if s.beta > 0 else -np.inf
        result.col_error[i], result.iterations[i] = s.error, s.iterations
    return torch.tensor(left, dtype=torch.int64)


def _in_torch(
    problem: Problem,
    result: Result,
    index: Tensor,
    method: str,
    tol: float,
    max_iter: int,
    start: Potentials | None,
) -> Tensor:
    """Solve the problems of ``index`` batched in float64; return the indices that did not converge."""
    reg, dtype = problem.reg, problem.cost.dtype
    n, m = problem.cost.shape[-2:]
    cost = problem.cost.detach().reshape(-1, n, m)[index].double()
    p, q = problem.p.reshape(-1, n)[index], problem.q.reshape(-1, m)[index]
    mass = problem.mass.reshape(-1)[index]
    if problem.mask is not None:
        allowed = problem.mask.expand(problem.cost.shape).reshape(-1, n, m)[index]
        cost = torch.where(allowed, cost, torch.inf)
        allowed = allowed & useful(p, q)
        p, q = p * allowed.any(-1), q * allowed.any(-2)
    # an empty problem is solved as if it moved everything, then thrown away
    live = mass > 0
    total_p, total_q = p.sum(-1), q.sum(-1)
    safe = torch.where(live, mass, torch.minimum(total_p, total_q) * 0.5)
    near_p = (total_p - safe).abs() <= NO_SLACK[dtype] * total_p
    near_q = (total_q - safe).abs() <= NO_SLACK[dtype] * total_q
    p = torch.where(near_p.unsqueeze(-1), p * (safe / total_p).unsqueeze(-1), p)
    q = torch.where(near_q.unsqueeze(-1), q * (safe / total_q).unsqueeze(-1), q)
    slack_p = torch.where(near_p, 0.0, total_p - safe)
    slack_q = torch.where(near_q, 0.0, total_q - safe)
    weights = _extended.Weights(p, q, safe, slack_p, slack_q)
    wide = m > n  # the Newton system has the size of the columns
    first = None
    if start is not None:
        side, other = (start.f, start.f_slack) if wide else (start.g, start.g_slack)
        if problem.formulation == "capped":
            side = side + (start.g_slack if wide else start.f_slack).unsqueeze(-1)
        size = n if wide else m
        first = (
            side.expand(*problem.mass.shape, size).reshape(-1, size)[index],
            other.expand(problem.mass.shape).reshape(-1)[index],
        )
    if wide:
        cost, weights = cost.mT, _extended.Weights(q, p, safe, slack_q, slack_p)
    state: _capped.State | _extended.State
    if problem.formulation == "capped":
        state = capped = _capped.solve(cost, weights, reg, tol, max_iter, method, first)
        x, y, eta, xi = capped.x + capped.z.unsqueeze(-1), capped.y, -capped.z, torch.zeros_like(capped.z)
    else:
        state = extended = _extended.solve(cost, weights, reg, tol, max_iter, method, first)
        x, y, eta, xi = extended.x, extended.y, extended.eta, extended.xi
    error_x, error_y = torch.zeros_like(state.error), state.error
    if wide:
        cost, x, y, eta, xi, error_x, error_y = cost.mT, y, x, xi, eta, error_y, error_x
    shift = state.lowest
    plan = (x.unsqueeze(-1) + y.unsqueeze(-2) - (cost - shift[:, None, None] * reg) / reg).exp()
    x, eta = x + shift.unsqueeze(-1), eta - shift  # potentials for the cost as given
    plan = torch.where(live[:, None, None], plan, 0.0)
    moved = (plan.sum((-2, -1)) - mass).abs() / torch.where(live, mass, 1.0)
    good = ~live | ((state.error <= tol) & (moved <= min(tol, _extended_cpu.MASS_TOL)))
    result.plan[index] = plan.to(dtype)
    nothing = torch.full_like(x[:, 0], -torch.inf)
    result.f[index] = torch.where(live.unsqueeze(-1), x * reg, nothing.unsqueeze(-1))
    result.g[index] = torch.where(live.unsqueeze(-1), y * reg, nothing.unsqueeze(-1))
    result.f_slack[index] = torch.where(live, xi * reg, nothing)
    result.g_slack[index] = torch.where(live, eta * reg, nothing)
    result.row_error[index] = torch.where(live, error_x, 0.0)
    result.col_error[index] = torch.where(live, error_y, 0.0)
    result.iterations[index] = torch.where(live, state.passes, 0)
    result.converged[index] = good
    return index[~good]
