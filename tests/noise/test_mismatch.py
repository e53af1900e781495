"""Mismatched pairs: exact counts, ground truth, and the published file formats."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nclib.noise import PROTOCOLS, PUBLISHED, Mismatch, mismatch

N_IMAGES, P = 40, 5
TRUE = np.repeat(np.arange(N_IMAGES), P)


def shares(rate, n):
    """floor(rate * n) of the decimal that was written."""
    whole = round(rate * 1000)
    return whole * n // 1000


# ------------------------------------------------------------------------------------------------- drawing


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60), p=st.integers(1, 5), thousandths=st.integers(0, 1000), seed=st.integers(0, 2**32)
)
def test_images_move_whole_and_among_themselves(n, p, thousandths, seed):
    rate, true = thousandths / 1000, np.repeat(np.arange(n), p)
    m = Mismatch.draw(true, rate, seed=seed, protocol="images")
    groups = m.image_of.reshape(n, p)
    assert (groups == groups[:, :1]).all()  # captions of an image stay together
    assert sorted(groups[:, 0]) == list(range(n))  # a permutation of the images
    assert m.n_selected == shares(rate, n) * p
    assert m.moved <= m.n_selected
    np.testing.assert_array_equal(m.matched, m.image_of == true)
    assert m.moved == (~m.matched).sum()
    assert m.true_rate == m.moved / (n * p)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60), p=st.integers(1, 5), thousandths=st.integers(0, 1000), seed=st.integers(0, 2**32)
)
def test_captions_exchange_their_images(n, p, thousandths, seed):
    rate, true = thousandths / 1000, np.repeat(np.arange(n), p)
    m = Mismatch.draw(true, rate, seed=seed, protocol="captions")
    assert m.n_selected == shares(rate, n * p)
    assert m.moved <= m.n_selected
    np.testing.assert_array_equal(np.sort(m.image_of), true)  # every image as often as before


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(2, 40), p=st.integers(1, 5), thousandths=st.integers(0, 1000), seed=st.integers(0, 2**32)
)
def test_pairs_are_exactly_as_many_as_asked(n, p, thousandths, seed):
    rate, true = thousandths / 1000, np.repeat(np.arange(n), p)
    m = Mismatch.draw(true, rate, seed=seed, protocol="pairs")
    assert m.moved == m.n_selected == shares(rate, n * p)
    assert m.image_of.min() >= 0
    assert m.image_of.max() < n


def test_pairs_keep_how_often_an_image_is_used():
    m = Mismatch.draw(TRUE, 1.0, seed=0, protocol="pairs")
    assert (np.bincount(m.image_of) == P).all()
    apart = [len(set(group)) for group in m.image_of.reshape(-1, P)]
    assert np.mean(apart) > 4  # captions of one image scatter
    for sizes in ([3, 3], [5, 3, 2], [4, 3, 2]):  # an image may have half of the captions
        noise = Mismatch.draw(np.repeat(np.arange(len(sizes)), sizes), 1.0, seed=0, protocol="pairs")
        assert np.bincount(noise.image_of).tolist() == sizes
        assert not noise.matched.any()


def test_pairs_are_drawn_evenly():
    true = np.arange(4)
    seen = np.zeros((4, 4), int)
    for seed in range(900):
        seen[true, mismatch(true, 1.0, seed=seed, protocol="pairs")] += 1
    assert (seen.diagonal() == 0).all()
    assert seen[~np.eye(4, dtype=bool)].min() > 240  # 300 expected, standard deviation 14
    assert seen.max() < 360


@pytest.mark.parametrize(
    ("protocol", "drawn"),
    [
        ("images", [1, 1, 1, 2, 2, 2, 0, 0, 0, 3, 3, 3, 4, 4, 4, 5, 5, 5]),
        ("captions", [3, 5, 0, 1, 0, 1, 4, 2, 5, 5, 4, 3, 1, 2, 2, 4, 0, 3]),
        ("pairs", [5, 1, 0, 1, 5, 1, 4, 3, 4, 0, 0, 3, 2, 5, 3, 2, 4, 2]),
    ],
)
def test_a_seed_names_the_same_pairs_for_ever(protocol, drawn):
    assert mismatch(np.repeat(np.arange(6), 3), 0.8, seed=3, protocol=protocol).tolist() == drawn


def test_a_dominant_image_still_gets_wrong_partners():
    true = np.array([0] * 8 + [1, 2])
    m = Mismatch.draw(true, 1.0, seed=0, protocol="pairs")
    assert m.image_of.tolist() == [2, 1, 2, 1, 2, 2, 1, 2, 2, 1]
    assert m.moved == 10
    assert set(m.image_of) <= {0, 1, 2}


def test_full_size_rates_are_near_the_nominal():
    true = np.repeat(np.arange(29_000), 5)
    images = Mismatch.draw(true, 0.2, seed=1)
    assert images.n_selected == 29_000
    assert 28_950 <= images.moved <= 29_000  # one fixed point expected
    captions = Mismatch.draw(true, 0.2, seed=1, protocol="captions")
    wrong = (~captions.matched).reshape(-1, 5).sum(1)
    assert (wrong == 5).sum() < 60  # nearly every image keeps a right caption; the image-level count is 5,800
    assert (~images.matched).reshape(-1, 5).sum(1).tolist().count(5) > 5_700


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rate_zero_changes_nothing(protocol):
    m = Mismatch.draw(TRUE, 0.0, seed=0, protocol=protocol)
    np.testing.assert_array_equal(m.image_of, TRUE)
    assert m.matched.all()


def test_one_image_has_no_wrong_one():
    with pytest.raises(ValueError, match="single image"):
        mismatch(np.zeros(5, int), 0.4, seed=0, protocol="pairs")


def test_decimal_rates_are_not_cut_short():
    assert Mismatch.draw(np.arange(100), 0.29, seed=0).n_selected == 29  # 0.29 * 100 is 28.999999999999996


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_seed_names_the_draw(protocol):
    a, b, c = (Mismatch.draw(TRUE, 0.5, seed=s, protocol=protocol) for s in (3, 3, 4))
    np.testing.assert_array_equal(a.image_of, b.image_of)
    assert a.checksum == b.checksum != c.checksum
    assert len(a.checksum) == 16
    assert len({a, b}) == 2  # told apart without comparing arrays
    np.testing.assert_array_equal(mismatch(TRUE, 0.5, seed=3, protocol=protocol), a.image_of)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_drawing_leaves_inputs_and_generators_alone(protocol):
    true, state = TRUE.copy(), np.random.get_state()[1].copy()  # noqa: NPY002
    mismatch(true, 0.5, seed=0, protocol=protocol)
    np.testing.assert_array_equal(true, TRUE)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_gaps_in_image_rows_are_kept():
    true = np.array([3, 3, 9, 9, 20, 20])
    for protocol in PROTOCOLS:
        assert set(mismatch(true, 1.0, seed=1, protocol=protocol)) <= {3, 9, 20}


def test_description_says_what_it_is():
    m = Mismatch.draw(TRUE, 0.6, seed=7)
    text = m.describe()
    for word in ("images", "0.6", "seed 7", m.checksum, f"{m.moved} of 200"):
        assert word in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": -0.1}, "rate=-0.1: must be a number, at least 0 and at most 1"),
        ({"rate": 1.01}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"rate": "0.2"}, "rate"),
        ({"rate": True}, "rate"),
        ({"protocol": "image"}, "protocol='image': must be one of 'images', 'captions', 'pairs'"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"image_of": np.zeros(0, int)}, r"image_of .* got shape \(0,\)"),
        ({"image_of": np.zeros((2, 2), int)}, r"image_of .* got shape \(2, 2\)"),
        ({"image_of": np.array([0.0, 1.0])}, "image_of must be integers.*got dtype float64"),
        ({"image_of": np.array([0, -1])}, "at least 0, got -1 to 0"),
    ],
)
def test_bad_arguments_are_named(options, words):
    given_ = {"image_of": TRUE, "rate": 0.2, "seed": 0, "protocol": "images"} | options
    with pytest.raises(ValueError, match=words):
        mismatch(given_.pop("image_of"), given_.pop("rate"), **given_)


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
    assert (read.protocol, read.rate, read.seed, read.n_selected) == ("images", None, None, None)
    assert read.checksum == drawn.checksum
    assert "noise_inx_0.6.npy" in read.source


def test_caption_level_file(tmp_path):
    for protocol, found in (("captions", "captions"), ("images", "images"), ("pairs", "captions")):
        drawn = Mismatch.draw(TRUE, 0.4, seed=0, protocol=protocol)
        read = Mismatch.from_file(write(tmp_path / "f.npy", drawn.image_of), TRUE, rate=0.4)
        np.testing.assert_array_equal(read.image_of, drawn.image_of)
        assert (read.protocol, read.rate, read.moved) == (found, 0.4, drawn.moved)
    apart = TRUE.copy()
    apart[[25, 35]] = 7, 5  # captions of the other images stay together
    assert Mismatch.from_file(write(tmp_path / "f.npy", apart), TRUE).protocol == "captions"


def test_save_and_read_back(tmp_path):
    drawn = Mismatch.draw(TRUE, 0.4, seed=0, protocol="captions")
    path = drawn.save(tmp_path / "deep" / "noise.npy")
    assert [p.name for p in path.parent.iterdir()] == ["noise.npy"]  # no temporary file stays
    read = Mismatch.from_file(path, TRUE)
    assert read.checksum == drawn.checksum
    drawn.save(path)  # replacing is fine
    with pytest.raises(ValueError, match=r"\.npy"):
        drawn.save(tmp_path / "noise.txt")


def test_failed_save_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="disk full"):
        Mismatch.draw(TRUE, 0.4, seed=0).save(tmp_path / "noise.npy")
    assert list(tmp_path.iterdir()) == []


def test_one_caption_per_image_reads_the_same_either_way(tmp_path):
    index = np.random.default_rng(0).permutation(30)
    read = Mismatch.from_file(write(tmp_path / "f.npy", index), np.arange(30), captions_per_image=1)
    np.testing.assert_array_equal(read.image_of, index)


def test_published_checksums_are_well_formed():
    assert len(PUBLISHED) == 18
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in PUBLISHED)
    rates = {who: [rate for name, rate in PUBLISHED.values() if name == who] for who, _ in PUBLISHED.values()}
    five, four = [0.2, 0.4, 0.5, 0.6, 0.8], [0.2, 0.4, 0.6, 0.8]
    assert rates == {
        "RCL/DECL f30k": five, "RCL/DECL coco": five, "L2RM f30k": four, "BiCro f30k": [0.2, 0.4, 0.5, 0.6]
    }  # fmt: skip


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
    assert list(tmp_path.iterdir()) == []


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


def test_ambiguous_file_is_refused(tmp_path):
    true = np.array([2, 0, 1, 3])  # one caption per image, in another order
    with pytest.raises(ValueError, match="ambiguous"):
        Mismatch.from_file(write(tmp_path / "f.npy", np.array([1, 0, 3, 2])), true)


def test_wrong_captions_per_image_is_refused(tmp_path):
    with pytest.raises(ValueError, match="captions_per_image is 4"):
        Mismatch.from_file(write(tmp_path / "f.npy", TRUE), TRUE, captions_per_image=4)


NO_INDEX = {
    "pickle": lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("0 1 2\n"),
    "cut": lambda path: (np.save(path, TRUE), os.truncate(path, 200)),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", NO_INDEX)
def test_what_is_no_array_is_refused_by_name(tmp_path, kind):
    NO_INDEX[kind](tmp_path / "f.npy")
    words = (
        "there is no noise-index file at" if kind == "folder" else r"f\.npy cannot be read as a \.npy file"
    )
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        Mismatch.from_file(tmp_path / "f.npy", TRUE)


def test_a_npz_file_is_refused_by_name(tmp_path):
    np.savez(tmp_path / "f.npz", TRUE)
    with pytest.raises(ValueError, match=r"f\.npz cannot be read .* not a \.npy file"):
        Mismatch.from_file(tmp_path / "f.npz", TRUE)


def test_a_saved_file_is_as_readable_as_any_other(tmp_path):
    noise = Mismatch.draw(np.arange(6), 0.5, seed=0)
    (tmp_path / "usual").touch()
    assert noise.save(tmp_path / "noise.npy").stat().st_mode == (tmp_path / "usual").stat().st_mode
