"""Gradients of a plan and its value with respect to the cost, by name.

``none``
    Nothing flows: plan and value are constants.
``envelope``
    The plan is a constant, the value is ``<C, plan>``. Its gradient, the plan itself, is the exact gradient
    of the regularised objective, at no cost.
``implicit``
    The plan is differentiated through its optimality conditions: one symmetric linear system per problem,
    whatever the number of iterations was.
``unrolled``
    Autograd through every pass of a plain alternating loop; memory grows with the passes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nclib.ot.backends import unrolled
from nclib.ot.backends.solve import solve
from nclib.ot.problem import Potentials, Problem, Settings, check_choice
from nclib.ot.transport import Transport

GRADIENTS = ("none", "envelope", "implicit", "unrolled")


def differentiate(problem: Problem, how: Settings, gradient: str) -> Transport:
    """Solve ``problem``, whose cost may require a gradient; ``gradient`` is one of :data:`GRADIENTS`."""
    check_choice("gradient", gradient, GRADIENTS)
    if gradient == "unrolled":
        return unrolled.solve(problem, how)
    solved = solve(problem.constant(), how)
    if gradient == "none":
        return solved
    if gradient == "implicit":
        solved = replace(solved, plan=_ImplicitPlan.apply(problem.cost, solved))
    return replace(solved, problem=problem)


class _ImplicitPlan(torch.autograd.Function):
    """Identity on the plan in the forward pass; the adjoint of the optimality conditions backward."""

    @staticmethod
    def forward(ctx: Any, cost: Tensor, solved: Transport) -> Tensor:
        potentials = solved.potentials
        assert potentials is not None
        ctx.save_for_backward(solved.plan, potentials.f, potentials.g, potentials.f_slack, potentials.g_slack)
        ctx.problem = solved.problem
        return solved.plan.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        plan, *parts = ctx.saved_tensors
        problem: Problem = ctx.problem
        grad, x = grads[0].double(), plan.double()
        adjoint = _adjoint_capped if problem.formulation == "capped" else _adjoint_extended
        u, v = adjoint(problem, Potentials(*parts), x, x * grad)
        out = x * (u.unsqueeze(-1) + v.unsqueeze(-2) - grad) / problem.reg
        return out.to(plan.dtype), None


def _adjoint_extended(
    problem: Problem, potentials: Potentials, plan: Tensor, flow: Tensor
) -> tuple[Tensor, Tensor]:
    """Multipliers (..., n), (..., m) of the marginal conditions; the dummies are eliminated with the rows.

    Solves ``sum_j E_ij (u_i + v_j) = sum_j flow_ij`` and the same for columns on the extended plan E.
    """
    reg = problem.reg
    n, m = plan.shape[-2:]
    left_p = ((potentials.f + potentials.g_slack.unsqueeze(-1)) / reg).exp()  # (..., n)
    left_q = ((potentials.g + potentials.f_slack.unsqueeze(-1)) / reg).exp()  # (..., m)
    whole = plan.new_zeros(*plan.shape[:-2], n + 1, m + 1)
    whole[..., :n, :m] = plan
    whole[..., :n, m], whole[..., n, :m] = left_p, left_q
    rows, cols = whole.sum(-1), whole.sum(-2)
    right_rows = torch.nn.functional.pad(flow.sum(-1), (0, 1))
    right_cols = torch.nn.functional.pad(flow.sum(-2), (0, 1))
    inverse = torch.where(rows > 0, 1 / rows, 0.0)
    scaled = whole * inverse.unsqueeze(-1)
    system = torch.diag_embed(torch.where(cols > 0, cols, 1.0)) - whole.mT @ scaled
    system = system + (cols.sum(-1) / (m + 1) ** 2)[..., None, None]  # fixes the constant between u and v
    right = right_cols - (scaled.mT @ right_rows.unsqueeze(-1)).squeeze(-1)
    v = _solve(system, right, cols)
    u = (right_rows - (whole @ v.unsqueeze(-1)).squeeze(-1)) * inverse
    return u[..., :n], v[..., :m]


def _adjoint_capped(
    problem: Problem, potentials: Potentials, plan: Tensor, flow: Tensor
) -> tuple[Tensor, Tensor]:
    """The same with one multiplier for the mass and one for every row and column at its cap."""
    n, m = plan.shape[-2:]
    full_rows = (potentials.f + potentials.g_slack.unsqueeze(-1) < 0) & (problem.p > 0)
    full_cols = (potentials.g + potentials.f_slack.unsqueeze(-1) < 0) & (problem.q > 0)
    active = torch.cat([full_rows, full_cols, torch.ones_like(full_rows[..., :1])], -1)
    size = n + m + 1
    system = plan.new_zeros(*plan.shape[:-2], size, size)
    rows, cols = plan.sum(-1), plan.sum(-2)
    system[..., :n, n : n + m] = plan
    system[..., n : n + m, :n] = plan.mT
    system[..., :n, -1] = system[..., -1, :n] = rows
    system[..., n : n + m, -1] = system[..., -1, n : n + m] = cols
    diagonal = torch.cat([rows, cols, rows.sum(-1, keepdim=True)], -1)
    system = system + torch.diag_embed(diagonal)
    keep = active.unsqueeze(-1) & active.unsqueeze(-2)
    system = torch.where(keep, system, 0.0) + torch.diag_embed((~active).double())
    right = torch.cat([flow.sum(-1), flow.sum(-2), flow.sum((-2, -1)).unsqueeze(-1)], -1)
    right = torch.where(active, right, 0.0)
    solution = _solve(system, right, diagonal)
    return solution[..., :n] + solution[..., -1:], solution[..., n : n + m]


def _solve(system: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    """Solve a symmetric semidefinite system; a ridge at rounding level picks one of equivalent solutions."""
    ridge = 1e-13 * scale.clamp_min(torch.finfo(torch.float64).tiny)
    factor, info = torch.linalg.cholesky_ex(system + torch.diag_embed(ridge))
    x = torch.cholesky_solve(right.unsqueeze(-1), factor)
    if bool((info != 0).any()):
        x = torch.linalg.pinv(system, hermitian=True) @ right.unsqueeze(-1)
    return x.squeeze(-1)
