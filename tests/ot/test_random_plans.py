"""Plans of random problems: against linear programs of scipy, plain loops, and differences of two plans."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import nclib

SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from(["float64", "float32"])


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    """Draw a transport problem: ties, holes, weights of zero, unequal totals, units from 1e-3 to 1e6."""
    n, m, rng = draw(SIZES), draw(SIZES), np.random.default_rng(draw(SEEDS))
    kinds = {
        "uniform": rng.random((n, m)),
        "ties": rng.integers(0, 3, (n, m)).astype(float),
        "heavy": rng.normal(size=(n, m)) ** 3,
    }
    cost = kinds[draw(st.sampled_from(sorted(kinds)))] * 10.0 ** draw(st.integers(-3, 6))
    p, q = (rng.random(k) * (rng.random(k) < draw(st.sampled_from([1.0, 0.7]))) for k in (n, m))
    p[-1], q[-1] = p[-1] + 0.1, q[-1] + 0.1
    mask = rng.random((n, m)) < draw(st.sampled_from([1.0, 0.8, 0.4]))
    mask[-1, -1] = True
    return {
        "cost": cost,
        "p": p / p.sum(),
        "q": q / q.sum() * draw(st.sampled_from([1.0, 0.6, 1.7])),
        "mask": mask,
        "share": draw(st.sampled_from([0.0, 0.01, 0.3, 0.9, 0.999, 1.01])),
        "reg": 10.0 ** draw(st.floats(-4, 0.5)),  # in units of the range of the costs
        "dtype": draw(DTYPES),
        "solver": draw(st.sampled_from(["balanced", "partial", "exact", "partial_exact", "labels"])),
    }


def program(cost: Any, mask: Any, p: Any, q: Any, mass: float | None = None, balanced: bool = False) -> Any:
    """Solve the linear program by scipy; the most that can flow without a ``mass``. None if infeasible."""
    cells = np.argwhere(mask)
    sums = np.zeros((len(p) + len(q), len(cells)))
    sums[cells[:, 0], np.arange(len(cells))] = sums[len(p) + cells[:, 1], np.arange(len(cells))] = 1
    limits = np.concatenate([p, q])
    costs = cost[mask] if mass is not None or balanced else -np.ones(len(cells))
    if balanced:
        found = linprog(costs, A_eq=sums, b_eq=limits)
    else:
        total = {} if mass is None else {"A_eq": np.ones((1, len(cells))), "b_eq": [mass]}
        found = linprog(costs, A_ub=sums, b_ub=limits, **total)
    return found.fun if found.status == 0 else None


@given(problems())
def test_a_plan_costs_what_the_linear_program_says_or_warns(case: dict[str, Any]) -> None:
    """Its sums, its mass, and a cost that entropy alone raises; what cannot flow is refused."""
    name, dtype = case["solver"], getattr(torch, case["dtype"])
    cost = torch.from_numpy(case["cost"]).to(dtype).double().numpy()  # as the solver sees it
    p, q, mask = case["p"], case["q"], case["mask"]
    spread = float(np.ptp(cost[mask])) or 1.0
    reg, balanced, mass = case["reg"] * spread, name in ("balanced", "exact"), case["share"]
    if balanced:
        q = q / q.sum()
        fits, mass = -program(cost, mask, p, q) > 1 - 1e-9, 1.0
    elif name == "labels":
        mask, p, q = np.ones_like(mask), np.full(len(p), 1 / len(p)), q / q.sum()
        fits = mass <= 1
    else:
        fits = mass <= 1
        mass *= -program(cost, mask, p, q)
    c, weights = torch.from_numpy(cost).to(dtype), [torch.from_numpy(x) for x in (p, q)]
    holes = torch.from_numpy(mask)
    call: dict[str, Callable[[], Any]] = {
        "balanced": lambda: nclib.ot.sinkhorn(c, *weights, reg=reg, mask=holes),
        "partial": lambda: nclib.ot.partial_sinkhorn(c, mass, *weights, reg=reg, mask=holes),
        "exact": lambda: nclib.ot.exact(c, *weights, mask=holes),
        "partial_exact": lambda: nclib.ot.partial_exact(c, mass, *weights, mask=holes),
        "labels": lambda: nclib.ot.label_transport(c, mass, weights[1], reg=reg),
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if not fits:
            with pytest.raises(ValueError):
                call[name]()
            return
        found = call[name]()
    plan = found.plan.double().numpy()
    assert np.isfinite(plan).all()
    assert (plan >= 0).all()
    assert not plan[~mask].any()
    if not bool(found.converged):
        assert said
        return
    off = (3e-4 if dtype == torch.float32 else 1e-6) * (mass + 1e-12)
    assert abs(plan.sum() - mass) <= off
    for sums, limit in ((plan.sum(1), p), (plan.sum(0), q)):
        over = sums - limit
        assert (np.abs(over) if balanced else over).max() <= off
    least = program(cost, mask, p, q, None if balanced else mass, balanced)
    if least is None:  # scipy finds a balanced problem infeasible by rounding
        return
    cells = mask.sum() + (0 if balanced else len(p) + len(q))
    total = mass if balanced else p.sum() + q.sum() - mass  # with what is not moved
    price = reg * total * np.log(cells + 1) if "exact" not in name else 0.0
    slack = off * (np.abs(cost[mask]).max() + spread * (len(p) + len(q)))
    assert least - slack <= float((plan * np.where(mask, cost, 0)).sum()) <= least + price + slack


@given(SEEDS, SIZES, SIZES, st.floats(-3.5, 0.5), st.integers(1, 6), DTYPES)
def test_a_fixed_number_of_passes_is_the_loop(
    seed: int, n: int, m: int, power: float, passes: int, dtype: str
) -> None:
    s = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (n, m))).to(getattr(torch, dtype))
    reg = 10.0**power
    try:
        found = nclib.ot.scaling_plan(s, reg=reg, passes=passes, loop="log").double()
    except ValueError:
        return  # the exponents leave the range of the type
    K, g = (s.double() - 1) / reg, torch.zeros(m, dtype=torch.float64)
    for _ in range(passes):
        f = -np.log(n) - (K + g).logsumexp(1)
        g = -np.log(m) - (K + f[:, None]).logsumexp(0)
    close = 1e-9 if dtype == "float64" else 1e-5 + 1e-6 / reg  # rounding of exponents
    assert float(((K + f[:, None] + g).exp() - found).abs().max()) <= close


@given(problems())
def test_an_implicit_gradient_is_a_difference_of_two_plans(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(len(case["p"]))
    spread = float(np.ptp(case["cost"][case["mask"]])) or 1.0
    reg, step = max(case["reg"], 0.03) * spread, 1e-4 * spread
    p, q, mask = (torch.from_numpy(case[k]) for k in ("p", "q", "mask"))
    cost = torch.from_numpy(case["cost"])
    mass = min(case["share"], 0.9) * float(nclib.ot.max_flow(mask, p, q))
    weight, way = (torch.from_numpy(rng.normal(size=cost.shape)) for _ in range(2))

    def measured(c: torch.Tensor, gradient: str = "none") -> tuple[torch.Tensor, bool]:
        how: dict[str, Any] = {"reg": reg, "mask": mask, "tol": 1e-12, "gradient": gradient}
        if case["solver"] == "balanced":
            found = nclib.ot.sinkhorn(c, p, q / q.sum(), **how)
        else:
            found = nclib.ot.partial_sinkhorn(c, mass, p, q, **how)
        return (found.plan * weight).sum(), bool(found.converged)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            known = cost.requires_grad_()
            value, sure = measured(known, "implicit")
            value.backward()
            (after, one), (before, two) = (measured(cost.detach() + s * step * way) for s in (1, -1))
        except ValueError:
            return  # a balanced problem that cannot flow
    if not (sure and one and two) or known.grad is None:
        return
    slope, wanted = float((known.grad * way).sum()), float(after - before) / (2 * step)
    scale = max(abs(slope), abs(wanted)) + 0.01 * max(mass, 1e-3) / reg  # differences have rounding
    assert abs(slope - wanted) <= 1e-3 * scale
