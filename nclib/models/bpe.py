"""Byte-pair encoding as CLIP cuts words (Sennrich et al., ACL 2016), from a local file of merges."""

from __future__ import annotations

import gzip
import html
import itertools
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from nclib.models.text_transformer import table

CONTRACTION = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
RUN = re.compile("L+|N|P+|_+")
"""What stands together: letters, one digit, other marks, white space (as classes of characters)."""


def byte_characters() -> dict[int, str]:
    """Return a printable character for each byte, in the order of the vocabulary.

    Bytes that print in Latin-1 stand for themselves and come first, the others for characters from U+0100 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _kind(character: str) -> str:
    if character.isspace():
        return "_"
    kind = unicodedata.category(character)[0]
    return kind if kind in "LN" else "P"


def split_text(text: str) -> list[str]:
    """Cut a text into runs of letters, single digits, runs of other marks, and English endings as in ``'s``.

    Examples
    --------
    >>> split_text("two dogs' bowls: it's 10!")
    ['two', 'dogs', "'", 'bowls', ':', 'it', "'s", '1', '0', '!']
    """
    kinds, parts, start = "".join(map(_kind, text)), [], 0
    while start < len(text):
        found = CONTRACTION.match(text, start) or RUN.match(kinds, start)
        assert found is not None  # every character is of one of the four classes
        if kinds[start] != "_":
            parts.append(text[start : found.end()])
        start = found.end()
    return parts


class BytePairs:
    """The pieces of CLIP's vocabulary: bytes, bytes that end a word, merges, start and end of a text.

    Parameters
    ----------
    merges : iterable of (str, str)
        Pairs to join, the most frequent first.

    Attributes
    ----------
    ids : dict of str to int
        Pieces and their ids.
    start, end : int
        Ids of start and end of a text, the last two.
    """

    def __init__(self, merges: Iterable[tuple[str, str]]) -> None:
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.character = byte_characters()
        letters = self.character.values()
        pieces = [*letters, *(letter + "</w>" for letter in letters), *map("".join, self.rank)]
        self.ids = {piece: i for i, piece in enumerate(pieces)}
        self.start, self.end = len(pieces), len(pieces) + 1

    @classmethod
    def read(cls, file: str, vocab_size: int) -> BytePairs:
        """Read as many merges as a vocabulary of this size has.

        Parameters
        ----------
        file : str
            Text, one pair a line after a line of comment, or the same compressed (``.gz``), such as
            ``bpe_simple_vocab_16e6.txt.gz``.
        vocab_size : int
            Pieces of the tower: 514 more than merges.

        Raises
        ------
        ValueError
            If there is no such file, or it has fewer merges or something else.
        """
        path, number = Path(file), vocab_size - 514
        if not path.is_file():
            raise ValueError(f"text_merges={file!r}: there is no such file")
        if number < 0:
            raise ValueError(
                f"text_merges={file!r} does not fit: the text tower has {vocab_size} pieces, bytes alone "
                "are 514; its ids must be the data's"
            )
        raw = path.read_bytes()
        lines = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf8").split("\n")
        pairs = [tuple(line.split()) for line in lines[1 : number + 1]]
        wrong = next((i for i, pair in enumerate(pairs, 2) if len(pair) != 2), None)
        if wrong is not None or len(pairs) < number or len(set(pairs)) < number:
            raise ValueError(
                f"text_merges={file!r} must have a line of comment and then {number} different pairs, one a "
                f"line, for the {vocab_size} pieces of the text tower; "
                + (f"it has {len(set(pairs))}" if wrong is None else f"line {wrong} is no pair")
            )
        return cls((first, second) for first, second in pairs)

    def pieces(self, text: str) -> list[str]:
        """Cut a text into pieces: cleaned of HTML, in lower case, word by word.

        Mojibake is not repaired, as CLIP's own tokeniser does with a library.
        """
        text = unicodedata.normalize("NFC", html.unescape(html.unescape(text)))
        parts = split_text(" ".join(text.split()).lower())
        return [piece for part in parts for piece in self._join(part)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of the pieces of a text, without start and end."""
        return [self.ids[piece] for piece in self.pieces(text)]

    def _join(self, part: str) -> list[str]:
        """Join the bytes of a run, always the pair of least rank, at all its places from the left."""
        word = [self.character[byte] for byte in part.encode("utf8")]
        word[-1] += "</w>"
        while len(word) > 1:
            best = min(itertools.pairwise(word), key=lambda pair: self.rank.get(pair, len(self.rank)))
            if best not in self.rank:
                break
            joined: list[str] = []
            for piece in word:
                # A piece just joined is longer than the first of the pair: it is not joined twice.
                if joined and (joined[-1], piece) == best:
                    joined[-1] += piece
                else:
                    joined.append(piece)
            word = joined
        return word

    def table(self, words: Iterable[str]) -> Tensor:
        """Ids of the pieces of each of the data's words, (V, most pieces of a word), -1 beyond the last.

        ``<start>`` and ``<end>`` are those of the tower; ``<pad>`` and ``<unk>`` have no piece.
        """
        special = {"<start>": [self.start], "<end>": [self.end], "<pad>": [], "<unk>": []}
        return table([special[word] if word in special else self.encode(word) for word in words])
