"""OMIT's text encoders, its random changes of captions in training, and word vectors from a local file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nclib.common.tokens import Tokens
from nclib.models.encoders import TextEncoder
from nclib.models.pretrained import PretrainedText, load_tokenizer
from nclib.models.vse_inf import keep_rows

MASKED, REPLACED, DELETED = 0.10, 0.02, 0.08
"""Shares of tokens that become the mask word, become a random word, or vanish (Sec. 4.1)."""

SHORTEST = 5
"""Captions with fewer words, start and end not counted, stay unchanged before a GRU (official code)."""


def gru_with_mask(vocab_size: int, embed_dim: int, word_dim: int, *, word_vectors: str = "") -> TextEncoder:
    """Return a bidirectional GRU whose id ``vocab_size`` is the mask word.

    Embeddings start from a normal distribution, or from the rows of a ``.npy`` file; all of them train (the
    official code means to freeze them and does not).

    Parameters
    ----------
    vocab_size : int
        Token ids of the data.
    embed_dim, word_dim : int
        Width of an encoded word and of a word embedding.
    word_vectors : str
        ``.npy`` file of at most ``vocab_size + 1`` rows of ``word_dim`` numbers; empty for none.

    Returns
    -------
    TextEncoder
        With ``vocab_size + 1`` embeddings; its words do not have unit length.

    Raises
    ------
    ValueError
        If the word vectors do not fit; see :func:`fill_embedding`.
    """
    encoder = TextEncoder(vocab_size + 1, word_dim, embed_dim, unit=False)
    torch.nn.init.normal_(encoder.embedding.weight)
    if word_vectors:
        fill_embedding(encoder.embedding, np.load(word_vectors, allow_pickle=False))
    return encoder


def pretrained_words(
    kind: str, vocab_size: int, embed_dim: int, *, text_folder: str, text_words: str, finetune: bool
) -> PretrainedText:
    """Return a pretrained text encoder that keeps the lengths of its words.

    In BERT id ``vocab_size`` is the mask word: [MASK] of the folder's tokenizer or, where the data's ids are
    BERT's, id 3 (``<unk>``). CLIP has no mask word.

    Parameters
    ----------
    kind : {"bert", "clip"}
        Transformer.
    vocab_size : int
        Token ids of the data.
    embed_dim : int
        Width of an encoded word.
    text_folder : str
        Folder or name of the transformer.
    text_words : str
        The data's vocabulary file; empty if the data's ids are the transformer's.
    finetune : bool
        Train the transformer.

    Returns
    -------
    PretrainedText

    Raises
    ------
    ValueError
        If a file is missing or does not fit, or BERT's tokenizer lacks [MASK].
    """
    encoder = PretrainedText(
        vocab_size,
        embed_dim,
        kind=kind,
        folder=text_folder,
        words_file=text_words,
        unit=False,
        finetune=finetune,
    )
    if kind == "bert":
        piece = load_tokenizer(text_folder, "text_folder").mask_token_id if text_words else 3
        if piece is None or piece >= encoder.tower.config.vocab_size:
            raise ValueError(f"text_folder={text_folder!r} lacks [MASK]")
        row = torch.full_like(encoder.pieces[:1], -1)
        row[0, 0] = piece
        encoder.pieces = torch.cat([encoder.pieces, row])
    return encoder


@dataclass(frozen=True)
class Text:
    """How OMIT takes the result of a text encoder.

    Parameters
    ----------
    lead, tail : int
        Tokens at the start and at the end of a caption that are not words; with a lead the encoder's second
        result is the global vector, else that is the mean of the words.
    augmented : bool
        Whether captions are changed at random in training.
    """

    lead: int = 0
    tail: int = 0
    augmented: bool = True


# CLIP has no mask word, and the official code changes none of its captions.
TEXTS = {"bigru": Text(), "bert": Text(lead=1), "clip": Text(lead=1, tail=1, augmented=False)}


def augment(tokens: Tokens, *, mask_id: int, n_words: int, shortest: int = SHORTEST) -> Tokens:
    """Mask, replace and delete words at random; the first and the last token stay.

    Parameters
    ----------
    tokens : Tokens
        Captions.
    mask_id : int
        Id of the mask word.
    n_words : int
        Random words are drawn from ids below this.
    shortest : int
        Captions with fewer words, start and end not counted, stay as they are.

    Returns
    -------
    Tokens
        Captions of the same order, some shorter. Draws come from torch's global generator on the CPU.
    """
    lengths = torch.tensor(tokens.lengths)[:, None]
    place = torch.arange(tokens.ids.shape[1])[None]
    valid = place < lengths
    free = (place > 0) & (place < lengths - 1) & (lengths - 2 >= shortest)  # (C, W)
    chance = torch.where(free, torch.rand(valid.shape), 1.0)
    other = torch.randint(n_words, valid.shape)
    device = tokens.ids.device
    ids = tokens.ids.masked_fill((chance < MASKED).to(device), mask_id)
    replaced = (chance >= MASKED) & (chance < MASKED + REPLACED)
    ids = torch.where(replaced.to(device), other.to(device), ids)
    keep = valid & ~((chance >= MASKED + REPLACED) & (chance < MASKED + REPLACED + DELETED))
    return Tokens(*keep_rows(keep, ids))


def read_word_vectors(path: str | Path, words: Sequence[str], dim: int) -> np.ndarray:
    """Read the vectors of a vocabulary's words from a text file such as ``glove.840B.300d.txt``.

    A word that the file does not have is looked up again without ``- . '`` and cut at a slash, as in OMIT's
    code.

    Parameters
    ----------
    path : str or Path
        Text file; each line a word and ``dim`` numbers, separated by spaces.
    words : sequence of str
        The vocabulary's words, in the order of their ids.
    dim : int
        Numbers per word.

    Returns
    -------
    ndarray, float32, (len(words), dim)
        Rows of words that were not found are NaN.

    Raises
    ------
    ValueError
        When a line of a wanted word does not hold ``dim`` numbers.
    """
    wanted: dict[str, list[int]] = {}
    plain: dict[str, list[int]] = {}
    for i, word in enumerate(words):
        wanted.setdefault(word, []).append(i)
        short = word.replace("-", "").replace(".", "").replace("'", "").split("/")[0]
        plain.setdefault(short, []).append(i)
    found = np.full((len(words), dim), np.nan, np.float32)
    second = found.copy()
    with Path(path).open(encoding="utf8") as file:
        for number, line in enumerate(file, 1):
            word, _, rest = line.rstrip("\n").partition(" ")
            if word not in wanted and word not in plain:
                continue
            values = np.array(rest.split(), np.float32)
            if len(values) != dim:
                raise ValueError(f"{path}, line {number}: {len(values)} numbers, dim={dim} are needed")
            found[wanted.get(word, [])] = values
            second[plain.get(word, [])] = values
    missing = np.isnan(found[:, 0])
    found[missing] = second[missing]
    return found


def fill_embedding(embedding: torch.nn.Embedding, vectors: np.ndarray) -> None:
    """Copy word vectors into the first rows of an embedding; a row of NaN changes nothing.

    Parameters
    ----------
    embedding : torch.nn.Embedding, (rows, dim)
        Changed in place.
    vectors : ndarray, (at most rows, dim)
        One row per token id.

    Raises
    ------
    ValueError
        When the width differs or there are more vectors than rows.
    """
    rows, dim = embedding.weight.shape
    if vectors.ndim != 2 or vectors.shape[1] != dim or len(vectors) > rows:
        raise ValueError(
            f"word_vectors must be (at most {rows}, {dim}): one row per word of the vocabulary and word_dim "
            f"columns, got {vectors.shape}"
        )
    known = torch.from_numpy(~np.isnan(vectors).any(1))
    with torch.no_grad():
        target: Tensor = embedding.weight[: len(vectors)]
        target[known] = torch.from_numpy(vectors.astype(np.float32))[known].to(target)
