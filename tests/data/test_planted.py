"""The planted dataset: quick, deterministic, and true to its own ground truth."""

import time

import numpy as np
import pytest

import nclib.data


def test_planted_is_fast_enough_for_tests():
    nclib.data.load("planted")
    start = time.process_time()
    nclib.data.load("planted")
    assert time.process_time() - start < 0.2


def test_same_seed_same_checksum_other_seed_other():
    a, b, c = (nclib.data.load("planted", seed=s) for s in (0, 0, 1))
    assert a.checksum == b.checksum != c.checksum
    assert np.array_equal(a.train.images, b.train.images)


def test_splits_do_not_depend_on_each_others_size():
    a = nclib.data.load("planted", n_train=8)
    b = nclib.data.load("planted", n_train=32)
    assert np.array_equal(a.test.images, b.test.images)
    assert np.array_equal(a.test.captions.tokens, b.test.captions.tokens)


def test_relevance_is_the_share_of_named_concepts():
    data = nclib.data.load("planted", n_test=20)
    test = data.test
    relevance = test.relevance()
    assert relevance.shape == (20, 100)
    assert relevance.dtype == np.float32
    assert np.allclose(relevance[test.image_of, np.arange(100)], 1.0)
    assert relevance.mean() < 0.5
    # by hand: the concepts of an image are those that its own five captions name, at least
    named = [{w[:-1] for w in test.captions.text(i).split()} for i in range(100)]
    known = [set().union(*named[5 * i : 5 * i + 5]) for i in range(20)]
    for i in range(20):
        for c in range(100):
            assert relevance[i, c] >= len(named[c] & known[i]) / len(named[c]) - 1e-6


def test_a_fragment_shows_the_concept_that_the_caption_names():
    data = nclib.data.load("planted", noise=0.0, n_train=50)
    train = data.train
    # without noise the same concept is the same vector: images of equal captions share fragments
    first = train.images[:, 0].round(5)
    labels = train.labels
    groups = {tuple(v): {labels[j] for j in np.flatnonzero((first == v).all(1))} for v in first}
    assert all(len(g) == 1 for g in groups.values())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"regions": 3}, ValueError, "regions=3: must be a whole number, at least 4"),
        ({"n_train": 0}, ValueError, "n_train"),
        ({"n_train": 2.5}, ValueError, "n_train=2.5: must be a whole"),
        ({"noise": -1.0}, ValueError, "noise"),
        ({"n_concepts": 3}, ValueError, "n_concepts"),
        ({"n_trian": 3}, TypeError, "did you mean 'n_train'"),
    ],
)
def test_bad_options_are_named(options, error, words):
    with pytest.raises(error, match=words):
        nclib.data.load("planted", **options)


def test_unknown_dataset_is_refused_with_a_hint():
    with pytest.raises(ValueError, match="did you mean 'planted'"):
        nclib.data.load("plnted")
    assert "planted" in nclib.data.available()
