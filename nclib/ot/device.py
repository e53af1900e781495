"""The torch backend: batches of problems on any device, in float64, at any regularisation.

With row weights p, column weights q and mass rho, a dummy column has weight |p| - rho, a dummy row |q| - rho,
both zero cost, and their corner is forbidden. The potentials obey, in units of the regularisation and with
L = -C / reg,

    rows      x_i = log p_i - log(sum_j exp(L_ij + y_j) + exp(eta)),   eta such that the mass is rho
    columns   y_j = log q_j - log(sum_i exp(L_ij + x_i) + exp(xi)),    xi such that the mass is rho

and each line is solved jointly with its scalar. The loop (:func:`_stage`) makes blocks of passes over rows
and columns, then a damped Newton step on the column potentials with everything else eliminated. The
regularisation is lowered in stages (:func:`_staged`), so that hard problems start close to their solution.
There are two ways to do a pass: :class:`LogPass` takes a log-sum-exp over the matrix, :class:`ScalingPass`
multiplies by a kernel into which the potentials were absorbed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from nclib.ot.problem import MASS_TOL, NO_SLACK, Problem, SolverSettings, useful
from nclib.ot.transport import Buffers

#: Passes between two looks at the error (each look is one host synchronisation).
BLOCKS = 10
#: Ratio of the regularisation between two stages; tolerance and cycles of a stage that is not the last.
STAGE_RATIO, STAGE_TOL, STAGE_CYCLES = 4.0, 1e-3, 15
#: Longest Newton step in a potential, in units of the regularisation.
LONGEST = 30.0
#: Smallest sum over a kernel; the next absorption of the potentials corrects what it hides.
TINY = 1e-300
#: A kernel range (cost range over regularisation) that needs no stages.
EASY_RANGE = 30.0
#: Damping of the first Newton step and the most, times the error: steps become Newton's near the solution.
FIRST_DAMP, MOST_DAMP = 1e-2, 1e6


def solve(problem: Problem, result: Buffers, index: Tensor, method: str, how: SolverSettings) -> Tensor:
    """Solve the problems of ``index``, (r,), into the result; return the part of it that did not converge.

    ``problem`` holds k problems on any device, cost (..., n, m); ``method`` is "scaling" or "log".
    """
    # Plan: 1. costs and weights in float64, unreachable rows and columns without weight, slack that is only
    # rounding removed; 2. the smaller side as columns, since the Newton system has their size; 3. the staged
    # loop; 4. plan and potentials for the cost as given.
    reg, dtype, buffers = problem.reg, problem.cost.dtype, result.flat()
    costs, masks, ps, qs, masses = problem.flat()
    cost, p, q, mass = costs[index].double(), ps[index], qs[index], masses[index]
    if masks is not None:
        allowed = masks[index]
        cost = torch.where(allowed, cost, torch.inf)
        allowed = allowed & useful(p, q)
        p, q = p * allowed.any(-1), q * allowed.any(-2)
    w, live = _weights(p, q, mass, dtype)
    wide = cost.shape[2] > cost.shape[1]
    if wide:
        cost, w = cost.mT, Weights(w.q, w.p, w.mass, w.slack_q, w.slack_p)
    state, shift = _staged(cost, w, reg, how.tol, how.max_iter, method)
    x, y, eta, xi = state.x, state.y, state.eta, state.xi
    error_x, error_y = torch.zeros_like(state.error), state.error
    if wide:
        cost, x, y, eta, xi, error_x, error_y = cost.mT, y, x, xi, eta, error_y, error_x
    plan = (x.unsqueeze(-1) + y.unsqueeze(-2) - (cost - shift[:, None, None] * reg) / reg).exp()
    x, eta = x + shift.unsqueeze(-1), eta - shift
    plan = torch.where(live[:, None, None], plan, 0.0)
    moved = (plan.sum((-2, -1)) - mass).abs() / torch.where(live, mass, 1.0)
    good = ~live | ((state.error <= how.tol) & (moved <= min(how.tol, MASS_TOL)))
    buffers.plan[index] = plan.to(dtype)
    for target, value, idle in (
        (buffers.f, x * reg, -torch.inf),
        (buffers.g, y * reg, -torch.inf),
        (buffers.slacks[0], xi * reg, -torch.inf),
        (buffers.slacks[1], eta * reg, -torch.inf),
        (buffers.errors[0], error_x, 0.0),
        (buffers.errors[1], error_y, 0.0),
        (buffers.iterations, state.passes, 0),
    ):
        target[index] = torch.where(live.unsqueeze(-1) if value.ndim == 2 else live, value, idle)
    buffers.converged[index] = good
    return index[~good]


def _weights(p: Tensor, q: Tensor, mass: Tensor, dtype: torch.dtype) -> tuple[Weights, Tensor]:
    """Weights without rounding in their slack, and which problems move anything.

    An empty problem is solved as if it moved half of what it could, then thrown away.
    """
    live = mass > 0
    total_p, total_q = p.sum(-1), q.sum(-1)
    safe = torch.where(live, mass, torch.minimum(total_p, total_q) * 0.5)
    near_p = (total_p - safe).abs() <= NO_SLACK[dtype] * total_p
    near_q = (total_q - safe).abs() <= NO_SLACK[dtype] * total_q
    p = torch.where(near_p.unsqueeze(-1), p * (safe / total_p).unsqueeze(-1), p)
    q = torch.where(near_q.unsqueeze(-1), q * (safe / total_q).unsqueeze(-1), q)
    slack_p = torch.where(near_p, 0.0, total_p - safe)
    slack_q = torch.where(near_q, 0.0, total_q - safe)
    return Weights(p, q, safe, slack_p, slack_q), live


# -- the problem and its iterates ----------------------------------------------------------------------------


@dataclass
class Batched:
    """Tensors whose first dimension counts the k problems."""

    def take(self, index: Tensor) -> Self:
        """Return those of some of the problems."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    def put(self, index: Tensor, other: Self) -> None:
        """Write those of some of the problems."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)


@dataclass
class Weights(Batched):
    """Weights of k problems; unreachable rows and columns have weight 0."""

    p: Tensor  # (k, n)
    q: Tensor  # (k, m)
    mass: Tensor  # (k,)
    slack_p: Tensor  # (k,)
    slack_q: Tensor  # (k,)


@dataclass
class State(Batched):
    """Potentials of k problems in units of the regularisation, with their errors."""

    x: Tensor  # (k, n)
    y: Tensor  # (k, m)
    eta: Tensor  # (k,) of the dummy column
    xi: Tensor  # (k,) of the dummy row
    column: Tensor  # (k, m) column sums of the last look
    error: Tensor  # (k,) residual of the columns over the mass
    passes: Tensor  # (k,) int64


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


Pass = LogPass | ScalingPass
PASSES: dict[str, Callable[[Tensor, Tensor, Tensor], Pass]] = {"log": LogPass, "scaling": ScalingPass}


# -- the steps -----------------------------------------------------------------------------------------------


def _scalar(level: Tensor, weight: Tensor, mass: Tensor, slack: Tensor, guess: Tensor, steps: int) -> Tensor:
    """Solve ``sum_i w_i sigmoid(level_i - z) = mass`` for z: safeguarded Newton on the log-odds of the mass.

    ``level`` and ``weight`` are (k, n), the level minus infinity where the weight is 0; ``mass + slack``,
    (k,), is the total weight. A ``guess`` that is not finite is replaced; without slack z is minus infinity.
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


