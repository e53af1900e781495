"""OSA's boundary and weights against worked numbers, a plain loop and the order of the cosine."""

import numpy as np
import pytest

import nclib
from nclib.auditing import Pairs
from nclib.auditing.neighbours import find_neighbours
from nclib.auditing.pairs import exchange
from nclib.auditing.scores import boundary, osa_weights

COSINES = np.array([0.31, 0.27, 0.22, 0.18], np.float32)


def pairs_of(n, width=16, shift=1.0, seed=0):
    """Pairs of which the last ten are wrong; pictures and captions lie in two cones, as in CLIP."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=width)
    images = rng.normal(size=(n, width))
    captions = images + 0.7 * rng.normal(size=(n, width)) + shift * common
    image_of = np.r_[np.arange(n - 10), np.roll(np.arange(n - 10, n), 1)]
    images = (images + shift * common).astype(np.float32)
    return Pairs(images, captions.astype(np.float32), image_of, [str(i) for i in range(n)])


def test_worked_weights():
    assert osa_weights(COSINES, 0.2) == pytest.approx([0.010769, 0.004557, 0.000392, 0], abs=1e-6)
    released = osa_weights(COSINES, 0.2, released=True)
    assert released == pytest.approx([0, 0.240967, 0.031965, 0], abs=1e-5)


def test_boundary_is_the_mean_of_exchanged_pairs():
    pairs = pairs_of(300)
    near = find_neighbours(pairs, 5)
    rows = np.arange(300)
    claimed = exchange(pairs, rows, np.random.default_rng(0))
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (pairs.images, pairs.captions))
    found = [float(x[claimed[i]] @ y[i]) for i in rows]
    beta = boundary(pairs, near)
    assert beta == pytest.approx(np.mean(found), abs=1e-6)
    error = np.std(found, ddof=1) / 300**0.5
    assert abs(beta - (x @ y.T)[~np.eye(300, dtype=bool)].mean()) < 4 * error
    assert beta > 10 * error  # a cone: random pairs are not orthogonal


def test_an_audit_with_it_finds_the_wrong_pairs():
    pairs = pairs_of(400, width=48, shift=0.5)
    audit = nclib.audit(pairs, score="osa", progress=False)
    assert audit.score == "osa"
    assert audit.check(pairs.image_of != np.arange(400))["auroc"] > 0.9
