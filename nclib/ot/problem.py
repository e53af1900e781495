"""The transport problem: its data, defaults and checks, all before any work starts."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

#: Integer capacity of the total weight of a problem (the flow solver counts in int32).
CAPACITY = 2**29
#: Relative rounding allowed between masses that ought to be equal, by precision.
EPSILON = 2.0**-52  # spacing of float64, in which problems are solved
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-10}
#: Least mass whose plan keeps its digits in a precision: entries a million times smaller are normal numbers.
LEAST = {dtype: 1e6 * torch.finfo(dtype).tiny for dtype in ROUNDING}
#: Slack below this share of the total weight is rounding: everything on that side is moved.
NO_SLACK = {torch.float32: 1e-6, torch.float64: 1e-12}
#: Largest error of the mass of a converged plan, relative to it, whatever the tolerance.
MASS_TOL = 1e-6


@dataclass(frozen=True)
class Potentials:
    """Dual potentials in the unit of the cost: ``plan = exp((f_i + g_j - C_ij) / reg)``.

    A row or column without weight, or without any allowed entry, has potential minus infinity. The same
    value in ``f_slack`` or ``g_slack`` means that the side has no slack: everything on it is moved.

    Parameters
    ----------
    f : Tensor, shape (..., n)
        Potentials of the rows.
    g : Tensor, shape (..., m)
        Potentials of the columns.
    f_slack, g_slack : Tensor, shape (...)
        Potentials of the dummy row and of the dummy column of the extended problem.
    """

    f: Tensor
    g: Tensor
    f_slack: Tensor
    g_slack: Tensor


@dataclass(frozen=True)
class Problem:
    """A transport problem with all defaults filled in; weights are float64.

    Parameters
    ----------
    cost : Tensor, shape (..., n, m)
        As given (device and dtype of the caller); not read where ``mask`` is False.
    mask : Tensor of bool, broadcastable to (..., n, m), or None
        True where transport is allowed.
    p, q : Tensor, shape (..., n) and (..., m)
        Row and column weights (upper bounds of the plan's sums).
    mass : Tensor, shape (...)
        Mass to move.
    reg : float
        Weight of the entropy, in the unit of the cost; 0 for a linear program.
    formulation : str
        ``"extended"`` (entropy also on what is not moved), ``"balanced"`` (everything is moved) or
        ``"linear"`` (no entropy).
    """

    cost: Tensor
    mask: Tensor | None
    p: Tensor
    q: Tensor
    mass: Tensor
    reg: float
    formulation: str

    def flat(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """Return cost and mask (k, n, m), p (k, n), q (k, m), mass (k,) of all k problems, detached."""
        n, m = self.cost.shape[-2:]
        mask = None if self.mask is None else self.mask.expand(self.cost.shape).reshape(-1, n, m)
        p, q, mass = self.p.reshape(-1, n), self.q.reshape(-1, m), self.mass.reshape(-1)
        return self.cost.detach().reshape(-1, n, m), mask, p, q, mass

    def arrays(self) -> tuple[Any, ...]:
        """Return what :meth:`flat` does, as NumPy arrays on the host."""
        n, m = self.cost.shape[-2:]
        mask = self.mask if self.mask is None else self.mask.expand(self.cost.shape)
        parts = (self.cost, (n, m)), (mask, (n, m)), (self.p, (n,)), (self.q, (m,)), (self.mass, ())
        return tuple(x if x is None else x.numpy(force=True).reshape(-1, *own) for x, own in parts)

    def constant(self) -> Problem:
        """Return the same problem with a cost that carries no gradient."""
        return replace(self, cost=self.cost.detach()) if self.cost.requires_grad else self


class SolverSettings(NamedTuple):
    """How to solve."""

    method: str  # how sums over the kernel are taken: "auto", "scaling" or "log"
    tol: float  # relative to the mass
    max_iter: int


def check_kinds(cost: Tensor, mask: Tensor | None) -> None:
    """Refuse a cost or a mask of the wrong kind; looks at no value, so a GPU is not waited for.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was given and what is allowed.
    """
    if not isinstance(cost, Tensor):
        raise TypeError(f"cost must be a torch tensor, got {type(cost).__name__}; use torch.as_tensor(cost)")
    if cost.layout != torch.strided or cost.is_meta:
        got = "without values (device meta)" if cost.is_meta else f"of layout {cost.layout}"
        raise TypeError(f"cost must be a dense tensor, got one {got}; use cost.to_dense()")
    if cost.dtype not in ROUNDING:
        raise TypeError(f"cost must be float32 or float64, got {cost.dtype}; use cost.float()")
    if cost.ndim < 2 or 0 in cost.shape:
        raise ValueError(f"cost must have shape (..., n, m) without a size of 0, got {tuple(cost.shape)}")
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(f"mask must be a bool tensor (True = allowed), got {kind}")
        if mask.device != cost.device:
            raise ValueError(f"mask is on {mask.device} but cost on {cost.device}; move it there")
        pairs = zip(reversed(mask.shape), reversed(cost.shape), strict=False)
        if not 2 <= mask.ndim <= cost.ndim or any(have not in (1, want) for have, want in pairs):
            raise ValueError(f"mask of shape {tuple(mask.shape)} does not fit cost of {tuple(cost.shape)}")


def check_cost(cost: Tensor, mask: Tensor | None, reg: float) -> tuple[float, float]:
    """Refuse a cost or a mask of the wrong kind, and costs that ``reg`` cannot resolve.

    Returns the smallest and largest cost; that of forbidden entries may count.

    Parameters
    ----------
    cost : Tensor, shape (..., n, m), float32 or float64
        Finite where transport is allowed.
    mask : Tensor of bool, broadcastable to the cost, on its device, or None
        True where transport is allowed.
    reg : float
        Weight of the entropy; 0 for a linear program.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was given and what is allowed.
    """
    check_kinds(cost, mask)
    limit = reg / EPSILON if reg else math.inf  # exponents of larger costs hold no information
    low, high = lowest_and_highest(cost)
    if mask is not None and not max(-low, high) < limit:
        low, high = lowest_and_highest(cost.detach().where(mask, 0.0))
    largest = max(-low, high)
    if not math.isfinite(high - low):
        raise ValueError(
            "cost has NaN or infinite values where transport is allowed; "
            "forbid an entry with mask=False instead"
        )
    if largest > limit:
        raise ValueError(
            f"reg={reg:g} is below the rounding of costs of up to {largest:g}, so no plan can be found; take "
            f"at least {largest * EPSILON * 1e4:.1g}, or solve without entropy (partial_exact, exact)"
        )
    return low, high


def lowest_and_highest(x: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest entry; one is not finite if any entry is not."""
    low, high = x.detach().aminmax()
    return float(low), float(high)


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise a ValueError that names the argument, unless ``value`` is allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def check_reg(reg: float) -> float:
    """Return ``reg`` as a float; a ValueError unless it is finite and positive."""
    if isinstance(reg, bool) or not isinstance(reg, Real) or not (0 < float(reg) < math.inf):
        raise ValueError(f"reg must be a positive finite number (unit of the cost), got {reg!r}")
    return float(reg)


def check_limits(tol: float | None, max_iter: int, default: float) -> float:
    """Return ``tol``, in (0, 1), or the default for None; a ValueError for others and if ``max_iter`` < 1."""
    if isinstance(max_iter, bool) or not isinstance(max_iter, int) or max_iter < 1:
        raise ValueError(f"max_iter must be a positive integer, got {max_iter!r}")
    if tol is None:
        return default
    if isinstance(tol, bool) or not isinstance(tol, Real) or not (0 < float(tol) < 1):
        raise ValueError(f"tol must be a number between 0 and 1 (relative to the mass), got {tol!r}")
    return float(tol)


def _numbers(value: Any, name: str, cost: Tensor, shape: tuple[int, ...], look: bool = True) -> Tensor:
    """Return ``value`` as float64 of ``shape`` on the device of ``cost``; finite and not negative.

    Without a ``look``, what lies on a GPU is not checked, and nothing waits for it.
    """
    if not isinstance(value, Tensor | Real | np.ndarray | list | tuple) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(
            f"{name} requires a gradient, but gradients flow to the cost alone; use {name}.detach()"
        )
    x = torch.as_tensor(value, dtype=torch.float64)
    seen = look or x.device.type == "cpu"
    if seen and not bool((x >= 0).all() & (x < math.inf).all()):
        raise ValueError(f"{name} must be finite and not negative")
    x = x.to(cost.device, non_blocking=cost.is_cuda)
    try:
        return x.expand(shape)
    except RuntimeError:
        raise ValueError(f"{name} of shape {tuple(x.shape)} does not fit the expected {shape}") from None


def _mass(value: Any, cost: Tensor, look: bool = True) -> Tensor:
    """Return the mass of every problem, (...); refuse one whose plan would lose its digits."""
    batch, least = tuple(cost.shape[:-2]), LEAST[cost.dtype]
    if type(value) is float and least <= value < math.inf:  # as in a training step
        return torch.full(batch, value, dtype=torch.float64, device=cost.device)
    mass = _numbers(value, "mass", cost, batch, look)
    lost = (mass > 0) & (mass < least)
    if look and bool(lost.any()):
        raise ValueError(
            f"mass {float(mass[lost].min()):.3g} is too small for a plan in {cost.dtype}, as cost is; "
            "scale p, q and mass so that their totals are near 1"
        )
    return mass


def weights(
    p: Any, q: Any, cost: Tensor, mask: Tensor | None, *, valid_only: bool = False, look: bool = True
) -> tuple[Tensor, Tensor]:
    """Return row and column weights (..., n), (..., m) in float64.

    Parameters
    ----------
    p, q : number or array-like, broadcastable to (..., n) and (..., m), or None
        Finite and not negative, without a gradient; uniform by default, 1/n and 1/m.
    cost, mask
        As in :func:`check_cost`.
    valid_only : bool
        Uniform over the rows (columns) with any allowed entry, which is what padded problems want.
    look : bool
        False leaves numbers on a GPU unchecked, and does not wait for it.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was given and what is allowed.
    """
    batch = tuple(cost.shape[:-2])
    out = []
    for name, value, size, dim in (("p", p, cost.shape[-2], -1), ("q", q, cost.shape[-1], -2)):
        shape = (*batch, size)
        if value is not None:
            out.append(_numbers(value, name, cost, shape, look))
        elif mask is None or not valid_only:
            out.append(torch.full((), 1 / size, dtype=torch.float64, device=cost.device).expand(shape))
        else:
            valid = mask.expand(cost.shape).any(dim).double()
            out.append(valid / valid.sum(-1, keepdim=True).clamp_min(1))
    return out[0], out[1]


def partial_problem(
    cost: Tensor, mass: Any, p: Any, q: Any, reg: float, mask: Tensor | None, *, look: bool = True
) -> Problem:
    """Fill in and check a partial :class:`Problem`; default weights are uniform.

    Whether the mass can flow through a mask is left to :func:`refuse_infeasible`. Without a ``look``,
    numbers on a GPU stay unchecked, and nothing waits for it.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was given and what is allowed.
    """
    if look:
        check_cost(cost, mask, reg)
    elif p is None and q is None and isinstance(mass, Real) and float(mass) > 1 + ROUNDING[cost.dtype]:
        raise _infeasible(mass, 1)
    rows, cols = weights(p, q, cost, mask, look=look)
    kind = "extended" if reg else "linear"
    problem = Problem(cost, mask, rows, cols, _mass(mass, cost, look), reg, kind)
    return refuse_infeasible(problem) if mask is None and look else problem


def balanced_problem(cost: Tensor, p: Any, q: Any, reg: float, mask: Tensor | None) -> Problem:
    """Fill in and check a :class:`Problem` that moves everything; the totals must agree.

    The default weights are uniform over rows (columns) with an allowed entry; the columns are scaled to the
    total of the rows. Whether the mass can flow through a mask is left to :func:`refuse_infeasible`.

    Raises
    ------
    TypeError, ValueError
        As :func:`partial_problem`, and for unequal totals.
    """
    check_cost(cost, mask, reg)
    rows, cols = weights(p, q, cost, mask, valid_only=True)
    total, other = rows.sum(-1), cols.sum(-1)
    kinds = [cost.dtype, *(x.dtype for x in (p, q) if isinstance(x, Tensor))]
    rounding = max(ROUNDING.get(kind, 0.0) for kind in kinds)  # of the least precise of them
    off = (total - other).abs() > rounding * torch.maximum(total, other)
    if bool(off.any()):
        worst = int((total - other).abs().reshape(-1).argmax())
        mine, theirs = (float(x.reshape(-1)[worst]) for x in (total, other))
        raise ValueError(
            f"p sums to {mine:.8g} but q to {theirs:.8g}, {abs(mine - theirs):.1g} apart; make the totals "
            "equal or use partial_sinkhorn"
        )
    cols = cols * torch.where(other > 0, total / other, 1.0).unsqueeze(-1)
    kind = "balanced" if reg else "linear"
    problem = Problem(cost, mask, rows, cols, _mass(total, cost), reg, kind)
    return refuse_infeasible(problem) if mask is None else problem


def refuse_infeasible(problem: Problem) -> Problem:
    """Return the problem without a rounding error too much mass.

    A plan that meets its conditions proves that its mass can flow, so that a solver may ask only where it
    fails.

    Raises
    ------
    ValueError
        For more mass than can flow.
    """
    # Plan: 1. a bound from counts decides dense masks; 2. a feasible flow decides most others; 3. only what
    # is still open costs a maximum flow on the CPU.
    slack = ROUNDING[problem.cost.dtype]
    rows, cols, target, mask = problem.p, problem.q, problem.mass, problem.mask
    n, m = problem.cost.shape[-2:]
    if mask is None:
        limit = cap = torch.minimum(rows.sum(-1), cols.sum(-1))
    else:
        mask = mask.expand(*mask.shape[:-2], n, m)
        limit = _crowded_flow(mask, rows, cols)
        if bool((target <= limit).all()):
            return problem
        cap = _reachable(mask, rows, cols)
        limit = torch.maximum(limit, _proportional_flow(mask, rows, cols))
        short = target > limit * (1 + slack)
        if bool(short.any()):
            flow = max_flow(mask.expand(problem.cost.shape), rows, cols)
            limit = torch.where(short, flow, limit)
            slack = max(slack, 1e-6)  # the flow is computed with integer capacities
    over = target > limit * (1 + slack)
    if bool(over.any()):
        worst = int(over.reshape(-1).byte().argmax())
        asked, most = float(target.reshape(-1)[worst]), float(limit.reshape(-1)[worst])
        raise _infeasible(asked, most)
    return replace(problem, mass=torch.minimum(target, cap))


def _infeasible(asked: Any, most: float) -> ValueError:
    return ValueError(
        f"mass {asked:.6g} is infeasible: at most {most:.6g} can be moved under p, q and mask "
        "(rows and columns without an allowed entry move nothing); ask for less or allow more entries"
    )


# -- feasibility: the largest mass that can flow through the allowed entries ---------------------------------


def _crowded_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Lower bound of the largest mass from the number of forbidden entries alone; tight for dense masks.

    A cut that separates rows A from columns B needs every entry of A x B to be forbidden, so B is no larger
    than the fullest row of forbidden entries and A no larger than the fullest column.
    """
    n, m = mask.shape[-2:]
    in_row, in_col = (size - mask.sum(dim, dtype=torch.int32).amin(-1) for size, dim in ((m, -1), (n, -2)))
    total_p, total_q = p.sum(-1), q.sum(-1)
    cut = (total_p - in_col * p.amax(-1)) + (total_q - in_row * q.amax(-1))  # of totals that may be far apart
    return torch.minimum(torch.minimum(total_p, total_q), cut)


def _proportional_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Mass (...) of one feasible flow: a lower bound of the largest mass.

    Every row spreads its weight over its allowed columns in proportion to their weights, then overfull
    columns are scaled back.
    """
    allowed = mask.to(p.dtype)
    reach = (allowed @ q.unsqueeze(-1)).squeeze(-1)  # (..., n)
    share = torch.where(reach > 0, p / reach, 0.0)
    load = q * (share.unsqueeze(-2) @ allowed).squeeze(-2)  # (..., m)
    return torch.minimum(load, q).sum(-1)


def _reachable(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Upper bound (...) of the largest mass: the weight of the rows (columns) with any useful entry."""
    used = mask & useful(p, q)
    return torch.minimum((p * used.any(-1)).sum(-1), (q * used.any(-2)).sum(-1))


def useful(p: Tensor, q: Tensor) -> Tensor:
    """Entries (..., n, m) whose row and column both have weight."""
    return (p > 0).unsqueeze(-1) & (q > 0).unsqueeze(-2)


def max_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Largest mass that can flow from rows to columns through the allowed entries.

    Parameters
    ----------
    mask : Tensor of bool, shape (..., n, m)
    p, q : Tensor, shape (..., n) and (..., m)
        Weights, not negative.

    Returns
    -------
    Tensor of float64, shape (...)
        Exact to about 1e-7 of what rows can send or columns take: integer capacities, one problem at a time
        on the CPU.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n, m = mask.shape[-2:]
    host = mask.reshape(-1, n, m).cpu().numpy()
    rows, cols = p.reshape(-1, n).cpu().numpy(), q.reshape(-1, m).cpu().numpy()
    out = np.zeros(len(host))
    for k, (allowed, pk, qk) in enumerate(zip(host, rows, cols, strict=True)):
        # A row sends no more than its columns take, a column takes no more than its rows send. So bounded,
        # however far the weights are apart, totals are at most n m times the flow, and whole numbers hold it.
        pk = np.minimum(pk, allowed @ qk)
        qk = np.minimum(qk, pk @ allowed)
        unit = max(pk.sum(), qk.sum()) / CAPACITY
        if unit == 0:
            continue
        graph = np.zeros((n + m + 2, n + m + 2), np.int32)  # source, rows, columns, sink
        graph[0, 1 : n + 1] = np.rint(pk / unit)
        graph[1 : n + 1, n + 1 : -1] = np.where(allowed, CAPACITY, 0)
        graph[n + 1 : -1, -1] = np.rint(qk / unit)
        out[k] = maximum_flow(csr_array(graph), 0, n + m + 1).flow_value * unit
    return torch.as_tensor(out, device=p.device).reshape(p.shape[:-1])
