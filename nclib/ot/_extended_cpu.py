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

#: Added to every kernel entry: subnormal numbers would make the products below many times slower.
SMALLEST: dict[np.dtype[Any], Any] = {
    np.dtype(np.float32): np.float32(1e-37),
    np.dtype(np.float64): np.float64(1e-304),
}
#: Blocks, Newton steps, and steps in vain after which this solver leaves a problem to the log domain.
MAX_BLOCKS, MAX_NEWTON, MAX_FAILURES = 400, 25, 3
#: Largest error of the mass, relative to it, whatever the tolerance.
MASS_TOL = 1e-6
#: A scalar is solved well enough for the mass once a Newton step changes it by less than this share.
SOLVED = 1e-5


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


def _scalar(t: Array, weight: Array, mass: float, z: float, steps: int = 1, enough: float = 0.1) -> float:
    """Newton in log z on ``sum(x * t) = mass`` with the scalings ``x = weight / (t + z)``; 0 stays 0.

    Stops after a step shorter than ``enough``; the error is then about its square.
    """
    if z <= 0.0:
        return 0.0
    for _ in range(steps):
        level = t + z
        x = weight / level
        moved = float(x.dot(t))
        x /= level
        slope = z * float(x.dot(t))
        if not slope > 0.0:
            return z
        step = (moved - mass) / slope
        z *= math.exp(min(3.0, max(-3.0, step)))
        if -enough < step < enough:
            break
    return z


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


def _kernel(cost: Array, lowest: float, reg: float, allowed: Array | None = None) -> Array:
    """``exp((lowest - cost) / reg)``, zero where ``allowed`` is 0, elsewhere never subnormal."""
    kernel = np.subtract(cost.dtype.type(lowest), cost)
    kernel *= cost.dtype.type(1.0 / reg)
    np.exp(kernel, out=kernel)
    kernel += SMALLEST[cost.dtype]
    if allowed is not None:
        kernel *= allowed
    return kernel


def solve(
    cost: Array,
    p: Array,
    q: Array,
    mass: float,
    slack: tuple[float, float],
    reg: float,
    tol: float,
    *,
    allowed: Array | None = None,
    newton: bool = True,
    start: Array | None = None,
    max_blocks: int = MAX_BLOCKS,
) -> Solution:
    """Solve one problem whose rows and columns all have weight (quicker if n >= m).

    A row or column without an allowed entry, or a mass that cannot flow, makes the solution not ``ok``.

    Parameters
    ----------
    cost : array, shape (n, m)
        float32 or float64: the precision of the kernel. Not NaN.
    p, q : float64 arrays, shape (n,) and (m,)
    mass, reg, tol : float
        The tolerance is relative to the mass.
    slack : (float, float)
        What is not moved of the rows and of the columns: weight of the dummy column and row.
    allowed : array of numbers or bool, shape (n, m), or None
        0 where forbidden, else 1.
    newton : bool
        False: give up where Newton steps would pay, so that the caller can raise the precision first.
    start : array, shape (m,), or None
        First column scaling.
    max_blocks : int
        Passes over rows and columns before giving up.
    """
    dtype = cost.dtype
    m = cost.shape[1]
    lowest = float(cost.min())
    kernel = _kernel(cost, lowest, reg, allowed)
    slack_p, slack_q = slack
    p_, q_ = p.astype(dtype, copy=False), q.astype(dtype, copy=False)
    goal = 0.8 * tol * mass
    newton_price = max(5.0, m / 10)  # one step costs about as much as this many blocks

    b = q_ if start is None else start.astype(dtype)
    t = kernel.dot(b)
    # the dummies' scalings, first as if all rows (columns) had the weighted mean of their sums
    beta = _scalar(t, p_, mass, float(p_.dot(t)) / (slack_p + mass) * slack_p / mass, 6, 0.3)
    a = p_ / (t + beta)
    s = a.dot(kernel)
    alpha = _scalar(s, q_, mass, float(q_.dot(s)) / (slack_q + mass) * slack_q / mass, 6, 0.3)
    blocks, steps = 1, 0
    wait = 2 if start is None else 0  # blocks before Newton may be tried
    previous, spread = 0.0, 1.0  # spread: distance to the optimum over residual, from the contraction rate
    last = keen = False  # keen: the step before this block was Newton's, and helped
    failures = 0
    while True:
        b = q_ / (s + alpha)
        t = kernel.dot(b)
        if last:
            break
        beta = _scalar(t, p_, mass, beta)
        a = p_ / (t + beta)
        s = a.dot(kernel)
        blocks += 1
        off = (s + alpha) * b - q_
        error = math.sqrt(m * float(off.dot(off)))  # at least the L1 norm, at a quarter of its price
        rate = error / previous if previous else 0.0
        if 0.0 < rate < 1.0:
            spread = min(1e3, 1.0 / (1.0 - rate))
        if error * spread <= goal:
            break
        last = 0.0 < 1.5 * rate * error * spread <= goal  # half a block more will do: the rows follow below
        slow = keen or rate >= 0.98
        slow = slow or (rate > 0 and math.log(goal / (error * spread)) / math.log(rate) > newton_price)
        previous, keen = error, False
        wait -= 1
        if (slow and wait < 0 and not newton) or blocks >= max_blocks or not error < math.inf:
            break
        if slow and wait < 0 and steps < MAX_NEWTON and not last:
            steps += 1
            wait, previous = 10, 0.0
            alpha = float(slack_q / b.sum())
            before = float(np.abs(q_ - b * (s + alpha)).sum())
            direction = _newton_step(kernel, a, b, s, p_, q_, beta, alpha, slack_q)
            if direction is not None:
                new_b = b * np.exp(direction)
                new_t = kernel.dot(new_b)
                new_beta = _scalar(new_t, p_, mass, beta, 4)
                new_a = p_ / (new_t + new_beta)
                new_s = new_a.dot(kernel)
                new_alpha = float(slack_q / new_b.sum())
                error = float(np.abs(q_ - new_b * (new_s + new_alpha)).sum())
                if error < before:
                    a, b, s, t, alpha, beta = new_a, new_b, new_s, new_t, new_alpha, new_beta
                    wait, keen = 0, True
                    if error <= 0.2 * goal:
                        break
            failures += not keen
            if failures > MAX_FAILURES:
                break
        alpha = _scalar(s, q_, mass, alpha)

    # The mass is exact after this: the scalar equation solved to the last digit, in float64.
    t64 = t.astype(np.float64)
    beta = _scalar(t64, p, mass, beta, 50, SOLVED)
    a64 = p / (t64 + beta)
    total_b = float(b.sum())
    alpha = slack_q / total_b
    s = a64.astype(dtype).dot(kernel)
    error = float(np.abs((s + alpha) * b - q_).sum()) / mass
    added = float(SMALLEST[dtype]) * float(a64.sum()) * total_b  # the mass of what keeps numbers normal
    missed = abs(float(a64.dot(t64)) - mass)
    ok = error <= tol and added <= 0.1 * tol * mass and missed <= min(max(tol, 1e-9), MASS_TOL) * mass
    ok = ok and float(t.min()) > 0.0 and float(s.min()) > 0.0
    return Solution(a64, b.astype(np.float64), alpha, beta, kernel, lowest, error, blocks + steps, ok)
