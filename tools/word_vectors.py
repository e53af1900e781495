"""Vectors of a vocabulary's words, read from text files of word vectors such as those of GloVe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

LARGEST = 4096  # numbers of a vector; a longer line is of another kind of file


def _spellings(word: str) -> Iterator[str]:
    """Yield a word, the word without hyphens, points and quotes, and its part before a slash."""
    yield word
    plain = re.sub(r"[-.']", "", word)
    yield plain
    yield plain.split("/")[0]


def read_vectors(path: str | Path, words: Sequence[str], *, progress: bool = False) -> np.ndarray:
    """Return the vectors of words, NaN for words that the file lacks.

    A word that is not there takes the vector of its spelling without hyphens, points and quotes, or of its
    part before a slash, as in the official code of VSE-infinity and OMIT.

    Parameters
    ----------
    path : path
        Text file, UTF-8, with a word and its numbers per line, parted by spaces, as GloVe and fastText
        publish them; a first line with two counts is passed over.
    words : sequence of str
        The vocabulary in the order of its ids.
    progress : bool
        Show a bar.

    Returns
    -------
    ndarray, float32, (words, dim)

    Raises
    ------
    ValueError
        When lines differ in length, hold something that is not a number, or no word is known.
    OSError
        When the file cannot be read.
    """
    path = Path(path)
    asked: dict[str, list[tuple[int, int]]] = {}  # spelling -> (id, how far it is from the word)
    for i, word in enumerate(words):
        for distance, spelling in enumerate(_spellings(word)):
            asked.setdefault(spelling, []).append((i, distance))
    nearest, found, dim = np.full(len(words), 3), np.empty((0, 0), np.float32), 0
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, disable=not progress, desc=path.name)
    with path.open("rb") as file, bar:
        for number, raw in enumerate(file, 1):
            bar.update(len(raw))
            parts = raw.decode("utf8", "replace").rstrip().split(" ")
            if number == 1 and len(parts) == 2:
                continue
            if not dim:
                dim = len(parts) - 1
                if not 1 <= dim <= LARGEST:
                    raise ValueError(
                        f"{path}, line {number}: must be a word and its numbers, got {raw[:60]!r}"
                    )
                found = np.full((len(words), dim), np.nan, np.float32)
            if len(parts) <= dim:
                raise ValueError(f"{path}, line {number}: has {len(parts) - 1} numbers, earlier ones {dim}")
            # Words of GloVe's largest file may hold spaces.
            for i, distance in asked.get(" ".join(parts[:-dim]), ()):
                if distance < nearest[i]:
                    try:
                        vector = np.array(parts[-dim:], np.float32)
                    except ValueError:
                        vector = found[i] * np.nan
                    if not np.isfinite(vector).all():
                        raise ValueError(f"{path}, line {number}: holds what is not a finite number")
                    nearest[i], found[i] = distance, vector
    if (nearest == 3).all():
        raise ValueError(f"{path} holds none of the {len(words):,} words; is it a text file of word vectors?")
    return found
