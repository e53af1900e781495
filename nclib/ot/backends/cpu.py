"""The CPU backend: NumPy and LAPACK on views of the tensors, one problem after the other.

:func:`solve_plain` is the plain case of a training step: one problem with uniform weights. At these sizes the
preparation of a general problem takes longer than its solution, so all that is usual is checked and done in a
handful of NumPy calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot.backends import cpu_capped, cpu_extended
from nclib.ot.backends.cpu_extended import One, Solution
from nclib.ot.problem import LEAST, Potentials, Problem, Settings
from nclib.ot.transport import Buffers, Transport

Array = np.ndarray[Any, np.dtype[Any]]

#: Slack below this share of the total weight is rounding: everything on that side is moved.
NO_SLACK = {torch.float32: 1e-6, torch.float64: 1e-12}
#: Float32 kernels are tried first down to this tolerance.
ROUGH_TOL = 1e-6
#: A number that is 0 where subnormal results are rounded to zero.
SUBNORMAL, ONE = np.float32(1e-39), np.float32(1.0)


@contextmanager
def no_subnormals() -> Iterator[None]:
    """Round subnormal results to zero inside, on CPUs that can, in this thread.

    Far entries of a float32 plan are of the order of 1e-40, and arithmetic with such numbers takes a hundred
    times as long on many CPUs: one Newton step at 128 x 128 took 7 ms in place of 0.1.
    """
    already = bool(SUBNORMAL * ONE == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if not already:
            torch.set_flush_denormal(False)


@no_subnormals()
def solve(problem: Problem, buffers: Buffers, how: Settings) -> Tensor:
    """Solve k problems on the CPU, cost (..., n, m), one after the other into the buffers.

    Only ``g`` of the potentials to start from is used. Return the indices, int64 (r,), of what is not solved.
    """
    reg, dtype = problem.reg, problem.cost.dtype
    costs, masks, ps, qs, masses = problem.arrays()
    starts = None
    if how.start is not None:
        first = how.start.g.detach().double()
        starts = first.expand(*problem.cost.shape[:-2], -1).reshape(len(costs), -1).numpy()
    plans, f, g = buffers.plan.numpy(), buffers.f.numpy(), buffers.g.numpy()
    capped, left = problem.formulation == "capped", []
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
        whole = bool(rows.all() and cols.all())
        if not whole:
            c, p, q = c[rows][:, cols], p[rows], q[cols]
            allowed = None if allowed is None else allowed[rows][:, cols]
        if not capped:
            p, q = _without_rounding(p, mass, dtype), _without_rounding(q, mass, dtype)
        slack = max(float(p.sum()) - mass, 0.0), max(float(q.sum()) - mass, 0.0)
        scaling = None if starts is None else _scaling(starts[i] if whole else starts[i][cols], reg)
        s = _solve_one(One(c, p, q, mass, slack, reg, how.tol, allowed), capped, scaling, how.max_iter)
        if not s.ok:
            left.append(i)
            continue
        own_f, own_g, buffers.f_slack[i], buffers.g_slack[i] = s.potentials(reg)
        if whole:
            plans[i], f[i], g[i] = s.plan(), own_f, own_g
        else:
            plans[i][np.ix_(rows, cols)], f[i, rows], g[i, cols] = s.plan(), own_f, own_g
        buffers.col_error[i], buffers.iterations[i] = s.error, s.iterations
    return torch.tensor(left, dtype=torch.int64)


def _without_rounding(weight: Array, mass: float, dtype: torch.dtype) -> Array:
    """Weights scaled by a rounding error at most, so that no slack is exactly no slack."""
    total = float(weight.sum())
    return weight * (mass / total) if abs(total - mass) <= NO_SLACK[dtype] * total else weight


def _scaling(g: Array, reg: float) -> Array | None:
    """First column scaling from given potentials; None unless all are finite."""
    return np.exp(np.maximum((g - g.max()) / reg, -300.0)) if np.isfinite(g).all() else None


def _solve_one(one: One, capped: bool, start: Array | None, max_iter: int, resume: bool = False) -> Solution:
    """Solve one problem, in float32 as long as that is enough; ``resume`` starts float64 where it stopped."""
    if one.cost.dtype == np.float32 and one.tol >= ROUGH_TOL and not capped:
        rough = None if start is None else np.maximum(start, 1e-30)
        s = cpu_extended.solve(one, newton=False, start=rough, max_blocks=max_iter)
        if s.ok:
            return s
        start = s.b if resume and np.isfinite(s.b).all() else start
    run = cpu_capped.solve if capped else cpu_extended.solve
    one = one._replace(cost=one.cost.astype(np.float64, copy=False))
    return run(one, start=start, max_blocks=max_iter)


# -- the plain case ------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def uniform(size: int) -> Array:
    """Return uniform weights, float64 (size,), the same array every time, which cannot be written to."""
    weight = np.full(size, 1 / size)
    weight.setflags(write=False)
    return weight


@lru_cache(maxsize=64)
def _ones(size: int) -> Array:
    return np.ones(size, np.float32)


@lru_cache(maxsize=64)
def _uniform_tensor(size: int) -> Tensor:
    return torch.full((), 1 / size, dtype=torch.float64).expand(size)  # expanded: refuses to be written to


def plain_arrays(cost: Tensor, mass: Any, mask: Tensor | None) -> tuple[Array, Array | None] | None:
    """Return the cost, infinite where forbidden, and a 0-1 array of allowed entries of its type, both (n, m).

    None if this is not the plain case: a finite cost (n, m), float32 or float64, on the CPU, a mass that is a
    Python float below 1 and not below what the type carries, and no mask or one of that shape, on the CPU.
    """
    if not isinstance(cost, Tensor) or cost.ndim != 2 or cost.device.type != "cpu":
        return None
    if cost.dtype not in LEAST or type(mass) is not float or not LEAST[cost.dtype] <= mass < 1.0:
        return None
    c: Array = cost.detach().numpy()
    n, m = c.shape
    if n == 0 or m == 0 or not math.isfinite(float(_ones(n).dot(c).dot(_ones(m)))):
        return None  # a sum that overflows is rare and may take the general path as well
    if mask is None:
        return c, None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != cost.shape:
        return None
    if mask.device.type != "cpu":
        return None
    allowed = mask.numpy()
    c = c.copy()
    np.copyto(c, math.inf, where=~allowed)  # a forbidden cost leaves no trace, not even in rounding
    return c, allowed.astype(c.dtype)


@no_subnormals()
def solve_plain(
    cost: Tensor, mass: Any, reg: float, mask: Tensor | None, formulation: str, tol: float, max_iter: int
) -> Transport | None:
    """Solve one partial problem with uniform weights; None leaves it to the general path.

    The general path takes batches, weights, non-finite entries, empty rows and what does not converge. It
    also finds a mass that cannot flow: a plan that meets its conditions proves that its mass can.
    """
    with np.errstate(all="ignore"):  # overflow shows afterwards, in the errors
        ready = plain_arrays(cost, mass, mask)
        if ready is None:
            return None
        c, allowed = ready
        p, q = uniform(c.shape[0]), uniform(c.shape[1])
        slack, capped = (1.0 - mass, 1.0 - mass), formulation == "capped"
        one = One(c, p, q, mass, slack, reg, tol, allowed)
        s = _solve_one(one, capped, None, max_iter, resume=True)
        if not s.ok:
            return None
        plan, potentials = s.plan(), s.potentials(reg)
    given = (cost, mask, mass, reg, formulation)
    return pack(given, plan, potentials, s.iterations, col_error=s.error)


def pack(
    given: tuple[Tensor, Tensor | None, float, float, str],
    plan: Array,
    potentials: tuple[Array, Array, float, float],
    iterations: int,
    *,
    row_error: float = 0.0,
    col_error: float = 0.0,
    converged: bool = True,
) -> Transport:
    """Wrap plan (n, m) and potentials (f, g, f_slack, g_slack) of one solved problem without copying them.

    ``given`` is (cost, mask, mass, reg, formulation) of a problem with uniform weights; the errors are
    relative to the mass, and the plan gets the dtype of the cost.
    """
    cost, mask, mass, reg, formulation = given
    f, g, *slacks = potentials
    numbers = torch.from_numpy(np.array((row_error, col_error, *slacks, mass))).unbind()
    p, q = _uniform_tensor(plan.shape[0]), _uniform_tensor(plan.shape[1])
    return Transport(
        plan=torch.from_numpy(plan).to(cost.dtype),
        row_error=numbers[0],
        col_error=numbers[1],
        iterations=torch.from_numpy(np.array(iterations)),
        converged=torch.from_numpy(np.array(converged)),
        potentials=Potentials(torch.from_numpy(f), torch.from_numpy(g), numbers[2], numbers[3]),
        problem=Problem(cost.detach(), mask, p, q, numbers[4], reg, formulation),
    )
