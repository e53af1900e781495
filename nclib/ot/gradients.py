"""Implicit gradient of a plan with respect to the cost, through its optimality conditions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nclib.ot.problem import Potentials, Problem
from nclib.ot.transport import Transport


class ImplicitPlan(torch.autograd.Function):
    """Identity on the plan in the forward pass; the adjoint of the optimality conditions backward."""

    @staticmethod
    def forward(ctx: Any, cost: Tensor, solved: Transport) -> Tensor:
        potentials = solved.potentials
        assert potentials is not None
        plan = solved.plan.clone()  # saved as the output, which carries the graph of second derivatives
        ctx.save_for_backward(plan, potentials.f, potentials.g, potentials.f_slack, potentials.g_slack)
        ctx.problem = solved.problem
        return plan

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        plan, *parts = ctx.saved_tensors
        problem: Problem = ctx.problem
        grad, x = grads[0].double(), plan.double()
        u, v = _adjoint(problem, Potentials(*parts), x, x * grad)
        out = x * (u.unsqueeze(-1) + v.unsqueeze(-2) - grad) / problem.reg
        return out.to(plan.dtype), None


def _adjoint(problem: Problem, potentials: Potentials, plan: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers (..., n), (..., m) of the marginal conditions; the dummies are eliminated with the rows.

    Solves ``sum_j E_ij (u_i + v_j) = sum_j flow_ij`` and the same for columns on the extended plan E. Second
    derivatives see E as a function of the plan: what is not moved is the weight less what is.
    """
    reg = problem.reg
    n, m = plan.shape[-2:]
    left_p = ((potentials.f + potentials.g_slack.unsqueeze(-1)) / reg).exp()  # (..., n)
    left_q = ((potentials.g + potentials.f_slack.unsqueeze(-1)) / reg).exp()  # (..., m)
    if torch.is_grad_enabled():  # the potentials are constants; the values stay
        sums_p, sums_q = plan.sum(-1), plan.sum(-2)
        has_p, has_q = (x.isfinite().unsqueeze(-1) for x in (potentials.g_slack, potentials.f_slack))
        left_p = left_p - torch.where(has_p, sums_p - sums_p.detach(), 0.0)
        left_q = left_q - torch.where(has_q, sums_q - sums_q.detach(), 0.0)
    whole = plan.new_zeros(*plan.shape[:-2], n + 1, m + 1)
    whole[..., :n, :m] = plan
    whole[..., :n, m], whole[..., n, :m] = left_p, left_q
    rows, cols = whole.sum(-1), whole.sum(-2)
    right_rows = torch.nn.functional.pad(flow.sum(-1), (0, 1))
    right_cols = torch.nn.functional.pad(flow.sum(-2), (0, 1))
    inverse = torch.where(rows > 0, 1 / torch.where(rows > 0, rows, 1.0), 0.0)
    scaled = whole * inverse.unsqueeze(-1)
    system = torch.diag_embed(torch.where(cols > 0, cols, 1.0)) - whole.mT @ scaled
    system = system + (cols.sum(-1) / (m + 1) ** 2)[..., None, None]  # fixes the constant between u and v
    right = right_cols - (scaled.mT @ right_rows.unsqueeze(-1)).squeeze(-1)
    v = _solve(system, right, cols)
    u = (right_rows - (whole @ v.unsqueeze(-1)).squeeze(-1)) * inverse
    return u[..., :n], v[..., :m]


def _solve(system: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    """Solve a symmetric semidefinite system; a ridge at rounding level picks one of equivalent solutions."""
    ridge = 1e-13 * scale.clamp_min(torch.finfo(torch.float64).tiny)
    factor, info = torch.linalg.cholesky_ex(system + torch.diag_embed(ridge))
    x = torch.cholesky_solve(right.unsqueeze(-1), factor)
    if bool((info != 0).any()):
        x = torch.linalg.pinv(system, hermitian=True) @ right.unsqueeze(-1)
    return x.squeeze(-1)
