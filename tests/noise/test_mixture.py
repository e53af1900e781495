"""Mixtures against their printed path, scikit-learn, SciPy, and literal loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy import stats

from nclib import noise
from nclib.noise import BetaMixture, GaussianMixture1d

PRINTED = np.array([0.11, 0.13, 0.16, 0.18, 0.22, 0.25, 0.31, 0.62, 0.71, 0.78, 0.90, 0.97])


def two_groups(n, seed=0, overlap=False):
    """Losses in (0, 1), the first 60 % from the lower group."""
    rng = np.random.default_rng(seed)
    k = int(0.6 * n)
    low, high = ((2, 6), (5, 3)) if overlap else ((2, 14), (12, 3))
    return np.concatenate([rng.beta(*low, k), rng.beta(*high, n - k)])


# -------------------------------------------------------------------------------------------------- beta


def test_beta_scaling_is_done_once():
    scaled = noise.unit_interval(PRINTED)
    assert scaled.min() == 0.001
    assert scaled.max() == 0.999
    np.testing.assert_array_equal(noise.unit_interval(scaled), scaled)
    for once in ([0.0005, 0.5, 0.7], [0.0005, 0.5, 1.0]):  # does not fill the open interval
        assert noise.unit_interval(once)[[0, -1]].tolist() == [0.001, 0.999]
    for scale in ("minmax", None):
        again = BetaMixture(scale=scale).fit(scaled)
        expected = BetaMixture().fit(PRINTED).predict_proba(PRINTED)
        np.testing.assert_allclose(again.predict_proba(scaled), expected, rtol=1e-12)


def literal_em(x, shapes, weights, floor, stages):
    """EM with SciPy's densities; return the log-likelihoods, the last shapes and the last weights."""

    def e_step():
        density = np.stack([w * stats.beta.pdf(x, *ab) for w, ab in zip(weights, shapes, strict=True)])
        density = np.maximum(density, floor)
        path.append(np.log(density.sum(0)).sum())
        return density / density.sum(0)

    path = []
    r = e_step()
    for limit, gain in stages:
        for _ in range(limit):
            shapes = [noise.beta.beta_moments(x, np.maximum(part, floor)) for part in r]
            weights = r.mean(1)
            r = e_step()
            if gain is not None and not path[-1] - path[-2] > gain:
                break
    return path, shapes, weights


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("floor", [None, 1e-12, 0.2])
def test_beta_is_the_literal_loop(overlap, floor):
    """From two means in two stages of stopping, or from given shapes with densities kept above a floor."""
    x, start = noise.unit_interval(two_groups(600, 1, overlap)), None
    if floor is None:
        start, mixture = BetaMixture._two_means(x), BetaMixture()
        shapes = [noise.beta.beta_moments(x[part]) for part in (start, ~start)]
        run = (shapes, [start.mean(), 1 - start.mean()], 0.0, ((10, 1e-2), (10_000, 1e-1)))
    else:
        shapes, stages = ((1, 2), (2, 1)), ((10, None),)
        mixture = BetaMixture(None, 1e-4, shapes=shapes, stages=stages, floor=floor)
        run = (shapes, [0.5, 0.5], floor, stages)
    path, shapes, weights = literal_em(x, *run)
    mixture.fit(x, start=start)
    np.testing.assert_allclose(mixture.log_likelihood_, path, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.stack([mixture.a_, mixture.b_], 1), shapes, rtol=1e-8)
    np.testing.assert_allclose(mixture.weights_, weights, rtol=1e-9)
    parts = np.stack([w * stats.beta.pdf(x, *ab) for w, ab in zip(weights, shapes, strict=True)], 1)
    np.testing.assert_allclose(mixture.component_pdf(x), parts, rtol=1e-8)
    np.testing.assert_allclose(mixture.pdf(x), parts.sum(1), rtol=1e-8)
    clean = parts[:, 0] / (parts.sum(1) + run[2])
    np.testing.assert_allclose(mixture.predict_proba(x), np.stack([clean, 1 - clean], 1), atol=1e-12)


def test_beta_moments_by_hand():
    # mean 0.4 and variance 0.04 are those of Beta(2, 3); mean 0.5 and variance 0.05 those of Beta(2, 2)
    np.testing.assert_allclose(noise.beta.beta_moments(np.array([0.2, 0.6])), (2, 3))
    weighted = noise.beta.beta_moments(np.array([0.5, 0.25, 0.75]), np.array([0.4, 1.6, 1.6]) / 2)
    variance = 3.2 / 3.6 * 0.0625
    np.testing.assert_allclose(weighted, [0.5 * (0.25 / variance - 1)] * 2)


