"""The CPU backend: one problem at a time with NumPy and LAPACK, on views of the tensors.

At a few hundred rows the number of calls decides the time of a solver, and a call of NumPy costs a third to
a fifth of one of torch. The iteration is that of :mod:`nclib.ot.device`: rows with the dummy column, then
columns with the dummy row, each solved jointly with its scalar; Newton on the column potentials when these
blocks contract slowly. It works on the kernel itself; a solution that the range of the numbers may have
spoilt is marked as not ``ok``, and left to the other backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from nclib.ot.problem import EPSILON, LEAST, MASS_TOL, NO_SLACK, Potentials, Problem, SolverSettings
from nclib.ot.transport import Buffers, Transport

Array = np.ndarray[Any, np.dtype[Any]]
Given = ParamSpec("Given")
Found = TypeVar("Found")

#: Added to every kernel entry: subnormal numbers would make the products below many times slower.
SMALLEST: dict[np.dtype[Any], Any] = {
    np.dtype(np.float32): np.float32(1e-37),
    np.dtype(np.float64): np.float64(1e-304),
}
#: Limits of Newton steps and of vain Newton steps; past one, a problem goes to the log domain.
MAX_NEWTON, MAX_FAILURES = 25, 3
#: A scalar is solved well enough for the mass once a Newton step changes it by less than this share.
SOLVED = 1e-5
#: Float32 kernels are tried first down to this tolerance.
ROUGH_TOL = 1e-6
#: A number that is 0 where subnormal results are rounded to zero.
SUBNORMAL, ONE = np.float32(1e-39), np.float32(1.0)


def careless(solver: Callable[Given, Found]) -> Callable[Given, Found]:
    """Let a solver round subnormal results to zero, on CPUs that can, and overflow without a warning.

    Far entries of a float32 plan are of the order of 1e-40, and arithmetic with such numbers takes a hundred
    times as long on many CPUs: one Newton step at 128 x 128 took 7 ms in place of 0.1. Overflow shows
    afterwards, in the errors.
    """

    @wraps(solver)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        already = bool(SUBNORMAL * ONE == 0)
        torch.set_flush_denormal(True)
        try:
            with np.errstate(all="ignore"):
                return solver(*args, **kwargs)
        finally:
            if not already:
                torch.set_flush_denormal(False)

    return run


class One(NamedTuple):
    """One problem whose rows and columns all have weight."""

    cost: Array  # (n, m), float32 or float64: the precision of the kernel; not NaN
    p: Array  # (n,), float64
    q: Array  # (m,), float64
    mass: float
    slack: tuple[float, float]  # what is not moved of the rows and of the columns
    reg: float
    tol: float  # relative to the mass
    allowed: Array | None  # (n, m), bool
    room: Array | None = None  # memory for the kernel and the plan, of the cost's shape and type

    def kernel(self) -> tuple[Array, float]:
        """Gibbs kernel ``exp((lowest - cost) / reg)``, 0 where forbidden, never subnormal; ``lowest``."""
        lowest, kind = self.cost.min(), self.cost.dtype.type
        kernel = np.subtract(lowest, self.cost, out=self.room)
        kernel *= kind(1.0 / self.reg)
        np.exp(kernel, out=kernel)
        kernel += SMALLEST[self.cost.dtype]
        if self.allowed is not None:
            np.copyto(kernel, 0, where=~self.allowed)
            if kernel.max() < 1 and self.allowed.any():  # a forbidden cost is the lowest: it leaves no trace
                cost = np.where(self.allowed, self.cost, kind(math.inf))
                return self._replace(cost=cost).kernel()
        return kernel, float(lowest)


@dataclass
class Solution:
    """Scalings of one problem, ``plan = a[:, None] * kernel * b``; ``ok`` is False if they are not safe."""

    a: Array
    b: Array
    alpha: float
    beta: float
    kernel: Array
    lowest: float  # cost at which the kernel is 1
    error: float
    iterations: int
    ok: bool

    def plan(self) -> Array:
        """Turn the kernel into the plan, in place."""
        plan = self.kernel
        plan *= self.a[:, None].astype(plan.dtype, copy=False)
        plan *= self.b.astype(plan.dtype, copy=False)
        return plan

    def potentials(self, reg: float) -> tuple[Array, Array, float, float]:
        """Potentials f and g, and those of the dummy row and column, in the unit of the cost."""
        f, g = reg * np.log(self.a) + self.lowest, reg * np.log(self.b)
        f_slack = reg * math.log(self.alpha) if self.alpha > 0 else -math.inf
        g_slack = reg * math.log(self.beta) - self.lowest if self.beta > 0 else -math.inf
        return f, g, f_slack, g_slack


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


class _Verdict(Enum):
    """What to do after a block of updates."""

    DONE = "the goal is reached"
    GIVE_UP = "the problem is left to a slower method"
    HALF = "half a block more reaches the goal"
    NEWTON = "a Newton step pays"
    BLOCK = "another block"


class _Pace:
    """Progress of the blocks: how fast the error falls, how far the goal is, whether Newton pays."""

    def __init__(self, goal: float, price: float, wait: int = 2) -> None:
        self.goal, self.price = goal, price
        self.wait = wait  # blocks before the next Newton step may be tried
        self.previous = 0.0  # error of the block before; 0 where none compares (start, after a Newton step)
        self.spread = 1.0  # distance to the optimum over the residual, from the contraction rate
        self.helped = False  # whether the block before began with a Newton step that helped
        self.newtons = self.failures = 0

    def judge(self, error: float, newton: bool, exhausted: bool) -> _Verdict:
        """Decide from the error after a block; ``newton`` says whether Newton steps are wanted."""
        rate = error / self.previous if self.previous else 0.0
        if 0.0 < rate < 1.0:
            self.spread = min(1e3, 1.0 / (1.0 - rate))
        away = error * self.spread
        if away <= self.goal:
            return _Verdict.DONE
        slow = self.helped or rate >= 0.98
        slow = slow or (rate > 0 and math.log(self.goal / away) / math.log(rate) > self.price)
        self.previous, self.helped = error, False
        self.wait -= 1
        pays = slow and self.wait < 0
        if (pays and not newton) or exhausted or not error < math.inf:
            return _Verdict.GIVE_UP
        if 0.0 < 1.5 * rate * away <= self.goal:
            return _Verdict.HALF
        return _Verdict.NEWTON if pays and self.newtons < MAX_NEWTON else _Verdict.BLOCK

    def stepped(self, helped: bool) -> None:
        """Take note of a Newton step."""
        self.newtons += 1
        self.previous, self.wait, self.helped = 0.0, 0 if helped else 10, helped
        self.failures += not helped


@dataclass
class _Iterate:
    """Scalings of one problem with the kernel sums that belong to them."""

    b: Array
    t: Array  # kernel @ b
    beta: float
    a: Array
    s: Array  # a @ kernel
    alpha: float


@dataclass
class _Scaled:
    """One problem in the precision of its kernel, and the two moves of the iteration."""

    kernel: Array
    p: Array
    q: Array
    mass: float
    slack_p: float
    slack_q: float

    def start(self) -> _Iterate:
        """First iterate: dummies as if all rows (columns) had the weighted mean of their sums."""
        b, mass = self.q, self.mass
        t = self.kernel.dot(b)
        guess = float(self.p.dot(t)) / (self.slack_p + mass) * self.slack_p / mass
        beta = _scalar(t, self.p, mass, guess, 6, 0.3)
        a = self.p / (t + beta)
        s = a.dot(self.kernel)
        guess = float(self.q.dot(s)) / (self.slack_q + mass) * self.slack_q / mass
        return _Iterate(b, t, beta, a, s, _scalar(s, self.q, mass, guess, 6, 0.3))

    def columns(self, x: _Iterate) -> None:
        """Update the column scalings and the row sums."""
        x.b = self.q / (x.s + x.alpha)
        x.t = self.kernel.dot(x.b)

    def rows(self, x: _Iterate) -> float:
        """Update the row scalings; return a bound of the columns' L1 error at a quarter of its price."""
        x.beta = _scalar(x.t, self.p, self.mass, x.beta)
        x.a = self.p / (x.t + x.beta)
        x.s = x.a.dot(self.kernel)
        off = (x.s + x.alpha) * x.b - self.q
        return math.sqrt(off.size * float(off.dot(off)))

    def newton(self, x: _Iterate) -> tuple[_Iterate, float] | None:
        """Take a Newton step; return where it leads and the error there, None where it does not help."""
        x.alpha = float(self.slack_q / x.b.sum())
        before = float(np.abs(self.q - x.b * (x.s + x.alpha)).sum())
        direction = self._direction(x)
        if direction is None:
            return None
        b = x.b * np.exp(direction)
        t = self.kernel.dot(b)
        beta = _scalar(t, self.p, self.mass, x.beta, 4)
        a = self.p / (t + beta)
        s = a.dot(self.kernel)
        alpha = float(self.slack_q / b.sum())
        error = float(np.abs(self.q - b * (s + alpha)).sum())
        return (_Iterate(b, t, beta, a, s, alpha), error) if error < before else None

    def _direction(self, x: _Iterate) -> Array | None:
        """Direction in log(b) with the rows and both dummies eliminated; None without a definite system.

        The matrix is formed and factorised in float32: the direction needs no more, and the residual that it
        corrects is kept in the precision of the kernel.
        """
        syrk, syr, potrf, potrs = _lapack()
        m = len(x.b)
        root = (x.a / np.sqrt(self.p))[:, None] * self.kernel  # plan over the root of the row weights
        root *= x.b
        c = x.b * (x.s + x.alpha)  # column sums including the dummy row
        # lower triangle, Fortran order
        system = syrk(-1.0, root.astype(np.float32, copy=False).T, lower=True)
        if x.beta > 0.0:
            slack = x.a * x.beta
            share = slack / self.p
            w = ((share * x.a) @ self.kernel) * x.b
            delta = float(share @ (self.p - slack))
            if delta <= 0.0:
                return None
            w32 = (w / math.sqrt(delta)).astype(np.float32)
            system = syr(-1.0, w32, lower=True, a=system, overwrite_a=True)
        if x.alpha > 0.0:
            v = (x.b * (x.alpha / math.sqrt(self.slack_q))).astype(np.float32)
            system = syr(-1.0, v, lower=True, a=system, overwrite_a=True)
        diagonal = np.asarray(c, np.float32)
        system += np.float32(float(diagonal.mean()) / m)  # fixes the gauge (a, alpha) -> k, (b, beta) -> 1/k
        system.ravel("K")[:: m + 1] += diagonal * np.float32(1 + 1e-6)
        factor, info = potrf(system, lower=True, overwrite_a=True, clean=False)
        if info:
            return None
        direction: Array = potrs(factor, (self.q - c).astype(np.float32), lower=True)[0].astype(x.b.dtype)
        largest = float(np.abs(direction).max())
        if not math.isfinite(largest):
            return None
        return direction * (4.0 / largest) if largest > 4.0 else direction


