"""PVSE: several embeddings per image and caption, the best pair counts (CVPR 2019, arXiv 1906.04402)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from baselines.omit.word_embedding import WordEmbedding
from nclib.common.tokens import Tokens
from nclib.losses import triplet
from nclib.models.base import Encoding, option
from nclib.models.encoders import BiGRU, l2, sizes_on, word_mask, xavier_linear
from nclib.models.omit_matching import FragmentAttention
from nclib.models.region_words import PictureMatcher
from nclib.models.registry import register

SENTENCES = ("last_token", "final")


@dataclass(frozen=True)
class SetEncoding(Encoding):
    """Several ``members`` (B, K, D) per sample, and a ``detail`` (B, ...) for the model's own loss terms."""

    members: Tensor
    detail: Tensor


class ResidualPooling(nn.Module):
    """Global vector plus attended fragments, once per head (PVSE's PIE block).

    rho_h = Dropout(sigmoid(W r_h + b)), r_h the fragments pooled by head h, and z_h = LayerNorm(g + rho_h).
    """

    def __init__(self, fragment_dim: int, dim: int, heads: int = 1, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = FragmentAttention(fragment_dim, heads)
        self.fc = xavier_linear(fragment_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, vectors: Tensor, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return z and rho, (B, heads, D) each, from global vectors (B, D) and fragments (B, n, d)."""
        residual = self.dropout(torch.sigmoid(self.fc(self.attention(x, mask))))
        return self.norm(vectors[:, None] + residual), residual


class SentenceEncoder(nn.Module):
    """BiGRU with half the width per direction; the sentence vector joins both directions.

    Parameters
    ----------
    word_dim, embed_dim : int
        Width of a word vector and of the sentence vector (even).
    sentence : {"last_token", "final"}
        ``"last_token"`` is the official code's: both directions' output at the last token, where the
        backward one has read one token only. ``"final"`` takes each direction's last state.
    """

    def __init__(self, word_dim: int, embed_dim: int, sentence: str) -> None:
        super().__init__()
        if embed_dim % 2:
            raise ValueError(f"embed_dim must be even (two directions side by side), got {embed_dim}")
        self.sentence = sentence
        self.gru = BiGRU(word_dim, embed_dim // 2)

    def forward(self, words: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Map word vectors (C, W, word_dim) to sentence vectors (C, embed_dim)."""
        states, final = self.gru.read(words, lengths)
        if self.sentence == "final":
            return final.transpose(0, 1).flatten(1)
        last = sizes_on(lengths, states.device) - 1
        return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)


MARGIN = 0.1
"""Margin of PVSE's ranking loss, in the official code."""

# The official run for MS-COCO. Its rate halves after 12 and 23 epochs: the code waits for recalls to fall.
PUBLISHED = {
    "loss": "own",
    "optimizer": "amsgrad",
    "batch_size": 256,
    "warmup_epochs": 0,
    "epochs": 30,
    "decay_every": 12,
    "decay_factor": 0.5,
}


@register("pvse", summary="several embeddings per sample, the best pair counts", paper="CVPR 2019")
class PVSE(PictureMatcher):
    """Each image and caption is a set of unit embeddings; the score is the largest cosine of the two sets.

    An embedding adds what one attention head found in the fragments (regions; word vectors) to the global
    vector (mean region under a linear map; BiGRU). The paper's fragments are the cells of a residual network
    (``image="resnet"``), those of later papers regions.

    Parameters
    ----------
    n_embeds, dropout : int, float
        Embeddings per sample; dropout on the image's global vector and on the residuals while training.
    sentence : {"last_token", "final"}
        Which states of the BiGRU are the sentence vector; see :class:`SentenceEncoder`.
    word_vectors : str
        A ``.npy`` file that the word embeddings start from; see
        :class:`~nclib.models.region_words.RegionWordMatcher`.
    held_words : int
        First epochs in which embeddings from a file stay as they are; all of them in the official code.
    diversity, mmd : float
        Weights of the paper's two further terms in :meth:`own_loss`.
    **common
        Sizes, and what pictures are read by; see :class:`~nclib.models.region_words.PictureMatcher`.
        ``embed_dim`` must be even.
    """

    n_embeds: int = option(2, low=1)
    dropout: float = option(0.0, low=0, high=1)
    sentence: str = option("last_token", choices=SENTENCES)
    word_vectors: str = option("", file=True)
    held_words: int = option(0, low=0)
    diversity: float = option(0.1)
    mmd: float = option(0.01)

    settings: ClassVar = {"f30k": PUBLISHED, "coco": PUBLISHED}
    score_range = (-1.0, 1.0)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        heads, dropout, embed_dim = self.n_embeds, self.dropout, self.embed_dim
        self.image_fc = nn.Linear(self.cell_dim, embed_dim)
        self.image_drop = nn.Dropout(dropout)
        self.image_pool = ResidualPooling(self.cell_dim, embed_dim, heads, dropout=dropout)
        self.embedding = WordEmbedding(self.vocab_size, self.word_dim, self.word_vectors, self.held_words)
        self.sentence_encoder = SentenceEncoder(self.word_dim, embed_dim, self.sentence)
        self.text_pool = ResidualPooling(self.word_dim, embed_dim, heads, dropout=dropout)

    def encode_images(self, images: Tensor) -> SetEncoding:
        """Encode region features (B, R, feature_dim), or pictures, as unit embeddings (B, K, D)."""
        images = self.cells(images)
        whole = self.image_drop(self.image_fc(images.mean(1)))  # (B, D)
        return self._encoding(*self.image_pool(whole, images))

    def encode_captions(self, tokens: Tokens) -> SetEncoding:
        """Encode captions as unit embeddings (C, K, D)."""
        tokens = self.check_tokens(tokens)
        words = self.embedding(tokens.ids[:, : max(tokens.lengths)])  # (C, W, word_dim)
        mask = word_mask(tokens.lengths, words.shape[1], words)
        return self._encoding(*self.text_pool(self.sentence_encoder(words, tokens.lengths), words, mask))

    @staticmethod
    def _encoding(embeddings: Tensor, residuals: Tensor) -> SetEncoding:
        unit = nn.functional.normalize(embeddings, dim=-1)
        return SetEncoding(unit.mean(1), unit, residuals)

    def similarity(self, images: SetEncoding, captions: SetEncoding, *, logits: bool = False) -> Tensor:
        """Return the largest cosine of the embeddings of each pair, (B, C); ``logits`` changes nothing."""
        n_images, k, _ = images.members.shape
        cell = n_images * k * k * images.members.element_size()
        size = max(1, self.memory_budget // (2 * cell))
        flat = images.members.flatten(0, 1)
        return torch.cat(
            [
                (flat @ part.flatten(0, 1).t()).view(n_images, k, len(part), -1).amax((1, 3))
                for part in captions.members.split(size)
            ],
            1,
        )

    def paired_similarity(
        self, images: SetEncoding, captions: SetEncoding, *, logits: bool = False
    ) -> Tensor:
        """Return the largest cosine of the embeddings of image i and caption i, (n,)."""
        self.check_pairs(images, captions)
        return (images.members @ captions.members.transpose(1, 2)).amax((1, 2))

    def own_loss(self, images: SetEncoding, captions: SetEncoding) -> dict[str, Tensor]:
        """Return the ranking loss and the weighted terms for diversity and the distance of the modalities.

        Ranking: triplet with the hardest negatives, mean over the batch. Diversity: mean length of a sample's
        Gram matrix of unit residuals off its diagonal, over K^2. MMD: maximum mean discrepancy of all
        embeddings of images and of captions under exp(-distance / 2), the distance unsquared as in the
        official code.
        """
        apart = discrepancy(images.members.flatten(0, 1), captions.members.flatten(0, 1))
        alike = _alike(images.detail) + _alike(captions.detail)
        ranking = triplet(self.similarity(images, captions), MARGIN, "hardest").mean()
        return {"ranking": ranking, "diversity": self.diversity * alike, "mmd": self.mmd * apart}


def _alike(residuals: Tensor) -> Tensor:
    """Mean length of the off-diagonal Gram matrix of unit residuals (B, K, D), over K^2."""
    unit, k = l2(residuals), residuals.shape[1]
    gram = unit @ unit.transpose(1, 2)
    gram = gram * (1 - torch.eye(k, dtype=gram.dtype, device=gram.device))
    return torch.linalg.vector_norm(gram.flatten(1), dim=1).mean() / k**2


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Maximum mean discrepancy of two samples under the kernel exp(-distance / 2), distance unsquared.

    Parameters
    ----------
    x, y : Tensor, (n, D) and (m, D)

    Returns
    -------
    Tensor, ()
    """
    return _kernel_mean(x, x) - 2 * _kernel_mean(x, y) + _kernel_mean(y, y)


def _kernel_mean(x: Tensor, y: Tensor) -> Tensor:
    distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-0.5 * distance).mean()
