"""Balanced transport: everything moves."""

from __future__ import annotations

import torch
from torch import Tensor

from nclib.ot import _dense
from nclib.ot._checks import balanced_problem, check_limits, check_reg
from nclib.ot.gradients import differentiate
from nclib.ot.partial import TOLERANCE
from nclib.ot.transport import Potentials, Problem, Transport


def sinkhorn(
    cost: Tensor,
    p: Tensor | None = None,
    q: Tensor | None = None,
    *,
    reg: float,
    mask: Tensor | None = None,
    method: str = "auto",
    tol: float | None = None,
    max_iter: int = 1000,
    start: Potentials | None = None,
    gradient: str = "none",
) -> Transport:
    """Entropic transport of all of ``p`` to all of ``q``, with forbidden entries.

    Parameters
    ----------
    cost : Tensor, shape (..., n, m), float32 or float64
        Cost of moving one unit; any device. Must be finite where transport is allowed.
    p, q : Tensor, shape (n,) or (..., n), (m,) or (..., m), optional
        Weights, of equal total. Default uniform over the rows (columns) that have any allowed entry, so
        that a padded problem needs nothing but its mask.
    reg : float
        Weight of the entropy, in the unit of the cost.
    mask : Tensor of bool, broadcastable to the cost, optional
        True where transport is allowed.
    method : {"auto", "scaling", "log"}
        As for :func:`nclib.ot.partial_sinkhorn`.
    tol : float, optional
        Largest L1 error of the column sums relative to the total; default 1e-9 (float64), 1e-5 (float32).
    max_iter : int
        Passes after which a problem is given up.
    start : Potentials, optional
        Potentials of a similar problem.
    gradient : {"none", "envelope", "implicit", "unrolled"}
        How plan and value depend on the cost; see :mod:`nclib.ot.gradients`.

    Returns
    -------
    Transport

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong kind, unequal totals, and weights that the mask keeps from flowing.

    Examples
    --------
    >>> import torch, nclib.ot
    >>> t = nclib.ot.sinkhorn(torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64), reg=0.1)
    >>> t.plan.sum(1)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    problem = balanced_problem(cost, p, q, check_reg(reg), mask)
    tol = check_limits(tol, max_iter, TOLERANCE[cost.dtype])

    def solver(ready: Problem) -> Transport:
        return _dense.solve(ready, method=method, tol=tol, max_iter=max_iter, start=start)

    return differentiate(solver, problem, gradient, max_iter, tol)


def label_transport(
    cost: Tensor,
    mass: float | Tensor,
    class_marginal: Tensor | None = None,
    *,
    reg: float,
    class_cap: str = "marginal",
    method: str = "auto",
    tol: float | None = None,
    max_iter: int = 1000,
) -> Transport:
    """Spread labels over samples: move ``mass`` of the samples' weight to classes, cheapest first.

    Parameters
    ----------
    cost : Tensor, shape (..., N, K)
        Cost of giving sample i the class k.
    mass : float or Tensor, shape (...)
        Share s of the samples' weight that gets a label, between 0 and 1.
    class_marginal : Tensor, shape (K,) or (..., K), optional
        Share r of every class, sums to 1; default uniform.
    reg : float
        Weight of the entropy, in the unit of the cost.
    class_cap : {"marginal", "scaled"}
        Largest mass of class k: ``r_k`` (Eqs. 10-14 as printed), or ``mass * r_k``, which fixes the class
        shares of what is moved.
    method, tol, max_iter
        As for :func:`nclib.ot.partial_sinkhorn`.

    Returns
    -------
    Transport
        Plan of total mass s with row sums of at most 1/N; ``N * plan`` are the soft labels.

    Raises
    ------
    TypeError, ValueError
        As for :func:`nclib.ot.partial_sinkhorn`, and for a marginal that does not sum to 1.

    Notes
    -----
    UOT-RCL (Han et al., arXiv 2403.13480), Eqs. 10-14: the extended formulation, with the slack-slack cell
    forbidden, so that the mass is s whatever the regularisation.
    """
    from nclib.ot.partial import partial_sinkhorn

    if class_cap not in CLASS_CAPS:
        raise ValueError(f"class_cap must be one of {', '.join(CLASS_CAPS)}, got {class_cap!r}")
    if not isinstance(cost, Tensor) or cost.ndim < 2:
        raise TypeError("cost must be a torch tensor of shape (..., N, K)")
    k = cost.shape[-1]
    share = torch.full((k,), 1 / k, dtype=torch.float64, device=cost.device)
    if class_marginal is not None:
        share = torch.as_tensor(class_marginal, dtype=torch.float64, device=cost.device)
        if not bool(((share.sum(-1) - 1).abs() < 1e-5).all()):
            raise ValueError("class_marginal must sum to 1 over the classes")
        share = share / share.sum(-1, keepdim=True)
    moved = torch.as_tensor(mass, dtype=torch.float64, device=cost.device)
    if not bool(((moved >= 0) & (moved <= 1)).all()):
        raise ValueError(
            f"mass must be between 0 and 1 (share of the samples that get a label), got {mass!r}"
        )
    q = CLASS_CAPS[class_cap](share, moved)
    return partial_sinkhorn(cost, moved, None, q, reg=reg, method=method, tol=tol, max_iter=max_iter)


CLASS_CAPS = {
    "marginal": lambda share, mass: share,
    "scaled": lambda share, mass: share * mass.unsqueeze(-1),
}
