"""The plain case of a training step, without ceremony: one problem on the CPU, solved in NumPy throughout.

At these sizes the preparation of a general problem takes longer than its solution. Here everything that is
usual is checked and done in a handful of NumPy calls; whatever is not (several problems, weights, entries
that are not finite, rows that nothing can leave, no convergence) is left to the general path by returning
None. A mass that cannot flow is noticed there too: a plan that meets its conditions is proof that its mass
can.
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
    return torch.full((), 1 / size, dtype=torch.float64).expand(size)  # expanded: refuses to be written to


def _prepare(cost: Tensor, mass: Any, mask: Tensor | None) -> tuple[Array, Array | None] | None:
    """Cost in NumPy (infinite where forbidden) and 1 where allowed; None if this is not the plain case."""
    if not isinstance(cost, Tensor) or cost.ndim != 2 or cost.device.type != "cpu":
        return None
    if cost.dtype not in (torch.float32, torch.float64) or type(mass) is not float or not 0.0 < mass < 1.0:
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
    np.copyto(c, math.inf, where=~allowed)  # what is forbidden leaves no trace, not even in rounding
    return c, allowed.astype(c.dtype)


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
        ready = _prepare(cost, mass, mask)
        if ready is None:
            return None
        c, allowed = ready
        p, q = _uniform(c.shape[0]), _uniform(c.shape[1])
        slack = (1.0 - mass, 1.0 - mass)
        s = None
        if formulation == "capped":
            s = _capped_cpu.solve(c, p, q, mass, slack, reg, tol, allowed=allowed, max_blocks=max_iter)
        else:
            if c.dtype == np.float32 and tol >= 1e-6:
                s = _extended_cpu.solve(
                    c, p, q, mass, slack, reg, tol, allowed=allowed, newton=False, max_blocks=max_iter
                )
            if s is None or not s.ok:
                begun = s.b if s is not None and np.isfinite(s.b).all() else None
                c = c.astype(np.float64, copy=False)
                s = _extended_cpu.solve(
                    c, p, q, mass, slack, reg, tol, allowed=allowed, start=begun, max_blocks=max_iter
                )
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


def _crowded(allowed: Array, mass: float) -> bool:
    """True if rows or columns have so few allowed entries that the mass may be too much for them.

    The bound of :func:`nclib.ot._feasible.crowded_flow` for uniform weights.
    """
    n, m = allowed.shape
    fewest_in_row, fewest_in_col = float(allowed.sum(1).min()), float(allowed.sum(0).min())
    return mass > fewest_in_col / n + fewest_in_row / m or fewest_in_row == 0 or fewest_in_col == 0


def published(
    cost: Tensor, mass: Any, reg: float, mask: Tensor | None, tol: float, max_iter: int
) -> Transport | None:
    """Run the published loop on one problem with uniform weights, or return None."""
    with np.errstate(all="ignore"):
        ready = _prepare(cost, mass, mask)
        if ready is None:
            return None
        c, allowed = ready
        if allowed is not None and _crowded(allowed, mass):
            return None
        top, bottom = float(cost.max()), float(c.min())
        if not max(top - bottom, abs(top + bottom)) <= _published.SAFE_RANGE * reg:
            return None
        n, m = c.shape
        p, q = _uniform(n), _uniform(m)
        kernel = bottom - c.astype(np.float64, copy=False)
        kernel *= 1 / reg
        np.exp(kernel, out=kernel)
        if allowed is not None:
            kernel *= allowed
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
            _uniform_tensor(n),
            _uniform_tensor(m),
            numbers[0],
            reg,
            formulation,
        ),
    )
