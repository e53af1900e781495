"""The partial Sinkhorn loop of L2RM's released code, with its stop rule, for reproduction.

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

from nclib.ot._dense import METHODS, Result
from nclib.ot.transport import Problem, Transport

#: Movement of the row potential below which the published loop stops, in the unit of the cost.
THRESHOLD = 1e-3
#: Cost of the dummy row and column, in units of the largest cost.
DUMMY_COST = 100.0
#: Widest cost range, in units of the regularisation, for which the kernel itself is used.
SAFE_RANGE = 500.0
#: Errors above this are reported as not converged.
HONEST = 1e-6

Array = np.ndarray[Any, np.dtype[Any]]


def solve(problem: Problem, *, method: str, tol: float, max_iter: int) -> Transport:
    """Run the published loop on every problem; the plan is stopped exactly where the released code stops."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    cost, reg = problem.cost.detach(), problem.reg
    n, m = cost.shape[-2:]
    result = Result(problem)
    k = len(result.plan)
    c = cost.reshape(k, n, m).double()
    allowed = None if problem.mask is None else problem.mask.expand(cost.shape).reshape(k, n, m)
    p, q, mass = problem.p.reshape(k, n), problem.q.reshape(k, m), problem.mass.reshape(k)
    top, bottom = c.amax((-2, -1)), c.amin((-2, -1))
    widest = torch.maximum(top - bottom, (top + bottom).abs())
    safe = cost.device.type == "cpu" and bool((widest <= SAFE_RANGE * reg).all())
    if allowed is not None:
        safe = safe and bool(allowed.any(-1).all() & allowed.any(-2).all())
    if method != "log" and safe and bool((p > 0).all() & (q > 0).all() & (mass > 0).all()):
        kernel = torch.exp((bottom[:, None, None] - c) / reg)
        if allowed is not None:
            kernel *= allowed
        for i in range(k):
            corner = math.exp(-float(bottom[i] + top[i]) / reg)  # the kernel is shifted by its lowest cost
            slack = float(p[i].sum() - mass[i]), float(q[i].sum() - mass[i])
            with np.errstate(all="ignore"):
                a, alpha, b, beta, passes = scaling(
                    kernel[i].numpy(), p[i].numpy(), q[i].numpy(), slack, corner, tol / reg, max_iter
                )
            result.plan[i] = torch.from_numpy(a[:, None] * kernel[i].numpy() * b)
            result.f[i] = torch.from_numpy(reg * np.log(a)) + bottom[i]
            result.g[i] = torch.from_numpy(reg * np.log(b))
            result.f_slack[i] = reg * math.log(alpha) if alpha > 0 else -math.inf
            result.g_slack[i] = reg * math.log(beta) - bottom[i] if beta > 0 else -math.inf
            result.iterations[i] = passes
    else:
        _log_domain(c, allowed, p, q, mass, top, problem, result, tol, max_iter)
    _measure(result, p, q, mass)
    return result.pack()


def scaling(
    kernel: Array, p: Array, q: Array, slack: tuple[float, float], corner: float, tol: float, max_iter: int
) -> tuple[Array, float, Array, float, int]:
    """The loop in scaling form; the dummy cost cancels. ``slack`` = weight of the dummy column and row."""
    to_column, to_row = slack
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


def _log_domain(
    c: Tensor,
    allowed: Tensor | None,
    p: Tensor,
    q: Tensor,
    mass: Tensor,
    top: Tensor,
    problem: Problem,
    result: Result,
    tol: float,
    max_iter: int,
) -> None:
    """The loop as written, on the extended matrix, batched; finished problems are frozen."""
    reg = problem.reg
    k, n, m = c.shape
    dummy = DUMMY_COST * top / reg
    logk = c.new_empty(k, n + 1, m + 1)
    logk[:, :n, :m] = -c / reg if allowed is None else torch.where(allowed, -c / reg, -torch.inf)
    logk[:, n, :] = -dummy[:, None]
    logk[:, :, m] = -dummy[:, None]
    logk[:, n, m] = -2 * dummy - top / reg
    log_p = torch.cat([p, (q.sum(-1) - mass).clamp_min(0)[:, None]], -1).log()
    log_q = torch.cat([q, (p.sum(-1) - mass).clamp_min(0)[:, None]], -1).log()
    u, v = torch.zeros_like(log_p), torch.zeros_like(log_q)
    running = torch.ones(k, dtype=torch.bool, device=c.device)
    for passes in range(1, max_iter + 1):
        new_u = torch.where(log_p.isfinite(), log_p - torch.logsumexp(logk + v.unsqueeze(-2), -1), -torch.inf)
        new_v = torch.where(
            log_q.isfinite(), log_q - torch.logsumexp(logk + new_u.unsqueeze(-1), -2), -torch.inf
        )
        step = torch.where(new_u.isfinite() & u.isfinite(), new_u - u, 0.0)
        u, v = torch.where(running[:, None], new_u, u), torch.where(running[:, None], new_v, v)
        result.iterations += running
        if passes > 1:
            running &= torch.linalg.vector_norm(step, dim=-1) >= tol / reg
        if passes % 10 == 0 and not bool(running.any()):
            break
    result.plan[:] = (logk + u.unsqueeze(-1) + v.unsqueeze(-2)).exp()[:, :n, :m].to(result.plan.dtype)
    result.f[:], result.g[:] = reg * u[:, :n], reg * v[:, :m]
    # in the convention of zero dummy cost
    result.f_slack[:], result.g_slack[:] = reg * (u[:, n] - dummy), reg * (v[:, m] - dummy)


def _measure(result: Result, p: Tensor, q: Tensor, mass: Tensor) -> None:
    """Errors of the plan against what was asked for; the published rule does not look at them."""
    reg = result.problem.reg
    plan = result.plan.double()
    to_column = ((result.f + result.g_slack[:, None]) / reg).exp()
    to_row = ((result.g + result.f_slack[:, None]) / reg).exp()
    scale = torch.where(mass > 0, mass, 1.0)
    result.row_error = (plan.sum(-1) + to_column - p).abs().sum(-1) / scale
    result.col_error = (plan.sum(-2) + to_row - q).abs().sum(-1) / scale
    off = (plan.sum((-2, -1)) - mass).abs() / scale
    result.converged = (result.row_error <= HONEST) & (result.col_error <= HONEST) & (off <= HONEST)
