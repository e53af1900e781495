"""Captions cut by the tokeniser of a pretrained transformer: WordPieces of BERT, byte pairs of CLIP."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from nclib.common.files import digest
from nclib.common.transformers import load_tokenizer
from nclib.data.vocabulary import Vocabulary


class Pieces(Vocabulary):
    """The pieces of a pretrained transformer, with its own ids; captions begin and end as it was trained.

    Parameters
    ----------
    folder : path
        Folder with the tokeniser's files beside the weights, or a name in the hub's cache.

    Raises
    ------
    ValueError
        If the library ``transformers`` or a file is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        self._cut = load_tokenizer(self.folder, "pieces", "cutting captions")
        n = len(self._cut)
        self.words = tuple(self._cut.convert_ids_to_tokens(range(n)))
        self._index = {word: i for i, word in enumerate(self.words)}
        self.rules = digest([type(self._cut).__name__, self._cut.backend_tokenizer.to_str()])
        self._special = tuple(self._cut.all_special_ids)
        unknown = self._cut.unk_token_id
        self.unknown_id = -1 if unknown in (None, self._cut.eos_token_id) else unknown  # CLIP has all bytes

    def __repr__(self) -> str:
        return f"Pieces({self.size} of {self.folder})"

    def id(self, word: str) -> int:
        """Return the id of a piece, or that of an unknown one."""
        return self._index.get(word, self._cut.unk_token_id)

    def encode_all(self, texts: Iterable[str | Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return many captions packed end to end, as :meth:`Vocabulary.encode_all`; long ones are cut."""
        given = [text if isinstance(text, str) else " ".join(text) for text in texts]
        rows = self._cut(given, truncation=True)["input_ids"] if given else []
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return np.fromiter((i for row in rows for i in row), np.int32, ends[-1]), ends

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids``, without the pieces that begin and end it."""
        return str(self._cut.decode(list(map(int, ids)), skip_special_tokens=True))

    def unknown(self, text: str) -> list[str]:
        """Return the words of a text that hold an unknown piece, each once."""
        return [w for w in dict.fromkeys(text.split()) if self.unknown_id in self.encode(w).tolist()]

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Raise a ValueError: the tokeniser's own files hold the pieces, and how captions are cut."""
        raise ValueError(
            f"{path}: pieces are not written as a vocabulary file; the tokeniser's files in {self.folder} "
            "hold them"
        )
