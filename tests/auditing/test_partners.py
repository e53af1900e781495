"""The sparse plan against a general solver, and the partners that it proposes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from test_neighbours import some_pairs

from nclib.auditing.neighbours import Neighbours, find_neighbours
from nclib.auditing.pairs import Pairs
from nclib.auditing.partners import candidate_edges, find_partners, solve_plan, temperature


def test_the_sparse_plan_solves_the_problem_that_a_general_solver_solves():
    rng = np.random.default_rng(0)
    value, supply, demand = rng.random((6, 8)), rng.uniform(0.2, 1, 6), rng.uniform(0.2, 1, 8)
    mass, reg = 2.0, 0.1
    plan = solve_plan(csr_array(value), supply, demand, mass, reg, tol=1e-9, max_iter=20_000)

    def dual(t):
        u, v, w = t[:6], t[6:14], t[14]
        moved = np.exp(value / reg + u[:, None] + v + w)
        slope = moved.sum(1) - supply, moved.sum(0) - demand, [moved.sum() - mass]
        return moved.sum() - u @ supply - v @ demand - w * mass, np.concatenate(slope)

    start, bounds = np.r_[np.zeros(14), -1 / reg], [(None, 0)] * 14 + [(None, None)]
    tight = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 20_000, "maxfun": 100_000}
    t = minimize(dual, start, jac=True, method="L-BFGS-B", bounds=bounds, options=tight).x
    expected = np.exp(value / reg + t[:6, None] + t[6:14] + t[14])
    np.testing.assert_allclose(plan.mass.reshape(6, 8), expected, atol=1e-6)
    assert plan.violation < 1e-8
    again = np.exp(value / reg + plan.rows[:, None] + plan.columns)
    np.testing.assert_allclose(again.reshape(-1), plan.mass, rtol=1e-6)


def test_partners_of_three_captions():
    """Captions 0 and 1 claim picture 0 and may be wrong; caption 2 takes no part."""
    pairs = Pairs(np.eye(3), np.ones((3, 3)), np.array([0, 0, 1]), list("abc"))
    edges = csr_array(([0.9, 0.8, 0.1, 0.5, 0.7], ([0, 0, 0, 1, 2], [0, 1, 2, 2, 2])), (3, 3))
    found = find_partners(pairs, pairs.image_of, edges, np.array([0.9, 0.4, 0.01]), 0.1)
    assert found.image.tolist() == [1, 2, -1]
    to_1, to_2, of_other = found.plan.mass  # caption 0 to both pictures, caption 1 to the last
    np.testing.assert_allclose(found.best_mass, [to_1 / 0.9, of_other / 0.4, 0])
    np.testing.assert_allclose(to_1 + to_2, 0.9, rtol=2e-3)
    # ample room: nothing but the cosines tells the pictures apart
    np.testing.assert_allclose(found.margin, [0.7 / 0.1, 20.0, 0.0], rtol=1e-6)
    alone = find_partners(pairs, pairs.image_of, edges, np.array([0.9, 0.4, 0.01]), 0.1, one_to_one=True)
    assert alone.image.tolist() == [2, 2, -1]  # picture 1 keeps its caption; one place is left, in picture 2
    assert alone.plan.mass.sum() == pytest.approx(0.999, rel=1e-3)


def test_temperature_is_half_the_median_excess_over_the_last():
    cosines = np.array([[0.9, 0.5, 0.4], [0.8, 0.6, 0.1], [0.7, 0.2, -np.inf], [0.3, -np.inf, -np.inf]])
    none = np.zeros((0, 3))
    found = Neighbours(none, cosines, *[none] * 6)
    assert temperature(found) == pytest.approx(0.25 / 2)  # of 0.2, 0.4 and 0.25


def test_edges_are_unique():
    pairs = some_pairs()
    found = find_neighbours(pairs, k=5, progress=False)
    edges = candidate_edges(pairs, found).tocoo()
    assert len(set(zip(*edges.coords, strict=True))) == edges.nnz
    both = {(j, i) for j, near in enumerate(found.pictures) for i in near if i >= 0}
    both |= {(j, i) for i, near in enumerate(found.captions) for j in near if j >= 0}
    assert set(zip(*edges.coords, strict=True)) == both
    exact = (pairs.unit_captions(edges.row) * pairs.unit_images(edges.col)).sum(1)
    np.testing.assert_allclose(edges.data, exact, atol=1e-6)
