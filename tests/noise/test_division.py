"""Judging a division: against scikit-learn, by hand, and where nothing is defined."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nclib.noise import calibration, detection, division


def test_auc_and_rates_are_scikit_learns():
    from sklearn import metrics

    rng = np.random.default_rng(0)
    truth = rng.random(2000) < 0.4
    p = np.round(np.clip(0.35 * truth + rng.random(2000) * 0.65, 0, 1), 2)  # many ties
    result = division(torch.from_numpy(p), truth, threshold=0.6)
    called = p > 0.6
    assert result["auc"] == pytest.approx(metrics.roc_auc_score(truth, p), abs=1e-12)
    assert result["precision"] == pytest.approx(metrics.precision_score(truth, called))
    assert result["recall"] == pytest.approx(metrics.recall_score(truth, called))
    assert result["accuracy"] == pytest.approx(metrics.accuracy_score(truth, called))
    assert (result["n"], result["n_matched"], result["n_called_matched"]) == (2000, truth.sum(), called.sum())


def test_calibration_by_hand():
    p = np.array([0.1, 0.1, 0.9, 0.9, 1.0])
    truth = np.array([False, True, True, True, False])
    table = calibration(p, truth, bins=2)
    assert table["count"] == [2, 3]
    assert table["stated"] == pytest.approx([0.1, 2.8 / 3])
    assert table["observed"] == pytest.approx([0.5, 2 / 3])
    assert table["ece"] == pytest.approx((2 * 0.4 + 3 * (2.8 / 3 - 2 / 3)) / 5)
    assert table["edges"] == [0, 0.5, 1]
    assert calibration(p, truth, bins=5)["stated"][2] is None
    one = calibration(p[:1], ~truth[:1], bins=1)
    assert (one["stated"], one["observed"]) == ([0.1], [1.0])


@pytest.mark.parametrize(
    ("p", "truth", "options", "words"),
    [
        ([0.1, math.nan], [True, False], {}, "NaN"),
        ([0.1, 1.2], [True, False], {}, "p_clean .* at most 1, got 0.1 to 1.2"),
        ([0.1, 0.2], [1, 0], {}, "matched must be True and False"),
        ([0.1, 0.2], [True], {}, r"matched must be .*\(2,\)"),
        ([0.1, 0.2], [True, False], {"threshold": 1.0}, "threshold"),
        ([0.1, 0.2], [True, False], {"bins": 0}, "bins"),
    ],
)
def test_bad_arguments_are_named(p, truth, options, words):
    with pytest.raises(ValueError, match=words):
        division(np.array(p), np.array(truth), **options)


def test_detection_by_hand():
    score, matched = [0.9, 0.1, 0.2, 0.8, 0.3], [True, False, True, True, False]
    found = detection(score, matched, first=2)
    assert found["auc"] == 5 / 6
    assert found["ap"] == pytest.approx((1 + 2 / 3) / 2)  # mismatched pairs stand first and third
    assert found["precision_first"] == 0.5
    assert detection(score, [True] * 5) == {"auc": None, "ap": None, "precision_first": None}
