"""Ground-truth relevance: the share of a caption's statements that hold in a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from nclib.data.emoji.compose import MOST, TINTS
from nclib.data.emoji.grammar import RELATIONS, Lexicon, centres


class Relevance:
    """Comparison of captions with pictures, statement by statement.

    A caption states that some things are there (by name or keyword), for some neighbours how they lie to
    each other, and perhaps the colour of the background. A thing is there when any object of the picture
    bears that name or keyword; a relation holds when any two objects that bear the two words lie so:
    left, right, above and below by the sign of the distance of the centres along that axis, beside when the
    horizontal distance is the longer one. A statement made twice counts once.

    Parameters
    ----------
    scenes : ndarray of dtype ``SCENE``, (n_images,)
    facts : ndarray of dtype ``FACTS``, (n_captions,)
    lexicon : Lexicon
    """

    def __init__(self, scenes: np.ndarray, facts: np.ndarray, lexicon: Lexicon) -> None:
        self._scenes, self._facts, self._lexicon = scenes, facts, lexicon

    def __call__(self, image_rows: np.ndarray, caption_rows: np.ndarray) -> np.ndarray:
        """Return the share of true statements, float32 (image rows, caption rows)."""
        caption, stated = self._stated(np.asarray(self._facts[caption_rows]))
        codes, column = np.unique(stated, return_inverse=True)
        image, true = self._true(np.asarray(self._scenes[image_rows]), codes)
        at = np.minimum(np.searchsorted(codes, true), max(len(codes) - 1, 0))
        asked = codes[at] == true if len(codes) else np.zeros(len(true), bool)
        holds = _incidence(image[asked], at[asked], (len(image_rows), len(codes)))
        says = _incidence(caption, column, (len(caption_rows), len(codes)))
        share = (holds @ says.T).toarray()
        share /= np.maximum(np.diff(says.indptr), 1).astype(np.float32)
        return share

    # Statements are coded as integers: backgrounds first, then phrases, then relations.

    def _relation_code(self, first: np.ndarray, relation: np.ndarray, second: np.ndarray) -> np.ndarray:
        n = len(self._lexicon.phrases)
        return len(TINTS) + n + (first.astype(np.int64) * len(RELATIONS) + relation) * n + second

    def _stated(self, facts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tinted = np.flatnonzero(facts["tint"] >= 0)
        who, q = np.nonzero(facts["phrase"] >= 0)
        how, r = np.nonzero(facts["relation"] >= 0)
        related = self._relation_code(
            facts["phrase"][how, r], facts["relation"][how, r], facts["phrase"][how, r + 1]
        )
        rows = np.concatenate([tinted, who, how])
        codes = [facts["tint"][tinted], facts["phrase"][who, q].astype(np.int64) + len(TINTS), related]
        return rows, np.concatenate(codes)

    def _true(self, scenes: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        phrases_of, n_phrases = self._lexicon.phrases_of, self._lexicon.phrase_count
        there = np.arange(MOST) < scenes["count"][:, None]
        row, slot = np.nonzero(there)
        concept = scenes["concept"][row, slot]
        named, k = np.nonzero(phrases_of[concept] >= 0)
        rows = [np.arange(len(scenes)), row[named]]
        true = [scenes["tint"].astype(np.int64), phrases_of[concept[named], k].astype(np.int64) + len(TINTS)]
        if len(codes) and codes[-1] >= len(TINTS) + len(self._lexicon.phrases):
            centre = centres(scenes)
            gap = centre[:, :, None] - centre[:, None]  # (n, a, b, 2)
            x, y = gap[..., 0], gap[..., 1]
            lies = np.stack([x < 0, x > 0, y < 0, y > 0, np.abs(x) > np.abs(y)], -1)  # order of RELATIONS
            lies &= (there[:, :, None] & there[:, None] & ~np.eye(MOST, dtype=bool))[..., None]
            row, a, b, relation = np.nonzero(lies)
            first, second = scenes["concept"][row, a], scenes["concept"][row, b]
            pairs = n_phrases[first] * n_phrases[second]  # every way to call the two
            of = np.repeat(np.arange(len(row)), pairs)
            step = np.arange(pairs.sum()) - np.repeat(np.cumsum(pairs) - pairs, pairs)
            one, other = np.divmod(step, n_phrases[second[of]])
            rows.append(row[of])
            called = phrases_of[first[of], one], phrases_of[second[of], other]
            true.append(self._relation_code(called[0], relation[of], called[1]))
        return np.concatenate(rows), np.concatenate(true)


def _incidence(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Any:
    """Sparse matrix with 1 at the given places, however often they are given."""
    from scipy.sparse import csr_array

    matrix = csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix
