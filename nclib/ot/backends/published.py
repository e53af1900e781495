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

from nclib.ot.backends.cpu import pack, plain_arrays, uniform
from nclib.ot.backends.solve import METHODS
from nclib.ot.problem import Problem, Settings, check_choice
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


def solve(problem: Problem, how: Settings) -> Transport:
    """Run the loop on every extended problem, cost (..., n, m); the plan stops where the official code stops.

    The tolerance is the movement of the row potential at which the loop stops, in the unit of the cost; the
    method ``"log"`` forbids products of the kernel. ``converged`` is False where an error is above 1e-6.
    """
    check_choice("method", how.method, METHODS)
    tol, max_iter = how.tol, how.max_iter
    buffers, reg = Buffers(problem), problem.reg
    cost, allowed, p, q, mass = problem.flat()
    c = cost.double()
    top, bottom = c.amax((-2, -1)), c.amin((-2, -1))
    widest = torch.maximum(top - bottom, (top + bottom).abs())
    safe = cost.device.type == "cpu" and bool((widest <= SAFE_RANGE * reg).all())
    if allowed is not None:
        safe = safe and bool(allowed.any(-1).all() & allowed.any(-2).all())
    if how.method != "log" and safe and bool((p > 0).all() & (q > 0).all() & (mass > 0).all()):
        kernel = torch.exp((bottom[:, None, None] - c) / reg)
        if allowed is not None:
            kernel *= allowed
        for i in range(len(c)):
            slack = float(p[i].sum() - mass[i]), float(q[i].sum() - mass[i])
            low, corner = float(bottom[i]), float(bottom[i] + top[i])
            one = kernel[i].numpy()
            with np.errstate(all="ignore"):
                a, alpha, b, beta, passes = _scaling(
                    one, p[i].numpy(), q[i].numpy(), slack, corner / reg, tol / reg, max_iter
                )
            f, g, buffers.f_slack[i], buffers.g_slack[i] = _potentials(a, b, alpha, beta, reg, low)
            buffers.plan[i] = torch.from_numpy(a[:, None] * one * b)
            buffers.f[i], buffers.g[i] = torch.from_numpy(f), torch.from_numpy(g)
            buffers.iterations[i] = passes
    else:
        c = c if allowed is None else torch.where(allowed, c, torch.inf)
        _log_domain(buffers, c, p, q, mass, top, tol, max_iter)
    _measure(buffers, p, q, mass)
    return buffers.pack()


def solve_plain(
    cost: Tensor, mass: Any, reg: float, mask: Tensor | None, tol: float, max_iter: int
) -> Transport | None:
    """Run the loop on one problem with uniform weights, or return None; as :func:`cpu.solve_plain`."""
    with np.errstate(all="ignore"):
        ready = plain_arrays(cost, mass, mask)
        if ready is None:
            return None
        c, allowed = ready
        if allowed is not None and _crowded(allowed, mass):
            return None
        top, bottom = float(cost.max()), float(c.min())
        if not max(top - bottom, abs(top + bottom)) <= SAFE_RANGE * reg:
            return None
        p, q = uniform(c.shape[0]), uniform(c.shape[1])
        kernel = bottom - c.astype(np.float64, copy=False)
        kernel *= 1 / reg
        np.exp(kernel, out=kernel)
        if allowed is not None:
            kernel *= allowed
        slack, corner = (1 - mass, 1 - mass), (bottom + top) / reg
        a, alpha, b, beta, passes = _scaling(kernel, p, q, slack, corner, tol / reg, max_iter)
        plan = kernel
        plan *= a[:, None]
        plan *= b
        rows = float(np.abs(plan.sum(1) + a * beta - p).sum()) / mass
        cols = float(np.abs(plan.sum(0) + b * alpha - q).sum()) / mass
        honest = max(rows, cols, abs(float(plan.sum()) - mass) / mass) <= HONEST
        potentials = _potentials(a, b, alpha, beta, reg, bottom)
    given = (cost, mask, mass, reg, "extended")
    return pack(given, plan, potentials, passes, row_error=rows, col_error=cols, converged=honest)


def _crowded(allowed: Array, mass: float) -> bool:
    """Whether so few entries are allowed that the mass may be too much; uniform weights."""
    n, m = allowed.shape
    fewest_in_row, fewest_in_col = float(allowed.sum(1).min()), float(allowed.sum(0).min())
    return mass > fewest_in_col / n + fewest_in_row / m or fewest_in_row == 0 or fewest_in_col == 0


def _potentials(
    a: Array, b: Array, alpha: float, beta: float, reg: float, lowest: float
) -> tuple[Array, Array, float, float]:
    f_slack = reg * math.log(alpha) if alpha > 0 else -math.inf
    g_slack = reg * math.log(beta) - lowest if beta > 0 else -math.inf
    return reg * np.log(a) + lowest, reg * np.log(b), f_slack, g_slack


def _scaling(
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


def _log_domain(
    buffers: Buffers, c: Tensor, p: Tensor, q: Tensor, mass: Tensor, top: Tensor, tol: float, max_iter: int
) -> None:
    """The loop as written, on the extended matrix, batched; finished problems are frozen."""
    reg = buffers.problem.reg
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
    running = torch.ones(k, dtype=torch.bool, device=c.device)
    for passes in range(1, max_iter + 1):
        new_u = torch.where(log_p.isfinite(), log_p - torch.logsumexp(logk + v.unsqueeze(-2), -1), -torch.inf)
        sums = torch.logsumexp(logk + new_u.unsqueeze(-1), -2)
        new_v = torch.where(log_q.isfinite(), log_q - sums, -torch.inf)
        step = torch.where(new_u.isfinite() & u.isfinite(), new_u - u, 0.0)
        u, v = torch.where(running[:, None], new_u, u), torch.where(running[:, None], new_v, v)
        buffers.iterations += running
        if passes > 1:
            running &= torch.linalg.vector_norm(step, dim=-1) >= tol / reg
        if passes % 10 == 0 and not bool(running.any()):
            break
    buffers.plan[:] = (logk + u.unsqueeze(-1) + v.unsqueeze(-2)).exp()[:, :n, :m].to(buffers.plan.dtype)
    buffers.f[:], buffers.g[:] = reg * u[:, :n], reg * v[:, :m]
    # in the convention of zero dummy cost
    buffers.f_slack[:], buffers.g_slack[:] = reg * (u[:, n] - dummy), reg * (v[:, m] - dummy)


def _measure(buffers: Buffers, p: Tensor, q: Tensor, mass: Tensor) -> None:
    """Errors of the plan against the conditions of the problem; the stop rule does not look at them."""
    reg = buffers.problem.reg
    plan = buffers.plan.double()
    to_column = ((buffers.f + buffers.g_slack[:, None]) / reg).exp()
    to_row = ((buffers.g + buffers.f_slack[:, None]) / reg).exp()
    scale = torch.where(mass > 0, mass, 1.0)
    buffers.row_error = (plan.sum(-1) + to_column - p).abs().sum(-1) / scale
    buffers.col_error = (plan.sum(-2) + to_row - q).abs().sum(-1) / scale
    off = (plan.sum((-2, -1)) - mass).abs() / scale
    buffers.converged = (buffers.row_error <= HONEST) & (buffers.col_error <= HONEST) & (off <= HONEST)
