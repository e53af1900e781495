"""The loop of the torch backend, for both formulations.

Both formulations run through the same loop (:func:`_stage`): blocks of passes over rows and columns, then a
damped Newton step on the column potentials with everything else eliminated. The regularisation is lowered in
stages (:func:`staged`), so that hard problems start close to their solution. The two ways to do a pass are
operators: :class:`LogPass` takes a log-sum-exp over the matrix, :class:`ScalingPass` multiplies by a kernel
into which the potentials were absorbed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

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


@dataclass
class Rows:
    """Tensors whose first dimension counts the k problems."""

    def take(self, index: Tensor) -> Self:
        """Return those of some of the problems."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    def put(self, index: Tensor, other: Self) -> None:
        """Write those of some of the problems."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)


@dataclass
class Weights(Rows):
    """Weights of k problems; unreachable rows and columns have weight 0."""

    p: Tensor  # (k, n)
    q: Tensor  # (k, m)
    mass: Tensor  # (k,)
    slack_p: Tensor  # (k,)
    slack_q: Tensor  # (k,)


@dataclass
class State(Rows):
    """Potentials of k problems in units of the regularisation, with their errors.

    ``eta`` and ``xi`` are the potentials of the dummy column and row of the extended formulation; the capped
    one has the level z of the moved mass in ``eta`` and nothing in ``xi``.
    """

    x: Tensor  # (k, n)
    y: Tensor  # (k, m)
    eta: Tensor  # (k,)
    xi: Tensor  # (k,)
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


class Formulation(ABC):
    """Steps of the loop that differ between the extended and the capped problem."""

    first_damp: ClassVar[float]  # damping of the first Newton step
    most_damp: ClassVar[float]

    @abstractmethod
    def begin(self, w: Weights, start: tuple[Tensor, Tensor] | None, reg: float, lowest: Tensor) -> State:
        """State before the first stage, from zero or from given potentials in units of the cost."""

    @abstractmethod
    def enter(self, op: Pass, w: Weights, s: State) -> None:
        """Bring every row and column of a new stage's kernel into range."""

    @abstractmethod
    def kernel(self, logk: Tensor, s: State) -> tuple[Tensor, Tensor]:
        """Exponents that the passes of a cycle see, and what they contain of ``eta``."""

    @abstractmethod
    def block(self, op: Pass, w: Weights, s: State) -> State:
        """State after :data:`BLOCKS` passes over rows and columns in turn, with its error."""

    @abstractmethod
    def newton(self, logk: Tensor, op: Pass, w: Weights, s: State, damp: Tensor) -> State:
        """State after a damped Newton step on the columns, with its error."""

    @abstractmethod
    def dual(self, w: Weights, s: State) -> Tensor:
        """Dual value in units of the regularisation, up to a constant: every exact pass raises it."""


def newton_step(system: Tensor, right: Tensor) -> Tensor:
    """Solve symmetric (k, m, m) systems for (k, m); 0 where one is not definite, no entry above LONGEST."""
    factor, info = torch.linalg.cholesky_ex(system)
    step = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    good = (info == 0) & step.isfinite().all(-1)
    step = torch.where(good.unsqueeze(-1), step, 0.0)
    return step * (LONGEST / step.abs().amax(-1, keepdim=True).clamp_min(LONGEST))


def _stage(
    form: Formulation, logk: Tensor, w: Weights, s: State, tol: float, last: bool, method: str, budget: int
) -> State:
    """Cycles of a block and a Newton step at one regularisation, until ``tol`` or the budget is reached."""
    cycles = -(-budget // (BLOCKS // 2 + 2)) if last else STAGE_CYCLES
    tol = tol if last else max(tol, STAGE_TOL)
    # Plan of a cycle: 1. a block; 2. a Newton step from there, kept where the error falls or the dual value
    # rises (where parts of a problem barely communicate the dual rises long before the error falls); 3. one
    # host synchronisation that drops the finished problems.
    index = torch.arange(len(logk), device=logk.device)
    done, damp = s.take(index), torch.full_like(s.eta, form.first_damp)
    for _ in range(cycles):
        shifted, base = form.kernel(logk, s)
        now = form.block(PASSES[method](shifted, s.x, s.y), w, s)
        trial = form.newton(shifted, PASSES[method](shifted, now.x, now.y), w, now, damp)
        before, after = form.dual(w, now), form.dual(w, trial)
        noise = 1e-13 * before.abs()
        better = (after > before + noise) | (trial.error < 0.5 * now.error)
        better |= (trial.error < 0.9 * now.error) & (after > before - noise)
        better &= trial.error.isfinite()
        damp = torch.where(better, damp * 0.03, (damp * 10).clamp_max(form.most_damp))
        pick = better.unsqueeze(-1)
        s = State(
            x=torch.where(pick, trial.x, now.x),
            y=torch.where(pick, trial.y, now.y),
            eta=base + torch.where(better, trial.eta, now.eta),
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


def staged(
    form: Formulation,
    cost: Tensor,
    w: Weights,
    reg: float,
    tol: float,
    max_passes: int,
    method: str,
    start: tuple[Tensor, Tensor] | None,
) -> tuple[State, Tensor]:
    """Solve k problems at falling regularisation.

    Parameters
    ----------
    form : Formulation
    cost : Tensor of float64, shape (k, n, m)
        Infinite where forbidden; n >= m is quicker.
    w : Weights
        Positive masses.
    reg, tol, max_passes
        Regularisation, tolerance relative to the mass, budget of passes.
    method : {"log", "scaling"}
    start : (g, slack) or None
        Column potentials (k, m) and potential of the dummy column (k,), in units of the cost.

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
    while start is None and spread / levels[-1] > EASY_RANGE:
        levels.append(levels[-1] * STAGE_RATIO)
    cost, lowest = cost - lowest, lowest[:, 0, 0] / reg
    state = form.begin(w, start, reg, lowest)
    for level in reversed(levels):
        last = level == reg
        logk = -cost / level
        form.enter(LogPass(logk, state.x, state.y), w, state)
        state = _stage(form, logk, w, state, tol, last, method, max_passes)
        if not last:
            r = STAGE_RATIO
            state = replace(state, x=state.x * r, y=state.y * r, eta=state.eta * r, xi=state.xi * r)
    return state, lowest
