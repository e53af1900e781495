"""The linear program of transport without entropy, by the network simplex of POT."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot.problem import Potentials, Problem

Array = np.ndarray[Any, np.dtype[Any]]

NEAR = 10  # binary orders of magnitude of totals that are solved as they are


def linear_program(problem: Problem) -> tuple[Tensor, Potentials]:
    """Solve the least-cost problem exactly, one problem of the batch after the other, without its entropy.

    Returns
    -------
    plan : Tensor of float64, shape (..., n, m), on the CPU
        Zero where the mass is 0.
    potentials : Potentials, on the CPU
        Optimal dual variables; minus infinity where the mass is 0.
    """
    *batch, n, m = problem.cost.shape
    costs, masks, ps, qs, masses = problem.arrays()
    k = len(costs)
    plan, f, g = np.zeros((k, n, m)), np.full((k, n + 1), -np.inf), np.full((k, m + 1), -np.inf)
    for i, mass in enumerate(masses.tolist()):
        if mass > 0:
            allowed = None if masks is None else masks[i]
            plan[i], f[i], g[i] = _network_simplex(costs[i].astype(np.float64), allowed, ps[i], qs[i], mass)
    rows, columns = (torch.from_numpy(x).reshape(*batch, -1) for x in (f, g))
    potentials = Potentials(rows[..., :n], columns[..., :m], rows[..., n], columns[..., m])
    return torch.from_numpy(plan).reshape(*batch, n, m), potentials


def _network_simplex(
    cost: Array, allowed: Array | None, p: Array, q: Array, mass: float
) -> tuple[Array, Array, Array]:
    """Plan (n, m) and duals (n+1,), (m+1,) of the extended problem; forbidden cells get a very high cost."""
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
    # POT's limits are absolute: totals far from 1 are brought near it by a power of two, which is exact.
    size = int(np.frexp(rows.sum())[1])
    size = size if abs(size) > NEAR else 0
    rows, cols = np.ldexp(rows, -size), np.ldexp(cols, -size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT warns about rounding of the weights; the caller measures it
        full, log = emd(rows, cols * (rows.sum() / cols.sum()), extended, numItermax=10_000_000, log=True)
    plan = np.ldexp(np.asarray(full)[:n, :m], size)
    if allowed is not None:
        plan = np.where(allowed, plan, 0.0)
    f, g = np.array(log["u"]), np.array(log["v"])
    f[:n] += low
    g[m] -= low
    return plan, f, g
