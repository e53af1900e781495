"""Extended partial problem in torch: batched, any device, float64 potentials, any regularisation.

With row weights p, column weights q and mass rho, the extended problem has a dummy column of weight
|p| - rho, a dummy row of weight |q| - rho, zero cost on both and a forbidden corner. Its potentials obey, in
units of the regularisation and with L = -C / reg,

    rows      x_i = log p_i - log(sum_j exp(L_ij + y_j) + exp(eta)),   eta such that the mass is rho
    columns   y_j = log q_j - log(sum_i exp(L_ij + x_i) + exp(xi)),    xi such that the mass is rho

Each line is solved jointly with its scalar. Blocks of these passes alternate with a damped Newton step on y
(everything else eliminated), and the regularisation is lowered in stages, so that hard problems start close
to their solution. The two ways to do a pass are operators: ``log`` takes a log-sum-exp over the matrix,
``scaling`` multiplies by a kernel into which the potentials were absorbed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

#: Passes between two looks at the error (each look is one host synchronisation).
BLOCKS = 10
#: Ratio of the regularisation between two stages, and how far a stage that is not the last is solved.
STAGE_RATIO, STAGE_TOL, STAGE_CYCLES = 4.0, 1e-3, 15
#: First damping of a Newton step, in units of the error.
FIRST_DAMP = 1e-2
#: Longest Newton step in a potential, in units of the regularisation.
LONGEST = 30.0
#: Sums below this are taken as this; the next absorption of the potentials corrects what it hides.
TINY = 1e-300
#: A kernel range (cost range over regularisation) that needs no stages.
EASY_RANGE = 30.0


@dataclass
class State:
    """Potentials of k problems in units of the regularisation, and how good they are."""

    x: Tensor  # (k, n)
    y: Tensor  # (k, m)
    eta: Tensor  # (k,) dummy column
    xi: Tensor  # (k,) dummy row
    error: Tensor  # (k,) L1 residual of the columns over the mass
    passes: Tensor  # (k,) int64
    lowest: Tensor  # (k,) lowest cost, in units of the regularisation; x, y are for the cost from there on


class LogPass:
    """Sums of ``exp(L + x + y)`` along a side by log-sum-exp: safe at any range."""

    def __init__(self, logk: Tensor, x: Tensor, y: Tensor) -> None:
        self.logk = logk

    def rows(self, y: Tensor) -> Tensor:
        return torch.logsumexp(self.logk + y.unsqueeze(-2), -1)  # (k, n)

    def cols(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.logk + x.unsqueeze(-1), -2)  # (k, m)


class ScalingPass:
    """The same sums as products with a kernel that has the potentials x, y absorbed."""

    def __init__(self, logk: Tensor, x: Tensor, y: Tensor) -> None:
        self.x = torch.where(x.isfinite(), x, 0.0)
        self.y = torch.where(y.isfinite(), y, 0.0)
        self.kernel = (logk + self.x.unsqueeze(-1) + self.y.unsqueeze(-2)).clamp_max_(600.0).exp_()

    def rows(self, y: Tensor) -> Tensor:
        v = (y - self.y).clamp_max_(90.0).exp_().unsqueeze(-1)
        return (self.kernel @ v).squeeze(-1).clamp_min_(TINY).log_() - self.x

    def cols(self, x: Tensor) -> Tensor:
        u = (x - self.x).clamp_max_(90.0).exp_().unsqueeze(-2)
        return (u @ self.kernel).squeeze(-2).clamp_min_(TINY).log_() - self.y


PASSES: dict[str, Callable[[Tensor, Tensor, Tensor], LogPass | ScalingPass]] = {
    "log": LogPass,
    "scaling": ScalingPass,
}


def scalar(level: Tensor, weight: Tensor, mass: Tensor, slack: Tensor, guess: Tensor, steps: int) -> Tensor:
    """Solve ``sum_i w_i sigmoid(level_i - z) = mass`` for z: safeguarded Newton on the log-odds of the mass.

    Parameters
    ----------
    level, weight : Tensor, shape (k, n)
        ``level`` is minus infinity where the weight is 0.
    mass, slack : Tensor, shape (k,)
        ``mass + slack`` is the total weight; z is minus infinity where the slack is 0.
    guess : Tensor, shape (k,)
    steps : int
    """
    live = weight > 0
    top = torch.where(live, level, -torch.inf).amax(-1)
    bottom = torch.where(live, level, torch.inf).amin(-1)
    total = mass + slack
    high = top + torch.log(total / mass)
    low = bottom + torch.log(slack / total)
    z = torch.where(guess.isfinite(), guess, 0.5 * (low + high))
    z = torch.minimum(torch.maximum(z, low), high)
    for _ in range(steps):
        odds = torch.where(live, level - z.unsqueeze(-1), 0.0)
        moved, kept = torch.sigmoid(odds), torch.sigmoid(-odds)
        phi, psi = (weight * moved).sum(-1), (weight * kept).sum(-1)
        slope = (weight * moved * kept).sum(-1) * (1 / phi + 1 / psi)
        gap = torch.log(phi / psi) - torch.log(mass / slack)
        low, high = torch.where(gap > 0, z, low), torch.where(gap > 0, high, z)
        new = z + gap / slope
        z = torch.where((new >= low) & (new <= high), new, 0.5 * (low + high))
    return torch.where(slack > 0, z, -torch.inf)


def _potential(log_weight: Tensor, level: Tensor, z: Tensor) -> Tensor:
    """``log w - log(exp(level) + exp(z))``, minus infinity without weight."""
    value = log_weight - torch.logaddexp(level, z.unsqueeze(-1))
    return torch.where(log_weight.isfinite(), value, -torch.inf)


@dataclass
class Weights:
    """Weights of k problems and what follows from them; unreachable rows and columns have weight 0."""

    p: Tensor
    q: Tensor
    mass: Tensor
    slack_p: Tensor
    slack_q: Tensor

    def take(self, index: Tensor) -> Weights:
        return Weights(*(getattr(self, k)[index] for k in ("p", "q", "mass", "slack_p", "slack_q")))


def _rows(op: LogPass | ScalingPass, w: Weights, y: Tensor, eta: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    level = op.rows(y)
    eta = scalar(level, w.p, w.mass, w.slack_p, eta, steps)
    return _potential(w.p.log(), level, eta), eta


def _cols(op: LogPass | ScalingPass, w: Weights, x: Tensor, xi: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    level = op.cols(x)
    xi = scalar(level, w.q, w.mass, w.slack_q, xi, steps)
    return _potential(w.q.log(), level, xi), xi


def _residual(op: LogPass | ScalingPass, w: Weights, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Column sums (with the dummy row), its potential, and the relative L1 residual."""
    xi = w.slack_q.log() - torch.logsumexp(y, -1)
    column = torch.where(w.q > 0, (y + torch.logaddexp(op.cols(x), xi.unsqueeze(-1))).exp(), 0.0)
    return column, xi, (column - w.q).abs().sum(-1) / w.mass


