"""Exact transport by the network simplex of POT: the reference for every other solver."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot._checks import balanced_problem, partial_problem
from nclib.ot._dense import Result
from nclib.ot.transport import Problem, Transport

Array = np.ndarray[Any, np.dtype[Any]]


def partial_exact(
    cost: Tensor,
    mass: float | Tensor,
    p: Tensor | None = None,
    q: Tensor | None = None,
    *,
    mask: Tensor | None = None,
) -> Transport:
    """Least-cost plan that moves ``mass``: a linear program, solved on the extended matrix.

    Parameters
    ----------
    cost, mass, p, q, mask
        As for :func:`nclib.ot.partial_sinkhorn`. A batch is solved one problem at a time on the CPU.

    Returns
    -------
    Transport
        ``potentials`` are optimal dual variables: ``f_i + g_j <= C_ij`` where transport is allowed, in the
        convention of zero cost for the dummy row and column.

    Raises
    ------
    TypeError, ValueError
        As for :func:`nclib.ot.partial_sinkhorn`.
    """
    return _linear(partial_problem(cost, mass, p, q, 0.0, mask, "linear"))


def exact(
    cost: Tensor, p: Tensor | None = None, q: Tensor | None = None, *, mask: Tensor | None = None
) -> Transport:
    """Least-cost plan that moves all of ``p`` to all of ``q``: a linear program.

    Parameters
    ----------
    cost, p, q, mask
        As for :func:`nclib.ot.sinkhorn`. A batch is solved one problem at a time on the CPU.

    Returns
    -------
    Transport
        ``potentials`` are optimal dual variables, ``f_i + g_j <= C_ij`` where transport is allowed.

    Raises
    ------
    TypeError, ValueError
        As for :func:`nclib.ot.sinkhorn`.
    """
    return _linear(balanced_problem(cost, p, q, 0.0, mask, "linear"))


def _network_simplex(
    cost: Array, allowed: Array | None, p: Array, q: Array, mass: float
) -> tuple[Array, Array, Array]:
    """Plan (n, m) and duals (n+1,), (m+1,) of the extended problem; forbidden cells cost too much."""
    from ot import emd

    n, m = cost.shape
    real = cost if allowed is None else cost[allowed]
    low, high = float(real.min()), float(real.max())
    big = (high - low + 1.0) * 2 * (n + m)
    extended = np.zeros((n + 1, m + 1))
    extended[:n, :m] = cost - low if allowed is None else np.where(allowed, cost - low, big)
    extended[n, m] = big
    rows = np.append(p, max(q.sum() - mass, 0.0))
    cols = np.append(q, max(p.sum() - mass, 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT warns about rounding of the weights, which is measured below
        full, log = emd(rows, cols * (rows.sum() / cols.sum()), extended, numItermax=10_000_000, log=True)
    plan = np.asarray(full)[:n, :m]
    if allowed is not None:
        plan = np.where(allowed, plan, 0.0)
    f, g = np.array(log["u"]), np.array(log["v"])
    f[:n] += low
    g[m] -= low
    return plan, f, g


def _linear(problem: Problem) -> Transport:
    problem = replace(problem, cost=problem.cost.detach())
    cost, mask = problem.cost, problem.mask
    n, m = cost.shape[-2:]
    result = Result(problem)
    k = len(result.plan)
    costs = cost.reshape(k, n, m).double().cpu().numpy()
    masks = None if mask is None else mask.expand(cost.shape).reshape(k, n, m).cpu().numpy()
    ps, qs = problem.p.reshape(k, n).cpu().numpy(), problem.q.reshape(k, m).cpu().numpy()
    masses = problem.mass.reshape(k).cpu().numpy()
    for i in range(k):
        if masses[i] == 0:
            continue
        plan, f, g = _network_simplex(costs[i], None if masks is None else masks[i], ps[i], qs[i], masses[i])
        result.plan[i] = torch.from_numpy(plan).to(cost.dtype)
        result.f[i], result.g[i] = torch.from_numpy(f[:n]), torch.from_numpy(g[:m])
        result.f_slack[i], result.g_slack[i] = f[n], g[m]
        result.row_error[i] = float(np.maximum(plan.sum(1) - ps[i], 0).sum()) / masses[i]
        result.col_error[i] = float(np.maximum(plan.sum(0) - qs[i], 0).sum()) / masses[i]
        result.converged[i] = bool(abs(plan.sum() - masses[i]) <= 1e-6 * masses[i])
    return result.pack()
