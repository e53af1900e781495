"""Capped partial problem on the CPU: one problem at a time with NumPy and LAPACK.

Rows and the mass by water filling; a projected Newton step with a line search on the dual value for the
columns at their caps. It works on the kernel itself; :mod:`nclib.ot.backends.device` takes over where
that is not safe.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from nclib.ot.backends.cpu_extended import MASS_TOL, MAX_NEWTON, SMALLEST, One, Solution

Array = np.ndarray[Any, np.dtype[Any]]

#: Blocks before the first Newton step, and after a step that did not help.
WARM, PAUSE = 3, 5


@cache
def _cholesky() -> tuple[Any, Any]:
    from scipy.linalg import lapack

    return lapack.dpotrf, lapack.dpotrs


def _water(t: Array, cap: Array, total: float, mass: float) -> float:
    """Level s with ``sum(min(s * t, cap)) = mass``: Newton from the left on a concave polygon, so exact."""
    if mass >= total:
        return float((cap / t).max())
    s = float(mass / t.sum())  # NumPy's division: a kernel that underflows as a whole gives infinity
    for _ in range(len(t)):
        full = s * t >= cap
        if not full.any():
            return s
        rest = mass - float(cap[full].sum())
        below = float(t[~full].sum())
        if rest <= 0.0 or below <= 0.0:
            return s
        new = rest / below
        if new <= s * (1 + 1e-15):
            return s
        s = new
    return s


class _Rows:
    """Row scalings, level, sums and error that follow from the column scalings b."""

    def __init__(self, kernel: Array, b: Array, p: Array, q: Array, total: float, mass: float) -> None:
        self.b = b
        self.t = kernel.dot(b)
        self.level = _water(self.t, p, total, mass)
        x = p / (self.level * self.t)
        self.full = x <= 1.0
        self.a = np.minimum(x, 1.0)
        self.column = self.a.dot(kernel)
        self.column *= b
        self.column *= self.level
        off = self.column - q
        # columns over their caps, and columns under them that are held back nevertheless
        self.error = float(np.maximum(off, (b - 1.0) * off).sum())

    def dual(self, p: Array, q: Array, mass: float) -> float:
        """Dual value in units of the regularisation, up to a constant."""
        return mass * math.log(self.level) + float(p.dot(np.log(self.a))) + float(q.dot(np.log(self.b)))


def _newton(kernel: Array, now: _Rows, p: Array, q: Array, mass: float) -> tuple[Array, Array] | None:
    """Columns at their caps and the direction of their log-scalings; None if the system is not definite."""
    potrf, potrs = _cholesky()
    active = np.flatnonzero((now.b < 1) | (now.column > q))
    full = np.flatnonzero(now.full)
    c = now.column[active]
    plan = (now.level * now.a[full])[:, None] * kernel[np.ix_(full, active)] * now.b[active]
    root = plan / np.sqrt(p[full])[:, None]
    system = root.T @ root
    np.negative(system, out=system)
    spare = c - plan.sum(0)
    room = mass - float(p[full].sum())
    if room > 1e-13 * mass:
        system -= np.outer(spare, spare / room)
    system.flat[:: len(active) + 1] += c * (1 + 1e-10) + 1e-14 * q[active]
    factor, info = potrf(system.T, lower=True, overwrite_a=True, clean=False)
    if info:
        return None
    direction = potrs(factor, q[active] - c, lower=True)[0]
    largest = float(np.abs(direction).max(initial=0.0))
    if not math.isfinite(largest):
        return None
    return active, direction * (8.0 / largest) if largest > 8.0 else direction


def solve(one: One, *, start: Array | None = None, max_blocks: int) -> Solution:
    """Solve one problem in float64; arguments as in :func:`nclib.ot.backends.cpu_extended.solve`.

    The level is part of the row scalings: ``alpha`` is 1 and ``beta`` one over the level.
    """
    # Plan: 1. blocks: fill the columns, then the rows, each to the level that moves the mass; 2. where a
    # block took less than nine tenths of the error away, a Newton step on the columns at their caps, as far
    # as the dual value rises; 3. the solution is judged by its error, its mass and the range of the kernel.
    p, q, mass, tol = one.p, one.q, one.mass, one.tol
    kernel, lowest = one.kernel()
    total_p, total_q = mass + one.slack[0], mass + one.slack[1]
    goal = 0.5 * tol * mass
    b = np.ones(len(q)) if start is None else np.minimum(start / start.max(), 1.0)
    now = _Rows(kernel, b, p, q, total_p, mass)
    blocks, steps = 1, 0
    wait, previous = WARM, math.inf  # blocks before the next Newton step; error of the block before
    while now.error > goal and blocks < max_blocks:
        slow = now.error > 0.1 * previous
        previous = now.error
        if wait > 0 or not slow:
            s = now.column / (now.level * now.b)
            b = np.minimum(1.0, q / (_water(s, q, total_q, mass) * s))
            now = _Rows(kernel, b, p, q, total_p, mass)
            blocks += 1
            wait -= 1
            continue
        if steps >= MAX_NEWTON * 4:
            break
        steps += 1
        found = _newton(kernel, now, p, q, mass)
        trial = None if found is None else _line_search(kernel, now, *found, p, q, total_p, mass)
        wait = PAUSE
        if trial is not None:
            wait = 0 if trial.error < now.error else 1
            now, previous = trial, 0.0 if wait == 0 else math.inf  # a step that helped is followed by another
    a = now.a * now.level
    cut = float(a.max()) * float(SMALLEST[np.dtype(np.float64)]) * len(p) * len(q)  # b is at most 1
    error = now.error / mass
    off = abs(float(now.a.dot(now.t)) * now.level - mass)  # water filling fails where whole rows underflow
    ok = error <= tol and cut <= 0.1 * tol * mass and off <= min(max(tol, 1e-9), MASS_TOL) * mass
    ok = ok and float(now.t.min()) > 0.0 and float(now.column.min()) > 0.0
    beta = float(1.0 / np.float64(now.level))
    return Solution(a, now.b, 1.0, beta, kernel, lowest, error, blocks + steps, ok)


def _line_search(
    kernel: Array,
    now: _Rows,
    active: Array,
    direction: Array,
    p: Array,
    q: Array,
    total_p: float,
    mass: float,
) -> _Rows | None:
    """Shorten the Newton step until the error halves or the dual value rises enough; None if that fails."""
    gradient, size, dual = q[active] - now.column[active], 1.0, now.dual(p, q, mass)
    for _ in range(12):
        b = now.b.copy()
        b[active] = np.minimum(1.0, b[active] * np.exp(size * direction))
        trial = _Rows(kernel, b, p, q, total_p, mass)
        gain = float(gradient @ np.log(b[active] / now.b[active]))
        if trial.error < 0.5 * now.error or trial.dual(p, q, mass) >= dual + 1e-4 * gain - 1e-15:
            return trial
        size *= 0.4
    return None
