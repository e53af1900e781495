"""Check of a plan from scratch: its cost, its distance from the optimum, the conditions that it breaks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from nclib.ot.linear_program import linear_program
from nclib.ot.problem import Potentials, Problem


@dataclass(frozen=True)
class Certificate:
    """Evidence about a plan, all float64 of shape (...); violations are relative to the mass asked for.

    Parameters
    ----------
    value : Tensor
        Cost of the plan, ``<C, plan>``.
    objective, dual_bound : Tensor
        Objective of the problem that was solved (with its entropy, ``reg * sum x (log x - 1)``) at the plan,
        and a lower bound of its optimum from the potentials.
    gap : Tensor
        ``objective - dual_bound``: how far the objective can be from its optimum. Rounding, or a plan that
        breaks its conditions, can make it slightly negative.
    linear_bound : Tensor
        Lower bound of the optimum of the linear program (no entropy), from the same potentials.
    row_violation, col_violation : Tensor
        Sum of what the plan's row (column) sums exceed their weights by; for a balanced problem the sum of
        absolute differences.
    mass_violation : Tensor
        Distance of the moved mass from the mass asked for.
    linear_optimum : Tensor or None
        Optimum of the linear program, on request.
    """

    value: Tensor
    objective: Tensor
    dual_bound: Tensor
    gap: Tensor
    linear_bound: Tensor
    row_violation: Tensor
    col_violation: Tensor
    mass_violation: Tensor
    linear_optimum: Tensor | None = None

    def __str__(self) -> str:
        lines = []
        for field in fields(self):
            x = getattr(self, field.name)
            if x is None:
                continue
            worst = x.reshape(-1)[x.abs().argmax()].item()
            note = "" if x.ndim == 0 else f"   (largest of {x.numel()})"
            lines.append(f"{field.name:<15} {worst: .6e}{note}")
        return "\n".join(lines)


def _weighted(weight: Tensor, potential: Tensor) -> Tensor:
    """``sum weight * potential`` over the last axis, 0 where the weight is 0."""
    return torch.where(weight > 0, weight * potential, 0.0).sum(-1)


def _entropy(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """``sum x (log x - 1)`` with 0 log 0 = 0."""
    x = x.clamp_min(0)
    return (torch.xlogy(x, x) - x).sum(dims)


def certify(plan: Tensor, potentials: Potentials, problem: Problem, *, exact: bool = False) -> Certificate:
    """Check a plan, (..., n, m) and not negative, with its dual potentials; as :meth:`Transport.certify`."""
    # Plan: 1. drop rows and columns that take no part; 2. value and objective of the plan; 3. dual value of
    # the potentials, the same terms with the opposite sign; 4. a feasible dual of the linear program from
    # them; 5. violations of the sums.
    cost = problem.cost.detach().double()
    if problem.mask is not None:
        cost = torch.where(problem.mask, cost, torch.inf)
    plan, reg, mass = plan.detach().double(), problem.reg, problem.mass
    paid = torch.where(plan > 0, plan * cost, 0.0).sum((-2, -1))
    p = torch.where(potentials.f.isfinite(), problem.p, 0.0)
    q = torch.where(potentials.g.isfinite(), problem.q, 0.0)
    f, g = (torch.where(x.isfinite(), x, 0.0) for x in (potentials.f, potentials.g))
    fs, gs = potentials.f_slack, potentials.g_slack
    has_row, has_col = fs.isfinite(), gs.isfinite()  # a dummy row, a dummy column
    slack_q = torch.where(has_row, (q.sum(-1) - mass).clamp_min(0), 0.0)
    slack_p = torch.where(has_col, (p.sum(-1) - mass).clamp_min(0), 0.0)
    live = (p > 0).unsqueeze(-1) & (q > 0).unsqueeze(-2)
    cost = torch.where(live, cost, torch.inf)
    linear = _linear_bound(cost, p, q, Potentials(f, g, fs, gs), (slack_p, slack_q))
    if problem.formulation == "linear":
        objective, dual = paid, linear
    else:
        expected = torch.where(live, ((f.unsqueeze(-1) + g.unsqueeze(-2) - cost) / reg).exp(), 0.0)
        expected = expected.sum((-2, -1))
        objective = paid + reg * _entropy(plan, (-2, -1))
        dual = _weighted(p, f) + _weighted(q, g) - reg * expected
        for has, weight, slack, own, dummy, sums in (
            (has_col, p, slack_p, f, gs, plan.sum(-1)),
            (has_row, q, slack_q, g, fs, plan.sum(-2)),
        ):
            there = has.unsqueeze(-1) & (weight > 0)
            left = torch.where(there, weight - sums, 0.0)
            objective = objective + reg * _entropy(left, (-1,))
            dual = dual - reg * torch.where(there, ((own + dummy.unsqueeze(-1)) / reg).exp(), 0.0).sum(-1)
            dual = dual + torch.where(has, slack * dummy, 0.0)
    scale = torch.where(mass > 0, mass, 1.0)
    rows, cols = plan.sum(-1) - problem.p, plan.sum(-2) - problem.q
    if problem.formulation == "balanced":
        rows, cols = rows.abs(), cols.abs()
    return Certificate(
        paid,
        objective,
        dual_bound=dual,
        gap=objective - dual,
        linear_bound=linear,
        row_violation=rows.clamp_min(0).sum(-1) / scale,
        col_violation=cols.clamp_min(0).sum(-1) / scale,
        mass_violation=(plan.sum((-2, -1)) - mass).abs() / scale,
        linear_optimum=_linear_optimum(problem) if exact else None,
    )


def _linear_optimum(problem: Problem) -> Tensor:
    """Value of the linear program, by the network simplex."""
    plan = linear_program(problem)[0].to(problem.cost.device)
    cost = problem.cost.detach().double()
    if problem.mask is not None:
        cost = torch.where(problem.mask, cost, 0.0)
    return (cost * plan).sum((-2, -1))


def _linear_bound(cost: Tensor, p: Tensor, q: Tensor, duals: Potentials, slack: tuple[Any, Any]) -> Tensor:
    """Value of dual variables made feasible: columns kept, rows raised as far as the costs allow."""
    slack_p, slack_q = slack
    g, fs, gs = duals.g, *(torch.where(x.isfinite(), x, 0.0) for x in (duals.f_slack, duals.g_slack))
    g = torch.where((slack_q > 0).unsqueeze(-1), torch.minimum(g, -fs.unsqueeze(-1)), g)
    f = (cost - g.unsqueeze(-2)).amin(-1)
    f = torch.where((slack_p > 0).unsqueeze(-1), torch.minimum(f, -gs.unsqueeze(-1)), f)
    return _weighted(p, f) + _weighted(q, g) + slack_q * fs + slack_p * gs
