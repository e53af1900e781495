"""Plain alternating loops of differentiable operations, for ``gradient="unrolled"``."""

from __future__ import annotations

import torch
from torch import Tensor

from nclib.ot.backends.device import water_level
from nclib.ot.problem import Potentials, Problem, Settings
from nclib.ot.transport import Transport

#: Passes between two looks at the error.
EVERY = 10


def solve(problem: Problem, how: Settings) -> Transport:
    """Alternate between rows and columns until the tolerance or the limit, keeping the graph of every pass.

    Works in float64 in the log domain, batched; a very low exponent leaves forbidden entries out, so that no
    gradient is undefined. Memory grows with the passes; the plan carries the graph, its potentials do not.
    """
    reg, mask = problem.reg, problem.mask
    low = torch.tensor(-1e30, dtype=torch.float64, device=problem.cost.device)
    cost = problem.cost.double()
    logk = -cost / reg if mask is None else torch.where(mask, -torch.where(mask, cost, 0.0) / reg, low)
    loop = _capped if problem.formulation == "capped" else _extended
    plan, potentials, error, passes = loop(problem, logk, low, how.max_iter, how.tol)
    plan = plan if mask is None else torch.where(mask, plan, 0.0)
    moved = (plan.sum((-2, -1)) - problem.mass).abs().detach()
    scale = torch.where(problem.mass > 0, problem.mass, 1.0)
    return Transport(
        plan=plan.to(problem.cost.dtype),
        row_error=torch.zeros_like(error),
        col_error=error,
        iterations=torch.full_like(error, passes, dtype=torch.int64),
        converged=(error <= how.tol) & (moved / scale <= how.tol),
        potentials=potentials,
        problem=problem,
    )


def _log(weight: Tensor, low: Tensor) -> Tensor:
    return torch.where(weight > 0, weight.clamp_min(1e-300).log(), low)


def _extended(
    problem: Problem, logk: Tensor, low: Tensor, max_iter: int, tol: float
) -> tuple[Tensor, Potentials, Tensor, int]:
    reg, mass = problem.reg, problem.mass
    n, m = logk.shape[-2:]
    slacks = ((weight.sum(-1) - mass).clamp_min(0) for weight in (problem.p, problem.q))
    slack_p, slack_q = (torch.where(slack <= 1e-12, 0.0, slack).unsqueeze(-1) for slack in slacks)
    whole = torch.nn.functional.pad(logk, (0, 1, 0, 1))  # dummy row and column of zero cost
    corner = torch.zeros_like(whole)
    corner[..., n, m] = low
    whole = whole + corner
    log_p = _log(torch.cat([problem.p, slack_q], -1), low)
    q = torch.cat([problem.q, slack_p], -1)
    log_q = _log(q, low)
    u, v = torch.zeros_like(log_p), torch.zeros_like(log_q)
    scale = torch.where(mass > 0, mass, 1.0)
    error = torch.full_like(scale, torch.inf)
    for passes in range(1, max_iter + 1):
        u = torch.maximum(log_p - torch.logsumexp(whole + v.unsqueeze(-2), -1), low)
        level = torch.logsumexp(whole + u.unsqueeze(-1), -2)
        if passes % EVERY == 0 or passes == max_iter:
            error = ((v + level).exp() - q).abs().sum(-1).detach() / scale
            if bool((error <= tol).all()):
                break
        if passes < max_iter:
            v = torch.maximum(log_q - level, low)
    plan = (whole + u.unsqueeze(-1) + v.unsqueeze(-2)).exp()[..., :n, :m]
    f, g = u.detach() * reg, v.detach() * reg
    f, g = (torch.where(x < 0.5 * low * reg, -torch.inf, x) for x in (f, g))
    return plan, Potentials(f[..., :n], g[..., :m], f[..., n], g[..., m]), error, passes


def _capped(
    problem: Problem, logk: Tensor, low: Tensor, max_iter: int, tol: float
) -> tuple[Tensor, Potentials, Tensor, int]:
    reg, mass, q = problem.reg, problem.mass, problem.q
    log_p, log_q = _log(problem.p, low), _log(q, low)
    y = torch.minimum(log_q, torch.zeros_like(log_q)) * (q <= 0)
    x, z = torch.zeros_like(log_p), torch.zeros_like(mass)
    scale = torch.where(mass > 0, mass, 1.0)
    error = torch.full_like(scale, torch.inf)
    for passes in range(1, max_iter + 1):
        level = torch.logsumexp(logk + y.unsqueeze(-2), -1)
        z = water_level(level, problem.p, mass)
        x = (log_p - level - z.unsqueeze(-1)).clamp(max=0.0).maximum(low)
        level = torch.logsumexp(logk + x.unsqueeze(-1), -2)
        if passes % EVERY == 0 or passes == max_iter:
            column = (level + y + z.unsqueeze(-1)).exp()
            over = (column - q).clamp_min(0) + (1 - y.exp()) * (q - column).clamp_min(0)
            error = over.sum(-1).detach() / scale
            if bool((error <= tol).all()):
                break
        if passes < max_iter:
            z = water_level(level, q, mass)
            y = (log_q - level - z.unsqueeze(-1)).clamp(max=0.0).maximum(low)
    plan = (logk + x.unsqueeze(-1) + y.unsqueeze(-2) + z[..., None, None]).exp()
    f, g = (x + z.unsqueeze(-1)).detach() * reg, y.detach() * reg
    return plan, Potentials(f, g, torch.zeros_like(z), -z.detach() * reg), error, passes
