"""Region and caption encoders shared by the region-based models."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nclib.common.checks import beyond
from nclib.common.npy import read_npy
from nclib.common.tokens import Tokens
from nclib.models.compiled import call

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


def sizes_on(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the lengths of captions on a device, int64 (C,); on a GPU those of the last batches are kept."""
    return torch.tensor(lengths) if device.type == "cpu" else _kept_sizes(lengths, device)


@lru_cache(maxsize=16)
def _kept_sizes(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(lengths).to(device, non_blocking=True)


def mask_of(sizes: Tensor, width: int, like: Tensor) -> Tensor:
    """Mask of the valid words of padded captions, from :func:`sizes_on`; else as :func:`word_mask`."""
    return (torch.arange(width, device=sizes.device)[None] < sizes[:, None]).to(like.dtype)


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
    return mask_of(sizes_on(lengths, like.device), width, like)


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


class BiGRU(nn.GRU):
    """One-layer bidirectional GRU of sequences of any lengths.

    cuDNN copies packed sequences step by step. On a GPU each direction runs alone on padded sequences, the
    backward one on sequences that are turned around within their lengths; elsewhere they are packed.

    Parameters
    ----------
    n_in, width : int
        Width of the inputs and of the states of one direction.
    """

    def __init__(self, n_in: int, width: int) -> None:
        super().__init__(n_in, width, batch_first=True, bidirectional=True)

    def flatten_parameters(self) -> None:
        """Lay the weights of each direction side by side on a GPU, where cuDNN reads them without a copy."""
        weights: list[Any] = self._flat_weights
        if not all(isinstance(w, Tensor) and torch.backends.cudnn.is_acceptable(w) for w in weights):
            return
        kind = torch.backends.cudnn.rnn.get_cudnn_mode("GRU")
        with torch.cuda.device_of(weights[0]), torch.no_grad():
            for own in (weights[:4], weights[4:]):
                torch._cudnn_rnn_flatten_weight(
                    own, 4, self.input_size, kind, self.hidden_size, 0, 1, False, False
                )

    def read(self, x: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Read sequences (C, W, n_in) with ``lengths`` valid rows each.

        Returns
        -------
        states : Tensor, (C, W, 2 width)
            Both directions at each row, zero beyond a sequence's length.
        final : Tensor, (2, C, width)
            The last state of each direction.
        """
        if not self.alone(x.device):
            packed, places = pack(x, lengths)
            states, final = self(packed)
            return unpack(states.data, places, x.shape[:2]), final
        sizes = sizes_on(lengths, x.device)
        turn = turned(sizes, x.shape[1])
        forward, backward = self.directions(x.transpose(0, 1).contiguous(), turn)
        last = (sizes - 1)[None, :, None].expand(1, -1, self.hidden_size)
        final = torch.cat([states.gather(0, last) for states in (forward, backward)])
        states = torch.cat([forward, in_order(backward, turn)], -1)
        return (states * mask_of(sizes, len(x[0]), x).t()[..., None]).transpose(0, 1), final

    @staticmethod
    def alone(device: torch.device) -> bool:
        """Whether each direction runs alone on a device, by cuDNN."""
        return device.type == "cuda" and torch.backends.cudnn.enabled

    def directions(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Read padded sequences (W, C, n_in), first step first, in float32 under autocast, too.

        Parameters
        ----------
        x, turn : Tensor
            ``turn`` is as from :func:`turned`.

        Returns
        -------
        forward, backward : Tensor, (W, C, width)
            States after each step, beyond a sequence's length too. Those of the backward direction are in
            the order in which it reads, see :func:`in_order`.
        """
        self._update_flat_weights()  # weights that were put in place of others for a while
        weights: list[Any]
        x = x.to(self.weight_ih_l0.dtype)  # type: ignore[arg-type]
        start, directions = x.new_zeros(1, x.shape[1], self.hidden_size), []
        train = self.training or torch.is_grad_enabled()  # cuDNN keeps what a gradient needs
        with torch.autocast(x.device.type, enabled=False):  # casting the weights takes longer than is won
            for given, name in ((x, ""), (in_order(x, turn), "_reverse")):
                parts = (f"{part}_l0{name}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
                weights = [getattr(self, part) for part in parts]
                directions.append(torch.gru(given, start, weights, True, 1, 0.0, train, False, False)[0])
        return directions[0], directions[1]


def turned(sizes: Tensor, width: int) -> Tensor:
    """Step at which each step of a sequence stands when it is turned around within its length.

    Parameters
    ----------
    sizes, width : Tensor, int64, (C,), and int, W

    Returns
    -------
    Tensor, int64, (W, C)
        Steps beyond a sequence's length stay where they are.
    """
    step = torch.arange(width, device=sizes.device)[:, None]
    return torch.where(step < sizes, sizes - 1 - step, step)


def in_order(x: Tensor, turn: Tensor) -> Tensor:
    """Turn sequences (W, C, D) around within their lengths, forth or back; see :func:`turned`."""
    return x.gather(0, turn[..., None].expand_as(x))


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
        self.gru = BiGRU(word_dim, embed_dim)
        self.unit = unit

    def forward(self, tokens: Tokens, pool: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Encode captions as words (C, W, D), zero beyond their lengths, and sentence vectors (C, D).

        W is the longest length; a sentence vector is the mean of both directions' final states, not unit, or
        ``pool(words, mask)``.
        """
        width, ids = max(tokens.lengths), tokens.ids
        if self.gru.alone(ids.device):
            sizes = sizes_on(tokens.lengths, ids.device)
            turn = turned(sizes, width)
            embedded = self.dropout(self.embedding(ids[:, :width].t()))  # (W, C, word_dim)
            parts = (*self.gru.directions(embedded, turn), turn)
            varying = [(part, dim) for part in parts for dim in (0, 1)]
            output: tuple[Tensor, Tensor] = call(
                TextEncoder.joined, self, *parts, sizes, pool, varying=[*varying, (sizes, 0)]
            )
            return output
        embedded = self.dropout(self.embedding(ids[:, :width]))  # (C, W, word_dim)
        packed, places = pack(embedded, tokens.lengths)
        states, final = self.gru(packed)
        forward, backward = states.data.chunk(2, dim=-1)
        valid = (forward + backward) / 2  # (sum of lengths, D)
        # before padding: the second derivative of a zero row's length does not exist
        words = unpack(l2(valid) if self.unit else valid, places, embedded.shape[:2])  # (C, W, D)
        return words, final.mean(0) if pool is None else pool(words, word_mask(tokens.lengths, width, words))

    def joined(
        self, forward: Tensor, backward: Tensor, turn: Tensor, sizes: Tensor, pool: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """Return what :meth:`forward` does from what :meth:`BiGRU.directions` gives: one graph."""
        states = ((forward + in_order(backward, turn)) / 2).transpose(0, 1).contiguous()  # (C, W, D)
        mask = mask_of(sizes, states.shape[1], states)
        words = (l2(states) if self.unit else states) * mask[..., None]
        if pool is not None:
            return words, pool(words, mask)
        last = (sizes - 1)[None, :, None].expand(1, -1, forward.shape[2])
        return words, (forward.gather(0, last) + backward.gather(0, last))[0] / 2


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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool (B, n, D) to unit vectors (B, D); ``mask`` (B, n) is 1 at valid rows and 0 beyond."""
        mean = None
        if mask is not None:
            mask = mask[..., None]  # (B, n, 1)
            x = x * mask
            mean = x.sum(1) / mask.sum(1)  # (B, D)
        local = self.dropout(torch.tanh(self.local_norm(self.local(x))))  # (B, n, D)
        mean = x.mean(1) if mean is None else mean  # not before: gradients add up in the order of use
        gate = self.dropout(torch.tanh(self.mean_norm(self.mean(mean))))  # (B, D)
        score = self.score(local * gate[:, None])  # (B, n, 1)
        if mask is not None:
            score = score.masked_fill(mask == 0, -math.inf)
        return l2((torch.softmax(score, dim=1) * x).sum(1))
