"""The torch backend: batches of problems on any device, in float64, at any regularisation.

:class:`Extended` and :class:`Capped` are what the two formulations add to the loop of
:mod:`nclib.ot.backends.device_loop`. In the extended one, with row weights p, column weights q and mass rho,
a dummy column has weight |p| - rho, a dummy row |q| - rho, both zero cost, and their corner is forbidden. The
potentials obey, in units of the regularisation and with L = -C / reg,

    rows      x_i = log p_i - log(sum_j exp(L_ij + y_j) + exp(eta)),   eta such that the mass is rho
    columns   y_j = log q_j - log(sum_i exp(L_ij + x_i) + exp(xi)),    xi such that the mass is rho

and each line is solved jointly with its scalar. In the capped one the plan is ``exp(L_ij + x_i + y_j + z)``
with x, y <= 0: a row (column) has potential 0 until it reaches its cap. For fixed y the rows and the mass are
solved together by water filling, and the same the other way round.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nclib.ot.backends.cpu import NO_SLACK
from nclib.ot.backends.cpu_extended import MASS_TOL
from nclib.ot.backends.device_loop import BLOCKS, Formulation, Pass, State, Weights, newton_step, staged
from nclib.ot.problem import Potentials, Problem, Settings, useful
from nclib.ot.transport import Buffers


def solve(problem: Problem, buffers: Buffers, index: Tensor, method: str, how: Settings) -> Tensor:
    """Solve the problems of ``index``, (r,), into the buffers; return the part of it that did not converge.

    ``problem`` holds k problems on any device, cost (..., n, m); ``method`` is "scaling" or "log".
    """
    # Plan: 1. costs and weights in float64, unreachable rows and columns without weight, slack that is only
    # rounding removed; 2. the smaller side as columns, since the Newton system has their size; 3. the staged
    # loop; 4. plan and potentials for the cost as given.
    reg, dtype, capped = problem.reg, problem.cost.dtype, problem.formulation == "capped"
    costs, masks, ps, qs, masses = problem.flat()
    cost, p, q, mass = costs[index].double(), ps[index], qs[index], masses[index]
    if masks is not None:
        allowed = masks[index]
        cost = torch.where(allowed, cost, torch.inf)
        allowed = allowed & useful(p, q)
        p, q = p * allowed.any(-1), q * allowed.any(-2)
    w, live = _weights(p, q, mass, dtype)
    wide = cost.shape[2] > cost.shape[1]
    first = None if how.start is None else _start(how.start, problem, index, wide, capped)
    if wide:
        cost, w = cost.mT, Weights(w.q, w.p, w.mass, w.slack_q, w.slack_p)
    form = Capped() if capped else Extended()
    state, shift = staged(form, cost, w, reg, how.tol, how.max_iter, method, first)
    x, y, eta, xi = state.x, state.y, state.eta, state.xi
    if capped:
        x, eta, xi = x + eta.unsqueeze(-1), -eta, torch.zeros_like(eta)
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
        (buffers.f_slack, xi * reg, -torch.inf),
        (buffers.g_slack, eta * reg, -torch.inf),
        (buffers.row_error, error_x, 0.0),
        (buffers.col_error, error_y, 0.0),
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


def _start(
    start: Potentials, problem: Problem, index: Tensor, wide: bool, capped: bool
) -> tuple[Tensor, Tensor]:
    """Potentials of the side that the loop calls columns, and of the other side's dummy."""
    side, other = (start.f, start.f_slack) if wide else (start.g, start.g_slack)
    if capped:
        side = side + (start.g_slack if wide else start.f_slack).unsqueeze(-1)
    size = problem.cost.shape[-2] if wide else problem.cost.shape[-1]
    batch = problem.mass.shape
    return side.expand(*batch, size).reshape(-1, size)[index], other.expand(batch).reshape(-1)[index]


def _zero(weight: Tensor) -> Tensor:
    return torch.where(weight > 0, 0.0, -torch.inf).to(weight.dtype)


# -- extended ------------------------------------------------------------------------------------------------


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


