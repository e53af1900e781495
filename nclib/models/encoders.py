"""Region and caption encoders shared by the region-based models."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nclib.common.checks import beyond
from nclib.common.npy import read_npy
from nclib.common.tokens import Tokens

EPS = 1e-8
"""Added to every norm before dividing by it, as in the official code of all region-based models."""


def l2(x: Tensor) -> Tensor:
    """Scale to unit length along the last axis: ``x / (|x| + 1e-8)``.

    Parameters
    ----------
    x : Tensor, (..., D)

    Returns
    -------
    Tensor, (..., D)
        Zero vectors stay zero.
    """
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + EPS)


def xavier_linear(n_in: int, n_out: int) -> nn.Linear:
    """Build a linear layer with Xavier-uniform weights and zero bias.

    Parameters
    ----------
    n_in, n_out : int

    Returns
    -------
    nn.Linear
    """
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def word_mask(lengths: tuple[int, ...], width: int, like: Tensor) -> Tensor:
    """Mask of the valid words of padded captions.

    Parameters
    ----------
    lengths, width : tuple of int, length C, and int, W
    like : Tensor
        Gives number type and device.

    Returns
    -------
    Tensor, (C, W)
        1 at a caption's words and 0 beyond.
    """
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return mask.to(like.device, like.dtype, non_blocking=True)


def pack(x: Tensor, lengths: tuple[int, ...]) -> tuple[PackedSequence, Tensor]:
    """Pack padded sequences for a recurrent layer by one gather; torch's own function copies every step.

    Parameters
    ----------
    x, lengths : Tensor, (C, W, D), and tuple of int, length C

    Returns
    -------
    packed : PackedSequence
    places : Tensor, int64, (sum of lengths,)
        Rows of ``x.flatten(0, 1)`` in the order of the packed ones, for :func:`unpack`.
    """
    width = x.shape[1]
    longest, order = torch.sort(torch.tensor(lengths), descending=True)
    step = torch.arange(width)[:, None]
    inside = step < longest  # (W, C)
    places = (order * width + step)[inside].to(x.device, non_blocking=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    data = x.flatten(0, 1).index_select(0, places)
    sizes = inside.sum(1)
    order, back = (rows.to(x.device, non_blocking=True) for rows in (order, back))
    return PackedSequence(data, sizes[sizes > 0], order, back), places


def unpack(data: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return packed rows (sum of lengths, D) as padded sequences (C, W, D), zero beyond their lengths.

    Parameters
    ----------
    data, places, shape : Tensor, Tensor, and (C, W)
        As from :func:`pack`.
    """
    flat = data.new_zeros(shape[0] * shape[1], data.shape[-1])
    return flat.index_copy(0, places, data).unflatten(0, tuple(shape))


class RegionEncoder(nn.Module):
    """Linear map of every region, optionally to unit length (SCAN; SGRAF, arXiv 2101.01368, Sec. 3.1)."""

    def __init__(self, feature_dim: int, embed_dim: int, *, unit: bool = True) -> None:
        super().__init__()
        self.fc = xavier_linear(feature_dim, embed_dim)
        self.unit = unit

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, R, feature_dim) to (B, R, embed_dim)."""
        regions = self.fc(images)
        return l2(regions) if self.unit else regions


class TextEncoder(nn.Module):
    """One-layer bidirectional GRU; a word is the mean of its two states (SCAN; SGRAF, Sec. 3.1).

    ``dropout`` acts on the word embeddings while training: 0.4 in SGRAF, 0 in SCAN, IMRAM and VSE. ``unit``
    scales every word to unit length.
    """

    def __init__(
        self, vocab_size: int, word_dim: int, embed_dim: int, *, dropout: float = 0.0, unit: bool = True
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(word_dim, embed_dim, batch_first=True, bidirectional=True)
        self.unit = unit

    def forward(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Encode captions as words (C, W, D), zero beyond their lengths, and sentence vectors (C, D).

        W is the longest length; a sentence vector is the mean of both directions' final states, not unit.
        """
        width = max(tokens.lengths)
        embedded = self.dropout(self.embedding(tokens.ids[:, :width]))  # (C, W, word_dim)
        packed, places = pack(embedded, tokens.lengths)
        states, final = self.gru(packed)
        forward, backward = states.data.chunk(2, dim=-1)
        valid = (forward + backward) / 2  # (sum of lengths, D)
        # before padding: the second derivative of a zero row's length does not exist
        words = unpack(l2(valid) if self.unit else valid, places, embedded.shape[:2])  # (C, W, D)
        return words, final.mean(0)


