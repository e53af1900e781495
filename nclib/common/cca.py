r"""Regularised canonical correlation analysis in closed form, and TF-IDF; NumPy and SciPy alone.

CCA finds maps :math:`W_x, W_t` of two views for which :math:`W_x^\top (\Sigma_{xx} + r_x I) W_x = I`, the
same for t, and :math:`W_x^\top \Sigma_{xt} W_t` is diagonal with the largest possible entries :math:`s`.
Wrong pairs that are drawn at random scale :math:`\Sigma_{xt}` by the share of right ones and leave its
singular vectors (Nakada et al., AISTATS 2023, arXiv:2302.06232), so that a fit of all pairs withstands many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cholesky, eigh, solve_triangular

Array = NDArray[np.float64]
#: Length that no vector falls below when it is scaled to 1, and variance that counts as none.
TINY = 1e-12


def word_counts(tokens: NDArray[Any], offsets: NDArray[Any], n_words: int) -> Any:
    """Count the words of captions that are packed end to end, as in :class:`nclib.data.dataset.Captions`.

    Parameters
    ----------
    tokens : ndarray of int, (n_tokens,)
        Ids below ``n_words``.
    offsets : ndarray of int, (n_captions + 1,)
    n_words : int

    Returns
    -------
    scipy.sparse.csr_array, float64, (n_captions, n_words)
    """
    counts = sparse.csr_array((np.ones(len(tokens)), tokens, offsets), (len(offsets) - 1, n_words), copy=True)
    counts.sum_duplicates()  # in place, hence the copy
    return counts


def word_weights(counts: Any, most: int = 4096, least: int = 2) -> Array:
    """Return the inverse document frequencies of words: ln((1 + n) / (1 + n_w)) + 1; 0 of words left out.

    Parameters
    ----------
    counts : sparse array, (n, n_words)
        Of the n captions that the weights are made from, n_w of which have word w.
    most, least : int
        The ``most`` frequent words that ``least`` captions have; of equally frequent ones the lower ids.

    Returns
    -------
    ndarray, float64, (n_words,)
    """
    having = np.bincount(counts.indices, minlength=counts.shape[1])
    kept = np.argsort(-having, kind="stable")[:most]
    kept = kept[having[kept] >= least]
    weights = np.zeros(counts.shape[1])
    weights[kept] = np.log((1 + counts.shape[0]) / (1 + having[kept])) + 1
    return weights


def tf_idf(counts: Any, weights: Array) -> Any:
    """Return unit rows of (1 + ln count) times the weight of the word, without the words of weight 0.

    Parameters
    ----------
    counts : sparse array, (n, n_words)
    weights : ndarray, (n_words,)
        Of :func:`word_weights`.

    Returns
    -------
    scipy.sparse.csr_array, float64, (n, words with a weight)
        A row is 0 where the caption has none of these words.
    """
    kept = np.flatnonzero(weights)
    weighted = counts[:, kept].copy()
    weighted.data = (1 + np.log(weighted.data)) * weights[kept][weighted.indices]
    length = np.sqrt(np.asarray((weighted * weighted).sum(1)).ravel())
    weighted.data /= np.repeat(np.maximum(length, TINY), np.diff(weighted.indptr))
    return weighted


def canonical(cxx: Array, cxt: Array, ctt: Array) -> tuple[Array, Array, Array]:
    """Solve CCA for covariances that hold their ridges already.

    Parameters
    ----------
    cxx, cxt, ctt : ndarray, float64, (d, d), (d, e) and (e, e)
        The first and the last positive definite.

    Returns
    -------
    wx, wt : ndarray, (d, k) and (e, k)
        Maps, strongest correlation first; k = min(d, e).
    s : ndarray, (k,)
        Their correlations.
    """
    if len(cxx) > len(ctt):
        wt, wx, s = canonical(ctt, cxt.T, cxx)
        return wx, wt, s
    lx, lt = cholesky(cxx, lower=True), cholesky(ctt, lower=True)
    k = solve_triangular(lt, solve_triangular(lx, cxt, lower=True).T, lower=True)  # (e, d)
    values, u = eigh(k.T @ k)  # of the smaller side: no singular vectors of the larger one are needed
    values, u = values[::-1], u[:, ::-1]
    s = np.sqrt(np.maximum(values, TINY**2))
    wx = solve_triangular(lx, u, lower=True, trans="T")
    wt = solve_triangular(lt, k @ u / s, lower=True, trans="T")
    return wx, wt, s


class CCA(NamedTuple):
    """Fitted maps of two views into one space, in which cosine compares.

    Parameters
    ----------
    image_mean, text_mean : ndarray, (d,) and (e,)
    image_map, text_map : ndarray, (d, k) and (e, k)
        With the columns scaled by their correlations.
    correlations : ndarray, (k,)
    """

    image_mean: Array
    text_mean: Array
    image_map: Array
    text_map: Array
    correlations: Array

    def images(self, x: Array) -> Array:
        """Return the unit vectors of images (n, d), float64 (n, k)."""
        return _unit(x @ self.image_map - self.image_mean @ self.image_map)

    def texts(self, t: Any) -> Array:
        """Return the unit vectors of texts (n, e), sparse or dense, float64 (n, k)."""
        return _unit(t @ self.text_map - self.text_mean @ self.text_map)


def fit_cca(
    images: Array,
    texts: Any,
    image_of: NDArray[Any] | None = None,
    weights: Array | None = None,
    *,
    ridge: float = 1.0,
    exponent: float = 0.75,
) -> CCA:
    """Fit a regularised CCA to weighted pairs of images and texts.

    Parameters
    ----------
    images : ndarray, float64, (m, d)
    texts : sparse or dense array, float64, (n, e)
        Of :func:`tf_idf`, or any vectors.
    image_of : ndarray of int, (n,), optional
        Row of ``images`` that each text is paired with; by default that of its own number.
    weights : ndarray, (n,), optional
        Weights of the pairs, not negative; by default 1.
    ridge : float above 0
        Added to the variances, in units of their mean in each view.
    exponent : float
        Axes are scaled by their correlations to this power.

    Returns
    -------
    CCA

    Raises
    ------
    ValueError
        Where the pairs with a weight do not vary.
    """
    n = texts.shape[0]
    of = np.arange(n) if image_of is None else np.asarray(image_of)
    w = np.ones(n) if weights is None else np.asarray(weights, np.float64)
    total = w.sum()
    if not total > TINY:
        raise ValueError(f"no pair of {n} has a weight: there is nothing to fit a CCA to")
    of_image = np.bincount(of, w, minlength=len(images))  # (m,) weight of each image
    mx, mt = of_image @ images / total, texts.T @ w / total
    x = images - mx
    cxx = (x * of_image[:, None]).T @ x / total
    ctt = _dense(texts.T @ (sparse.diags_array(w) @ texts)) / total - np.outer(mt, mt)
    pairs = sparse.csr_array((w, (of, np.arange(n))), (len(images), n))
    cxt = _dense((pairs @ texts).T @ x).T / total  # x is centred, so the mean of the texts adds nothing
    for c in (cxx, ctt):
        if not (mean := float(np.trace(c)) / len(c)) > TINY**2:
            raise ValueError(
                "images or texts of the weighted pairs are all equal: a CCA needs some that differ"
            )
        c[np.diag_indices(len(c))] += ridge * mean
    wx, wt, s = canonical(cxx, cxt, ctt)
    return CCA(mx, mt, wx * s**exponent, wt * s**exponent, s)


def folds_of(image_of: NDArray[Any], folds: int) -> NDArray[np.int64]:
    """Return the fold of each pair, (n,): that of its image, which is drawn with a fixed seed."""
    seen, at = np.unique(image_of, return_inverse=True)
    return (np.random.default_rng(0).permutation(len(seen)) % folds)[at]


def cross_fitted(
    images: Array,
    texts: Any,
    image_of: NDArray[Any],
    weights: Array | None = None,
    *,
    folds: int = 4,
    ridge: float = 4.0,
    exponent: float = 0.5,
) -> tuple[Array, Array]:
    """Score every pair, and every text with an image of another pair, by a CCA that saw neither image.

    Parameters
    ----------
    images, texts, image_of, weights, ridge, exponent
        As of :func:`fit_cca`.
    folds : int, at least 2
        Parts of the images; each is scored by the CCA of the others' pairs.

    Returns
    -------
    given, exchanged : ndarray, float64, (n,), in [-1, 1]
        Cosine of each pair as it is given, and of its text with an image drawn from the pairs of its fold.
    """
    w = np.ones(len(image_of)) if weights is None else weights
    given, exchanged = np.zeros(len(image_of)), np.zeros(len(image_of))
    for rows, others, rng in _parts(image_of, folds):
        cca = fit_cca(images, texts, image_of, w * others, ridge=ridge, exponent=exponent)
        v, t = cca.images(images[image_of[rows]]), cca.texts(texts[rows])
        given[rows] = (v * t).sum(1)
        exchanged[rows] = (v[rng.permutation(len(rows))] * t).sum(1)
    return given, exchanged


def _parts(image_of: NDArray[Any], folds: int) -> Iterator[tuple[Any, Any, np.random.Generator]]:
    """Yield the pairs of each fold, a mark of all other pairs, and a generator of draws."""
    fold = folds_of(image_of, folds)
    for k in range(folds):
        yield np.flatnonzero(fold == k), fold != k, np.random.default_rng(k)


def _dense(x: Any) -> Array:
    return x.toarray() if sparse.issparse(x) else x


def _unit(x: Array) -> Array:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), TINY)
