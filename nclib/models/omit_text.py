"""OMIT's text encoders and its random changes of captions in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

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
    vocab_size, embed_dim, word_dim : int
        Token ids of the data, width of an encoded word and of a word embedding.
    word_vectors : str
        ``.npy`` file of at most ``vocab_size + 1`` rows of ``word_dim`` numbers; rows of NaN change nothing.

    Returns
    -------
    TextEncoder
        With ``vocab_size + 1`` embeddings; its words do not have unit length.

    Raises
    ------
    ValueError
        If the width of the word vectors differs or there are too many.
    """
    encoder = TextEncoder(vocab_size + 1, word_dim, embed_dim, unit=False)
    torch.nn.init.normal_(encoder.embedding.weight)
    if word_vectors:
        vectors, weight = np.load(word_vectors, allow_pickle=False), encoder.embedding.weight
        if vectors.ndim != 2 or vectors.shape[1] != word_dim or len(vectors) > vocab_size + 1:
            raise ValueError(
                f"word_vectors must be (at most {vocab_size + 1}, {word_dim}): one row per word of the "
                f"vocabulary and word_dim columns, got {vectors.shape}"
            )
        known = torch.from_numpy(~np.isnan(vectors).any(1))
        with torch.no_grad():
            weight[: len(vectors)][known] = torch.from_numpy(vectors.astype(np.float32))[known].to(weight)
    return encoder


def pretrained_words(
    kind: str, vocab_size: int, embed_dim: int, *, text_folder: str, text_words: str, finetune: bool
) -> PretrainedText:
    """Return a pretrained text encoder that keeps the lengths of its words.

    In BERT id ``vocab_size`` is the mask word: [MASK] of the folder's tokenizer or, where the data's ids are
    BERT's, id 3 (``<unk>``). CLIP has no mask word.

    Parameters
    ----------
    kind, vocab_size, embed_dim, text_folder, text_words, finetune
        As in :class:`~nclib.models.pretrained.PretrainedText`.

    Returns
    -------
    PretrainedText

    Raises
    ------
    ValueError
        If a file is missing or does not fit, or BERT's tokenizer lacks [MASK].
    """
    paths = {"folder": text_folder, "words_file": text_words}
    encoder = PretrainedText(vocab_size, embed_dim, kind=kind, **paths, unit=False, finetune=finetune)
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
    mask_id, n_words : int
        Id of the mask word; random words are drawn from ids below ``n_words``.
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
