"""Partial transport: published numbers, the linear program as oracle, and two numeric paths that agree."""

import numpy as np
import pytest
import torch

import nclib.ot

S = torch.tensor(
    [[0.82, 0.31, 0.12, 0.25], [0.28, 0.35, 0.47, 0.09], [0.15, 0.22, 0.76, 0.33], [0.05, 0.41, 0.18, 0.54]],
    dtype=torch.float64,
)
COST = 1 - S
OFF = ~torch.eye(4, dtype=torch.bool)


def random_problem(seed: int, n: int, m: int, *, holes: bool = True) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    cost = torch.rand(n, m, generator=g, dtype=torch.float64)
    p = torch.rand(n, generator=g, dtype=torch.float64) + 0.05
    q = torch.rand(m, generator=g, dtype=torch.float64) + 0.05
    mask = torch.rand(n, m, generator=g) > 0.3 if holes else torch.ones(n, m, dtype=torch.bool)
    return cost, p / p.sum(), q / q.sum() * 1.3, mask


@pytest.mark.parametrize("method", ["auto", "log"])
@pytest.mark.parametrize(
    ("reg", "mask", "passes", "mass"),
    [(0.05, OFF, 17, 0.107158), (0.01, OFF, 31, 0.135847), (0.07, None, 22, 0.104720)],
)
def test_published_rule_stops_where_the_released_code_stops(method, reg, mask, passes, mass):
    t = nclib.ot.partial_sinkhorn(COST, 0.1, reg=reg, mask=mask, stop="published", method=method)
    assert t.iterations.item() == passes
    assert t.mass.item() == pytest.approx(mass, abs=5e-7)
    assert not t.converged
    assert t.mass_error.item() == pytest.approx(t.mass.item() / 0.1 - 1)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (40, 30)])
@pytest.mark.parametrize("reg", [0.3, 0.03, 0.003])
def test_two_numeric_paths_agree(shape, reg):
    cost, p, q, mask = random_problem(1, *shape)
    ways = [
        nclib.ot.partial_sinkhorn(cost, 0.6, p, q, reg=reg, mask=mask, method=method)
        for method in ("auto", "scaling", "log")
    ]
    for t in ways:
        assert t.converged
        assert (t.plan - ways[-1].plan).abs().sum() < 1e-7


@pytest.mark.parametrize("method", ["auto", "log"])
def test_row_without_allowed_entry_keeps_its_weight(method):
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    mask[:, 4] = False
    cost = random_problem(0, 6, 6)[0]
    t = nclib.ot.partial_sinkhorn(cost, 0.5, reg=0.05, mask=mask, method=method)
    assert t.converged
    assert t.plan[2].sum() == t.plan[:, 4].sum() == 0
    assert t.potentials.f[2] == t.potentials.g[4] == -torch.inf
    assert t.mass.item() == pytest.approx(0.5, rel=1e-9)
    full = nclib.ot.partial_sinkhorn(cost, 5 / 6, reg=0.05, mask=mask, method=method)
    torch.testing.assert_close(full.plan.sum(1), torch.where(mask.any(1), 1 / 6, 0.0).double())
    for stop in ("accurate", "published"):
        with pytest.raises(ValueError, match="infeasible"):
            nclib.ot.partial_sinkhorn(cost, 0.9, reg=0.05, mask=mask, method=method, stop=stop)


