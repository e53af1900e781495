"""Closed-form CCA and TF-IDF against other code and by their definitions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from nclib.common.cca import canonical, cross_fitted, fit_cca, folds_of, tf_idf, word_counts, word_weights


def views(n=400, d=6, e=9, seed=0):
    """Two views with three shared directions, and noise."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 3))
    x, t = (z @ rng.normal(size=(3, k)) + 0.5 * rng.normal(size=(n, k)) for k in (d, e))
    return x, t


def covariances(x, t, ridge):
    x, t = x - x.mean(0), t - t.mean(0)
    c = [x.T @ x / len(x), x.T @ t / len(x), t.T @ t / len(x)]
    for k in (0, 2):
        c[k] = c[k] + ridge * np.trace(c[k]) / len(c[k]) * np.eye(len(c[k]))
    return c


@pytest.mark.parametrize("turned", [False, True])
def test_maps_are_orthonormal_in_the_covariances_and_diagonalise_the_cross_covariance(turned):
    x, t = views()
    cxx, cxt, ctt = covariances(*((t, x) if turned else (x, t)), ridge=0.1)
    wx, wt, s = canonical(cxx, cxt, ctt)
    assert_allclose(wx.T @ cxx @ wx, np.eye(len(s)), atol=1e-9)
    assert_allclose(
        wt.T @ ctt @ wt, np.eye(len(s)), atol=1e-6
    )  # directions of no correlation are divided by it
    assert_allclose(wx.T @ cxt @ wt, np.diag(s), atol=1e-9)
    half = [np.linalg.inv(np.linalg.cholesky(c)) for c in (cxx, ctt)]
    assert_allclose(s, np.linalg.svd(half[0] @ cxt @ half[1].T)[1][: len(s)], atol=1e-9)


def test_tf_idf_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 20, size=k) for k in rng.integers(1, 12, size=60)]
    offsets = np.concatenate([[0], np.cumsum([len(w) for w in words])])
    counts = word_counts(np.concatenate(words), offsets, 20)
    assert_allclose(counts.toarray(), [np.bincount(w, minlength=20) for w in words])
    found = tf_idf(counts, word_weights(counts, least=1))
    assert_allclose(found.toarray(), TfidfTransformer(sublinear_tf=True).fit_transform(counts).toarray())


def test_rare_words_and_more_words_than_asked_for_have_no_weight():
    counts = sparse.csr_array(np.array([[1.0, 0, 1, 0], [2, 1, 0, 0], [1, 1, 0, 1]]))
    assert (word_weights(counts) > 0).tolist() == [True, True, False, False]
    assert (word_weights(counts, most=3, least=1) > 0).tolist() == [True, True, True, False]
    assert tf_idf(counts[[0]], word_weights(counts, most=1)).toarray().tolist() == [[1.0]]


def test_a_weight_counts_as_so_many_equal_pairs():
    x, t = views(60)
    of, weights = np.arange(60) % 40, np.arange(60) % 3
    again = np.repeat(np.arange(60), weights)
    one = fit_cca(x[:40], t, of, weights)
    other = fit_cca(x[:40], t[again], of[again])
    dense = fit_cca(x[:40], sparse.csr_array(t), of, weights)
    for cca in (other, dense):
        assert_allclose(cca.images(x) @ cca.texts(t).T, one.images(x) @ one.texts(t).T, atol=1e-8)


def test_pairs_that_do_not_vary_are_refused():
    x, t = views(20)
    with pytest.raises(ValueError, match="all equal"):
        fit_cca(np.ones((20, 3)), t)
    with pytest.raises(ValueError, match="no pair of 20 has a weight"):
        fit_cca(x, t, weights=np.zeros(20))


def test_a_fold_has_all_pairs_of_its_images_and_scores_are_of_other_folds():
    x, t = views(300)
    of = np.arange(300) // 3 * 3
    fold = folds_of(of, 4)
    assert all(len(set(fold[of == i])) == 1 for i in set(of))
    assert set(fold) == {0, 1, 2, 3}
    given, exchanged = cross_fitted(x, t, of, ridge=0.1)
    # Pairs of fold 0 are scored alike whatever these pairs are.
    other = t.copy()
    other[fold == 0] = other[fold == 0][::-1]
    unseen = fit_cca(x, t, of, 1.0 * (fold != 0), ridge=0.1, exponent=0.5)
    rows = fold == 0
    assert_allclose(given[rows], (unseen.images(x[of[rows]]) * unseen.texts(t[rows])).sum(1), atol=1e-9)
    again, _ = cross_fitted(x, other, of, ridge=0.1)
    assert_allclose(again[rows], (unseen.images(x[of[rows]]) * unseen.texts(other[rows])).sum(1), atol=1e-9)
    assert given.mean() > 0.15 > abs(exchanged.mean())
