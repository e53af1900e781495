"""Share and probabilities on scores of known distributions; labels that move them."""

from __future__ import annotations

import numpy as np
import pytest

from nclib.auditing.share import anchored, calibrate, relabelled
from nclib.noise import calibration


def scores(n, share, seed, gap=3.0):
    rng = np.random.default_rng(seed)
    wrong = np.arange(n) < round(share * n)
    return np.where(wrong, rng.normal(size=n), rng.normal(gap, 1, n)), rng.normal(size=2 * n), wrong


def test_no_wrong_pair_seen_does_not_mean_none():
    given, exchanged, _ = scores(200, 0.0, 2, gap=12.0)
    share = calibrate(given, exchanged).share
    assert 0.5 * 0.5 / 200 < share.value < 0.01  # half a wrong pair is added
    assert 0.005 < share.high < 0.05


def test_labels_never_make_a_fitting_pair_the_likelier_wrong_one():
    given, exchanged, _ = scores(400, 0.3, 4)
    told = relabelled(calibrate(given, exchanged), given, given, given > np.median(given))
    assert (np.diff(told.p) <= 1e-12).all()
    np.testing.assert_allclose(told.p, 0.5, atol=1e-2)
    assert (told.low <= told.p).all()
    assert (told.p <= told.high).all()


@pytest.mark.exhaustive
def test_where_shares_contradict_each_other_the_cosines_decide():
    n, share = 6000, 0.4
    given, exchanged, wrong = scores(n, share, 6)
    cosines = scores(n, share, 7)
    plain = calibrate(given, exchanged)
    assert anchored(plain, given, exchanged, cosines[:2]) is plain
    # Exchanged pairs fit better by this score than wrong ones do: they look right to their neighbourhood.
    biased = calibrate(given, exchanged + 0.8)
    moved = anchored(biased, given, exchanged + 0.8, cosines[:2])
    assert abs(biased.share.value - share) > 0.05
    assert abs(moved.share.value - share) < 0.02
    p, low, high = moved(given)
    assert abs(p.mean() - moved.share.value) < 2e-3
    assert (low <= p).all()
    assert (p <= high).all()
    assert np.abs(p - plain(given)[0]).max() < 0.1
    assert calibration(1 - p, ~wrong)["ece"] < calibration(1 - plain(given)[0], ~wrong)["ece"] + 0.005
    nothing = calibrate(np.ones(5), np.ones(5))
    assert anchored(nothing, np.ones(5), np.ones(5), cosines[:2]) is nothing


@pytest.mark.parametrize(("given", "reason"), [(np.ones(5), "too few pairs"), (np.ones(50), "constant")])
def test_scores_that_say_nothing_give_a_reason(given, reason):
    found = calibrate(given, np.ones(50))
    assert reason in found.reason
    assert np.isnan(found(given)[0]).all()
    assert found.share[1:] == (0.0, 1.0)
