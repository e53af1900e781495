"""OMIT's text encoders and its random changes of captions in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.encoders import TextEncoder, start_from
from nclib.models.pretrained import PretrainedText, load_tokenizer
from nclib.models.vse_inf import by_words, change_words

MASKED, REPLACED, DELETED = 0.10, 0.02, 0.08
"""Shares of tokens that become the mask word, become a random word, or vanish (Sec. 4.1)."""

SHORTEST = 5
"""Captions with fewer words, start and end not counted, stay unchanged before a GRU (official code)."""


def text_encoder(
    kind: str, vocab_size: int, embed_dim: int, word_dim: int, *, word_vectors: str, **pretrained: Any
) -> nn.Module:
    """Build a text encoder that keeps the lengths of its words.

    Id ``vocab_size`` is the mask word. In BERT that is [MASK] of the folder's tokenizer or, where neither its
    pieces nor a vocabulary file are given, id 3 (``<unk>``); CLIP has none. Embeddings of the BiGRU start
    from a normal distribution, or from the rows of a file; all of them train (the official code means to
    freeze them and does not).

    Parameters
    ----------
    kind : {"bigru", "bert", "clip"}
    vocab_size, embed_dim, word_dim : int
        Token ids of the data, width of an encoded word, and of a word embedding of the BiGRU.
    word_vectors : str
        ``.npy`` file of at most ``vocab_size + 1`` rows of ``word_dim`` numbers; rows of NaN change nothing.
    **pretrained
        Options of :class:`~nclib.models.pretrained.PretrainedText`.

    Returns
    -------
    TextEncoder or PretrainedText

    Raises
    ------
    ValueError
        If a file is missing or does not fit, or BERT's tokenizer lacks [MASK].
    """
    if kind == "bigru":
        gru = TextEncoder(vocab_size + 1, word_dim, embed_dim, unit=False)
        torch.nn.init.normal_(gru.embedding.weight)
        if word_vectors:
            start_from(gru.embedding.weight, word_vectors)
        return gru
    encoder = PretrainedText(vocab_size, embed_dim, kind=kind, unit=False, **pretrained)
    if kind == "bert":
        folder, cut = pretrained["folder"], bool(pretrained["words_file"])
        known = encoder.continues is not None  # the data's ids are BERT's
        piece = (
            load_tokenizer(folder, "text_folder").mask_token_id if cut else encoder.mask_id if known else 3
        )
        if piece is None or piece >= encoder.tower.config.vocab_size:
            raise ValueError(f"text_folder={folder!r} lacks [MASK]")
        row = torch.full_like(encoder.pieces[:1], -1)
        row[0, 0] = piece
        encoder.pieces = torch.cat([encoder.pieces, row])
        if encoder.continues is not None:
            encoder.continues = F.pad(encoder.continues, (0, 1))
    return encoder


@dataclass(frozen=True)
class Text:
    """How OMIT takes the result of a text encoder.

    The first ``lead`` and the last ``tail`` tokens of a caption are not words. With a lead the encoder's
    second result is the global vector, else that is the mean of the words. ``augmented``: captions are
    changed at random in training.
    """

    lead: int = 0
    tail: int = 0
    augmented: bool = True


# CLIP has no mask word, and the official code changes none of its captions.
TEXTS = {"bigru": Text(), "bert": Text(lead=1), "clip": Text(lead=1, tail=1, augmented=False)}


def augment(
    tokens: Tokens, *, mask_id: int, n_words: int, shortest: int = SHORTEST, continues: Tensor | None = None
) -> Tokens:
    """Mask, replace and delete words at random; the first and the last token stay.

    Parameters
    ----------
    tokens, mask_id, n_words
        As in :func:`~nclib.models.vse_inf.change_words`.
    shortest : int
        Captions with fewer words, start and end not counted, stay as they are.
    continues : Tensor, bool, (vocab_size,), optional
        Ids that go on with a word, as in :func:`~nclib.models.vse_inf.by_words`.

    Returns
    -------
    Tokens
        Captions of the same order, some shorter. Draws come from torch's global generator on the CPU.
    """
    lengths = torch.tensor(tokens.lengths)[:, None]
    place = torch.arange(tokens.ids.shape[1])[None]
    free = (place > 0) & (place < lengths - 1) & (lengths - 2 >= shortest)  # (C, W)
    chance = torch.where(free, by_words(torch.rand(free.shape), tokens.ids, continues), 1.0)
    shares = (MASKED, MASKED + REPLACED, MASKED + REPLACED + DELETED)
    return change_words(tokens, chance, shares, mask_id, n_words)
