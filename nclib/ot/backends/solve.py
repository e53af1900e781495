"""Choice of the backend for a checked problem."""

from __future__ import annotations

import numpy as np
import torch

from nclib.ot.backends import cpu, device
from nclib.ot.problem import Potentials, Problem
from nclib.ot.transport import Buffers, Transport

#: On a CPU, batches of at least this many problems with at most this many entries each go to torch.
MANY, TINY_ENTRIES = 16, 512
#: Entries that torch solves at once, with several float64 copies of them, by "on a CPU".
CHUNK_ENTRIES = {True: 2**20, False: 2**25}
#: Ways to sum over the kernel in torch, in the order of trial, by ``method``.
METHODS = {"auto": ("scaling", "log"), "scaling": ("scaling",), "log": ("log",)}


def check_method(method: str) -> None:
    """Refuse an unknown way to sum over the kernel.

    Parameters
    ----------
    method : {"auto", "scaling", "log"}

    Raises
    ------
    ValueError
        If ``method`` is unknown.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def solve(
    problem: Problem, *, method: str, tol: float, max_iter: int, start: Potentials | None = None
) -> Transport:
    """Solve an extended, capped or (without slack) balanced problem with the backend that fits it.

    Parameters
    ----------
    problem : Problem
        Checked, with cost (..., n, m).
    method : {"auto", "scaling", "log"}
        Products of a stabilised kernel, log-sum-exp, or both in this order.
    tol : float
        Tolerance relative to the mass.
    max_iter : int >= 1
        Limit of the iterations of every backend that tries.
    start : Potentials, optional
        Potentials of a similar problem, in the unit of the cost.

    Returns
    -------
    Transport
        ``converged`` is False where every backend gave up.

    Raises
    ------
    ValueError
        If ``method`` is unknown.
    """
    # Plan: NumPy first, unless the problems are many and tiny; what it leaves goes to torch, with products
    # of a stabilised kernel first and log-sum-exp last.
    check_method(method)
    n, m = problem.cost.shape[-2:]
    on_cpu = problem.cost.device.type == "cpu"
    buffers = Buffers(problem)
    k = len(buffers.plan)
    left = torch.arange(k, device=problem.cost.device)
    tiny = k >= MANY and n * m <= TINY_ENTRIES
    if method != "log" and on_cpu and not tiny:
        with np.errstate(all="ignore"):  # overflow shows afterwards, in the errors
            left = cpu.solve(problem, buffers, tol, max_iter, start)
    size = max(1, CHUNK_ENTRIES[on_cpu] // (n * m))
    for name in METHODS[method]:
        if len(left) == 0:
            break
        parts = [device.solve(problem, buffers, i, name, tol, max_iter, start) for i in left.split(size)]
        left = torch.cat(parts)
    return buffers.pack()
