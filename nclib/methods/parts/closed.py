"""Division of pairs by a closed form: a cross-fitted CCA, and the mixture beside exchanged pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nclib.methods.base import AllPairs

Array = NDArray[np.float64]
FOLDS = 4  # parts of the images; each is scored by a fit of the others


class LinearDivision(NamedTuple):
    """Cross-fitted scores and P(clean) of all pairs, (N,), and the estimated share of wrong ones."""

    scores: Array
    p_clean: Array
    share: float


def weighted_words(pairs: AllPairs, words: int) -> tuple[Any, Array]:
    """Return the TF-IDF of the captions, sparse (N, e), and the weight of every token id.

    ``words`` is the number of frequent words that count; marks without letters are none.
    """
    from nclib.common.cca import tf_idf, word_counts, word_weights

    packed = pairs.captions
    counts = word_counts(packed.tokens, packed.offsets, packed.vocabulary.size)
    counts.data *= packed.vocabulary.is_word[counts.indices]
    counts.eliminate_zeros()
    weights = word_weights(counts, words)
    return tf_idf(counts, weights), weights


def linear_division(pairs: AllPairs, texts: Any, rounds: int = 3) -> LinearDivision:
    """Divide the pairs by the scores of a cross-fitted CCA, each pair alone.

    Each round weights the pairs of its fits by the P(clean) of the one before. Where the share of wrong pairs
    is estimated as 0, every pair keeps its weight, and no further round follows.

    Parameters
    ----------
    pairs : AllPairs
    texts : sparse array, (N, e)
        Of :func:`weighted_words`.
    rounds : int
    """
    from nclib.common.cca import cross_fitted
    from nclib.noise.exchange import beside_exchanged

    folds = min(FOLDS, len(np.unique(pairs.image_of)))
    division = LinearDivision(np.zeros(len(pairs.image_of)), np.ones(len(pairs.image_of)), 0.0)
    for _ in range(rounds if folds > 1 else 0):
        given, exchanged = cross_fitted(pairs.images, texts, pairs.image_of, division.p_clean, folds=folds)
        division = LinearDivision(given, *beside_exchanged(given, exchanged))
        if not division.share:
            break
    return division