def _side(
    level: Tensor, weight: Tensor, mass: Tensor, slack: Tensor, guess: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Potentials of one side and of its dummy, given the log-sums ``level`` over the other side."""
    z = _scalar(level, weight, mass, slack, guess, steps)
    log_weight = weight.log()
    value = log_weight - torch.logaddexp(level, z.unsqueeze(-1))
    return torch.where(log_weight.isfinite(), value, -torch.inf), z


def begin(w: Weights) -> State:
    """State before the first stage."""
    zero = torch.zeros_like(w.mass)
    x, y = (torch.where(weight > 0, 0.0, -torch.inf).to(weight.dtype) for weight in (w.p, w.q))
    return State(x, y, zero + torch.nan, zero + torch.nan, w.q, zero + torch.inf, zero.long())


def enter(op: Pass, w: Weights, s: State) -> None:
    """Bring every row and column of a new stage's kernel into range."""
    s.x, s.eta = _rows(op, w, s.y, s.eta, 30)
    s.y, _ = _cols(op, w, s.x, s.xi, 30)
    s.x, s.eta = _rows(op, w, s.y, s.eta, 30)


def block(op: Pass, w: Weights, s: State) -> State:
    """State after :data:`BLOCKS` passes over rows and columns in turn, with its error."""
    x, y, eta, xi = s.x, s.y, s.eta, torch.full_like(s.eta, torch.nan)
    for k in range(BLOCKS // 2):
        y, xi = _cols(op, w, x, xi, 12 if k == 0 else 3)
        x, eta = _rows(op, w, y, eta, 3)
    x, eta = _rows(op, w, y, eta, 12)
    return _measured(op, w, replace(s, x=x, y=y, eta=eta))


def newton(logk: Tensor, op: Pass, w: Weights, s: State, damp: Tensor) -> State:
    """State after a damped Newton step on the columns, with its error."""
    y = s.y + _direction(logk, w, s, damp * s.error)
    x, eta = _rows(op, w, y, s.eta, 30)
    return _measured(op, w, replace(s, x=x, y=y, eta=eta))


def _rows(op: Pass, w: Weights, y: Tensor, eta: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    return _side(op.rows(y), w.p, w.mass, w.slack_p, eta, steps)


def _cols(op: Pass, w: Weights, x: Tensor, xi: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    return _side(op.cols(x), w.q, w.mass, w.slack_q, xi, steps)


def _measured(op: Pass, w: Weights, s: State) -> State:
    """State with its column sums (dummy row included), that row's potential, the relative L1 error."""
    xi = w.slack_q.log() - torch.logsumexp(s.y, -1)
    column = torch.where(w.q > 0, (s.y + torch.logaddexp(op.cols(s.x), xi.unsqueeze(-1))).exp(), 0.0)
    return replace(s, xi=xi, column=column, error=(column - w.q).abs().sum(-1) / w.mass)


def _direction(logk: Tensor, w: Weights, s: State, damp: Tensor) -> Tensor:
    """Newton direction for y (k, m) with the rows and both dummies eliminated."""
    plan = (logk + s.x.unsqueeze(-1) + s.y.unsqueeze(-2)).exp()
    m = plan.shape[-1]
    inverse = torch.where(w.p > 0, 1 / w.p, 0.0)
    system = -(plan.mT * inverse.unsqueeze(-2)) @ plan  # (k, m, m)
    slack = (s.x + s.eta.unsqueeze(-1)).exp()  # (k, n)
    to_dummy = ((slack * inverse).unsqueeze(-2) @ plan).squeeze(-2)  # (k, m)
    delta = (slack * inverse * plan.sum(-1)).sum(-1)
    scale = torch.where(delta > 0, 1 / delta, 0.0)[:, None, None]
    system = system - scale * to_dummy.unsqueeze(-1) * to_dummy.unsqueeze(-2)
    from_dummy = (s.y + s.xi.unsqueeze(-1)).exp()
    scale = torch.where(w.slack_q > 0, 1 / w.slack_q, 0.0)[:, None, None]
    system = system - scale * from_dummy.unsqueeze(-1) * from_dummy.unsqueeze(-2)
    diagonal = torch.where(w.q > 0, s.column * (1 + 1e-12) + damp.unsqueeze(-1) * w.q, 1.0)
    gauge = (w.q.sum(-1) / m**2)[:, None, None]  # fixes the constant between x and y
    return newton_step(system + torch.diag_embed(diagonal) + gauge, w.q - s.column)


def dual(w: Weights, s: State) -> Tensor:
    """Dual value in units of the regularisation, up to a constant: every exact pass raises it."""
    parts = [
        (w.p, s.x),
        (w.q, s.y),
        (w.slack_p.unsqueeze(-1), s.eta.unsqueeze(-1)),
        (w.slack_q.unsqueeze(-1), s.xi.unsqueeze(-1)),
    ]
    return torch.stack([torch.where(weight > 0, weight * v, 0.0).sum(-1) for weight, v in parts]).sum(0)


def newton_step(system: Tensor, right: Tensor) -> Tensor:
    """Solve symmetric (k, m, m) systems for (k, m); 0 where one is not definite, no entry above LONGEST."""
    factor, info = torch.linalg.cholesky_ex(system)
    step = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    good = (info == 0) & step.isfinite().all(-1)
    step = torch.where(good.unsqueeze(-1), step, 0.0)
    return step * (LONGEST / step.abs().amax(-1, keepdim=True).clamp_min(LONGEST))


# -- the loop ------------------------------------------------------------------------------------------------


def _stage(logk: Tensor, w: Weights, s: State, tol: float, last: bool, method: str, budget: int) -> State:
    """Cycles of a block and a Newton step at one regularisation, until ``tol`` or the budget is reached."""
    cycles = -(-budget // (BLOCKS // 2 + 2)) if last else STAGE_CYCLES
    tol = tol if last else max(tol, STAGE_TOL)
    # Plan of a cycle: 1. a block; 2. a Newton step from there, kept where the error falls or the dual value
    # rises (where parts of a problem barely communicate the dual rises long before the error falls); 3. one
    # host synchronisation that drops the finished problems.
    index = torch.arange(len(logk), device=logk.device)
    done, damp = s.take(index), torch.full_like(s.eta, FIRST_DAMP)
    for _ in range(cycles):
        now = block(PASSES[method](logk, s.x, s.y), w, s)
        trial = newton(logk, PASSES[method](logk, now.x, now.y), w, now, damp)
        before, after = dual(w, now), dual(w, trial)
        noise = 1e-13 * before.abs()
        better = (after > before + noise) | (trial.error < 0.5 * now.error)
        better |= (trial.error < 0.9 * now.error) & (after > before - noise)
        better &= trial.error.isfinite()
        damp = torch.where(better, damp * 0.03, (damp * 10).clamp_max(MOST_DAMP))
        pick = better.unsqueeze(-1)
        s = State(
            x=torch.where(pick, trial.x, now.x),
            y=torch.where(pick, trial.y, now.y),
            eta=torch.where(better, trial.eta, now.eta),
            xi=torch.where(better, trial.xi, now.xi),
            column=now.column,
            error=torch.where(better, trial.error, now.error),
            passes=s.passes + (BLOCKS // 2 + 2),
        )
        done.put(index, s)
        keep = ((s.error > tol) & (s.passes < budget)).nonzero().squeeze(-1)
        if len(keep) == 0:
            break
        if len(keep) < len(index):
            index, logk, w, s, damp = index[keep], logk[keep], w.take(keep), s.take(keep), damp[keep]
    return done


def _staged(
    cost: Tensor, w: Weights, reg: float, tol: float, max_passes: int, method: str
) -> tuple[State, Tensor]:
    """Solve k problems at falling regularisation.

    Parameters
    ----------
    cost : Tensor of float64, shape (k, n, m)
        Infinite where forbidden; n >= m is quicker.
    w : Weights
        Positive masses.
    reg, tol, max_passes
        Regularisation, tolerance relative to the mass, budget of passes.
    method : {"log", "scaling"}

    Returns
    -------
    state, lowest
        State for the cost counted from its lowest value, and that value over ``reg``, (k,).
    """
    finite = cost.isfinite()
    lowest = torch.where(finite, cost, torch.inf).amin((-2, -1), keepdim=True)
    highest = torch.where(finite, cost, -torch.inf).amax((-2, -1), keepdim=True)
    spread = float((highest - lowest).clamp_min(0).amax())
    lowest = torch.where(lowest.isfinite(), lowest, 0.0)
    levels = [reg]
    while spread / levels[-1] > EASY_RANGE:
        levels.append(levels[-1] * STAGE_RATIO)
    cost, lowest = cost - lowest, lowest[:, 0, 0] / reg
    state = begin(w)
    for level in reversed(levels):
        last = level == reg
        logk = -cost / level
        enter(LogPass(logk, state.x, state.y), w, state)
        state = _stage(logk, w, state, tol, last, method, max_passes)
        if not last:
            r = STAGE_RATIO
            state = replace(state, x=state.x * r, y=state.y * r, eta=state.eta * r, xi=state.xi * r)
    return state, lowest