def test_two_means_begin_halfway():
    # From the middle, 0.5, they end between 0.4 and 1; from a third they would end between 0 and 0.4.
    assert BetaMixture._two_means(np.array([0.0, 0.4, 1.0])).tolist() == [True, True, False]
    assert BetaMixture._two_means(np.array([0.0, 0.5, 1.0])).tolist() == [True, True, False]  # on the cut


@pytest.mark.parametrize("floor", [0.0, 1e-9])
def test_beta_density_lives_on_the_fitted_range(floor):
    mixture = BetaMixture(floor=floor).fit(10 * PRINTED)
    np.testing.assert_allclose(mixture.weights_, [0.58, 0.42], atol=0.01)
    ends = mixture.component_pdf(10 * PRINTED[[0, -1]])
    assert (ends > 0).all()
    grid = np.linspace(0, 11, 20_001)
    assert np.trapezoid(mixture.pdf(grid), grid) == pytest.approx(1, abs=0.05)
    for fitted, outside in (
        (mixture, [1.0, 9.8]),
        (BetaMixture(None, floor=floor).fit(PRINTED), [-0.2, 1.5]),
    ):
        assert (fitted.component_pdf(outside) == 0).all()
        for one in outside:
            assert fitted.pdf([one]) == 0


def test_beta_runs_to_a_fixed_point():
    mixture = BetaMixture(stages=((10_000, 0.0),)).fit(PRINTED)
    assert mixture.n_iter_ < 100
    assert mixture.converged_  # the last change, a fall of 6e-14, is rounding


def test_beta_scores_exact_zeros_and_ones():
    x = np.concatenate([np.zeros(50), two_groups(400), np.ones(50)])
    posterior = BetaMixture(scale=None).fit(x).predict_proba(x)
    assert np.isfinite(posterior).all()
    assert posterior[0, 0] > 0.5 > posterior[-1, 0]


# ---------------------------------------------------------------------------------------------- gaussian


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 20_000])
@pytest.mark.parametrize("overlap", [False, True])
def test_gaussian_is_scikit_learns(n, overlap):
    from sklearn.mixture import GaussianMixture

    x = two_groups(n, 3, overlap)
    x = (x - x.min()) / (x.max() - x.min())
    mine = GaussianMixture1d().fit(x)
    assert mine.converged_
    oracle = GaussianMixture(
        2, max_iter=5000, tol=1e-10, reg_covar=5e-4, means_init=[[0.2], [0.8]], random_state=0
    ).fit(x[:, None])
    order = np.argsort(oracle.means_.ravel())
    np.testing.assert_allclose(mine.means_, oracle.means_.ravel()[order], atol=2e-5)
    np.testing.assert_allclose(mine.variances_, oracle.covariances_.ravel()[order], atol=2e-5)
    np.testing.assert_allclose(mine.weights_, oracle.weights_[order], atol=5e-5)
    expected = oracle.predict_proba(x[:, None])[:, order]
    np.testing.assert_allclose(mine.predict_proba(x), expected, atol=2e-4)
    np.testing.assert_allclose(np.log(mine.pdf(x)), oracle.score_samples(x[:, None]), atol=2e-4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.floats(0, 7), st.booleans(), st.floats(-3, 3))
def test_gaussian_at_an_offset_and_a_scale_is_scikit_learns_without(seed, magnitude, negative, unit):
    from sklearn.mixture import GaussianMixture

    rng = np.random.default_rng(seed)
    offset, scale = (-1 if negative else 1) * 10**magnitude, 10**unit
    x = scale * np.concatenate([rng.normal(0, 0.3, 120), rng.normal(2, 0.5, 80)]) + offset
    plain = (x - offset) / scale
    oracle = GaussianMixture(2, tol=1e-10, max_iter=5000, means_init=[[0], [2]]).fit(plain[:, None])
    mine = GaussianMixture1d(scale=None, floor=oracle.reg_covar * scale**2).fit(x)
    posterior = mine.predict_proba(x)
    np.testing.assert_allclose(posterior, oracle.predict_proba(plain[:, None]), atol=1e-4)
    np.testing.assert_allclose((mine.means_ - offset) / scale, oracle.means_.ravel(), atol=1e-4)
    np.testing.assert_allclose(mine.variances_ / scale**2, oracle.covariances_.ravel(), rtol=1e-3)
    default, there = (GaussianMixture1d().fit(y).predict_proba(y) for y in (plain, x))
    np.testing.assert_allclose(there, default, atol=1e-4)


