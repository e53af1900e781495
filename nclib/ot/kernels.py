"""Launches of the Triton kernels of partial transport on a GPU: one launch, a program for each problem."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from nclib.ot.problem import LEAST, MASS_TOL, NO_SLACK, ROUNDING, Problem, SolverSettings
from nclib.ot.published import HONEST, SAFE_RANGE
from nclib.ot.transport import Buffers, Transport

#: Entries of a problem, padded, that a program holds: 128 kB of float64 lie in half of the registers.
TILE_ENTRIES = 2**14
#: Longest side of a problem that is taken in tiles; entries of the kernel matrices that are kept: 256 MB.
LONGEST_SIDE, SCRATCH_ENTRIES = 512, 2**25
#: Passes after which the accurate rule leaves a problem to Newton steps elsewhere.
MOST_PASSES = 100
#: Compute capabilities with units for float64. Other cards do a 32nd or 64th of it: the host is quicker.
FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}


@cache
def available(device: torch.device) -> bool:
    """Whether the kernels run well on a device: Triton is there, and float64 in hardware."""
    there = device.type == "cuda" and find_spec("triton") is not None
    return there and torch.cuda.get_device_capability(device) in FLOAT64


def fits(n: int, m: int, stop: str) -> bool:
    """Whether there is a kernel for problems (n, m) by a rule, "published" or "accurate"."""
    small = stop == "published" and tile(n) * tile(m) <= TILE_ENTRIES
    return small or max(n, m) <= LONGEST_SIDE


def published(problem: Problem, how: SolverSettings) -> Transport:
    """Run the loop of the published rule on all problems; nothing waits.

    What the host would refuse or solve by log-sum-exp has a NaN plan: a cost that is not finite or beyond the
    safe range, a row or column with weight but no allowed entry, a mass that is not known to flow.
    """
    from nclib.ot import _triton

    n, m = problem.cost.shape[-2:]
    limits = how.tol, how.max_iter, SAFE_RANGE, HONEST, ROUNDING[problem.cost.dtype]
    rows, columns = tile(n), tile(m)
    if rows * columns > TILE_ENTRIES:
        return _in_tiles(_triton.published_in_tiles, problem, limits, n * m)
    warps = max(1, min(8, rows * columns // 1024))
    return _launched(_triton.published, problem, limits, None, N=rows, M=columns, num_warps=warps)


def accurate(problem: Problem, how: SolverSettings) -> Transport:
    """Run passes over all problems until their errors are at most ``how.tol``; nothing waits.

    Not ``converged``, whatever their plans, are problems that the host must look at: those that it would
    refuse, whose costs exceed the safe range, or that need more than :data:`MOST_PASSES` passes.
    """
    from nclib.ot import _triton

    (n, m), dtype = problem.cost.shape[-2:], problem.cost.dtype
    limits = (
        *(how.tol, min(how.max_iter, MOST_PASSES), SAFE_RANGE),
        *(LEAST[dtype], NO_SLACK[dtype], MASS_TOL),
    )
    return _in_tiles(_triton.accurate, problem, limits, n * m + 2 * n, ROWS=tile(n))


def _in_tiles(kernel: Any, problem: Problem, limits: tuple[Any, ...], room: int, **flags: Any) -> Transport:
    """Launch a kernel that takes some rows at a time; ``room`` counts the entries of a problem's memory."""
    n, m = problem.cost.shape[-2:]
    columns = tile(m)
    rows = max(2, min(tile(n), TILE_ENTRIES // 4 // columns))  # compiled for an H100 without a spill
    flags |= {"N": rows, "M": columns, "TILES": -(-n // rows)}
    return _launched(kernel, problem, limits, room, **flags, num_warps=max(1, min(8, rows * columns // 512)))


def _launched(
    kernel: Any, problem: Problem, limits: tuple[Any, ...], room: int | None, **flags: Any
) -> Transport:
    """Launch a kernel on as many problems at once as their memory allows."""
    out = Buffers(problem, filled=False)
    cost, mask, *sides = problem.flat()
    cost, (k, n, m) = cost.contiguous(), cost.shape
    given = cost, cost if mask is None else mask, *sides, out.f.new_full((1,), problem.reg)
    results = out.plan, out.f, out.g, out.slacks, out.errors, out.iterations, out.converged
    strides = [size for x in given[1:-1] for size in x.stride()]  # 0 where problems share a tensor
    at_once = k if room is None else max(1, min(k, SCRATCH_ENTRIES // room))
    scratch = [] if room is None else [out.f.new_empty(at_once, room)]
    tensors = [x.view(torch.uint8) if x.dtype == torch.bool else x for x in (*given, *results, *scratch)]
    with torch.cuda.device_of(cost):
        for first in range(0, k, at_once):
            begin = [] if room is None else [first]
            grid = (min(at_once, k - first),)
            kernel[grid](*tensors, *strides, k, n, m, *limits, *begin, MASKED=mask is not None, **flags)
    return out.pack()


def tile(size: int) -> int:
    """Return the power of two that a side is padded to in a kernel."""
    return max(2, 1 << (size - 1).bit_length())