def _dual(w: Weights, x: Tensor, y: Tensor, eta: Tensor, xi: Tensor) -> Tensor:
    """Dual value in units of the regularisation, up to a constant: every exact pass raises it."""
    parts = [
        (w.p, x),
        (w.q, y),
        (w.slack_p.unsqueeze(-1), eta.unsqueeze(-1)),
        (w.slack_q.unsqueeze(-1), xi.unsqueeze(-1)),
    ]
    return torch.stack([torch.where(weight > 0, weight * v, 0.0).sum(-1) for weight, v in parts]).sum(0)


def _newton(
    plan: Tensor, w: Weights, x: Tensor, eta: Tensor, y: Tensor, xi: Tensor, column: Tensor, damp: Tensor
) -> Tensor:
    """Damped Newton direction for y (k, m) with the rows and both dummies eliminated."""
    m = plan.shape[-1]
    inverse = torch.where(w.p > 0, 1 / w.p, 0.0)
    system = -(plan.mT * inverse.unsqueeze(-2)) @ plan  # (k, m, m)
    slack = (x + eta.unsqueeze(-1)).exp()  # (k, n)
    to_dummy = ((slack * inverse).unsqueeze(-2) @ plan).squeeze(-2)  # (k, m)
    delta = (slack * inverse * plan.sum(-1)).sum(-1)
    scale = torch.where(delta > 0, 1 / delta, 0.0)[:, None, None]
    system = system - scale * to_dummy.unsqueeze(-1) * to_dummy.unsqueeze(-2)
    from_dummy = (y + xi.unsqueeze(-1)).exp()
    scale = torch.where(w.slack_q > 0, 1 / w.slack_q, 0.0)[:, None, None]
    system = system - scale * from_dummy.unsqueeze(-1) * from_dummy.unsqueeze(-2)
    diagonal = torch.where(w.q > 0, column * (1 + 1e-12) + damp.unsqueeze(-1) * w.q, 1.0)
    system = (
        system + torch.diag_embed(diagonal) + (w.q.sum(-1) / m**2)[:, None, None]
    )  # the last fixes the gauge
    factor, info = torch.linalg.cholesky_ex(system)
    step = torch.cholesky_solve((w.q - column).unsqueeze(-1), factor).squeeze(-1)
    good = (info == 0) & step.isfinite().all(-1)
    step = torch.where(good.unsqueeze(-1), step, 0.0)
    largest = step.abs().amax(-1, keepdim=True)
    return step * (LONGEST / largest.clamp_min(LONGEST))