def test_gaussian_published_settings_are_scikit_learns():
    from sklearn.mixture import GaussianMixture

    x = two_groups(2000, 4, overlap=True)
    x = (x - x.min()) / (x.max() - x.min())
    mine = GaussianMixture1d.published().fit(x)
    oracle = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(x[:, None])
    assert mine.n_iter_ == oracle.n_iter_
    assert mine.n_iter_ < GaussianMixture1d().fit(x).n_iter_
    order = np.argsort(oracle.means_.ravel())
    # k-means cuts at the midpoint of the means, exact two-means at the best cut: a few samples apart.
    np.testing.assert_allclose(mine.predict_proba(x), oracle.predict_proba(x[:, None])[:, order], atol=2e-2)


def test_histogram_has_equal_bins_and_keeps_what_is_counted():
    count, total, _ = GaussianMixture1d(bins=100)._histogram(np.linspace(3, 10, 1000))
    assert count.tolist() == [10] * 100
    assert total.sum() == pytest.approx(6500)
    x = np.concatenate([np.zeros(98), [0.5, 1.0]])  # bins of one value, and empty ones
    assert GaussianMixture1d(bins=16)._histogram(x)[0].tolist() == [98, 1, 1]
    few = two_groups(16)
    np.testing.assert_array_equal(
        GaussianMixture1d(bins=16).fit(few).means_, GaussianMixture1d().fit(few).means_
    )


def test_odds_stay_finite_and_one_half_is_not_clean():
    mixture = GaussianMixture1d(scale=None).fit([-1.0, -0.5, 0.5, 1.0])
    least = math.exp(-700)
    assert mixture.predict_proba([1e4, -1e4]).ravel().tolist() == pytest.approx(
        [least, 1, 1, least], rel=1e-9
    )
    assert mixture.predict_proba([0.0]).tolist() == [[0.5, 0.5]]


# --------------------------------------------------------------------------------------------- both alike


@pytest.mark.parametrize("kind", [BetaMixture, GaussianMixture1d])
@given(data=st.lists(st.floats(-1e6, 1e6, allow_nan=False, width=32), min_size=4, max_size=40))
def test_any_finite_data_gives_probabilities(kind, data):
    x = np.array(data)
    if x.min() == x.max():
        return  # refused
    mixture = kind().fit(x)
    p = mixture.predict_proba(x)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    assert mixture.means_[0] <= mixture.means_[1]
    assert np.isfinite(mixture.log_likelihood_).all()


@pytest.mark.parametrize("kind", [BetaMixture, GaussianMixture1d])
def test_scale_and_shift_change_nothing(kind):
    x = two_groups(1000)
    plain, moved = kind().fit(x), kind().fit(3 + 7 * x)
    np.testing.assert_allclose(moved.predict_proba(3 + 7 * x), plain.predict_proba(x), atol=1e-8)
    np.testing.assert_allclose(moved.means_, 3 + 7 * plain.means_, rtol=1e-8)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: BetaMixture(scale="log"), ["scale='log'"]),
        (lambda: BetaMixture(clip=0.0), ["clip=0.0"]),
        (lambda: BetaMixture(floor=1.0), ["floor=1.0"]),
        (lambda: BetaMixture(order="size"), ["order='size'"]),
        (lambda: BetaMixture(stages=()), ["stages=()"]),
        (
            lambda: GaussianMixture1d(max_iter=0, tol=0.0, floor=-1.0, bins=2),
            ["max_iter=0", "tol=0.0", "floor=-1.0", "bins=2"],
        ),
        (lambda: BetaMixture.bicro().fit(PRINTED / 10, start=PRINTED > 1), ["start", "shapes"]),
        (lambda: noise.unit_interval([1.0, 1.0]), ["1"]),
        *(
            (lambda kind=kind, x=x: kind().fit(x), named)
            for kind in (BetaMixture, GaussianMixture1d)
            for x, named in (
                ([0.1, math.nan, 0.2, 0.3], ["NaN or infinite", "position 1"]),
                ([0.1, 0.2, 0.3, math.inf], ["NaN or infinite", "position 3"]),
                ([0.1, 0.2, 0.3], ["at least 4"]),
                ([], ["shape"]),
                ([0.5] * 9, ["9", "0.5 to 0.5"]),
                ([[0.1, 0.2], [0.3, 0.4]], ["shape"]),
                (["a", "b", "c", "d"], ["real numbers"]),
            )
        ),
    ],
)
def test_bad_settings_and_data_are_named(make, named):
    refused(ValueError, make, *named)