def iterate(one: One, *, newton: bool = True, max_blocks: int) -> Solution:
    """Solve one problem (quicker if n >= m); not ``ok`` with an empty row or a mass that cannot flow.

    Parameters
    ----------
    newton : bool
        False: give up where Newton steps would pay, so that the caller can raise the precision first.
    max_blocks : int
        Passes over rows and columns before giving up.
    """
    # Plan: 1. blocks, columns then rows, each with its dummy; 2. after every block the pace decides: done,
    # half a block more, a Newton step on log(b), or give up; 3. at the end the mass is made exact in float64,
    # and the solution is judged by what is left of its error and by what the range of the numbers may hide.
    dtype, mass = one.cost.dtype, one.mass
    kernel, lowest = one.kernel()
    p, q = one.p.astype(dtype, copy=False), one.q.astype(dtype, copy=False)
    problem = _Scaled(kernel, p, q, mass, *one.slack)
    goal = 0.8 * one.tol * mass
    price = max(5.0, len(q) / 10)  # a Newton step costs about as much as this many blocks
    pace = _Pace(goal, price)
    x = problem.start()
    blocks, verdict = 1, _Verdict.BLOCK
    while True:
        problem.columns(x)
        if verdict is _Verdict.HALF:  # the rows follow below
            break
        error = problem.rows(x)
        blocks += 1
        verdict = pace.judge(error, newton, blocks >= max_blocks)
        if verdict is _Verdict.DONE or verdict is _Verdict.GIVE_UP:
            break
        if verdict is _Verdict.NEWTON:
            found = problem.newton(x)
            pace.stepped(found is not None)
            if found is not None:
                x, error = found
                if error <= 0.2 * goal:
                    break
            if pace.failures > MAX_FAILURES:
                break
        x.alpha = _scalar(x.s, problem.q, mass, x.alpha)
    return _finish(problem, x, one, lowest, blocks + pace.newtons)