def start_from(weight: Tensor, path: str) -> None:
    """Copy word vectors of a ``.npy`` file into the first rows of weights (rows, dim), but no row of NaN.

    A ValueError names a file that cannot be read, holds infinite or huge numbers, or does not fit in shape.
    """
    (rows, dim), vectors = weight.shape, read_npy(path)
    if vectors.ndim != 2 or vectors.shape[1] != dim or len(vectors) > rows:
        raise ValueError(
            f"word_vectors must be (at most {rows}, {dim}): one row per word of the vocabulary and word_dim "
            f"columns, got {vectors.shape}"
        )
    with np.errstate(over="ignore"):
        start = torch.from_numpy(vectors.astype(np.float32))
    known = ~start.isnan().any(1)
    if (huge := beyond(start.numpy()) & known.numpy()).any():
        raise ValueError(f"word_vectors={path!r}: row {huge.argmax()} holds numbers too large to be squared")
    with torch.no_grad():
        weight[: len(start)][known] = start[known].to(weight)


class WordEmbedding(nn.Embedding):
    """Word embeddings, normal at first or from a file, and then held for some epochs.

    Parameters
    ----------
    vocab_size, word_dim : int
    word_vectors : str
        As in :func:`start_from`, or empty.
    held_epochs : int
        First epochs, warm-up included, in which embeddings from a file stay as they are.

    Raises
    ------
    ValueError
        As :func:`start_from`; for ``held_epochs`` without a file.
    """

    def __init__(self, vocab_size: int, word_dim: int, word_vectors: str, held_epochs: int) -> None:
        super().__init__(vocab_size, word_dim)
        if word_vectors:
            start_from(self.weight, word_vectors)
        elif held_epochs:
            raise ValueError(
                f"held_words={held_epochs} is used with word_vectors only, from which the embeddings start"
            )
        self.held_epochs = held_epochs

    def begin_epoch(self, epoch: int) -> None:
        """Train the embeddings in this epoch (the first is 0), or hold them as they are."""
        self.weight.requires_grad_(epoch >= self.held_epochs)


class GlobalPooling(nn.Module):
    """Attention pooling of fragments under a gate from their mean (SGRAF, Sec. 3.1).

    With ``n_regions`` the fragments are normalised over the batch with the region slot as channel, so that
    their number is fixed when the model is built; words are not.
    """

    def __init__(self, dim: int, n_regions: int | None = None, *, dropout: float = 0.4) -> None:
        super().__init__()
        norms: list[nn.Module] = [nn.Identity(), nn.Identity()]
        if n_regions is not None:
            norms = [nn.BatchNorm1d(n_regions), nn.BatchNorm1d(dim)]
        self.local, self.local_norm = xavier_linear(dim, dim), norms[0]
        self.mean, self.mean_norm = xavier_linear(dim, dim), norms[1]
        self.score = xavier_linear(dim, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: tuple[int, ...] | None = None) -> Tensor:
        """Pool (B, n, D), with ``lengths`` valid rows each, to unit vectors (B, D)."""
        mask = None if lengths is None else word_mask(lengths, x.shape[1], x)[..., None]  # (B, n, 1)
        mean = None
        if mask is not None:
            x = x * mask
            mean = x.sum(1) / mask.sum(1)  # (B, D)
        local = self.dropout(torch.tanh(self.local_norm(self.local(x))))  # (B, n, D)
        mean = x.mean(1) if mean is None else mean  # not before: gradients add up in the order of use
        gate = self.dropout(torch.tanh(self.mean_norm(self.mean(mean))))  # (B, D)
        score = self.score(local * gate[:, None])  # (B, n, 1)
        if mask is not None:
            score = score.masked_fill(mask == 0, -math.inf)
        return l2((torch.softmax(score, dim=1) * x).sum(1))