class Extended(Formulation):
    """Entropy also on what is not moved."""

    first_damp, most_damp = 1e-2, 1e6  # times the error: steps become Newton's near the solution

    def begin(self, w: Weights, start: tuple[Tensor, Tensor] | None, reg: float, lowest: Tensor) -> State:
        zero = torch.zeros_like(w.mass)
        x, y = _zero(w.p), _zero(w.q)
        eta = xi = zero + torch.nan
        if start is not None:
            y = torch.where((w.q > 0) & start[0].isfinite(), start[0] / reg, y)
            eta = torch.where(start[1].isfinite(), start[1] / reg + lowest, torch.nan)
        return State(x, y, eta, xi, w.q, zero + torch.inf, zero.long())

    def enter(self, op: Pass, w: Weights, s: State) -> None:
        s.x, s.eta = self._rows(op, w, s.y, s.eta, 30)
        s.y, _ = self._cols(op, w, s.x, s.xi, 30)
        s.x, s.eta = self._rows(op, w, s.y, s.eta, 30)

    def kernel(self, logk: Tensor, s: State) -> tuple[Tensor, Tensor]:
        return logk, torch.zeros_like(s.eta)

    def block(self, op: Pass, w: Weights, s: State) -> State:
        x, y, eta, xi = s.x, s.y, s.eta, torch.full_like(s.eta, torch.nan)
        for k in range(BLOCKS // 2):
            y, xi = self._cols(op, w, x, xi, 12 if k == 0 else 3)
            x, eta = self._rows(op, w, y, eta, 3)
        x, eta = self._rows(op, w, y, eta, 12)
        return self._measured(op, w, replace(s, x=x, y=y, eta=eta))

    def newton(self, logk: Tensor, op: Pass, w: Weights, s: State, damp: Tensor) -> State:
        y = s.y + self._direction(logk, w, s, damp * s.error)
        x, eta = self._rows(op, w, y, s.eta, 30)
        return self._measured(op, w, replace(s, x=x, y=y, eta=eta))

    @staticmethod
    def _rows(op: Pass, w: Weights, y: Tensor, eta: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        return _side(op.rows(y), w.p, w.mass, w.slack_p, eta, steps)

    @staticmethod
    def _cols(op: Pass, w: Weights, x: Tensor, xi: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        return _side(op.cols(x), w.q, w.mass, w.slack_q, xi, steps)

    @staticmethod
    def _measured(op: Pass, w: Weights, s: State) -> State:
        """State with its column sums (dummy row included), that row's potential, the relative L1 error."""
        xi = w.slack_q.log() - torch.logsumexp(s.y, -1)
        column = torch.where(w.q > 0, (s.y + torch.logaddexp(op.cols(s.x), xi.unsqueeze(-1))).exp(), 0.0)
        return replace(s, xi=xi, column=column, error=(column - w.q).abs().sum(-1) / w.mass)

    @staticmethod
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

    def dual(self, w: Weights, s: State) -> Tensor:
        parts = [
            (w.p, s.x),
            (w.q, s.y),
            (w.slack_p.unsqueeze(-1), s.eta.unsqueeze(-1)),
            (w.slack_q.unsqueeze(-1), s.xi.unsqueeze(-1)),
        ]
        return torch.stack([torch.where(weight > 0, weight * v, 0.0).sum(-1) for weight, v in parts]).sum(0)


# -- capped --------------------------------------------------------------------------------------------------


def water_level(level: Tensor, cap: Tensor, mass: Tensor) -> Tensor:
    """Solve ``sum_i min(exp(z + level_i), cap_i) = mass`` for z; exact, by sorting, differentiable.

    ``level`` (..., n) is finite, or very low where there is nothing to fill; entries whose ``cap`` (..., n)
    is 0 take no part; ``mass`` (...) is at most the sum of the caps. If all are reached, the lowest such z.
    """
    live = cap > 0
    level = torch.where(live, level, -1e30)
    # entry i is full once z passes its threshold
    threshold = torch.where(live, cap.clamp_min(1e-300).log() - level, torch.inf)
    order = threshold.argsort(-1)
    threshold, cap, level = (t.gather(-1, order) for t in (threshold, torch.where(live, cap, 0.0), level))
    filled = cap.cumsum(-1)  # caps of the entries up to k
    tail = level.flip(-1).logcumsumexp(-1).flip(-1)  # log of what entries k and later hold at z = 0
    after = torch.cat([tail[..., 1:], torch.full_like(tail[..., :1], -torch.inf)], -1)
    at_threshold = filled + (threshold + after).clamp_max(700.0).exp()
    count = (torch.where(live.gather(-1, order), at_threshold, torch.inf) < mass.unsqueeze(-1)).sum(-1)
    n = cap.shape[-1]
    last = (count.unsqueeze(-1) - 1).clamp_min(0)
    done = torch.where(count > 0, filled.gather(-1, last).squeeze(-1), 0.0)
    rest = tail.gather(-1, count.clamp_max(n - 1).unsqueeze(-1)).squeeze(-1)
    z = (mass - done).clamp_min(1e-300).log() - rest
    n_live = live.sum(-1)
    top = threshold.gather(-1, (n_live.unsqueeze(-1) - 1).clamp_min(0)).squeeze(-1)
    # rounding can leave a sliver above the last cap: the level that fills everything is enough
    return torch.where(count >= n_live, top, torch.minimum(z, top))


def _fill(level: Tensor, cap: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials of one side and the level, given the log-sums of the other."""
    z = water_level(level, cap, mass)
    potential = (cap.log() - level - z.unsqueeze(-1)).clamp_max(0.0)
    return torch.where(cap > 0, potential, -torch.inf), z


class Capped(Formulation):
    """Entropy on the moved mass only; ``eta`` of the state is the level z."""

    first_damp, most_damp = 1e-5, 1e3  # as a share of the column weights

    def begin(self, w: Weights, start: tuple[Tensor, Tensor] | None, reg: float, lowest: Tensor) -> State:
        zero = torch.zeros_like(w.mass)
        x, y = _zero(w.p), _zero(w.q)
        if start is not None:
            y = torch.where(start[0].isfinite(), (start[0] / reg).clamp_max(0.0), y)
            y = torch.where(w.q > 0, y, -torch.inf)
        return State(x, y, zero, zero, w.q, zero + torch.inf, zero.long())

    def enter(self, op: Pass, w: Weights, s: State) -> None:
        s.x, s.eta = _fill(op.rows(s.y), w.p, w.mass)

    def kernel(self, logk: Tensor, s: State) -> tuple[Tensor, Tensor]:
        return logk + s.eta[:, None, None], s.eta  # with the level in the kernel, a plan: nothing overflows

    def block(self, op: Pass, w: Weights, s: State) -> State:
        x, y, z = s.x, s.y, s.eta
        for _ in range(BLOCKS // 2):
            y, _ = _fill(op.cols(x), w.q, w.mass)
            x, z = _fill(op.rows(y), w.p, w.mass)
        return self._measured(op, w, replace(s, x=x, y=y, eta=z))

    def newton(self, logk: Tensor, op: Pass, w: Weights, s: State, damp: Tensor) -> State:
        y = (s.y + self._direction(logk, w, s, damp)).clamp_max(0.0)
        x, z = _fill(op.rows(y), w.p, w.mass)
        return self._measured(op, w, replace(s, x=x, y=y, eta=z))

    @staticmethod
    def _measured(op: Pass, w: Weights, s: State) -> State:
        """State with its column sums and the relative violation of caps and of complementarity."""
        column = torch.where(w.q > 0, (s.y + op.cols(s.x) + s.eta.unsqueeze(-1)).clamp_max(600.0).exp(), 0.0)
        idle = (1 - s.y.exp()) * (w.q - column).clamp_min(0)
        return replace(s, column=column, error=((column - w.q).clamp_min(0) + idle).sum(-1) / w.mass)

    @staticmethod
    def _direction(logk: Tensor, w: Weights, s: State, damp: Tensor) -> Tensor:
        """Newton direction for the columns at (or above) their caps; rows and the level eliminated."""
        plan = (logk + s.x.unsqueeze(-1) + s.y.unsqueeze(-2) + s.eta[:, None, None]).exp()
        full = s.x < 0
        inverse = torch.where(full & (w.p > 0), 1 / w.p, 0.0)
        capped = plan * inverse.sqrt().unsqueeze(-1)
        system = -capped.mT @ capped
        spare = torch.where(full.unsqueeze(-1), 0.0, plan).sum(-2)  # (k, m) from rows below their caps
        total = spare.sum(-1)
        scale = torch.where(total > 1e-13 * w.mass, 1 / total, 0.0)[:, None, None]
        system = system - scale * spare.unsqueeze(-1) * spare.unsqueeze(-2)
        active = ((s.y < 0) | (s.column > w.q)) & (w.q > 0)
        keep = active.unsqueeze(-1) & active.unsqueeze(-2)
        diagonal = torch.where(active, s.column * (1 + 1e-12) + damp.unsqueeze(-1) * w.q, 1.0)
        system = torch.where(keep, system, 0.0) + torch.diag_embed(diagonal)
        return newton_step(system, torch.where(active, w.q - s.column, 0.0))

    def dual(self, w: Weights, s: State) -> Tensor:
        parts = torch.where(w.p > 0, w.p * s.x, 0.0).sum(-1) + torch.where(w.q > 0, w.q * s.y, 0.0).sum(-1)
        return parts + w.mass * s.eta
