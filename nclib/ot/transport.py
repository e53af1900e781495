"""What a transport solver returns: a plan that can be questioned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nclib.ot._certificate import Certificate


@dataclass(frozen=True)
class Potentials:
    """Dual potentials in the unit of the cost: ``plan = exp((f_i + g_j - C_ij) / reg)``.

    A row or column without weight, or without any allowed entry, has potential minus infinity: it takes no
    part. ``f_slack`` and ``g_slack`` belong to the dummy row and the dummy column of the extended problem;
    they are minus infinity where there is no slack (everything on that side is moved).

    Parameters
    ----------
    f : Tensor, shape (..., n)
    g : Tensor, shape (..., m)
    f_slack, g_slack : Tensor, shape (...)
    """

    f: Tensor
    g: Tensor
    f_slack: Tensor
    g_slack: Tensor


@dataclass(frozen=True)
class Problem:
    """The problem that was solved, after the defaults were filled in (all weights float64).

    Parameters
    ----------
    cost : Tensor, shape (..., n, m)
        As given (device and dtype of the caller); not read where ``mask`` is False.
    mask : Tensor of bool, broadcastable to (..., n, m), or None
        True where transport is allowed.
    p, q : Tensor, shape (..., n) and (..., m)
        Row and column weights (upper bounds of the plan's sums).
    mass : Tensor, shape (...)
        Mass to move.
    reg : float
        Weight of the entropy, in the unit of the cost; 0 for a linear program.
    formulation : str
        ``"extended"`` (entropy also on what is not moved), ``"capped"`` (entropy on the moved mass only),
        ``"balanced"`` (everything is moved) or ``"linear"`` (no entropy).
    """

    cost: Tensor
    mask: Tensor | None
    p: Tensor
    q: Tensor
    mass: Tensor
    reg: float
    formulation: str


@dataclass(frozen=True)
class Transport:
    """A transport plan with the evidence of how good it is.

    Parameters
    ----------
    plan : Tensor, shape (..., n, m)
        Device and dtype of the cost that was given.
    row_error, col_error : Tensor of float64, shape (...)
        Sum of absolute violations of the row (column) conditions, divided by the mass asked for. In the
        extended formulation a condition is "moved plus slack equals the weight", which also measures how
        far the potentials are from optimal; elsewhere it is "moved is not more than the weight".
    iterations : Tensor of int64, shape (...)
        Passes over the rows and columns, plus Newton steps.
    converged : Tensor of bool, shape (...)
        True where both errors and the mass error are at most the tolerance that was asked for.
    potentials : Potentials or None
        Dual potentials (None for an exact solver that gives none).
    problem : Problem
        What was solved.

    Examples
    --------
    >>> import torch, nclib.ot
    >>> cost = torch.tensor([[0.1, 0.9], [0.8, 0.3]], dtype=torch.float64)
    >>> t = nclib.ot.partial_sinkhorn(cost, 0.5, reg=0.05)
    >>> round(t.mass.item(), 9), bool(t.converged)
    (0.5, True)
    """

    plan: Tensor
    row_error: Tensor
    col_error: Tensor
    iterations: Tensor
    converged: Tensor
    potentials: Potentials | None
    problem: Problem

    @cached_property
    def value(self) -> Tensor:
        """Cost of the plan, ``sum_ij C_ij plan_ij`` over the allowed entries, shape (...)."""
        cost = self.problem.cost
        if self.problem.mask is not None:
            cost = torch.where(self.problem.mask, cost, torch.zeros((), dtype=cost.dtype, device=cost.device))
        return (cost * self.plan).sum((-2, -1))

    @cached_property
    def mass(self) -> Tensor:
        """Mass that the plan moves, summed in float64, shape (...)."""
        return self.plan.sum((-2, -1), dtype=torch.float64)

    @property
    def mass_error(self) -> Tensor:
        """Distance of the moved mass from the mass asked for, divided by it unless it is 0, shape (...)."""
        asked = self.problem.mass
        return (self.mass.detach() - asked).abs() / torch.where(asked > 0, asked, torch.ones_like(asked))

    def certify(self, *, exact: bool = False) -> Certificate:
        """Check the plan from scratch: primal value, dual bound, gap and violations.

        Parameters
        ----------
        exact : bool
            Also solve the linear program with the network simplex and report its value (small problems).

        Returns
        -------
        Certificate

        Raises
        ------
        ValueError
            If the solver gave no potentials.
        """
        from nclib.ot._certificate import certify

        return certify(self, exact=exact)