def test_potentials_give_the_plan():
    cost, p, q, mask = random_problem(6, 10, 14)
    for method in ("auto", "log"):
        t = nclib.ot.partial_sinkhorn(cost, 0.7, p, q, reg=0.02, mask=mask, method=method)
        f, g = t.potentials.f, t.potentials.g
        plan = torch.where(mask, ((f[:, None] + g - cost) / 0.02).exp(), 0.0)
        torch.testing.assert_close(plan, t.plan, rtol=1e-8, atol=1e-14)
        left_p = ((f + t.potentials.g_slack) / 0.02).exp()
        left_q = ((g + t.potentials.f_slack) / 0.02).exp()
        torch.testing.assert_close(plan.sum(1) + left_p, p, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(plan.sum(0) + left_q, q, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("reg", [0.05, 0.5])  # at 0.5 the corner of the dummies has weight
def test_published_paths_agree_and_freeze_per_problem(reg):
    g = torch.Generator().manual_seed(9)
    cost = 0.4 + 0.3 * torch.rand(3, 20, 20, generator=g, dtype=torch.float64)
    off = ~torch.eye(20, dtype=torch.bool)
    fast = nclib.ot.partial_sinkhorn(cost, 0.1, reg=reg, mask=off, stop="published")
    slow = nclib.ot.partial_sinkhorn(cost, 0.1, reg=reg, mask=off, stop="published", method="log")
    assert fast.iterations.tolist() == slow.iterations.tolist()
    torch.testing.assert_close(fast.plan, slow.plan, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("form", ["plain", "weights", "log"])
@pytest.mark.parametrize("holes", [False, True])
def test_published_potentials_and_errors_belong_to_the_plan(form, holes):
    cost = random_problem(9, 8, 6)[0] + 0.3
    mask = torch.ones(8, 6, dtype=torch.bool)
    mask[range(6), range(6)] = not holes
    p, q = torch.ones(8).double() / 8, torch.ones(6).double() / 6
    if form != "plain":
        p, q = (p + 0.02 * torch.arange(-4, 4).abs() - 0.04), 1.5 * q
    options = {"reg": 0.1, "mask": mask, "stop": "published", "tol": 1e-4}
    options |= {} if form == "plain" else {"p": p, "q": q, "method": "log" if form == "log" else "auto"}
    t = nclib.ot.partial_sinkhorn(cost, 0.3, **options)
    f, g, f_slack, g_slack = (
        x / 0.1 for x in (t.potentials.f, t.potentials.g, t.potentials.f_slack, t.potentials.g_slack)
    )
    plan = torch.where(mask, (f[:, None] + g - cost / 0.1).exp(), 0.0)
    torch.testing.assert_close(t.plan, plan, rtol=1e-9, atol=1e-14)
    rows = (plan.sum(1) + (f + g_slack).exp() - p).abs().sum() / 0.3
    cols = (plan.sum(0) + (g + f_slack).exp() - q).abs().sum() / 0.3
    torch.testing.assert_close(t.row_error, rows, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(t.col_error, cols, rtol=1e-6, atol=1e-12)


def test_published_rule_leaves_out_what_has_no_weight():
    cost, p, q, _ = random_problem(4, 7, 8, holes=False)
    wide = torch.full((9, 11), 0.5, dtype=torch.float64)
    wide[:7, :8] = cost
    pad_p, pad_q = torch.nn.functional.pad(p, (0, 2)), torch.nn.functional.pad(q, (0, 3))
    for mass in (0.5, 1.0):  # at 1 the dummy column has no weight either
        options = {"reg": 0.03, "stop": "published", "tol": 1e-9, "max_iter": 5000}
        small = nclib.ot.partial_sinkhorn(cost, mass, p, q, method="log", **options)
        for method in ("auto", "log"):
            big = nclib.ot.partial_sinkhorn(wide, mass, pad_p, pad_q, method=method, **options)
            assert big.iterations.item() == pytest.approx(small.iterations.item(), rel=0.05)
            assert big.converged
            torch.testing.assert_close(big.plan[:7, :8], small.plan, rtol=1e-6, atol=1e-9)
            assert big.plan[7:].sum() + big.plan[:, 8:].sum() == 0


def test_the_worst_problem_of_a_batch_is_named():
    cost, p, q, _ = random_problem(1, 5, 6, holes=False)
    p = torch.stack([p, 0.5 * p, 2 * p])
    mass = torch.tensor([0.9, 0.8, 1.2], dtype=torch.float64)  # the second may move 0.5 at most
    with pytest.raises(ValueError, match=r"mass 0\.8 is infeasible: at most 0\.5 can be moved"):
        nclib.ot.partial_sinkhorn(cost.expand(3, 5, 6), mass, p, q, reg=0.1)
    for mask in (None, torch.ones(5, 6, dtype=torch.bool)):
        t = nclib.ot.partial_sinkhorn(cost, 1 + 1e-13, p[0], q, reg=0.1, mask=mask)  # a rounding too much
        assert t.converged
        assert t.mass_error < 1e-12
        with pytest.raises(ValueError, match="infeasible"):
            nclib.ot.partial_sinkhorn(cost, 1 + 1e-5, p[0], q, reg=0.1, mask=mask)


def test_forbidden_costs_are_never_read():
    cost = COST.clone()
    cost.fill_diagonal_(float("nan"))
    for method in ("auto", "log"):
        t = nclib.ot.partial_sinkhorn(cost, 0.1, reg=0.05, mask=OFF, method=method)
        want = nclib.ot.partial_sinkhorn(COST, 0.1, reg=0.05, mask=OFF, method=method)
        assert torch.equal(t.plan, want.plan)
        assert torch.equal(t.value, want.value)


def test_plans_hold_no_subnormal_numbers_and_the_caller_keeps_his_mode():
    cost, off = 3 * torch.rand(24, 24, generator=torch.Generator().manual_seed(0)), ~torch.eye(24).bool()
    tiny = torch.finfo(torch.float32).tiny

    def subnormal() -> bool:
        return bool(np.float32(1e-39) * np.float32(1.0) != 0)

    assert subnormal()
    plan = nclib.ot.partial_sinkhorn(cost, 0.2, reg=0.02, mask=off).plan
    assert subnormal()
    supported = torch.set_flush_denormal(True)
    again = nclib.ot.partial_sinkhorn(cost, 0.2, reg=0.02, mask=off).plan
    kept = subnormal()
    torch.set_flush_denormal(False)
    assert torch.equal(plan, again)
    assert kept != supported
    few = ((plan > 0) & (plan < tiny)).sum()
    assert few == 0 or not supported
    assert ((plan == 0) & off).any()  # there would have been some


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("options", [{}, {"method": "log"}, {"stop": "published"}])
def test_a_problem_without_any_allowed_entry_is_infeasible(batch, options):
    cost, mask = torch.rand(*batch, 3, 4), torch.zeros(3, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mass 0\.5 is infeasible: at most 0 can be moved"):
        nclib.ot.partial_sinkhorn(cost, 0.5, reg=0.1, mask=mask, **options)
    if "stop" not in options:
        p, q = torch.full((3,), 1 / 3), torch.full((4,), 1 / 4)
        with pytest.raises(ValueError, match="infeasible: at most 0 can be moved"):
            nclib.ot.sinkhorn(cost, p, q, reg=0.1, mask=mask, **options)
    assert not nclib.ot.partial_sinkhorn(cost, 0.0, reg=0.1, mask=mask, **options).plan.any()