def _stage(
    logk: Tensor, w: Weights, state: State, tol: Tensor, cycles: int, method: str, max_passes: int
) -> State:
    """Blocks and Newton steps at one regularisation until all are at ``tol`` or the budget is spent."""
    done = State(*(getattr(state, field.name).clone() for field in fields(State)))
    index = torch.arange(len(logk), device=logk.device)
    x, y, eta = state.x, state.y, state.eta
    passes = state.passes.clone()
    damp = torch.full_like(eta, FIRST_DAMP)  # times the error: steps become Newton's near the solution
    for _ in range(cycles):
        op = PASSES[method](logk, x, y)
        xi = torch.full_like(eta, torch.nan)
        for k in range(BLOCKS // 2):
            y, xi = _cols(op, w, x, xi, 12 if k == 0 else 3)
            x, eta = _rows(op, w, y, eta, 3)
        x, eta = _rows(op, w, y, eta, 12)
        column, xi, error = _residual(op, w, x, y)
        # Newton from here, kept where the residual falls
        op = PASSES[method](logk, x, y)
        plan = (logk + x.unsqueeze(-1) + y.unsqueeze(-2)).exp()
        trial = y + _newton(plan, w, x, eta, y, xi, column, damp * error)
        trial_x, trial_eta = _rows(op, w, trial, eta, 30)
        _, trial_xi, trial_error = _residual(op, w, trial_x, trial)
        # where parts of the problem barely communicate the dual rises long before the residual falls
        before, after = _dual(w, x, y, eta, xi), _dual(w, trial_x, trial, trial_eta, trial_xi)
        noise = 1e-13 * before.abs()
        better = (after > before + noise) | (trial_error < 0.5 * error)
        better |= (trial_error < 0.9 * error) & (after > before - noise)
        better &= trial_error.isfinite()
        damp = torch.where(better, damp * 0.03, (damp * 10).clamp_max(1e6))
        pick = better.unsqueeze(-1)
        x, y = torch.where(pick, trial_x, x), torch.where(pick, trial, y)
        eta, xi = torch.where(better, trial_eta, eta), torch.where(better, trial_xi, xi)
        error = torch.where(better, trial_error, error)
        passes += BLOCKS // 2 + 2
        for name, value in (
            ("x", x),
            ("y", y),
            ("eta", eta),
            ("xi", xi),
            ("error", error),
            ("passes", passes),
        ):
            getattr(done, name)[index] = value
        open_ = (error > tol) & (passes < max_passes)
        keep = open_.nonzero().squeeze(-1)  # the one host synchronisation of a cycle
        if len(keep) == 0:
            break
        if len(keep) < len(index):
            index, logk, w, tol = index[keep], logk[keep], w.take(keep), tol[keep]
            x, y, eta, damp, passes = x[keep], y[keep], eta[keep], damp[keep], passes[keep]
    return done


def stages(cost: Tensor, reg: float, warm: bool) -> tuple[Tensor, Tensor, list[float]]:
    """Cost from its lowest value on, that value over ``reg`` (k,), and the regularisations to go through."""
    finite = cost.isfinite()
    lowest = torch.where(finite, cost, torch.inf).amin((-2, -1), keepdim=True)
    highest = torch.where(finite, cost, -torch.inf).amax((-2, -1), keepdim=True)
    spread = float((highest - lowest).clamp_min(0).amax())
    lowest = torch.where(lowest.isfinite(), lowest, 0.0)
    levels = [reg]
    while not warm and spread / levels[-1] > EASY_RANGE:
        levels.append(levels[-1] * STAGE_RATIO)
    return cost - lowest, lowest[:, 0, 0] / reg, levels[::-1]


def solve(
    cost: Tensor,
    w: Weights,
    reg: float,
    tol: float,
    max_passes: int,
    method: str,
    start: tuple[Tensor, Tensor] | None = None,
) -> State:
    """Solve k problems.

    Parameters
    ----------
    cost : Tensor of float64, shape (k, n, m)
        Infinite where forbidden; n >= m is quicker.
    w : Weights
        Positive masses; unreachable rows and columns have weight 0.
    reg, tol : float
    max_passes : int
    method : {"log", "scaling"}
    start : (g, eta) or None
        Column potentials (k, m) and potential of the dummy column (k,), in units of the cost.
    """
    k = len(cost)
    cost, lowest, levels = stages(cost, reg, start is not None)
    zero = cost.new_zeros(k)
    y = torch.where(w.q > 0, torch.zeros_like(w.q), -torch.inf)
    eta = torch.full_like(zero, torch.nan)
    if start is not None:
        y = torch.where((w.q > 0) & start[0].isfinite(), start[0] / reg, y)
        y = torch.where(w.q > 0, y, -torch.inf)
        eta = torch.where(start[1].isfinite(), start[1] / reg + lowest, torch.nan)
    x = torch.where(w.p > 0, torch.zeros_like(w.p), -torch.inf)
    state = State(
        x,
        y,
        eta,
        torch.full_like(zero, torch.nan),
        zero + torch.inf,
        torch.zeros_like(zero, dtype=torch.int64),
        lowest,
    )
    for level in levels:
        last = level == reg
        goal = torch.full_like(zero, tol if last else max(tol, STAGE_TOL))
        cycles = -(-max_passes // (BLOCKS // 2 + 2)) if last else STAGE_CYCLES
        logk = -cost / level
        first = LogPass(logk, state.x, state.y)  # from here every row and column of the kernel is in range
        state.x, state.eta = _rows(first, w, state.y, state.eta, 30)
        state.y, _ = _cols(first, w, state.x, state.xi, 30)
        state.x, state.eta = _rows(first, w, state.y, state.eta, 30)
        state = _stage(logk, w, state, goal, cycles, method, max_passes)
        if not last:
            for name in ("x", "y", "eta", "xi"):
                setattr(state, name, getattr(state, name) * STAGE_RATIO)
    return state
