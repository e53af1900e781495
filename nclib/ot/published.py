"""The partial Sinkhorn loop of L2RM's official code, with its stop rule, for reproduction.

Extended cost: ``xi = 100 max C`` on the dummy row and column and ``2 xi + A``, ``A = max C``, on the corner.
A pass updates the row potential, then the column potential, from zero; the loop stops when the row potential
(all n + 1 entries) moves by less than 1e-3 in the unit of the cost, or after 1000 passes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot.problem import Problem, SolverSettings
from nclib.ot.transport import Buffers, Transport

#: Movement of the row potential at which the loop stops, in the unit of the cost.
THRESHOLD = 1e-3
#: Cost of the dummy row and column, in units of the largest cost.
DUMMY_COST = 100.0
#: Widest cost range, in units of the regularisation, for which the kernel itself is used.
SAFE_RANGE = 500.0
#: Errors above this are reported as not converged.
HONEST = 1e-6

Array = np.ndarray[Any, np.dtype[Any]]


def solve(problem: Problem, how: SolverSettings) -> Transport:
    """Run the loop on every extended problem on a CPU, cost (..., n, m), until the official code stops.

    The tolerance is the movement of the row potential at which the loop stops, in the unit of the cost; the
    method ``"log"`` forbids products of the kernel. ``converged`` is False where an error is above 1e-6.
    """
    buffers = Buffers(problem)
    left = list(range(problem.mass.numel()))
    if how.method != "log":
        left = _scaling(problem, buffers, how)
    if left:
        _log_domain(problem, buffers, torch.tensor(left), how)
    _measure(buffers)
    return buffers.pack()


@np.errstate(all="ignore")
def _scaling(problem: Problem, buffers: Buffers, how: SolverSettings) -> list[int]:
    """Run the loop on kernels, one problem after the other; return those that need the log domain."""
    reg = problem.reg
    costs, masks, ps, qs, masses = problem.arrays()
    out, left = buffers.arrays(), []
    for i, mass in enumerate(masses.tolist()):
        c, p, q, top = costs[i], ps[i], qs[i], _top(costs[i], None if masks is None else masks[i])
        reached = True
        if masks is not None:
            c = np.where(masks[i], c, np.inf)
            reached = masks[i].any(1).all() and masks[i].any(0).all()
        low = float(c.min())
        in_range = max(top - low, abs(top + low)) <= SAFE_RANGE * reg
        if not (mass > 0 and p.all() and q.all() and reached and in_range):
            left.append(i)
            continue
        kernel = low - c.astype(np.float64, copy=False)
        kernel *= 1 / reg
        np.exp(kernel, out=kernel)
        slack = _total(p) - mass, _total(q) - mass
        a, alpha, b, beta, out.iterations[i] = _passes(
            kernel, p, q, slack, (low + top) / reg, how.tol / reg, how.max_iter
        )
        kernel *= a[:, None]
        kernel *= b
        out.plan[i] = kernel
        out.f[i], out.g[i] = reg * np.log(a) + low, reg * np.log(b)
        out.slacks[0, i] = reg * math.log(alpha) if alpha > 0 else -math.inf
        out.slacks[1, i] = reg * math.log(beta) - low if beta > 0 else -math.inf
    return left


def _top(cost: Array, allowed: Array | None) -> float:
    """Largest cost, of forbidden entries too: that of the official code. Of allowed ones if not finite."""
    top = float(cost.max())
    return top if math.isfinite(top) or allowed is None else float(cost[allowed].max(initial=-math.inf))


def _total(weight: Array) -> float:
    """Sum of the weights, 1 where only rounding keeps it from 1."""
    total = float(weight.sum())
    return 1.0 if abs(total - 1.0) < 1e-12 else total


def _passes(
    kernel: Array, p: Array, q: Array, slack: tuple[float, float], corner: float, tol: float, max_iter: int
) -> tuple[Array, float, Array, float, int]:
    """The loop in scaling form; the dummy cost cancels. ``slack`` = weight of the dummy column and row.

    ``corner`` is its exponent: lowest plus largest cost, since the kernel is shifted by its lowest cost.
    """
    (to_column, to_row), corner = slack, math.exp(-corner)
    b, beta = np.ones(len(q)), 0.0
    old, old_alpha = np.zeros(len(p)), 0.0
    a, alpha = old, 0.0
    for passes in range(1, max_iter + 1):
        a = p / (kernel @ b + beta)
        alpha = to_row / (float(b.sum()) + corner * beta)
        b = q / (a @ kernel + alpha)
        beta = to_column / (float(a.sum()) + corner * alpha)
        log_a, log_alpha = np.log(a), math.log(alpha) if alpha > 0 else 0.0
        step = log_a - old
        if passes > 1 and math.sqrt(float(step @ step) + (log_alpha - old_alpha) ** 2) < tol:
            break
        old, old_alpha = log_a, log_alpha
    return a, alpha, b, beta, passes


def _log_domain(problem: Problem, result: Buffers, index: Tensor, how: SolverSettings) -> None:
    """The loop as written, on the extended matrix, batched; finished problems are frozen."""
    reg, buffers = problem.reg, result.flat()
    costs, masks, *sides = problem.flat()
    c, (p, q, mass) = costs[index].double(), (x[index] for x in sides)
    top = c.amax((-2, -1))
    if masks is not None:
        allowed = masks[index]
        top = torch.where(top.isfinite(), top, torch.where(allowed, c, -torch.inf).amax((-2, -1)))
        c = torch.where(allowed, c, torch.inf)
    k, n, m = c.shape
    dummy = DUMMY_COST * top / reg
    logk = c.new_empty(k, n + 1, m + 1)
    logk[:, :n, :m] = -c / reg
    logk[:, n, :] = -dummy[:, None]
    logk[:, :, m] = -dummy[:, None]
    logk[:, n, m] = -2 * dummy - top / reg
    log_p = torch.cat([p, (q.sum(-1) - mass).clamp_min(0)[:, None]], -1).log()
    log_q = torch.cat([q, (p.sum(-1) - mass).clamp_min(0)[:, None]], -1).log()
    u, v = torch.zeros_like(log_p), torch.zeros_like(log_q)
    running = torch.ones(k, dtype=torch.bool)
    taken = torch.zeros(k, dtype=torch.int64)
    for passes in range(1, how.max_iter + 1):
        new_u = torch.where(log_p.isfinite(), log_p - torch.logsumexp(logk + v.unsqueeze(-2), -1), -torch.inf)
        sums = torch.logsumexp(logk + new_u.unsqueeze(-1), -2)
        new_v = torch.where(log_q.isfinite(), log_q - sums, -torch.inf)
        step = torch.where(new_u.isfinite() & u.isfinite(), new_u - u, 0.0)
        u, v = torch.where(running[:, None], new_u, u), torch.where(running[:, None], new_v, v)
        taken += running
        if passes > 1:
            running &= torch.linalg.vector_norm(step, dim=-1) >= how.tol / reg
        if passes % 10 == 0 and not bool(running.any()):
            break
    plan = (logk + u.unsqueeze(-1) + v.unsqueeze(-2)).exp()[:, :n, :m]
    buffers.plan[index], buffers.iterations[index] = plan.to(buffers.plan.dtype), taken
    buffers.f[index], buffers.g[index] = reg * u[:, :n], reg * v[:, :m]
    # in the convention of zero dummy cost
    buffers.slacks[0, index], buffers.slacks[1, index] = reg * (u[:, n] - dummy), reg * (v[:, m] - dummy)


def _measure(b: Buffers) -> None:
    """Errors of the plan against the conditions of the problem; the stop rule does not look at them."""
    problem, plan, (f_slack, g_slack) = b.problem, b.plan.double(), b.slacks.unbind()
    to_column = ((b.f + g_slack.unsqueeze(-1)) / problem.reg).exp()
    to_row = ((b.g + f_slack.unsqueeze(-1)) / problem.reg).exp()
    off = (plan.sum((-2, -1)) - problem.mass).abs()
    rows = (plan.sum(-1) + to_column - problem.p).abs().sum(-1)
    columns = (plan.sum(-2) + to_row - problem.q).abs().sum(-1)
    errors = torch.stack((rows, columns, off)) / torch.where(problem.mass > 0, problem.mass, 1.0)
    b.errors, b.converged = errors[:2], (errors <= HONEST).all(0)
