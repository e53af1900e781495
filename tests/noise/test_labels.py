"""Wrong class labels: exact counts, the right range, every seed named."""

from __future__ import annotations

import numpy as np
import pytest

from nclib.noise import asymmetric_labels, symmetric_labels


def test_flip_matrix_is_the_expected_one():
    k, n = 5, 100_000
    clean = np.arange(n) % k
    for exclusive, wrong in ((False, 0.6 / k), (True, 0.6 / (k - 1))):
        noisy = symmetric_labels(clean, 0.6, n_classes=k, seed=0, exclusive=exclusive)
        flips = np.bincount(clean * k + noisy, minlength=k * k).reshape(k, k) * k / n
        expected = np.full((k, k), wrong)
        np.fill_diagonal(expected, 1 - wrong * (k - 1))
        np.testing.assert_allclose(flips, expected, atol=0.012)


@pytest.mark.parametrize("make", [symmetric_labels, asymmetric_labels])
@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        ([1, 2, 3], {"n_classes": 3}, "labels .* at least 0, at most 2, got 1 to 3"),
        ([-1, 0], {}, "labels .* at least 0"),
        ([0.0, 1.0], {}, "integers"),
        ([0, 1], {"n_classes": 1}, "n_classes"),
        ([0, 1], {"rate": 2.0}, "rate"),
        ([0, 1], {"seed": ()}, "seed"),
    ],
)
def test_bad_arguments_are_named(make, labels, options, words):
    settings_ = {"rate": 0.5, "n_classes": 3, "seed": 0} | options
    with pytest.raises(ValueError, match=words):
        make(np.array(labels), settings_.pop("rate"), **settings_)
