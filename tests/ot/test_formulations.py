"""Balanced problems, label transport, exact solvers and certificates."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_partial import random_problem

import nclib.ot


def test_certificate_closes_the_gap_and_notices_a_wrong_plan():
    cost, p, q, mask = random_problem(3, 20, 14)
    t = nclib.ot.partial_sinkhorn(cost, 0.6, p, q, reg=0.02, mask=mask)
    c = t.certify(exact=True)
    assert abs(c.gap.item()) < 1e-8
    assert c.linear_bound.item() <= c.linear_optimum.item() + 1e-9
    assert c.linear_optimum.item() <= c.value.item() + 1e-9
    assert "dual_bound" in str(c)
    # a feasible plan that is not optimal, and one that moves too much
    spread = torch.where(mask, 0.05 * p[:, None] * q, 0.0)
    poor = replace(t, plan=spread * 0.6 / spread.sum()).certify()
    assert poor.gap.item() > 1e-3
    assert poor.linear_optimum is None  # not asked for
    assert poor.dual_bound.item() == pytest.approx(c.dual_bound.item())
    heavy = replace(t, plan=1.01 * t.plan).certify()
    assert heavy.mass_violation.item() == pytest.approx(0.01)
    double = replace(t, plan=2 * t.plan).certify()  # violations are parts of the mass
    for found, sums, weight in ((double.row_violation, -1, p), (double.col_violation, -2, q)):
        over = (2 * t.plan.sum(sums) - weight).clamp_min(0).sum()
        assert found.item() == pytest.approx(over.item() / 0.6)


def test_the_largest_flow_is_the_smallest_cut_however_far_weights_are_apart():
    rng = np.random.default_rng(0)
    for spread in [0, 3, 16, 40] * 50:
        n, m = rng.integers(1, 7, 2)
        p, q = (10 ** rng.uniform(-spread, spread, size) for size in (n, m))
        mask = rng.random((n, m)) < rng.choice([0.2, 0.5, 1.0])
        chosen = (np.array(rows, bool) for rows in itertools.product([0, 1], repeat=n))
        cut = min(p[~rows].sum() + q[mask[rows].any(0)].sum() for rows in chosen)
        most = nclib.ot.max_flow(*map(torch.from_numpy, (mask, p, q)))
        assert most.item() == pytest.approx(cut, rel=1e-6)
    p, q = torch.tensor([1e16, 1e15], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    plan = nclib.ot.partial_sinkhorn(torch.eye(2).double(), 0.9, p, q, reg=0.1, mask=torch.eye(2) > 0).plan
    assert plan.sum().item() == pytest.approx(0.9)
    with pytest.raises(ValueError, match=r"mass 0\.9 is infeasible: at most 0\.5 can be moved"):
        nclib.ot.partial_sinkhorn(torch.eye(2), 0.9, p, q, reg=0.1, mask=torch.tensor([[True, False]]))


def test_published_plan_is_certified_as_too_heavy():
    cost, _, _, _ = random_problem(4, 12, 12)
    off = ~torch.eye(12, dtype=torch.bool)
    t = nclib.ot.partial_sinkhorn(cost, 0.1, reg=0.01, mask=off, stop="published")
    assert t.certify().mass_violation.item() > 0.01


@pytest.mark.parametrize("method", ["auto", "log"])
def test_many_small_problems_take_the_batched_route_and_agree(method):
    g = torch.Generator().manual_seed(5)
    cost = torch.rand(2, 12, 6, 5, generator=g, dtype=torch.float64)
    mass = torch.linspace(0, 1, 24, dtype=torch.float64).view(2, 12)
    batch = nclib.ot.partial_sinkhorn(cost, mass, reg=0.03, method=method)
    assert batch.converged.all()
    for i, j in itertools.product(range(2), range(12)):
        one = nclib.ot.partial_sinkhorn(cost[i, j], mass[i, j], reg=0.03, method=method)
        torch.testing.assert_close(batch.plan[i, j], one.plan, rtol=1e-7, atol=1e-10)


def test_shares_of_classes_may_be_fixed():
    g = torch.Generator().manual_seed(2)
    cost = torch.rand(60, 5, generator=g, dtype=torch.float64) * 4
    r = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15])
    fixed = nclib.ot.label_transport(cost, 0.5, r, reg=0.05, class_cap="scaled")
    torch.testing.assert_close(fixed.plan.sum(0), 0.5 * r.double(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("total", [1e-300, 1e-20, 1e12, 1e300])
def test_a_linear_program_does_not_depend_on_the_unit_of_mass(total):
    cost = torch.rand(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p, q = (torch.full((k,), 1 / k, dtype=torch.float64) for k in cost.shape)
    usual = nclib.ot.partial_exact(cost, 0.7, p, q).plan
    scaled = nclib.ot.partial_exact(cost, 0.7 * total, p * total, q * total)
    assert scaled.converged
    assert torch.allclose(scaled.plan / total, usual, rtol=0, atol=1e-12)


def test_totals_that_differ_by_rounding_are_equal():
    p, q = torch.rand(2, 50, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert float(p.double().sum() - q.double().sum()) != 0
    assert nclib.ot.sinkhorn(torch.rand(50, 50).double(), p, q, reg=0.1).converged
