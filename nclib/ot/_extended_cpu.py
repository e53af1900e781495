"""Extended partial problem on the CPU: NumPy and LAPACK on zero-copy views, one problem at a time.

At a few hundred rows the cost of a solver is the number of calls it makes, and NumPy makes them three to
five times cheaper than torch. The iteration is the one of :mod:`nclib.ot._extended`: rows with the dummy
column, then columns with the dummy row, each solved jointly with its scalar; Newton on the column potentials
when the blocks contract slowly. It works on the kernel itself, and says so when that is not safe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Smallest kernel entries that are kept.
SMALLEST = {np.dtype(np.float32): 1e-37, np.dtype(np.float64): 1e-304}
#: Blocks and Newton steps after which this solver leaves a problem to the log domain.
MAX_BLOCKS, MAX_NEWTON = 400, 25


@dataclass
class Solution:
    """Scalings of one problem: ``plan = a[:, None] * kernel * b``; ``ok`` False if they cannot be trusted."""

    a: Array
    b: Array
    alpha: float
    beta: float
    kernel: Array
    lowest: float  # cost at which the kernel is 1
    error: float
    iterations: int
    ok: bool


@cache
def _lapack() -> tuple[Any, Any, Any, Any]:
    from scipy.linalg import blas, lapack

    return blas.ssyrk, blas.ssyr, lapack.spotrf, lapack.spotrs


def _scalar(
    t: Array, weight: Array, total: float, mass: float, beta: float, steps: int, enough: float = 0.1
) -> float:
    """Newton in log(beta) on ``sum(weight * t / (t + beta)) = mass``; 0 if nothing is left over.

    Stops after a step shorter than ``enough``; the error is then about its square.
    """
    if total <= mass:
        return 0.0
    for _ in range(steps):
        w = 1.0 / (t + beta)
        r = t * w
        r *= weight
        slope = float(r.dot(w)) * beta
        if slope <= 0.0:
            return beta
        step = (float(r.sum()) - mass) / slope
        beta *= math.exp(min(3.0, max(-3.0, step)))
        if -enough < step < enough:
            break
    return beta


def _newton_step(
    kernel: Array, a: Array, b: Array, s: Array, p: Array, q: Array, beta: float, alpha: float, slack_q: float
) -> Array | None:
    """Direction in log(b) with the rows and both dummies eliminated; None if the system is not definite.

    The matrix is formed and factorised in float32: the direction needs no more, and the residual it
    corrects is kept in the precision of the kernel.
    """
    syrk, syr, potrf, potrs = _lapack()
    m = len(b)
    root = (a / np.sqrt(p))[:, None] * kernel  # plan over the root of the row weights
    root *= b
    c = b * (s + alpha)  # column sums including the dummy row
    system = syrk(-1.0, root.astype(np.float32, copy=False).T, lower=True)  # lower triangle, Fortran order
    if beta > 0.0:
        slack = a * beta
        share = slack / p
        w = ((share * a) @ kernel) * b
        delta = float(share @ (p - slack))
        if delta <= 0.0:
            return None
        system = syr(-1.0, (w / math.sqrt(delta)).astype(np.float32), lower=True, a=system, overwrite_a=True)
    if alpha > 0.0:
        v = (b * (alpha / math.sqrt(slack_q))).astype(np.float32)
        system = syr(-1.0, v, lower=True, a=system, overwrite_a=True)
    diagonal = np.asarray(c, np.float32)
    system += np.float32(float(diagonal.mean()) / m)  # fixes the gauge (a, alpha) -> k, (b, beta) -> 1/k
    system.ravel("K")[:: m + 1] += diagonal * np.float32(1 + 1e-6)
    factor, info = potrf(system, lower=True, overwrite_a=True, clean=False)
    if info:
        return None
    direction = potrs(factor, (q - c).astype(np.float32), lower=True)[0].astype(b.dtype)
    largest = float(np.abs(direction).max())
    if not math.isfinite(largest):
        return None
    return direction * (4.0 / largest) if largest > 4.0 else direction


def _kernel(cost: Array, lowest: float, reg: float) -> Array:
    """``exp((lowest - cost) / reg)``, zero where the result would be subnormal or the cost is infinite."""
    kernel = np.subtract(cost.dtype.type(lowest), cost)
    kernel *= cost.dtype.type(1.0 / reg)
    np.exp(kernel, out=kernel)
    # subnormal numbers make the products below many times slower
    if float(kernel.min()) < SMALLEST[cost.dtype]:
        kernel[kernel < SMALLEST[cost.dtype]] = 0
    return kernel


def solve(
    cost: Array,
    p: Array,
    q: Array,
    mass: float,
    reg: float,
    tol: float,
    *,
    newton: bool = True,
    start: Array | None = None,
    max_blocks: int = MAX_BLOCKS,
) -> Solution:
    """Solve one problem whose rows and columns all have weight and an allowed entry (quicker if n >= m).

    Parameters
    ----------
    cost : array, shape (n, m)
        float32 or float64: the precision of the kernel. Infinite where forbidden.
    p, q : float64 arrays, shape (n,) and (m,)
    mass, reg, tol : float
        The tolerance is relative to the mass.
    newton : bool
        False: give up where Newton steps would pay, so that the caller can raise the precision first.
    start : array, shape (m,), or None
        First column scaling.
    max_blocks : int
        Passes over rows and columns before giving up.
    """
    dtype = cost.dtype
    n, m = cost.shape
    lowest = float(cost.min())
    kernel = _kernel(cost, lowest, reg)
    total_p, total_q = float(p.sum()), float(q.sum())
    slack_q = max(total_q - mass, 0.0)
    p_, q_ = p.astype(dtype, copy=False), q.astype(dtype, copy=False)
    goal = 0.8 * tol * mass
    newton_price = max(5.0, m / 10)  # one step costs about as much as this many blocks

    begun = start is not None
    b = np.ones(m, dtype) if start is None else start.astype(dtype)
    t = kernel @ b
    beta = _scalar(t, p_, total_p, mass, float(t.mean()) * (total_p - mass) / mass, 6)
    a = p_ / (t + beta)
    s = a @ kernel
    alpha = _scalar(s, q_, total_q, mass, float(s.mean()) * slack_q / mass, 6)
    blocks, steps, wait = 1, 0, 0 if begun else 2  # wait: blocks before Newton may be tried
    previous, spread = 0.0, 1.0  # spread: distance to the optimum over residual, from the contraction rate
    while True:
        b = q_ / (s + alpha)
        t = kernel @ b
        beta = _scalar(t, p_, total_p, mass, beta, 1)
        a = p_ / (t + beta)
        s = a @ kernel
        blocks += 1
        error = float(np.abs((s + alpha) * b - q_).sum())
        rate = error / previous if previous else 0.0
        if 0.0 < rate < 1.0:
            spread = min(1e3, 1.0 / (1.0 - rate))
        if error * spread <= goal:
            break
        slow = rate >= 0.98 or (
            rate > 0 and math.log(goal / (error * spread)) / math.log(rate) > newton_price
        )
        previous = error
        wait -= 1
        if (slow and wait < 0 and not newton) or blocks >= max_blocks or not error < math.inf:
            break
        if slow and wait < 0 and steps < MAX_NEWTON:
            steps += 1
            wait, previous = 10, 0.0
            alpha = float(slack_q / b.sum())
            before = float(np.abs(q_ - b * (s + alpha)).sum())
            direction = _newton_step(kernel, a, b, s, p_, q_, beta, alpha, slack_q)
            if direction is not None:
                new_b = b * np.exp(direction)
                new_t = kernel @ new_b
                new_beta = _scalar(new_t, p_, total_p, mass, beta, 4)
                new_a = p_ / (new_t + new_beta)
                new_s = new_a @ kernel
                new_alpha = float(slack_q / new_b.sum())
                error = float(np.abs(q_ - new_b * (new_s + new_alpha)).sum())
                if error < before:
                    a, b, s, alpha, beta, wait = new_a, new_b, new_s, new_alpha, new_beta, 0
                    if error <= 0.2 * goal:
                        break
        alpha = _scalar(s, q_, total_q, mass, alpha, 1)

    # The mass is exact after this: the scalar equation solved to the last digit, in float64.
    t64 = (kernel @ b).astype(np.float64)
    beta = _scalar(t64, p, total_p, mass, beta, 50, 1e-8)
    a64 = p / (t64 + beta)
    alpha = float(slack_q / b.sum())
    column = (a64.astype(dtype) @ kernel + alpha) * b
    error = float(np.abs(column - q_).sum()) / mass
    cut = float(a64.max()) * float(b.max()) * SMALLEST[dtype] * n * m  # what underflow can hide
    off = abs(float(a64 @ t64) - mass)
    ok = error <= tol and cut <= 0.1 * tol * mass and off <= max(tol, 1e-9) * mass
    return Solution(a64, b.astype(np.float64), alpha, beta, kernel, lowest, error, blocks + steps, ok)
