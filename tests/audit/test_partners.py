"""Neighbour lists against a full sort, their restart, and the sparse plan against the dense solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nclib.audit import partners
from nclib.audit.pairs import Pairs
from nclib.audit.partners import (
    Neighbours,
    candidate_edges,
    find_neighbours,
    find_partners,
    partner_probability,
    solve_plan,
    temperature,
)
from nclib.noise import calibration
from nclib.ot import partial_sinkhorn


def some_pairs(n=30, m=50, d=6, seed=0):
    rng = np.random.default_rng(seed)
    images, captions = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    captions[7] = np.nan
    return Pairs(images, captions, rng.integers(0, n, m), [str(i) for i in range(m)])


def small_tiles(monkeypatch):
    monkeypatch.setattr(partners, "ROWS", 8)
    monkeypatch.setattr(partners, "COLUMNS", 12)


def test_lists_equal_a_full_sort_with_small_tiles(monkeypatch):
    small_tiles(monkeypatch)
    pairs = some_pairs()
    found = find_neighbours(pairs, k=5, similar=4, progress=False)
    x, y = pairs.unit_images(slice(None)), pairs.unit_captions(slice(None))
    cosine = (y @ x.T).numpy()
    cosine[7] = -np.inf
    rows = np.arange(50) != 7
    np.testing.assert_array_equal(found.pictures[rows], np.argsort(-cosine, 1)[rows, :5])
    np.testing.assert_array_equal(found.captions, np.argsort(-cosine.T, 1)[:, :5])
    np.testing.assert_allclose(found.caption_cosines, -np.sort(-cosine.T, 1)[:, :5], atol=1e-6)
    own = (x @ x.T).numpy()
    np.fill_diagonal(own, -np.inf)
    np.testing.assert_array_equal(found.similar_images, np.argsort(-own, 1)[:, :4])
    assert (found.pictures[7] == -1).all()
    assert not (found.similar_captions == 7).any()


def test_lists_longer_than_the_data_end_in_minus_one():
    found = find_neighbours(some_pairs(n=3), k=5, similar=4, progress=False)
    assert found.pictures.shape == (50, 5)
    assert (found.pictures[:, 3:] == -1).all()
    assert (found.similar_images[:, 2:] == -1).all()
    assert np.isneginf(found.similar_image_cosines[:, 2:]).all()


def test_a_stopped_search_goes_on(monkeypatch, tmp_path):
    small_tiles(monkeypatch)
    monkeypatch.setattr(partners, "SAVE_EVERY", 0.0)
    pairs, whole = some_pairs(), find_neighbours(some_pairs(), k=5, progress=False)
    update, calls = partners._Best.update, []

    def counted(self, *args):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        update(self, *args)

    monkeypatch.setattr(partners._Best, "update", counted)
    stop_at = 0
    find_neighbours(pairs, k=5, work=tmp_path / "whole", progress=False)
    total, stop_at = len(calls), 40
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        find_neighbours(pairs, k=5, work=tmp_path / "part", progress=False)
    calls.clear()
    stop_at = 0
    again = find_neighbours(pairs, k=5, work=tmp_path / "part", progress=False)
    assert 0 < len(calls) < total - 20
    np.testing.assert_array_equal(again.pictures, whole.pictures)
    np.testing.assert_array_equal(again.captions, whole.captions)
    np.testing.assert_array_equal(again.similar_captions, whole.similar_captions)
    for kept in (tmp_path / "whole").glob("*.npz"):
        kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"\.npz is damaged; delete it to search again"):
        find_neighbours(pairs, k=5, work=tmp_path / "whole", progress=False)


def test_the_sparse_plan_is_the_dense_one():
    rng = np.random.default_rng(0)
    value, supply, demand = rng.random((6, 8)), rng.uniform(0.2, 1, 6), rng.uniform(0.2, 1, 8)
    row, column = (x.reshape(-1) for x in np.indices((6, 8)))
    plan = solve_plan(row, column, value.reshape(-1), supply, demand, 2.0, 0.1, tol=1e-9, max_iter=20_000)
    dense = partial_sinkhorn(
        torch.tensor(-value),
        2.0,
        torch.tensor(supply),
        torch.tensor(demand),
        reg=0.1,
        formulation="capped",
        max_iter=20_000,
    )
    np.testing.assert_allclose(plan.mass.reshape(6, 8), dense.plan.numpy(), atol=1e-6)
    assert plan.violation < 1e-8
    assert abs(plan.gap) < 1e-6
    again = np.exp(value / 0.1 + plan.rows[:, None] + plan.columns)
    np.testing.assert_allclose(again.reshape(-1), plan.mass, rtol=1e-6)


def test_a_plan_without_edges_moves_nothing():
    none = np.zeros(0, np.int64)
    plan = solve_plan(none, none, np.zeros(0), np.ones(3), np.ones(4), 2.0, 0.1)
    assert plan.mass.shape == (0,)
    assert plan.violation == 0


def test_a_plan_moves_no_more_than_its_edges_carry():
    plan = solve_plan(np.array([0]), np.array([1]), np.ones(1), np.ones(3), np.full(2, 0.5), 2.0, 0.1)
    assert plan.mass == pytest.approx(0.999 * 0.5, rel=1e-4)


def test_partners_of_three_captions():
    """Captions 0 and 1 claim picture 0 and may be wrong; caption 2 takes no part."""
    pairs = Pairs(np.eye(3), np.ones((3, 3)), np.array([0, 0, 1]), list("abc"))
    edges = np.array([0, 0, 0, 1, 2]), np.array([0, 1, 2, 2, 2]), np.array([0.9, 0.8, 0.1, 0.5, 0.7])
    found = find_partners(pairs, pairs.image_of, edges, np.array([0.9, 0.4, 0.01]), 0.1)
    assert found.image.tolist() == [1, 2, -1]
    assert list(zip(found.row.tolist(), found.column.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 2)]
    np.testing.assert_allclose(found.best_mass, [found.mass[0], found.mass[2], 0])
    np.testing.assert_allclose(found.mass[:2].sum(), 1, rtol=2e-3)
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
    row, column, value = candidate_edges(pairs, found)
    assert len(set(zip(row.tolist(), column.tolist(), strict=True))) == len(row)
    exact = (pairs.unit_captions(row) * pairs.unit_images(column)).sum(1)
    np.testing.assert_allclose(value, exact, atol=1e-6)


def test_groups_find_nearly_all_neighbours_and_say_how_many(monkeypatch):
    rng = np.random.default_rng(0)
    topic = rng.normal(size=(40, 16))[rng.integers(0, 40, 1500)]
    images = topic + 0.5 * rng.normal(size=topic.shape)
    captions = images + 0.3 * rng.normal(size=topic.shape)
    captions[7] = np.nan
    pairs = Pairs(images, captions, np.arange(1500), [str(i) for i in range(1500)])
    exact = find_neighbours(pairs, k=6, similar=4, progress=False)
    monkeypatch.setattr(partners, "EXACT", 100)
    monkeypatch.setattr(partners, "PROBES", 8)
    found = find_neighbours(pairs, k=6, similar=4, progress=False)
    assert exact.recall == 1
    for name in ("pictures", "captions", "similar_images", "similar_captions"):
        ours, best = getattr(found, name), getattr(exact, name)
        assert (ours[:, :, None] == best[:, None]).any(2)[best >= 0].mean() > 0.9
        assert all(len(set(row)) == len(row) for row in ours.tolist() if -1 not in row)
    held = (exact.pictures[:, :, None] == found.pictures[:, None]).any(2)
    assert found.recall == pytest.approx(held[np.arange(1500) != 7].mean(), abs=0.05)
    assert (found.pictures[7] == -1).all()
    assert not (found.similar_images == np.arange(1500)[:, None]).any()


def test_stated_probabilities_of_partners_hold():
    rng = np.random.default_rng(0)
    facts = rng.normal(size=(4000, 2))
    right = rng.random(4000) < 1 / (1 + np.exp(-2 * facts[:, 0]))
    one = np.ones(4000)
    p = partner_probability(facts[:2000], right[:2000], one[:2000])(facts[2000:])
    assert calibration(p, right[2000:])["ece"] < 0.04
    assert (partner_probability(facts[:10], right[:10], one[:10])(facts) == 0).all()
    all_right = partner_probability(facts[:98], one[:98] > 0, one[:98])
    assert all_right(facts[:1]) == pytest.approx(0.99)
