"""Captions of scenes, written by a small grammar for a whole block at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nclib.data.emoji.compose import BLOCK, MOST, TINTS, stream
from nclib.data.vocabulary import END, SPECIAL, START, Vocabulary

CAPTIONS_PER_IMAGE = 5
P_MENTION = 0.85  # each object, at least two
LEAST = 2
P_KEYWORD = 0.35  # an object is called by a keyword instead of its name
P_RELATION = 0.25  # neighbours in the caption are joined by where they are
P_TINT = 0.3  # the background is named
JOINS = ("and", "with")
RELATIONS = ("left", "right", "above", "below", "beside")
# Wordings of the relation along the longer axis; "beside" says less than left or right.
WORDINGS = (
    (("left", "of"), ("beside",)),
    (("right", "of"), ("beside",)),
    (("above",), ("over",)),
    (("below",), ("under",)),
)
LEFT, RIGHT, ABOVE, BELOW, BESIDE = range(len(RELATIONS))
SAYS = np.array([[LEFT, BESIDE], [RIGHT, BESIDE], [ABOVE, ABOVE], [BELOW, BELOW]], np.int8)
ARTICLES = ("a", "an")
FACTS = np.dtype(
    [
        ("phrase", "<i2", MOST),  # objects in the caption's order, -1 beyond the last
        ("relation", "i1", MOST - 1),  # of phrase q to phrase q + 1, -1 when none is stated
        ("tint", "i1"),  # -1 when it is not named
    ]
)


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Phrases of the K concepts and the vocabulary that spells them."""

    phrases: tuple[str, ...]  # all names and keywords as captions have them
    phrases_of: np.ndarray  # int16, (K, most): the name, then keywords, then -1
    vocabulary: Vocabulary  # every word that the grammar can write
    spelling: np.ndarray  # int32, (phrases, 3): article, first and second word (0 when there is none)

    @functools.cached_property
    def phrase_count(self) -> np.ndarray:
        """Phrases per concept, int64 (K,)."""
        return (self.phrases_of >= 0).sum(1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the K concepts as captions have them."""
        return tuple(self.phrases[p] for p in self.phrases_of[:, 0])


def make_lexicon(
    names: tuple[str, ...], keywords: tuple[tuple[str, ...], ...], wording: Mapping[str, str]
) -> Lexicon:
    """Build the lexicon of K concepts from names and keywords of one or two words.

    ``wording`` maps a word to the one that captions have in its place. It decides no id: ids follow the order
    of the given words, so another wording leaves tokens, and what was learned from them, as they were.

    Raises
    ------
    ValueError
        When two words would be written alike.
    """
    own = [(name, *more) for name, more in zip(names, keywords, strict=True)]
    given = sorted({phrase for group in own for phrase in group})
    index = {phrase: i for i, phrase in enumerate(given)}
    phrases_of = np.full((len(own), max(map(len, own))), -1, np.int16)
    for k, group in enumerate(own):
        phrases_of[k, : len(group)] = [index[phrase] for phrase in group]
    function_words = {*JOINS, *ARTICLES, "on", *(w for pair in WORDINGS for form in pair for w in form)}
    content_words = {word for phrase in given for word in phrase.split()}
    ordered = sorted(function_words | content_words | set(TINTS))
    vocabulary = Vocabulary((*SPECIAL, *(wording.get(word, word) for word in ordered)))
    phrases = tuple(" ".join(wording.get(word, word) for word in phrase.split()) for phrase in given)
    spelling = np.zeros((len(phrases), 3), np.int32)
    for i, phrase in enumerate(phrases):
        spelled = [_article(phrase), *phrase.split()]
        spelling[i, : len(spelled)] = [vocabulary.id(word) for word in spelled]
    return Lexicon(phrases, phrases_of, vocabulary, spelling)


def _article(phrase: str) -> str:
    sounds_like_y = phrase.startswith(("uni", "uku", "eu"))
    return ARTICLES[phrase[0] in "aeiou" and not sounds_like_y]


def centres(scenes: np.ndarray) -> np.ndarray:
    """Centres of the objects of scenes, (n,), in half pixels: int64 (n, 4, 2), 0 beyond the last object."""
    xy = np.stack([scenes["x"], scenes["y"]], -1).astype(np.int64)
    return 2 * xy + scenes["size"][..., None]


def write_captions(
    scenes: np.ndarray, lexicon: Lexicon, *, seed: int, split: str, block: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Write five captions for every picture of a block of scenes, (1000,).

    Returns
    -------
    tokens : ndarray, int32, (n_tokens,)
    lengths : ndarray, int64, (5000,)
    facts : ndarray of dtype ``FACTS``, (5000,)
        What each caption states.
    """
    rng = stream(seed, split, block, 2)
    n = BLOCK * CAPTIONS_PER_IMAGE
    scene = np.repeat(scenes, CAPTIONS_PER_IMAGE)
    there = np.arange(MOST) < scene["count"][:, None]  # (n, 4)

    # 1. objects to name, and their order
    luck = np.where(there, rng.random((n, MOST)), np.inf)
    told = luck < P_MENTION
    told |= (luck.argsort(1).argsort(1) < LEAST) & (told.sum(1, keepdims=True) < LEAST)
    order = np.where(told, rng.random((n, MOST)), np.inf).argsort(1)
    told = np.take_along_axis(told, order, 1)  # now the first ones of each row

    # 2. words for them
    concept = np.take_along_axis(scene["concept"], order, 1)  # (n, 4)
    keywords = lexicon.phrase_count[concept] - 1
    by_keyword = (rng.random((n, MOST)) < P_KEYWORD) & (keywords > 0)
    which = np.where(by_keyword, 1 + rng.integers(0, np.maximum(keywords, 1)), 0)
    phrase = lexicon.phrases_of[concept, which]
    naming = np.where(told[..., None], lexicon.spelling[phrase], 0)  # (n, 4, 3)

    # 3. joins or relations between neighbours
    centre = np.take_along_axis(centres(scene), order[..., None], 1)  # (n, 4, 2)
    gap = centre[:, :-1] - centre[:, 1:]  # earlier minus later object, (n, 3, 2)
    sideways = np.abs(gap[..., 0]) > np.abs(gap[..., 1])
    axis = np.where(sideways, np.where(gap[..., 0] < 0, 0, 1), np.where(gap[..., 1] < 0, 2, 3))
    form = rng.integers(2, size=axis.shape)
    stated = (rng.random(axis.shape) < P_RELATION) & told[:, 1:]
    wording = np.zeros((len(WORDINGS), 2, 2), np.int32)
    for a, pair in enumerate(WORDINGS):
        for f, words in enumerate(pair):
            wording[a, f, : len(words)] = [lexicon.vocabulary.id(w) for w in words]
    joins = np.array([[lexicon.vocabulary.id(w), 0] for w in JOINS], np.int32)
    joining = np.where(stated[..., None], wording[axis, form], joins[rng.integers(2, size=axis.shape)])
    joining = np.where(told[:, 1:, None], joining, 0)  # (n, 3, 2)

    # 4. the background
    tint = np.where(rng.random(n) < P_TINT, scene["tint"], -1)
    on = np.array(
        [[lexicon.vocabulary.id("on"), lexicon.vocabulary.id(t)] for t in TINTS] + [[0, 0]], np.int32
    )

    edge = np.full((n, 1), START, np.int32)
    joining = np.concatenate([np.zeros((n, 1, 2), np.int32), joining], 1)  # nothing before the first object
    middle = np.concatenate([joining, naming], 2).reshape(n, -1)  # (n, 4 * 5)
    grid = np.concatenate([edge, middle, on[tint], np.full_like(edge, END)], 1)
    facts = np.empty(n, FACTS)
    facts["phrase"] = np.where(told, phrase, -1)
    facts["relation"] = np.where(stated, SAYS[axis, form], -1)
    facts["tint"] = tint
    return grid[grid > 0], (grid > 0).sum(1), facts
