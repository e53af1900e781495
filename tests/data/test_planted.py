"""The planted dataset: quick, deterministic, and true to its own ground truth."""

import numpy as np

import nclib.data


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
