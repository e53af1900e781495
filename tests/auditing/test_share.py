"""Share and probabilities on scores of known distributions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nclib.auditing.share import Sample, Share, calibrate


def sample(score, kind=0, number=1):
    return Sample(score, np.zeros(len(score), int) + kind, np.zeros(len(score), int) + number)


def judged(found, given):
    """P(wrong) of scores of kind 0."""
    return found(given, np.zeros(len(given), int))[0]


def scores(n, share, seed, gap=3.0):
    rng = np.random.default_rng(seed)
    wrong = np.arange(n) < round(share * n)
    given, exchanged = np.where(wrong, rng.normal(size=n), rng.normal(gap, 1, n)), rng.normal(size=2 * n)
    return sample(given), sample(exchanged), wrong


def test_no_wrong_pair_seen_does_not_mean_none():
    share = calibrate(*scores(200, 0.0, 2, gap=12.0)[:2]).share
    assert 0.5 * 0.5 / 200 < share.value < 0.01  # half a wrong pair is added
    assert share.low == 0
    assert 0.005 < share.high < 0.05


def test_kinds_have_a_share_of_their_own():
    """Wrong pairs of one kind score as high as right ones of the other: alone, they would look right."""
    given, exchanged, _ = scores(600, 0.1, 0)
    rng = np.random.default_rng(1)
    kind = np.repeat([0, 1], [600, 200]), np.repeat([0, 1], [1200, 400])
    given, exchanged = (
        np.append(one.score, rng.normal(3, 1, len(of) - len(one.score)))
        for one, of in zip((given, exchanged), kind, strict=True)
    )
    found = calibrate(sample(given, kind[0]), sample(exchanged, kind[1]))
    assert found.share.low < 260 / 800 < found.share.high
    assert (found(given, kind[0])[0, 600:] > 0.8).all()
    alone = calibrate(sample(given), sample(exchanged))
    assert alone.share.high < 0.2
    few = np.where(np.arange(800) < 760, 0, 1)  # 40 pairs have no calibration of their own
    assert calibrate(sample(given, few), sample(exchanged, kind[1])).share == alone.share


def test_copies_count_in_the_share_and_not_in_its_certainty():
    given, exchanged, wrong = scores(300, 0.2, 3)
    once, thrice = (calibrate(sample(given.score, 0, n), exchanged).share for n in (1, 3))
    np.testing.assert_allclose(thrice, once, atol=0.01)
    stored = calibrate(sample(given.score, 0, np.where(wrong, 9, 1)), exchanged).share
    assert stored.value == pytest.approx(540 / 780, abs=0.05)


@pytest.mark.parametrize(("given", "reason"), [(np.ones(5), "too few pairs"), (np.ones(50), "constant")])
def test_scores_that_say_nothing_give_a_reason(given, reason):
    found = calibrate(sample(given), sample(np.ones(50)))
    assert reason in found.reason
    assert np.isnan(judged(found, given)).all()
    assert found.share[1:] == (0.0, 1.0)


def test_intervals_meet_where_they_have_a_value_in_common():
    assert Share(0.1, 0.0, 0.2).meets(Share(0.3, 0.2, 0.4))
    assert not Share(0.1, 0.0, 0.2).meets(Share(0.3, 0.21, 0.4))


@pytest.mark.parametrize(
    ("mine", "its", "found"),
    [
        ((0.1, 0.05, 0.2), (0.2, 0.15, 0.4), (0.15, 0.05, 0.4)),
        ((0.2, 0.15, 0.4), (0.1, 0.05, 0.2), (0.15, 0.05, 0.4)),
        ((0.1, 0.0, 0.12), (0.3, 0.1, 0.5), (0.12, 0.0, 0.5)),  # the value stays in the first interval
    ],
)
def test_a_share_is_drawn_towards_another(mine, its, found):
    np.testing.assert_allclose(Share(*mine).beside(Share(*its)), found)


def test_another_share_changes_the_odds_of_all_pairs_alike():
    given, exchanged, _ = scores(400, 0.2, 0)
    found = calibrate(given, exchanged)
    odds = found.share.value / (1 - found.share.value)
    moved = found.with_share(Share(2 * odds / (1 + 2 * odds), 0.1, 0.5))
    before, after = (judged(one, given.score) for one in (found, moved))
    np.testing.assert_allclose(after / (1 - after), 2 * before / (1 - before), rtol=0.05)
    assert moved.shares[0] == pytest.approx(moved.share.value)
    assert moved.share[1:] == (0.1, 0.5)
    for ends in ((0.0, 0.2), (1.0, 0.2), (0.2, 0.0), (0.0, 0.0)):  # where odds are not finite
        before, after = (Share(value, 0.0, 1.0) for value in ends)
        moved = replace(found, share=before).with_share(after)
        assert np.isfinite(moved.shares).all()
        assert np.isfinite(judged(moved, given.score)).all()


def test_pairs_of_a_unit_that_are_wrong_together_are_less_certain():
    """Five equal scores of a picture tell no more than one does; five of their own tell more."""
    given, exchanged, _ = scores(400, 0.2, 0)
    widths = []
    for unit in (None, np.repeat(np.arange(400), 5)):
        five = (np.repeat(values, 5) for values in given[:3])
        share = calibrate(Sample(*five, unit), exchanged).share
        widths.append(share.high - share.low)
    assert widths[1] > 1.5 * widths[0]


def test_units_of_which_none_scores_high_are_drawn_again():
    """Of given pairs all lie in the lower bins; some of them share a picture."""
    rng = np.random.default_rng(0)
    given, exchanged = rng.normal(-1, 1, 200), rng.normal(0, 1, 4000)
    zeros = np.zeros(200, np.int64)
    unit = np.arange(200) // 2
    found = calibrate(
        Sample(given, zeros, zeros + 1, unit), Sample(exchanged, np.zeros(4000, int), np.ones(4000, int))
    )
    assert found.share.high > 0.9
