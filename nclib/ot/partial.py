"""Partial transport: move a given mass at least cost, never through a forbidden entry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nclib.common.registry import Registry
from nclib.ot import _dense, _fast, _published
from nclib.ot._checks import check_limits, check_reg, partial_problem
from nclib.ot.gradients import differentiate
from nclib.ot.transport import Potentials, Problem, Transport

#: Default tolerance (errors relative to the mass) by the precision of the cost.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}

_routes: Registry[Any] = Registry("combination of formulation and stop")


def partial_sinkhorn(
    cost: Tensor,
    mass: float | Tensor,
    p: Tensor | None = None,
    q: Tensor | None = None,
    *,
    reg: float,
    mask: Tensor | None = None,
    formulation: str = "extended",
    method: str = "auto",
    stop: str = "accurate",
    tol: float | None = None,
    max_iter: int = 1000,
    start: Potentials | None = None,
    gradient: str = "none",
) -> Transport:
    """Entropic partial transport with forbidden entries: exactly ``mass`` moves, at every regularisation.

    Parameters
    ----------
    cost : Tensor, shape (..., n, m), float32 or float64
        Cost of moving one unit; any device. Must be finite where transport is allowed.
    mass : float or Tensor, shape (...)
        Mass to move, one number or one per problem; from 0 to the most that can flow.
    p, q : Tensor, shape (n,) or (..., n), (m,) or (..., m), optional
        Weights of rows and columns: upper bounds of the plan's sums, not necessarily of equal total.
        Default uniform, 1/n and 1/m. A row or column that is padding gets weight 0.
    reg : float
        Weight of the entropy, in the unit of the cost.
    mask : Tensor of bool, broadcastable to the cost, optional
        True where transport is allowed. A row without any allowed entry keeps its weight.
    formulation : {"extended", "capped"}
        ``"extended"``: entropy also on what is not moved (L2RM's dummy row and column, with a forbidden
        corner; UOT-RCL). ``"capped"``: entropy on the moved mass only (POT's). Their optima differ.
    method : {"auto", "scaling", "log"}
        How sums over the kernel are taken: products with a stabilised kernel, log-sum-exp, or whichever is
        faster and safe. On a CPU the first two start with NumPy and LAPACK on views of the tensors.
    stop : {"accurate", "published"}
        ``"accurate"``: until the errors are at most ``tol``. ``"published"``: the loop and stop rule of
        L2RM's released code (corner cost = largest cost, stop when the row potential moves by less
        than 1e-3 in the unit of the cost), which leaves 1 to 36 per cent too much mass.
    tol : float, optional
        Largest error relative to the mass; default 1e-9 (float64) or 1e-5 (float32). With
        ``stop="published"`` the threshold of that rule, default 1e-3.
    max_iter : int
        Passes after which a problem is given up (``converged`` is then False).
    start : Potentials, optional
        Potentials of a similar problem, to start from.
    gradient : {"none", "envelope", "implicit", "unrolled"}
        How plan and value depend on the cost; see :mod:`nclib.ot.gradients`.

    Returns
    -------
    Transport
        Plan on the device and in the dtype of the cost. Its ``converged`` is judged on errors in every
        mode, so a plan of the published rule usually says False.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong kind, non-finite costs, and a mass that cannot flow.

    Notes
    -----
    L2RM (Han et al., CVPR 2024), supplement, partial masked Sinkhorn; see :mod:`nclib.ot._extended` for
    the equations. The plan and its potentials are related by ``plan = exp((f_i + g_j - C_ij) / reg)``.
    """
    reg = check_reg(reg)
    route = _routes[f"{formulation}/{stop}"]
    if method == "auto" and gradient == "none" and start is None and p is None and q is None:
        default = TOLERANCE.get(cost.dtype, 1e-9) if isinstance(cost, Tensor) else 1e-9
        if stop == "accurate":
            limit = check_limits(tol, max_iter, default)
            quick = _fast.solve(cost, mass, reg, mask, formulation, limit, max_iter)
        else:
            limit = check_limits(tol, max_iter, _published.THRESHOLD)
            quick = _fast.published(cost, mass, reg, mask, limit, max_iter)
        if quick is not None:
            return quick
    problem = partial_problem(cost, mass, p, q, reg, mask, formulation)
    return route.factory(problem, method=method, tol=tol, max_iter=max_iter, start=start, gradient=gradient)


def _accurate(
    problem: Problem,
    *,
    method: str,
    tol: float | None,
    max_iter: int,
    start: Potentials | None,
    gradient: str,
) -> Transport:
    limit = check_limits(tol, max_iter, TOLERANCE[problem.cost.dtype])

    def solver(ready: Problem) -> Transport:
        return _dense.solve(ready, method=method, tol=limit, max_iter=max_iter, start=start)

    return differentiate(solver, problem, gradient, max_iter, limit)


_routes.register("extended/accurate", summary="dummy row and column, corner forbidden", paper="L2RM")(
    _accurate
)
_routes.register("capped/accurate", summary="entropy on the moved mass only")(_accurate)


@_routes.register("extended/published", summary="loop and stop rule of the released code", paper="L2RM")
def _released(
    problem: Problem,
    *,
    method: str,
    tol: float | None,
    max_iter: int,
    start: Potentials | None,
    gradient: str,
) -> Transport:
    if start is not None or gradient != "none":
        raise ValueError(
            "stop='published' starts from zero potentials and has gradient='none'; leave both out"
        )
    limit = check_limits(tol, max_iter, _published.THRESHOLD)
    return _published.solve(
        replace(problem, cost=problem.cost.detach()), method=method, tol=limit, max_iter=max_iter
    )
