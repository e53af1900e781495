"""The result of a solver: a plan together with the evidence of how good it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nclib.ot.certificate import Certificate, certify
from nclib.ot.problem import Potentials, Problem


@dataclass(frozen=True)
class Transport:
    """A transport plan with its errors, its dual potentials and the problem that it solves.

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
        The problem, with its defaults filled in.

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

        Raises
        ------
        ValueError
            If the solver gave no potentials.

        Examples
        --------
        >>> import torch, nclib.ot
        >>> cost = torch.tensor([[0.1, 0.9], [0.8, 0.3]], dtype=torch.float64)
        >>> evidence = nclib.ot.partial_sinkhorn(cost, 0.5, reg=0.05).certify(exact=True)
        >>> bool(evidence.gap.abs() < 1e-9), round(float(evidence.linear_optimum), 9)
        (True, 0.05)
        """
        if self.potentials is None:
            raise ValueError("this transport has no potentials to certify it with")
        return certify(self.plan, self.potentials, self.problem, exact=exact)


def moved(found: Any, device: torch.device) -> Any:
    """Return a :class:`Transport`, or a part of one, with its tensors on a device."""
    if isinstance(found, Transport | Potentials | Problem):
        return replace(found, **{name: moved(part, device) for name, part in vars(found).items()})
    return found.to(device, non_blocking=device.type == "cuda") if isinstance(found, Tensor) else found


class Buffers:
    """Result of a batch while it is being computed: filled problem by problem, then packed.

    ``slacks`` are the potentials of the dummy row and column, ``errors`` those of rows and columns. A kernel
    that writes every number wants them not ``filled``.
    """

    def __init__(self, problem: Problem, *, filled: bool = True) -> None:
        cost = problem.cost
        *batch, n, m = cost.shape
        self.problem = problem
        self.plan = torch.empty(cost.shape, dtype=cost.dtype, device=cost.device)
        self.f, self.g, self.slacks, self.errors = (
            cost.new_empty(shape, dtype=torch.float64)
            for shape in ((*batch, n), (*batch, m), (2, *batch), (2, *batch))
        )
        self.iterations = cost.new_empty(batch, dtype=torch.int64)
        self.converged = cost.new_empty(batch, dtype=torch.bool)
        if filled:  # as of problems that move nothing
            for idle in (self.f, self.g, self.slacks):
                idle.fill_(-torch.inf)
            for none in (self.plan, self.errors, self.iterations):
                none.zero_()
            self.converged.fill_(True)

    def flat(self) -> SimpleNamespace:
        """Return the tensors by name, in the same memory, with one dimension for all problems."""
        return self._views(Tensor.view)

    def arrays(self) -> SimpleNamespace:
        """Return what :meth:`flat` does as NumPy arrays, on a CPU."""
        return self._views(lambda x, shape: x.numpy().reshape(shape))

    def _views(self, view: Callable[[Tensor, tuple[int, ...]], Any]) -> SimpleNamespace:
        n, m = self.plan.shape[-2:]
        return SimpleNamespace(
            plan=view(self.plan, (-1, n, m)),
            f=view(self.f, (-1, n)),
            g=view(self.g, (-1, m)),
            slacks=view(self.slacks, (2, -1)),
            errors=view(self.errors, (2, -1)),
            iterations=view(self.iterations, (-1,)),
            converged=view(self.converged, (-1,)),
        )

    def pack(self) -> Transport:
        """Return the result."""
        f_slack, g_slack = self.slacks.unbind()
        row_error, col_error = self.errors.unbind()
        return Transport(
            self.plan,
            row_error,
            col_error,
            self.iterations,
            self.converged,
            Potentials(self.f, self.g, f_slack, g_slack),
            self.problem,
        )
