"""Transport on a GPU, a part of ``gpu.py``: L2RM's problems beside a copy on the host, OMIT's small ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import ot_partial
import torch
from gpu_common import Bench, Result, off_diagonal
from torch import Tensor

from nclib import ot
from nclib.ot.pairs import transport_scores

PROBLEMS = (("head", 0.01), ("head", 0.07), ("cluster", 0.07), ("narrow", 0.01))
MASS, AT_ONCE = 0.1, 64


def partial_transport(n: int, bench: Bench) -> Result:
    """Partial masked transport, cost and plan on the device, beside a copy that is solved on the host.

    ``difference`` is that of the plan from the CPU's, in L1, over the mass; ``passes`` are those of the
    device and of the CPU; ``waits`` says whether the host waited for the device.
    """
    rows = []
    for kind, reg in PROBLEMS:
        one = torch.from_numpy(ot_partial.costs(n)[kind])
        for stop in ("published", "accurate"):
            for count in (1, AT_ONCE):
                host = one if count == 1 else one.expand(count, n, n).contiguous()
                cost, mask = host.to(bench.device), off_diagonal(one)
                solve = partial(ot.partial_sinkhorn, mass=MASS, reg=reg, stop=stop)
                here = partial(solve, cost, mask=mask.to(bench.device))
                found, wanted = here(), solve(one, mask=mask)
                row: Result = {"size": n, "cost": kind, "reg": reg, "stop": stop, "problems": count}
                row["ms"] = bench.timed(here, 0.15)
                if count == 1:
                    copied = partial(on_host, partial(solve, mask=mask), cost)
                    row["by_a_copy_ms"] = bench.timed(copied, 0.15)
                plan = found.plan.reshape(-1, n, n)[0].cpu()
                row["difference"] = float((plan - wanted.plan).abs().sum() / MASS)
                row["passes"] = [int(x.iterations.reshape(-1)[0]) for x in (found, wanted)]
                rows.append(row | {"waits": waits(here, bench)})
        if bench.once:
            break
    return {"rows": rows}


def on_host(solve: Callable[[Tensor], Any], cost: Tensor) -> Tensor:
    """Return the plan that a copy of the cost gives on the host, on the device of the cost."""
    plan: Tensor = solve(cost.cpu()).plan
    return plan.to(cost.device)


def waits(run: Callable[[], Any], bench: Bench) -> bool | None:
    """Return whether a function waits for a GPU, by an error that torch raises; None on a CPU."""
    if bench.device.type != "cuda":
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            run()
        except RuntimeError:
            return True
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return False


def small_problems(bench: Bench) -> Result:
    """OMIT's problems of a batch, forward and with gradient, by the formulas that a model compiles."""
    batch, rows = bench.size.batch, []
    g, (n, m) = torch.Generator().manual_seed(0), (37, 13)  # regions and words, a dustbin before each
    there = torch.arange(m)[:, None] < torch.randint(9, m + 1, (batch,), generator=g)  # (m, B)
    s = 0.7 * (2 * torch.rand(batch, n, m, batch, generator=g) - 1) * there
    p = torch.randn(batch, n, batch, generator=g).softmax(1)
    q = torch.randn(batch, m, batch, generator=g).masked_fill(~there, -torch.inf).softmax(1)
    for back in (False, True):
        sides = [x.to(bench.device).requires_grad_(back) for x in (s, p, q)]

        def scored(sides: list[Tensor] = sides, back: bool = back) -> None:
            with torch.set_grad_enabled(back):
                scores = transport_scores(*sides, lam=0.02, iterations=3, loop="released", skip=1)
                if back:
                    torch.autograd.grad(scores.sum(), sides)

        bench.free()
        row = {"problems": batch**2, "gradient": back, "ms": bench.timed(scored, 0.5)}
        rows.append({**row, "peak_mb": bench.peak_mb()})
    return {"rows": rows}
