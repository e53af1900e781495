"""Words and their ids, with the special words and the JSON file of the official codes."""

from __future__ import annotations

import functools
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from nclib.common.files import write_atomically

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")


class Vocabulary:
    """A fixed list of words; the position in the list is the id.

    Parameters
    ----------
    words : sequence of str
        All words, the first four being ``<pad> <start> <end> <unk>``.
    tokenise : callable, str -> list of str, optional
        Splits a string into words. Default: lower case, split at white space.

    Raises
    ------
    ValueError
        When the special words are not the first four or a word occurs twice.

    Examples
    --------
    >>> words = Vocabulary.from_texts(["a dog runs", "a cat"])
    >>> words
    Vocabulary(8 words)
    >>> ids = words.encode("a dog sleeps")
    >>> ids, words.decode(ids)
    (array([1, 4, 6, 3, 2], dtype=int32), 'a dog <unk>')
    """

    rules = ""
    """Digest of how captions are cut, where that is not by the field's rules."""

    def __init__(
        self, words: Sequence[str], *, tokenise: Callable[[str], Sequence[str]] | None = None
    ) -> None:
        self.words: tuple[str, ...] = tuple(words)
        if self.words[:4] != SPECIAL:
            raise ValueError(f"words must begin with {' '.join(SPECIAL)}, got {self.words[:4]}")
        self._index = {word: i for i, word in enumerate(self.words)}
        if len(self._index) != len(self.words):
            twice = [w for w, n in Counter(self.words).items() if n > 1][:5]
            raise ValueError(f"words must be distinct, these occur more than once: {twice}")
        self._tokenise = tokenise if tokenise is not None else _split
        self.unknown_id, self._special = UNKNOWN, (PAD, START, END, UNKNOWN)

    @property
    def size(self) -> int:
        """Number of words, the four special ones included."""
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({self.size} words)"

    @functools.cached_property
    def is_word(self) -> np.ndarray:
        """Whether each id is a known word, bool (size,): not special, and not a mark without letters."""
        letters = np.array([_has_letters(word) for word in self.words])
        letters[list(self._special)] = False
        return letters

    def id(self, word: str) -> int:
        """Return the id of ``word``, or 3 (``<unk>``) when it is not known."""
        return self._index.get(word, UNKNOWN)

    def unknown(self, text: str) -> list[str]:
        """Return the words of a text that the vocabulary lacks, each once; marks without letters are none."""
        words = filter(_has_letters, self._tokenise(text))
        return list(dict.fromkeys(w for w in words if w not in self._index))

    def encode(self, text: str | Sequence[str]) -> np.ndarray:
        """Return the ids of a caption (or its words) from ``<start>`` to ``<end>``, int32 (words + 2,)."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Iterable[str | Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return many captions packed end to end.

        Returns
        -------
        tokens : ndarray, int32, (n_tokens,)
        offsets : ndarray, int64, (n_captions + 1,)
            Caption ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``.
        """
        get = self._index.get
        flat: list[int] = []
        ends = [0]
        for text in texts:
            words = self._tokenise(text) if isinstance(text, str) else text
            flat.append(START)
            flat.extend([get(w, UNKNOWN) for w in words])
            flat.append(END)
            ends.append(len(flat))
        return np.array(flat, np.int32), np.array(ends, np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words of ``ids``, joined by spaces, without ``<pad> <start> <end>``."""
        return " ".join(self.words[i] for i in map(int, ids) if i not in (PAD, START, END))

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str | Sequence[str]],
        *,
        min_count: int = 1,
        tokenise: Callable[[str], Sequence[str]] | None = None,
    ) -> Vocabulary:
        """Build a vocabulary from captions or word lists; words are sorted, so equal captions give equal ids.

        A word is kept when it occurs at least ``min_count`` times (4 in the field's files);
        ``tokenise`` as for the class.
        """
        split = tokenise if tokenise is not None else _split
        count: Counter[str] = Counter()
        for text in texts:
            count.update(split(text) if isinstance(text, str) else text)
        kept = sorted(w for w, n in count.items() if n >= min_count and w not in SPECIAL)
        return cls((*SPECIAL, *kept), tokenise=tokenise)

    @classmethod
    def from_json(
        cls, path: str | os.PathLike[str], *, tokenise: Callable[[str], Sequence[str]] | None = None
    ) -> Vocabulary:
        """Read ``{"word2idx", "idx2word", "idx"}``, the vocabulary file of the field's loaders.

        Another content, or maps that disagree, are a ValueError.
        """
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf8"))
            index = {str(w): int(i) for w, i in data["word2idx"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: not a vocabulary file with keys word2idx, idx2word, idx") from error
        words = sorted(index, key=index.__getitem__)
        n = len(words)
        if [index[word] for word in words] != list(range(n)) or data.get("idx", n) != n:
            raise ValueError(f"{path}: word2idx must use every id from 0 to {n - 1} once, and idx be {n}")
        back = data.get("idx2word", {})
        if not isinstance(back, dict) or any(back.get(str(i), word) != word for i, word in enumerate(words)):
            raise ValueError(f"{path}: idx2word must map ids to words as word2idx maps words to ids")
        return cls(words, tokenise=tokenise)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as the field's loaders read it; the file appears whole or not at all."""
        data = {
            "word2idx": self._index,
            "idx2word": {str(i): w for i, w in enumerate(self.words)},
            "idx": self.size,
        }
        write_atomically(path, json.dumps(data, ensure_ascii=False))


def _has_letters(word: str) -> bool:
    return any(c.isalnum() or unicodedata.category(c) == "So" for c in word)  # or an emoji


def _split(text: str) -> list[str]:
    return text.lower().split()
