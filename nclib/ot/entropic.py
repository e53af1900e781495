"""Entropic transport: partial (a given mass moves), balanced (everything moves), and of labels to samples."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nclib.ot import cpu, device, kernels, published
from nclib.ot.gradients import ImplicitPlan
from nclib.ot.problem import (
    Problem,
    SolverSettings,
    balanced_problem,
    check_choice,
    check_kinds,
    check_limits,
    check_reg,
    partial_problem,
    refuse_infeasible,
)
from nclib.ot.transport import Buffers, Transport, moved

#: Default tolerance (errors relative to the mass) by the precision of the cost.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
STOPS = ("accurate", "published")
GRADIENTS = ("none", "implicit")
CLASS_CAPS = ("marginal", "scaled")
#: Ways to sum over the kernel in torch, in the order of trial, by ``method``.
METHODS = {"auto": ("scaling", "log"), "scaling": ("scaling",), "log": ("log",)}
#: Milliseconds by a copy on the host, of a problem and of each of its entries (0.6 to 2 ms at 128 x 128).
HOST_CALL, HOST_ENTRY = 0.3, 6e-5
#: Milliseconds of a batch of any number in torch on a GPU: 90 to 280 on an H100.
DEVICE = 150.0
#: On a CPU, batches of at least this many problems with at most this many entries each go to torch.
MANY, TINY_ENTRIES = 16, 512
#: Entries that torch solves at once, with several float64 copies of them, by "on a CPU".
CHUNK_ENTRIES = {True: 2**20, False: 2**25}


def partial_sinkhorn(
    cost: Tensor,
    mass: float | Tensor,
    p: Tensor | None = None,
    q: Tensor | None = None,
    *,
    reg: float,
    mask: Tensor | None = None,
    method: str = "auto",
    stop: str = "accurate",
    tol: float | None = None,
    max_iter: int = 1000,
    gradient: str = "none",
) -> Transport:
    """Entropic partial transport with forbidden entries: exactly ``mass`` moves, at every regularisation.

    Parameters
    ----------
    cost : Tensor, shape (..., n, m), float32 or float64
        Cost of moving one unit. Must be finite where transport is allowed. For a GPU see the notes.
    mass : float or Tensor, shape (...)
        Mass to move, one number or one per problem; from 0 to the most that can flow.
    p, q : Tensor, shape (n,) or (..., n), (m,) or (..., m), optional
        Weights of rows and columns: upper bounds of the plan's sums, not necessarily of equal total.
        Default uniform, 1/n and 1/m. A row or column that is padding gets weight 0.
    reg : float
        Weight of the entropy, in the unit of the cost.
    mask : Tensor of bool, broadcastable to the cost, optional
        True where transport is allowed. A row without any allowed entry keeps its weight.
    method : {"auto", "scaling", "log"}
        How sums over the kernel are taken. ``"scaling"``: products with a stabilised kernel. ``"log"``:
        log-sum-exp. ``"auto"``: the faster one that is safe.
    stop : {"accurate", "published"}
        ``"accurate"``: until the errors are at most ``tol``. ``"published"``: the loop and stop rule of
        L2RM's official code (corner cost = largest cost, stop when the row potential moves by less
        than 1e-3 in the unit of the cost), which leaves 1 to 36 per cent too much mass.
    tol : float, optional
        Largest error relative to the mass; default 1e-9 (float64) or 1e-5 (float32). With
        ``stop="published"`` the threshold of that rule, default 1e-3.
    max_iter : int
        Passes after which a problem is given up: ``converged`` is then False, and a warning tells the error.
    gradient : {"none", "implicit"}
        ``"none"``: plan and value are constants. ``"implicit"``: the plan is differentiated with respect to
        the cost through its optimality conditions, one symmetric linear system per problem however many
        passes the solver took.

    Returns
    -------
    Transport
        Plan on the device and in the dtype of the cost. Its ``converged`` is judged on errors in every
        mode, so a plan of the published rule usually has False there.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong kind, non-finite costs, and a mass that cannot flow; but see the notes.

    Notes
    -----
    L2RM (Han et al., CVPR 2024), supplement, partial masked Sinkhorn; see
    :mod:`nclib.ot.device` for the equations. The plan and its potentials are related by
    ``plan = exp((f_i + g_j - C_ij) / reg)``.

    On a GPU with hardware for float64 and Triton, problems of up to 512 x 512 are one launch. By the accurate
    rule the host then looks once whether all have converged; if not, the batch is solved again by a copy,
    which may raise an error. By the published rule it waits for nothing, so that it cannot look at values
    that lie there. In place of an error, a problem then gets a plan of NaN and ``converged`` False: where a
    cost is not finite or a weight negative, where the mass cannot flow, or comes so close to the most that a
    sparse mask lets flow that only a search could tell. So do costs beyond 500 ``reg``, and rows or columns
    with weight but no allowed entry; ``method="log"`` solves those on the host.

    Examples
    --------
    >>> import torch, nclib.ot
    >>> cost = torch.tensor([[0.1, 0.9], [0.8, 0.3]], dtype=torch.float64)
    >>> t = nclib.ot.partial_sinkhorn(cost, 0.5, reg=0.02)
    >>> t.plan.round(decimals=4)
    tensor([[0.4828, 0.0000],
            [0.0000, 0.0172]], dtype=torch.float64)
    >>> bool(t.converged), round(float(t.mass), 9)
    (True, 0.5)
    """
    check_choice("stop", stop, STOPS)
    check_choice("gradient", gradient, GRADIENTS)
    if stop == "published" and gradient != "none":
        raise ValueError(f"stop='published' has gradient='none', got {gradient!r}")
    given = cost, mass, p, q, check_reg(reg), mask
    return _solved(partial_problem, given, stop, gradient, method, tol, max_iter)


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
    gradient: str = "none",
) -> Transport:
    """Entropic transport of all of ``p`` to all of ``q``, with forbidden entries.

    Parameters
    ----------
    cost, reg, mask, method, max_iter, gradient
        As for :func:`nclib.ot.partial_sinkhorn`.
    p, q : Tensor, shape (n,) or (..., n), (m,) or (..., m), optional
        Weights, of equal total. Default uniform over the rows (columns) that have any allowed entry, so
        that a padded problem needs nothing but its mask.
    tol : float, optional
        Largest L1 error of the column sums relative to the total; default 1e-9 (float64), 1e-5 (float32).

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
    check_choice("gradient", gradient, GRADIENTS)
    given = cost, p, q, check_reg(reg), mask
    return _solved(balanced_problem, given, "accurate", gradient, method, tol, max_iter)


