"""What OMIT does to captions: random changes in training, and word vectors from a local file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.clip_encoders import ClipTextEncoder
from nclib.models.encoders import TextEncoder
from nclib.models.registry import local_path, used_with
from nclib.models.text_transformer import TransformerTextEncoder
from nclib.models.vse_inf import keep_rows

MASKED, REPLACED, DELETED = 0.10, 0.02, 0.08
"""Shares of tokens that become the mask word, become a random word, or vanish (Sec. 4.1)."""

SHORTEST = 5
"""Captions with fewer words, start and end not counted, are left alone before a GRU (released code)."""


def gru_with_mask(
    vocab_size: int, embed_dim: int, word_dim: int, *, word_vectors: str | None = None
) -> TextEncoder:
    """Return a bidirectional GRU whose id ``vocab_size`` is the mask word.

    Embeddings start from a normal distribution, or from the rows of a ``.npy`` file; all of them train (the
    released code means to freeze them and does not).
    """
    encoder = TextEncoder(vocab_size + 1, word_dim, embed_dim, unit=False)
    torch.nn.init.normal_(encoder.embedding.weight)
    if word_vectors is not None:
        fill_embedding(encoder.embedding, np.load(word_vectors, allow_pickle=False))
    return encoder


def bert_with_mask(
    vocab_size: int, embed_dim: int, word_dim: int, *, text_folder: str, text_words: str, finetune: bool
) -> TransformerTextEncoder:
    """Return a transformer text encoder whose id ``vocab_size`` is the mask word.

    The mask word is [MASK] of the folder's ``vocab.txt``; where the data's ids are the transformer's, id 3
    (``<unk>``) takes its place.
    """
    encoder = TransformerTextEncoder(
        vocab_size, embed_dim, folder=text_folder, words_file=text_words, unit=False, finetune=finetune
    )
    piece = 3
    if text_words:
        file = Path(text_folder) / "vocab.txt"
        pieces = file.read_text(encoding="utf8").splitlines()
        if "[MASK]" not in pieces:
            raise ValueError(f"{file} lacks [MASK]")
        piece = pieces.index("[MASK]")
    row = torch.full_like(encoder.pieces[:1], -1)
    row[0, 0] = piece
    encoder.pieces = torch.cat([encoder.pieces, row])
    return encoder


def clip_words(
    vocab_size: int,
    embed_dim: int,
    word_dim: int,
    *,
    text_file: str,
    text_merges: str,
    text_words: str,
    clip_gelu: str,
    finetune: bool,
) -> ClipTextEncoder:
    """Return CLIP's text tower with the lengths of its words kept; it has no mask word."""
    return ClipTextEncoder(
        vocab_size,
        embed_dim,
        file=text_file,
        merges=text_merges,
        words_file=text_words,
        gelu=clip_gelu,
        unit=False,
        finetune=finetune,
    )


@dataclass(frozen=True)
class Text:
    """A text encoder of OMIT.

    Parameters
    ----------
    build : callable
        Builds it from the vocabulary's size, the common width, the width of a word, and the options it uses.
    uses : tuple of str
        The model's options that it uses.
    lead, tail : int
        Tokens at the start and at the end of a caption that are no words; with a lead the encoder's second
        result is the global vector, else that is the mean of the words.
    augmented : bool
        Whether captions are changed at random in training.
    """

    build: Callable[..., nn.Module]
    uses: tuple[str, ...]
    lead: int = 0
    tail: int = 0
    augmented: bool = True


TEXTS = {
    "bigru": Text(gru_with_mask, ("word_vectors",)),
    "bert": Text(bert_with_mask, ("text_folder", "text_words", "finetune"), lead=1),
    # CLIP has no mask word, and the released code changes none of its captions.
    "clip": Text(
        clip_words,
        ("text_file", "text_merges", "text_words", "clip_gelu", "finetune"),
        lead=1,
        tail=1,
        augmented=False,
    ),
}

USUAL = {"word_vectors": None, "clip_gelu": "config", "finetune": False}
"""Options of text encoders that are not empty by default."""


def build_text(text: str, vocab_size: int, embed_dim: int, word_dim: int, **options: Any) -> nn.Module:
    """Build the text encoder ``TEXTS[text]``.

    Parameters
    ----------
    text : str
        Its name.
    vocab_size, embed_dim, word_dim : int
        Number of token ids, width of the common space and of a word.
    **options
        All of the model's options that some text encoder uses.

    Raises
    ------
    ValueError
        For an option that this encoder does not use, or a missing path that it needs.
    """
    for name, value in options.items():
        uses = [key for key, entry in TEXTS.items() if name in entry.uses]
        if name in ("text_folder", "text_file"):
            local_path(name, value, "text", text, *uses)
        else:
            used_with(name, value, USUAL.get(name, ""), "text", text, *uses)
    own = {name: value for name, value in options.items() if name in TEXTS[text].uses}
    return TEXTS[text].build(vocab_size, embed_dim, word_dim, **own)


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
    """Copy word vectors into the first rows of an embedding; rows that are NaN keep what they have.

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
