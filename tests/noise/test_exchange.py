"""The mixture whose wrong component is that of exchanged pairs."""

import numpy as np
import pytest

from nclib.noise.exchange import beside_exchanged


def scores(share, n=20000, seed=0):
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < share
    s = np.where(wrong, rng.normal(0, 0.1, n), rng.normal(0.35, 0.15, n))
    return s, rng.normal(0, 0.1, n), wrong


@pytest.mark.parametrize("share", [0.05, 0.4, 0.8])
def test_the_share_and_the_probabilities_are_those_of_drawn_scores(share):
    s, z, wrong = scores(share)
    p, found = beside_exchanged(s, z)
    assert abs(found - share) < 0.02
    assert abs(p[p > 0.9].mean() - (~wrong)[p > 0.9].mean()) < 0.02
    middle = (p > 0.3) & (p < 0.7)
    assert abs(p[middle].mean() - (~wrong)[middle].mean()) < 0.06


def test_clean_pairs_lose_nothing():
    s, z, _ = scores(0.0)
    p, share = beside_exchanged(s, z)
    assert share < 0.01
    assert p.mean() > 0.99


def test_a_higher_score_is_never_less_likely_right():
    s, z, _ = scores(0.4)
    s[:3] = -1.0, -3.0, 2.0  # far out on both sides
    for sign in (1, 2):  # right scores wider, and narrower, than wrong ones
        p, _ = beside_exchanged(s, z * sign)
        assert (np.diff(p[np.argsort(s)]) >= 0).all()
        assert p[:2].max() < 0.5 < p[2]


@pytest.mark.parametrize("z", [np.zeros(50), np.arange(50.0)])
def test_scores_that_do_not_vary_or_lie_low_are_all_kept(z):
    p, share = beside_exchanged(np.zeros(50), z)
    assert share == 0
    assert (p == 1).all()
