"""Extended partial problem in torch.

With row weights p, column weights q and mass rho, the extended problem has a dummy column of weight
|p| - rho, a dummy row of weight |q| - rho, zero cost on both and a forbidden corner. Its potentials obey, in
units of the regularisation and with L = -C / reg,

    rows      x_i = log p_i - log(sum_j exp(L_ij + y_j) + exp(eta)),   eta such that the mass is rho
    columns   y_j = log q_j - log(sum_i exp(L_ij + x_i) + exp(xi)),    xi such that the mass is rho

Each line is solved jointly with its scalar.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nclib.ot.backends.device_loop import BLOCKS, Formulation, Pass, State, Weights, newton_step


def scalar(level: Tensor, weight: Tensor, mass: Tensor, slack: Tensor, guess: Tensor, steps: int) -> Tensor:
    """Solve ``sum_i w_i sigmoid(level_i - z) = mass`` for z: safeguarded Newton on the log-odds of the mass.

    Parameters
    ----------
    level, weight : Tensor, shape (k, n)
        ``level`` is minus infinity where the weight is 0.
    mass, slack : Tensor, shape (k,)
        ``mass + slack`` is the total weight; z is minus infinity where the slack is 0.
    guess : Tensor, shape (k,)
        First value of z; replaced where it is not finite.
    steps : int
        Newton steps.

    Returns
    -------
    Tensor, shape (k,)
        z, minus infinity where the slack is 0.
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


def _potential(weight: Tensor, level: Tensor, z: Tensor) -> Tensor:
    """``log w - log(exp(level) + exp(z))``, minus infinity without weight."""
    log_weight = weight.log()
    value = log_weight - torch.logaddexp(level, z.unsqueeze(-1))
    return torch.where(log_weight.isfinite(), value, -torch.inf)


def _rows(op: Pass, w: Weights, y: Tensor, eta: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    level = op.rows(y)
    eta = scalar(level, w.p, w.mass, w.slack_p, eta, steps)
    return _potential(w.p, level, eta), eta


def _cols(op: Pass, w: Weights, x: Tensor, xi: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    level = op.cols(x)
    xi = scalar(level, w.q, w.mass, w.slack_q, xi, steps)
    return _potential(w.q, level, xi), xi


def _measured(op: Pass, w: Weights, s: State) -> State:
    """State with its column sums (dummy row included), that row's potential, and the relative L1 error."""
    xi = w.slack_q.log() - torch.logsumexp(s.y, -1)
    column = torch.where(w.q > 0, (s.y + torch.logaddexp(op.cols(s.x), xi.unsqueeze(-1))).exp(), 0.0)
    return replace(s, xi=xi, column=column, error=(column - w.q).abs().sum(-1) / w.mass)


class Extended(Formulation):
    """Entropy also on what is not moved."""

    first_damp, most_damp = 1e-2, 1e6  # times the error: steps become Newton's near the solution

    def begin(self, w: Weights, start: tuple[Tensor, Tensor] | None, reg: float, lowest: Tensor) -> State:
        zero = torch.zeros_like(w.mass)
        x = torch.where(w.p > 0, torch.zeros_like(w.p), -torch.inf)
        y = torch.where(w.q > 0, torch.zeros_like(w.q), -torch.inf)
        eta = xi = zero + torch.nan
        if start is not None:
            y = torch.where((w.q > 0) & start[0].isfinite(), start[0] / reg, y)
            eta = torch.where(start[1].isfinite(), start[1] / reg + lowest, torch.nan)
        return State(x, y, eta, xi, w.q, zero + torch.inf, torch.zeros_like(zero, dtype=torch.int64))

    def enter(self, op: Pass, w: Weights, s: State) -> None:
        s.x, s.eta = _rows(op, w, s.y, s.eta, 30)
        s.y, _ = _cols(op, w, s.x, s.xi, 30)
        s.x, s.eta = _rows(op, w, s.y, s.eta, 30)

    def kernel(self, logk: Tensor, s: State) -> tuple[Tensor, Tensor]:
        return logk, torch.zeros_like(s.eta)

    def block(self, op: Pass, w: Weights, s: State) -> State:
        x, y, eta, xi = s.x, s.y, s.eta, torch.full_like(s.eta, torch.nan)
        for k in range(BLOCKS // 2):
            y, xi = _cols(op, w, x, xi, 12 if k == 0 else 3)
            x, eta = _rows(op, w, y, eta, 3)
        x, eta = _rows(op, w, y, eta, 12)
        return _measured(op, w, replace(s, x=x, y=y, eta=eta))

    def newton(self, logk: Tensor, op: Pass, w: Weights, s: State, damp: Tensor) -> State:
        y = s.y + self._direction(logk, w, s, damp * s.error)
        x, eta = _rows(op, w, y, s.eta, 30)
        return _measured(op, w, replace(s, x=x, y=y, eta=eta))

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
