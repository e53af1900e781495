"""Wrong class labels: exact counts, the right range, every seed named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nclib.noise import asymmetric_labels, symmetric_labels


@pytest.mark.parametrize(
    ("n", "rate", "count"),
    [(2173, 0.2, 434), (2173, 0.4, 869), (2173, 0.6, 1303), (2173, 0.8, 1738), (42_941, 0.6, 25_764)],
)
def test_counts_are_the_protocols(n, rate, count):
    clean = np.arange(n) % 10
    assert (symmetric_labels(clean, rate, n_classes=10, seed=0, exclusive=True) != clean).sum() == count


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 200), k=st.integers(2, 12), tenths=st.integers(0, 10), seed=st.integers(0, 99))
def test_labels_stay_in_range(n, k, tenths, seed):
    clean = np.random.default_rng(seed).integers(0, k, n)
    for exclusive in (False, True):
        noisy = symmetric_labels(clean, tenths / 10, n_classes=k, seed=seed, exclusive=exclusive)
        assert noisy.dtype == np.int64
        assert ((noisy >= 0) & (noisy < k)).all()
        changed = (noisy != clean).sum()
        assert changed == tenths * n // 10 if exclusive else changed <= tenths * n // 10
    noisy = asymmetric_labels(clean, tenths / 10, n_classes=k, seed=seed)
    assert ((noisy >= 0) & (noisy < k)).all()
    assert (noisy != clean).sum() <= tenths * n // 10


def test_flip_matrix_is_the_expected_one():
    k, n = 5, 100_000
    clean = np.arange(n) % k
    for exclusive, wrong in ((False, 0.6 / k), (True, 0.6 / (k - 1))):
        noisy = symmetric_labels(clean, 0.6, n_classes=k, seed=0, exclusive=exclusive)
        flips = np.bincount(clean * k + noisy, minlength=k * k).reshape(k, k) * k / n
        expected = np.full((k, k), wrong)
        np.fill_diagonal(expected, 1 - wrong * (k - 1))
        np.testing.assert_allclose(flips, expected, atol=0.012)


def test_asymmetric_maps_half_onto_the_other_half():
    k = 7
    clean = np.arange(7000) % k
    noisy = asymmetric_labels(clean, 1.0, n_classes=k, seed=0)
    target = noisy[:k]
    np.testing.assert_array_equal(noisy, target[clean])
    moved = np.flatnonzero(target != np.arange(k))
    assert len(moved) == 3
    assert len(set(target[moved])) == 3  # one to one
    assert not set(target[moved]) & set(moved)  # onto the half that stays
    given_ = np.array([1, 2, 3, 4, 5, 6, 0])
    np.testing.assert_array_equal(
        asymmetric_labels(clean, 1.0, n_classes=k, seed=0, mapping=given_), given_[clean]
    )


def test_seeds_are_apart():
    clean = np.arange(500) % 10
    image, text, again = (symmetric_labels(clean, 0.5, n_classes=10, seed=(0, v)) for v in (0, 1, 0))
    np.testing.assert_array_equal(image, again)
    assert (image != text).any()
    both_wrong = ((image != clean) & (text != clean)).mean()
    assert both_wrong == pytest.approx(0.45**2, abs=0.06)


def test_a_seed_names_the_same_labels_for_ever():
    true = np.arange(10) % 5
    symmetric, asymmetric = (
        make(true, 0.8, n_classes=5, seed=(2, 0)) for make in (symmetric_labels, asymmetric_labels)
    )
    assert symmetric.tolist() == [1, 3, 3, 3, 0, 3, 3, 3, 3, 4]
    assert asymmetric.tolist() == [0, 1, 3, 3, 0, 0, 1, 3, 3, 0]


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


def test_bad_mapping_is_named():
    for mapping in ([1, 2], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"mapping must be integers, \(3,\)"):
            asymmetric_labels([0, 1], 0.5, n_classes=3, seed=0, mapping=mapping)