def _finish(problem: _Scaled, x: _Iterate, one: One, lowest: float, iterations: int) -> Solution:
    """Solve the scalar equation of the rows to the last digit, in float64, and judge the solution."""
    kernel, mass, tol, b = problem.kernel, one.mass, one.tol, x.b
    t64 = x.t.astype(np.float64)
    beta = _scalar(t64, one.p, mass, x.beta, 50, SOLVED)
    a64 = one.p / (t64 + beta)
    total_b = float(b.sum())
    alpha = problem.slack_q / total_b if total_b > 0 else 0.0  # all scalings below the smallest number
    s = a64.astype(kernel.dtype).dot(kernel)
    error = float(np.abs((s + alpha) * b - problem.q).sum()) / mass
    added = float(SMALLEST[kernel.dtype]) * float(a64.sum()) * total_b  # mass of what keeps numbers normal
    missed = abs(float(a64.dot(t64)) - mass)
    ok = error <= tol and added <= 0.1 * tol * mass and missed <= min(max(tol, 1e-9), MASS_TOL) * mass
    ok = ok and float(x.t.min()) > 0.0 and float(s.min()) > 0.0
    return Solution(a64, b.astype(np.float64), alpha, beta, kernel, lowest, error, iterations, ok)


# -- one problem with uniform weights ------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _uniform(size: int) -> tuple[Array, float, Tensor]:
    """Uniform weights, their sum, and the same as a tensor; none of them can be written to."""
    weight = np.full(size, 1 / size)
    weight.setflags(write=False)
    return weight, float(weight.sum()), torch.full((), 1 / size, dtype=torch.float64).expand(size)


