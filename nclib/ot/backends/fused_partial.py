"""Partial transport in one launch on a GPU, by a kernel of Triton, when :func:`nclib.ot.fused` asks for it.

**Not measured on a GPU yet**, like :mod:`nclib.ot.backends.fused`. One program solves one problem of the
extended formulation: passes over columns and rows, each side with its scalar, as the NumPy backend does in
float32, and a decision on the device when to stop. What it cannot solve is marked, and solved by the plain
path in float64: a range of costs that float32 cannot hold, contraction too slow for the passes, no mass.

The bound of n x n costs and T passes: costs are read and the plan written once, 8 n^2 bytes (a mask adds
n^2), and a pass is two products with the kernel, 4 n^2 T operations. Costs are in fact read twice, for their
lowest value and for the kernel. Up to 16,384 entries (128 x 128) the kernel then stays in the registers of
its program. Above, it lies in the place of the plan (1 MB at 512 x 512, which stays in the L2 cache), and a
pass reads it twice: 8 n^2 T bytes through one multiprocessor, which decide the time of a single problem.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nclib.ot.backends import fused
from nclib.ot.backends.cpu import NO_SLACK
from nclib.ot.backends.cpu_extended import MASS_TOL
from nclib.ot.problem import Problem, Settings, weights
from nclib.ot.transport import Buffers, Transport

#: Longest side, and entries of a block of rows.
LONGEST, BLOCK_ENTRIES = 512, 1 << 14


def takes(problem: Problem, how: Settings) -> bool:
    """Return whether the kernel was asked for and can take the problem."""
    plain = how.method == "auto" and how.start is None and problem.formulation != "capped"
    return plain and fused.asked(problem.cost) and max(problem.cost.shape[-2:]) <= LONGEST


def solve(problem: Problem, buffers: Buffers, how: Settings) -> None:
    """Solve all k problems into the buffers, without a synchronisation; ``converged`` says which are right.

    The device decides when to stop: when the L1 error of the columns relative to the mass, over 1 minus its
    rate of contraction, is at most the tolerance, or the error a tenth of it, or after ``max_iter`` passes.
    """
    from nclib.ot.backends import _triton

    cost, mask, p, q, mass = problem.flat()
    k, n, m = cost.shape
    cost = cost.contiguous()
    allowed = cost if mask is None else mask.contiguous().view(torch.uint8)
    b = buffers
    found = (b.plan, b.f, b.g, b.f_slack, b.g_slack, b.col_error, b.iterations, b.converged.view(torch.uint8))
    tensors = (cost, allowed, p, q, mass.contiguous(), *found)
    limits = (how.tol, min(how.tol, MASS_TOL), NO_SLACK[cost.dtype], how.max_iter)
    given = (n, m, *p.stride(), *q.stride(), problem.reg, 1 / problem.reg, *limits)
    fused.launch(_triton.partial, k, *tensors, *given, MASKED=mask is not None, **settings(n, m))


def settings(n: int, m: int) -> dict[str, Any]:
    """Return whether the kernel is held in registers, its block of rows, and the warps of a program."""
    rows, columns = fused.tile(n), fused.tile(m)
    held = rows * columns <= BLOCK_ENTRIES
    block = rows if held else BLOCK_ENTRIES // columns
    warps = max(1, block * columns // fused.WARP_ENTRIES)
    return {"HELD": held, "R": block, "N": rows, "M": columns, "num_warps": warps}


def solve_plain(
    cost: Tensor, mass: Any, reg: float, mask: Tensor | None, tol: float, max_iter: int
) -> Transport | None:
    """Solve problems with uniform weights, with one look at the device; None leaves them to the general path.

    The kernel finds costs that are not finite. A plan that meets its conditions proves that its mass can
    flow.
    """
    if type(mass) is not float or not 0.0 < mass < 1.0 or cost.ndim < 2 or 0 in cost.shape:
        return None
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.device != cost.device:
            return None
        if mask.shape not in (cost.shape, cost.shape[-2:]):
            return None
    p, q = weights(None, None, cost, mask)
    masses = torch.full(cost.shape[:-2], mass, dtype=torch.float64, device=cost.device)
    problem = Problem(cost.detach(), mask, p, q, masses, reg, "extended")
    how = Settings("auto", tol, max_iter)
    if not takes(problem, how):
        return None
    buffers = Buffers(problem)
    solve(problem, buffers, how)
    return buffers.pack() if bool(buffers.converged.all()) else None