def place(kind: str, kernel: bool, stop: str, method: str, shape: Sequence[int]) -> str:
    """Return where problems are solved fastest: where they lie ("here"), on the "host", by a "kernel".

    Parameters
    ----------
    kind : str
        Type of the device of the cost.
    kernel : bool
        Whether the kernels run there.
    stop, method : str
        As for :func:`partial_sinkhorn`.
    shape : sequence of int
        Shape of the cost, (..., n, m).
    """
    *batch, n, m = shape
    if kind == "cpu":
        return "here"
    if kernel and method != "log" and kernels.fits(n, m, stop):
        return "kernel"
    host = math.prod(batch) * (HOST_CALL + HOST_ENTRY * n * m)
    return "here" if stop == "accurate" and (method == "log" or host > DEVICE) else "host"


def _solved(
    state: Callable[..., Problem],
    given: tuple[Any, ...],
    stop: str,
    gradient: str,
    method: str,
    tol: float | None,
    max_iter: int,
) -> Transport:
    """State a problem and solve it where that is fastest; the result lies where the cost does."""
    cost, *mass, p, q, reg, mask = given
    check_kinds(cost, mask)
    check_choice("method", method, METHODS)
    accurate = stop == "accurate"
    tol = check_limits(tol, max_iter, TOLERANCE[cost.dtype] if accurate else published.THRESHOLD)
    how = SolverSettings(method, tol, max_iter)
    found = None
    if accurate and method != "log" and p is None and q is None:
        found = cpu.solve_plain(cost, mask, reg, how, *mass)
    if found is None:
        found = _solved_anywhere(state, given, stop, how)
    if gradient == "none":
        return found
    plan = ImplicitPlan.apply(cost, found)
    return replace(found, plan=plan, problem=replace(found.problem, cost=cost))