@careless
def solve_plain(
    cost: Tensor, mask: Tensor | None, reg: float, how: SolverSettings, mass: Any = None
) -> Transport | None:
    """Solve one problem with uniform weights, as in a training step; None leaves it to :func:`solve`.

    At a hundred rows the tensors of a general problem take longer to prepare than the plan. Left to the
    general path are batches, other devices, costs that are not finite, masks that are broadcast or leave a
    row or column empty, masses that are a tensor or nearly all of the weight, and what does not
    converge. A plan that meets its conditions proves that its mass can flow.

    Parameters
    ----------
    cost, mask
        After :func:`nclib.ot.problem.check_kinds`.
    mass : float or None
        None moves everything.
    """
    if cost.ndim != 2 or cost.device.type != "cpu" or not (mask is None or mask.shape == cost.shape):
        return None
    c = cost.numpy(force=True)
    if not float(np.vdot(c, c)) < (reg / EPSILON) ** 2:  # also where it is not finite
        return None
    (p, total_p, rows), (q, total_q, cols) = _uniform(c.shape[0]), _uniform(c.shape[1])
    if mass is None:
        formulation, mass, slack, q = "balanced", total_p, (0.0, 0.0), q * (total_p / total_q)
    elif type(mass) is float and LEAST[cost.dtype] <= mass < 1.0 - 1e-5:
        formulation, slack = "extended", (total_p - mass, total_q - mass)
    else:
        return None
    allowed = None
    if mask is not None:
        allowed = mask.numpy(force=True)
    s = _solve_one(One(c, p, q, mass, slack, reg, how.tol, allowed, np.empty(c.shape, c.dtype)), how.max_iter)
    if not s.ok:
        return None
    plan, (f, g, *slacks) = np.ascontiguousarray(s.plan(), c.dtype), s.potentials(reg)
    row_error, col_error, f_slack, g_slack, moved = torch.from_numpy(
        np.array((0.0, s.error, *slacks, mass))
    ).unbind()
    return Transport(
        torch.from_numpy(plan),
        row_error,
        col_error,
        torch.from_numpy(np.array(s.iterations)),
        torch.from_numpy(np.array(True)),
        Potentials(torch.from_numpy(f), torch.from_numpy(g), f_slack, g_slack),
        Problem(cost.detach(), mask, rows, cols, moved, reg, formulation),
    )


