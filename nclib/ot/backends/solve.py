"""Choice of the backend for a checked problem."""

from __future__ import annotations

import numpy as np
import torch

from nclib.ot.backends import cpu, device, fused_partial
from nclib.ot.problem import Problem, Settings, check_choice
from nclib.ot.transport import Buffers, Transport

#: On a CPU, batches of at least this many problems with at most this many entries each go to torch.
MANY, TINY_ENTRIES = 16, 512
#: Entries that torch solves at once, with several float64 copies of them, by "on a CPU".
CHUNK_ENTRIES = {True: 2**20, False: 2**25}
#: Ways to sum over the kernel in torch, in the order of trial, by ``method``.
METHODS = {"auto": ("scaling", "log"), "scaling": ("scaling",), "log": ("log",)}


def solve(problem: Problem, how: Settings) -> Transport:
    """Solve a checked problem, not a linear one; ``converged`` is False where every backend gave up."""
    # Plan: a kernel of Triton first, where asked for; on a CPU NumPy, unless the problems are many and tiny;
    # what they leave goes to torch, with products of a stabilised kernel first and log-sum-exp last.
    check_choice("method", how.method, METHODS)
    n, m = problem.cost.shape[-2:]
    on_cpu = problem.cost.device.type == "cpu"
    buffers = Buffers(problem)
    k = len(buffers.plan)
    left = torch.arange(k, device=problem.cost.device)
    tiny = k >= MANY and n * m <= TINY_ENTRIES
    if fused_partial.takes(problem, how):
        fused_partial.solve(problem, buffers, how)
        left = left[~buffers.converged]
    elif how.method != "log" and on_cpu and not tiny:
        with np.errstate(all="ignore"):  # overflow shows afterwards, in the errors
            left = cpu.solve(problem, buffers, how)
    size = max(1, CHUNK_ENTRIES[on_cpu] // (n * m))
    for name in METHODS[how.method]:
        if len(left) == 0:
            break
        parts = [device.solve(problem, buffers, i, name, how) for i in left.split(size)]
        left = torch.cat(parts)
    return buffers.pack()
