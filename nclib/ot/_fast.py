"""The plain case of a training step, without ceremony: one problem on the CPU, solved in NumPy throughout.

At these sizes the preparation of a general problem takes longer than its solution. Here everything that is
usual is checked and done in a handful of NumPy calls; whatever is not (several problems, weights, entries
that are not finite, a mass that may be infeasible, rows that nothing can leave, no convergence) is left to
the general path by returning None.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot import _capped_cpu, _extended_cpu, _published
from nclib.ot.transport import Potentials, Problem, Transport

Array = np.ndarray[Any, np.dtype[Any]]


@lru_cache(maxsize=64)
def _uniform(size: int) -> Array:
    weight = np.full(size, 1 / size)
    weight.setflags(write=False)
    return weight


@lru_cache(maxsize=64)
def _ones(size: int) -> Array:
    return np.ones(size, np.float32)


@lru_cache(maxsize=64)
def _uniform_tensor(size: int) -> Tensor:
    return torch.from_numpy(np.full(size, 1 / size))


def _prepare(cost: Tensor, mass: Any, mask: Tensor | None) -> Array | None:
    """Cost in NumPy with infinite forbidden entries, or None if this is not the plain case."""
    if not isinstance(cost, Tensor) or cost.ndim != 2 or cost.device.type != "cpu":
        return None
    if cost.dtype not in (torch.float32, torch.float64) or type(mass) is not float or not 0.0 < mass < 1.0:
        return None
    c: Array = cost.detach().numpy()
    n, m = c.shape
    if n == 0 or m == 0 or not math.isfinite(float(_ones(n).dot(c).dot(_ones(m)))):
        return None  # a sum that overflows is rare and may take the general path as well
    if mask is None:
        return c
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != cost.shape:
        return None
    if mask.device.type != "cpu":
        return None
    allowed = mask.numpy()
    counts = allowed.astype(np.float32)
    in_row = m - float(counts.dot(_ones(m)).min())
    in_col = n - float(_ones(n).dot(counts).min())
    # the bound of nclib.ot._feasible.crowded_flow
    if mass > 2.0 - in_col / n - in_row / m or in_row >= m or in_col >= n:
        return None
    far = np.divide(1, counts, out=counts)  # 1 where allowed, infinite where not: faster than np.where
    far -= 1
    return c + far


def solve(
    cost: Tensor,
    mass: Any,
    reg: float,
    mask: Tensor | None,
    formulation: str,
    tol: float,
    max_iter: int,
) -> Transport | None:
    """Solve one partial problem with uniform weights, or return None."""
    with np.errstate(all="ignore"):  # what overflows is judged by the errors it leaves
        c = _prepare(cost, mass, mask)
        if c is None:
            return None
        p, q = _uniform(c.shape[0]), _uniform(c.shape[1])
        s = None
        if formulation == "capped":
            s = _capped_cpu.solve(c, p, q, mass, reg, tol, max_blocks=max_iter)
        else:
            if c.dtype == np.float32 and tol >= 1e-6:
                s = _extended_cpu.solve(c, p, q, mass, reg, tol, newton=False, max_blocks=max_iter)
            if s is None or not s.ok:
                begun = s.b if s is not None and np.isfinite(s.b).all() else None
                c = c.astype(np.float64, copy=False)
                s = _extended_cpu.solve(c, p, q, mass, reg, tol, start=begun, max_blocks=max_iter)
        if not s.ok:
            return None
        plan = s.kernel
        plan *= s.a[:, None].astype(plan.dtype, copy=False)
        plan *= s.b.astype(plan.dtype, copy=False)
        f, g = np.log(s.a), np.log(s.b)
    f *= reg
    f += s.lowest
    g *= reg
    return pack(
        cost, mass, reg, mask, formulation, plan, f, g, s.alpha, s.beta, s.lowest, s.error, s.iterations
    )


def published(
    cost: Tensor, mass: Any, reg: float, mask: Tensor | None, tol: float, max_iter: int
) -> Transport | None:
    """Run the published loop on one problem with uniform weights, or return None."""
    with np.errstate(all="ignore"):
        c = _prepare(cost, mass, mask)
        if c is None:
            return None
        top, bottom = float(cost.max()), float(c.min())
        if not max(top - bottom, abs(top + bottom)) <= _published.SAFE_RANGE * reg:
            return None
        n, m = c.shape
        p, q = _uniform(n), _uniform(m)
        kernel = bottom - c.astype(np.float64, copy=False)
        kernel *= 1 / reg
        np.exp(kernel, out=kernel)
        corner = math.exp(-(bottom + top) / reg)  # the kernel is shifted by its lowest cost
        a, alpha, b, beta, passes = _published.scaling(
            kernel, p, q, (1 - mass, 1 - mass), corner, tol / reg, max_iter
        )
        plan = kernel
        plan *= a[:, None]
        plan *= b
        rows = float(np.abs(plan.sum(1) + a * beta - p).sum()) / mass
        cols = float(np.abs(plan.sum(0) + b * alpha - q).sum()) / mass
        honest = max(rows, cols, abs(float(plan.sum()) - mass) / mass) <= _published.HONEST
        f, g = reg * np.log(a) + bottom, reg * np.log(b)
    return pack(
        cost, mass, reg, mask, "extended", plan, f, g, alpha, beta, bottom, cols, passes, rows, honest
    )


def pack(
    cost: Tensor,
    mass: float,
    reg: float,
    mask: Tensor | None,
    formulation: str,
    plan: Array,
    f: Array,
    g: Array,
    alpha: float,
    beta: float,
    lowest: float,
    error: float,
    iterations: int,
    row_error: float = 0.0,
    converged: bool = True,
) -> Transport:
    """Wrap the arrays of one solved problem without copying them."""
    f_slack = reg * math.log(alpha) if alpha > 0 else -math.inf
    g_slack = reg * math.log(beta) - lowest if beta > 0 else -math.inf
    numbers = torch.from_numpy(np.array((mass, row_error, error, f_slack, g_slack))).unbind()
    n, m = plan.shape
    return Transport(
        plan=torch.from_numpy(plan).to(cost.dtype),
        row_error=numbers[1],
        col_error=numbers[2],
        iterations=torch.from_numpy(np.array(iterations)),
        converged=torch.from_numpy(np.array(converged)),
        potentials=Potentials(torch.from_numpy(f), torch.from_numpy(g), numbers[3], numbers[4]),
        problem=Problem(
            cost.detach(),
            mask,
            _uniform_tensor(n).clone(),
            _uniform_tensor(m).clone(),
            numbers[0],
            reg,
            formulation,
        ),
    )