# -- batches -------------------------------------------------------------------------------------------------


@careless
def solve(problem: Problem, buffers: Buffers, how: SolverSettings) -> list[int]:
    """Solve k problems on the CPU, cost (..., n, m), into the buffers; return which are not solved."""
    reg, dtype = problem.reg, problem.cost.dtype
    costs, masks, ps, qs, masses = problem.arrays()
    b, left = buffers.arrays(), []
    for i, mass in enumerate(masses.tolist()):
        if mass == 0.0:
            continue
        c, p, q = costs[i], ps[i], qs[i]
        rows, cols, allowed = p > 0, q > 0, None if masks is None else masks[i]
        if allowed is not None:
            c = np.where(allowed, c, np.inf)
            used = allowed if rows.all() and cols.all() else allowed & rows[:, None] & cols
            rows &= used.any(1)
            cols &= used.any(0)
        if not rows.any():  # no entry at all: infeasible
            left.append(i)
            continue
        whole = bool(rows.all() and cols.all())
        if not whole:
            c, p, q = c[rows][:, cols], p[rows], q[cols]
            allowed = None if allowed is None else allowed[rows][:, cols]
        (p, slack_p), (q, slack_q) = _side(p, mass, dtype), _side(q, mass, dtype)
        one = One(c, p, q, mass, (slack_p, slack_q), reg, how.tol, allowed, b.plan[i] if whole else None)
        s = _solve_one(one, how.max_iter)
        if not s.ok:
            left.append(i)
            continue
        plan, (f, g, *b.slacks[:, i]) = s.plan(), s.potentials(reg)
        if whole:
            b.f[i], b.g[i] = f, g
            if plan is not one.room:
                b.plan[i] = plan
        else:
            b.plan[i][np.ix_(rows, cols)], b.f[i, rows], b.g[i, cols] = plan, f, g
        b.errors[1, i], b.iterations[i] = s.error, s.iterations
    return left


def _side(weight: Array, mass: float, dtype: torch.dtype) -> tuple[Array, float]:
    """Weights and slack of a side; a slack that is only rounding is removed from the weights."""
    total = float(weight.sum())
    if abs(total - mass) <= NO_SLACK[dtype] * total:
        weight = weight * (mass / total)
        total = float(weight.sum())
    return weight, max(total - mass, 0.0)


def _solve_one(one: One, max_iter: int) -> Solution:
    """Solve one problem, in float32 as long as that is enough."""
    if one.cost.dtype == np.float32 and one.tol >= ROUGH_TOL:
        s = iterate(one, newton=False, max_blocks=max_iter)
        if s.ok:
            return s
        one = one._replace(room=None)
    return iterate(one._replace(cost=one.cost.astype(np.float64, copy=False)), max_blocks=max_iter)
