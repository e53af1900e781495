"""Exact transport: linear programs, the reference for every other solver."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from nclib.ot.linear_program import linear_program
from nclib.ot.problem import Potentials, Problem, balanced_problem, partial_problem, refuse_infeasible
from nclib.ot.transport import Transport

#: Largest error of the moved mass, relative to it, of a solution that counts as found.
MASS_TOL = 1e-6


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

    Examples
    --------
    >>> import torch, nclib.ot
    >>> cost = torch.tensor([[0.1, 0.9], [0.8, 0.3]], dtype=torch.float64)
    >>> nclib.ot.partial_exact(cost, 0.6).plan
    tensor([[0.5000, 0.0000],
            [0.0000, 0.1000]], dtype=torch.float64)
    """
    return _solve(partial_problem(cost, mass, p, q, 0.0, mask))


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
        ``potentials`` are optimal dual variables, ``f_i + g_j <= C_ij`` where transport is allowed. A
        plan that misses some of the mass leaves a warning, and ``converged`` is False.

    Raises
    ------
    TypeError, ValueError
        As for :func:`nclib.ot.sinkhorn`.
    """
    return _solve(balanced_problem(cost, p, q, 0.0, mask))


def _solve(problem: Problem) -> Transport:
    problem = refuse_infeasible(problem.constant())
    device, mass = problem.cost.device, problem.mass
    found, duals = linear_program(problem)
    plan = found.to(device, problem.cost.dtype)
    found = plan.double()  # errors are those of the plan that is returned
    scale = torch.where(mass > 0, mass, 1.0)
    missed = (found.sum((-2, -1)) - mass).abs()
    if not bool((missed <= MASS_TOL * scale).all()):
        warnings.warn(
            f"the plan, {problem.cost.dtype}, misses up to {float((missed / scale).max()):.3g} of the mass; "
            "look at converged, and give weights whose total is near 1",
            UserWarning,
            stacklevel=3,
        )
    return Transport(
        plan=plan,
        row_error=(found.sum(-1) - problem.p).clamp_min(0).sum(-1) / scale,
        col_error=(found.sum(-2) - problem.q).clamp_min(0).sum(-1) / scale,
        iterations=torch.zeros(mass.shape, dtype=torch.int64, device=device),
        converged=missed <= MASS_TOL * scale,
        potentials=Potentials(*(x.to(device) for x in (duals.f, duals.g, duals.f_slack, duals.g_slack))),
        problem=problem,
    )