def _solved_anywhere(
    state: Callable[..., Problem], given: tuple[Any, ...], stop: str, how: SolverSettings
) -> Transport:
    """Solve a problem of any kind on the device where that is fastest."""
    cost, *_, mask = given
    rest = stop, how.method, cost.shape
    where = place(cost.device.type, kernels.available(cost.device), *rest)
    if where == "kernel":
        blind = state is partial_problem
        problem = (partial_problem(*given, look=False) if blind else state(*given)).constant()
        if stop == "published":
            return kernels.published(problem, how)
        found = kernels.accurate(problem, how)
        if bool(found.converged.all()):  # the one look: such plans prove that nothing is to be refused
            return found
        where = place(cost.device.type, False, *rest)
    if where == "host":
        given = tuple(x.cpu() if isinstance(x, Tensor) else x for x in given)
    problem = state(*given).constant()
    found = _solve(problem, how) if stop == "accurate" else published.solve(refuse_infeasible(problem), how)
    if where == "host":
        problem = replace(found.problem, cost=cost, mask=mask).constant()
        found = moved(replace(found, problem=problem), cost.device)
    return found


def _solve(problem: Problem, how: SolverSettings) -> Transport:
    """Solve a problem whose cost is a constant: on a CPU in NumPy, unless the problems are many and tiny."""
    n, m = problem.cost.shape[-2:]
    buffers, left = Buffers(problem), list(range(problem.mass.numel()))
    tiny = len(left) >= MANY and n * m <= TINY_ENTRIES
    if how.method != "log" and problem.cost.device.type == "cpu" and not tiny:
        left = cpu.solve(problem, buffers, how)
    if left:
        _solve_in_torch(refuse_infeasible(problem), buffers, left, how)
    return buffers.pack()


def _solve_in_torch(problem: Problem, buffers: Buffers, indices: list[int], how: SolverSettings) -> None:
    """Solve some problems by a stabilised kernel, then by log-sum-exp; what fails leaves a warning."""
    n, m = problem.cost.shape[-2:]
    left = torch.tensor(indices, device=problem.cost.device)
    size = max(1, CHUNK_ENTRIES[problem.cost.device.type == "cpu"] // (n * m))
    for name in METHODS[how.method]:
        if len(left):
            left = torch.cat([device.solve(problem, buffers, i, name, how) for i in left.split(size)])
    if len(left):
        warnings.warn(
            f"transport did not converge to {how.tol:.0e} of the mass at reg={problem.reg:g} "
            f"within max_iter={how.max_iter}; look at converged, row_error and col_error, and raise one of "
            "the three",
            stacklevel=5,
        )


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

    Examples
    --------
    >>> import torch, nclib.ot
    >>> cost = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]], dtype=torch.float64)
    >>> labels = 3 * nclib.ot.label_transport(cost, 0.5, reg=0.02).plan
    >>> labels.sum(1).round(decimals=3)  # the third sample fits no class well
    tensor([0.9880, 0.5120, 0.0000], dtype=torch.float64)
    """
    check_choice("class_cap", class_cap, CLASS_CAPS)
    if not isinstance(cost, Tensor) or cost.ndim < 2:
        raise TypeError("cost must be a torch tensor of shape (..., N, K)")
    k = cost.shape[-1]
    share = torch.full((k,), 1 / k, dtype=torch.float64)  # on the host, where few problems are solved
    if class_marginal is not None:
        share = torch.as_tensor(class_marginal, dtype=torch.float64, device="cpu")
        if not bool(((share.sum(-1) - 1).abs() < 1e-5).all()):
            raise ValueError("class_marginal must sum to 1 over the classes")
        share = share / share.sum(-1, keepdim=True)
    if not isinstance(mass, int | float | Tensor):
        raise TypeError(f"mass must be a number or a tensor, got {type(mass).__name__}")
    total = torch.as_tensor(mass, dtype=torch.float64, device="cpu")
    if not bool(((total >= 0) & (total <= 1)).all()):
        raise ValueError(
            f"mass must be between 0 and 1 (share of the samples that get a label), got {mass!r}"
        )
    q = share * total.unsqueeze(-1) if class_cap == "scaled" else share
    return partial_sinkhorn(cost, total, None, q, reg=reg, method=method, tol=tol, max_iter=max_iter)
