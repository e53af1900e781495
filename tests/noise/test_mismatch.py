"""Mismatched pairs: exact counts, ground truth, and the published file formats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nclib.noise import PUBLISHED, Mismatch

N_IMAGES, P = 40, 5
TRUE = np.repeat(np.arange(N_IMAGES), P)


# ------------------------------------------------------------------------------------------------- drawing


@given(
    n=st.integers(2, 60), p=st.integers(1, 5), thousandths=st.integers(0, 1000), seed=st.integers(0, 2**32)
)
def test_images_move_whole_and_pairs_in_exact_number(n, p, thousandths, seed):
    rate, true = thousandths / 1000, np.repeat(np.arange(n), p)
    images, pairs = (Mismatch.draw(true, rate, seed=seed, protocol=name) for name in ("images", "pairs"))
    groups = images.image_of.reshape(n, p)
    assert (groups == groups[:, :1]).all()  # captions of an image stay together
    assert sorted(groups[:, 0]) == list(range(n))  # a permutation of the images
    assert images.moved <= thousandths * n // 1000 * p
    assert pairs.moved == thousandths * n * p // 1000  # of the decimal: 0.29 of 100 is 29, not 28
    for m in (images, pairs):
        np.testing.assert_array_equal(m.matched, m.image_of == true)
        assert m.moved == (~m.matched).sum()
        assert m.true_rate == m.moved / (n * p)


def test_pairs_keep_how_often_an_image_is_used():
    m = Mismatch.draw(TRUE, 1.0, seed=0, protocol="pairs")
    assert (np.bincount(m.image_of) == P).all()
    apart = [len(set(group)) for group in m.image_of.reshape(-1, P)]
    assert np.mean(apart) > 4  # captions of one image scatter
    for sizes in ([3, 3], [5, 3, 2], [4, 3, 2]):  # an image may have half of the captions
        noise = Mismatch.draw(np.repeat(np.arange(len(sizes)), sizes), 1.0, seed=0, protocol="pairs")
        assert np.bincount(noise.image_of).tolist() == sizes
        assert not noise.matched.any()


def test_a_dominant_image_still_gets_wrong_partners():
    m = Mismatch.draw(np.array([0] * 8 + [1, 2]), 1.0, seed=0, protocol="pairs")
    assert m.image_of.tolist() == [2, 1, 2, 1, 2, 2, 1, 2, 2, 1]


@given(
    n=st.integers(2, 60), p=st.integers(1, 3), thousandths=st.integers(0, 1000), seed=st.integers(0, 2**32)
)
def test_near_images_move_whole_and_each_within_its_group(n, p, thousandths, seed):
    true, features = np.repeat(np.arange(n), p), np.random.default_rng(seed).normal(size=(n, 5))
    near = Mismatch.draw(true, thousandths / 1000, seed=seed, protocol="near", features=features)
    groups = near.image_of.reshape(n, p)
    assert (groups == groups[:, :1]).all()
    assert sorted(groups[:, 0]) == list(range(n))
    chosen = thousandths * n // 1000
    assert near.moved == (chosen if chosen > 1 else 0) * p
    cycles = [_cycle(groups[:, 0], image) for image in range(n)]
    assert {len(c) for c in cycles} <= {1, *range(2, 16)}


def _cycle(partner, image):
    """Return the images that are reached from one image by following the exchanges."""
    cycle, at = [image], partner[image]
    while at != image:
        cycle.append(at)
        at = partner[at]
    return cycle


def test_near_images_look_alike():
    rng = np.random.default_rng(0)
    look = np.repeat(rng.normal(size=(25, 6)), 8, axis=0) + 1e-3 * rng.normal(size=(200, 6))  # 25 looks of 8
    near = Mismatch.draw(np.arange(200), 1.0, seed=0, protocol="near", features=10 * look)
    assert near.moved == 200
    assert (near.image_of // 8 == np.arange(200) // 8).all()
    again = Mismatch.draw(np.arange(200), 1.0, seed=1, protocol="near", features=look)
    assert (again.image_of // 8 == np.arange(200) // 8).all()
    assert (again.image_of != near.image_of).any()


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"protocol": "near"}, "not given"),
        ({"protocol": "images", "features": np.ones((N_IMAGES, 2))}, "'images'"),
        ({"protocol": "near", "features": np.ones((N_IMAGES - 1, 2))}, r"40.*\(39, 2\)"),
        ({"protocol": "near", "features": np.ones(N_IMAGES)}, r"\(40,\)"),
    ],
)
def test_features_are_for_near_alone(given, fault):
    with pytest.raises(ValueError, match=f"features.*{fault}"):
        Mismatch.draw(TRUE, 0.5, seed=0, **given)


# ---------------------------------------------------------------------------------------------- index files


def write(path, array):
    np.save(path, array, allow_pickle=False)
    return path


def test_image_level_file(tmp_path):
    drawn = Mismatch.draw(TRUE, 0.6, seed=0)
    path = write(tmp_path / "noise_inx_0.6.npy", drawn.image_of[::P])
    read = Mismatch.from_file(path, TRUE, captions_per_image=P)
    np.testing.assert_array_equal(read.image_of, drawn.image_of)
    np.testing.assert_array_equal(read.matched, drawn.matched)
    assert (read.protocol, read.rate, read.seed) == ("images", None, None)
    assert read.checksum == drawn.checksum
    assert "noise_inx_0.6.npy" in read.source


def test_published_file_is_recognised(tmp_path, monkeypatch):
    import hashlib

    path = write(tmp_path / "f.npy", TRUE)
    monkeypatch.setitem(PUBLISHED, hashlib.sha256(path.read_bytes()).hexdigest()[:16], ("L2RM f30k", 0.2))
    read = Mismatch.from_file(path, TRUE)
    assert read.rate == 0.2
    assert "published: L2RM f30k" in read.source


def test_missing_file_is_never_replaced(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing is drawn instead"):
        Mismatch.from_file(tmp_path / "no.npy", TRUE)


REPEATED = np.arange(N_IMAGES)
REPEATED[3] = 4
OUTSIDE = np.arange(N_IMAGES)
OUTSIDE[0] = N_IMAGES
UNEVEN = TRUE.copy()
UNEVEN[0] = 7


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (np.arange(N_IMAGES + 1), "fits neither format: the data have 40 images.*200 captions"),
        (np.arange(1000), "fits neither"),
        (REPEATED, "image row 3 is used 0 times, must be 1"),
        (OUTSIDE, "at most 39, got 1 to 40"),
        (np.arange(200), "at most 39, got 0 to 199"),
        (UNEVEN, "image row 0 is used 4 times, must be 5"),
        (-TRUE, "at least 0"),
        (TRUE.astype(float), "integers"),
        (TRUE.reshape(-1, P), "shape"),
    ],
)
def test_file_that_does_not_fit_is_refused(tmp_path, index, words):
    with pytest.raises(ValueError, match=words):
        Mismatch.from_file(write(tmp_path / "f.npy", index), TRUE)
