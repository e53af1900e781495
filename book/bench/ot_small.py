"""Many small transport problems (36 regions x 32 words, padded), a few passes, forward and backward.

Run from the repository root, on one thread::

    python book/bench/ot_small.py --out ot_small.json

The first candidate is the loop of OMIT's official code, written from its description: weights counted from a
mask of the size of the plans, plan-sized updates with 1e-6 in every sum, the mask once more in the score,
and autograd through all of it. Masks are numbers, not booleans, for every candidate. Ratios are to it. The
error is that of the score ``<plan, similarity>`` against the exact passes in float64, and for the backward
pass that of the gradient relative to its largest entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bench_common import command, interleave, print_rows, write_json
from torch import Tensor

import nclib.ot

TIMES = (*(f"nclib/ot/{name}.py" for name in ("problem", "small", "small_cpu")), "book/bench/ot_small.py")
REGIONS, WORDS = 36, 32
COUNTS = {"all": (1, 32, 256, 4096, 16384), "quick": (1, 256, 2048)}
PASSES = (3, 50)


def batch(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities (count, 36, 32) of about 0.2, and weights that are 0 on the padding."""
    g = torch.Generator().manual_seed(seed)
    s = 0.2 * torch.randn(count, REGIONS, WORDS, generator=g).clamp_(-3.5, 3.5)
    sides = []
    for size, least in ((REGIONS, 20), (WORDS, 6)):
        used = torch.randint(least, size + 1, (count, 1), generator=g)
        valid = (torch.arange(size) < used).float()
        sides.append(valid / valid.sum(-1, keepdim=True))
    return s, *sides


def released(s: Tensor, mask: Tensor, reg: float, passes: int) -> Tensor:
    """OMIT's official loop as described: uniform weights from the mask, 1e-6 added to every sum."""
    p, q = (mask.sum(-1) > 0).to(s.dtype), (mask.sum(-2) > 0).to(s.dtype)
    p, q = p * (1 / p.sum(-1, keepdim=True)), q * (1 / q.sum(-1, keepdim=True))
    plan = torch.exp(-1 / reg * (1 - s)) * mask
    plan = plan / (plan.sum((-2, -1), keepdim=True) + 1e-6)
    for _ in range(passes):
        rows = plan.sum(-1) + 1e-6
        plan = plan * (p / rows).unsqueeze(-1)
        columns = plan.sum(-2) + 1e-6
        plan = plan * (q / columns).unsqueeze(-2)
    return plan * mask


def candidates(
    s: Tensor, p: Tensor, q: Tensor, reg: float, passes: int
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions from similarities to plans."""
    mask = (p > 0).to(s.dtype).unsqueeze(-1) * (q > 0).to(s.dtype).unsqueeze(-2)
    return {
        "released loop": lambda x: released(x, mask, reg, passes),
        "nclib log": lambda x: nclib.ot.scaling_plan(x, reg=reg, passes=passes, p=p, q=q),
        "nclib released": lambda x: nclib.ot.scaling_plan(
            x, reg=reg, passes=passes, p=p, q=q, loop="released"
        ),
    }


def forward(plan: Callable[[Tensor], Tensor], s: Tensor) -> Callable[[], Tensor]:
    """Scores without a graph."""

    def run() -> Tensor:
        with torch.no_grad():
            return (plan(s) * s).sum((-2, -1))

    return run


def backward(plan: Callable[[Tensor], Tensor], s: Tensor) -> Callable[[], Tensor]:
    """Gradient of the sum of the scores."""

    def run() -> Tensor:
        x = s.clone().requires_grad_()
        (plan(x) * x).sum().backward()
        assert x.grad is not None
        return x.grad

    return run


def main() -> None:
    """Run the grid, print the table, write the JSON."""
    parser = command(__doc__)
    parser.add_argument("--all", action="store_true", help="up to 16,384 problems")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--reg", type=float, default=0.02)
    options = parser.parse_args()
    grid = "all" if options.all else "quick"
    rows: list[dict[str, Any]] = []
    for count in COUNTS[grid]:
        s, p, q = batch(count)
        exact = s[:256].double(), p[:256].double(), q[:256].double()
        for passes in PASSES:
            for what, mode in (("forward", forward), ("forward+backward", backward)):
                if what != "forward" and count * passes > 4096 * 50:
                    continue  # the graph of ``released loop`` would take many gigabytes
                solvers = candidates(s, p, q, options.reg, passes)
                times, results = interleave({k: mode(f, s) for k, f in solvers.items()}, options.turns, 4.0)
                plan = candidates(*exact, options.reg, passes)["nclib log"]
                best = mode(plan, exact[0])()
                scale = 1.0 if what == "forward" else float(best.abs().max())
                for name, spent in times.items():
                    error = float((results[name][:256].double() - best).abs().max()) / scale
                    rows.append(
                        {
                            "problems": count,
                            "passes": passes,
                            "reg": options.reg,
                            "what": what,
                            "solver": name,
                        }
                        | {"ms": 1e3 * spent, "ratio": times["released loop"] / spent}
                        | {"plan_error": error if error == error else None, "mass_error": 0.0}
                    )
    print_rows(rows, ("what", "problems", "passes", "solver"))
    if options.out:
        write_json(options.out, TIMES, turns=options.turns, grid=grid, rows=rows)


if __name__ == "__main__":
    main()
