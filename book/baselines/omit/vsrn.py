"""VSRN: visual semantic reasoning over regions (Li et al., ICCV 2019, arXiv 1909.02701)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.losses import triplet
from nclib.models.base import Encoding, option
from nclib.models.encoders import BiGRU, l2, pack, sizes_on, xavier_linear
from nclib.models.region_words import DualEncoder
from nclib.models.registry import register

NORMS = ("batch", "unit")
LAYERS = 4
"""Graph convolutions in a row."""

MARGIN = 0.2
"""Margin of the ranking loss (Eq. 7)."""

# The official runs: hardest negatives from the first epoch on, and the joint loss.
PUBLISHED = {"loss": "own", "warmup_epochs": 0, "epochs": 30, "lr": 2e-4}


@dataclass(frozen=True)
class ReasonedImages(Encoding):
    """Unit vectors (B, D) and, in training, the related regions (B, R, D) that captions are told from."""

    related: Tensor | None = None


@dataclass(frozen=True)
class ToldCaptions(Encoding):
    """Unit vectors (C, D), lengths, and, in training, the token ids (C, W) that are to be told."""

    lengths: tuple[int, ...]
    ids: Tensor | None = None

    ragged: ClassVar[tuple[str, ...]] = ("ids",)


class RegionRelations(nn.Module):
    """Residual graph convolution of regions with a learned affinity (Eqs. 2 and 3).

    V* = W_r (R V W_g) + V with R_ij = phi(v_i)^T psi(v_j). As in the official code R is divided by the number
    of regions, and W_r ends in a batch norm whose scale starts at zero: the untrained layer changes nothing.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.phi, self.psi = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.w_g, self.w_r = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, v: Tensor) -> Tensor:
        """Map (B, R, D) to (B, R, D); the batch norm is over all regions of the batch."""
        affinity = self.phi(v) @ self.psi(v).mT / v.shape[1]  # (B, R, R)
        update = self.w_r(affinity @ self.w_g(v))
        return v + self.norm(update.flatten(0, 1)).view_as(v)


class CaptionDecoder(nn.Module):
    """GRU that tells the next word of a caption from attended regions (Sec. 3.3).

    Regions are read by a GRU with outputs o_i, whose last state starts the decoder. In each step the softmax
    of w^T tanh(W [o_i; h]) weighs the o_i, and their mean enters beside the embedded word.
    """

    dropout = 0.2  # of what the two GRUs take in, official code

    def __init__(self, vocab_size: int, word_dim: int, dim: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.embedding = nn.Embedding(vocab_size, word_dim)
        self.of_output, self.of_state = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.step = nn.GRUCell(width + word_dim, width)
        self.out = nn.Linear(width, vocab_size)
        self.drop = nn.Dropout(self.dropout)
        nn.init.xavier_normal_(self.project.weight)
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, related: Tensor, ids: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Negative log-likelihood of captions (C, W) given the regions (C, R, D) of their images, summed."""
        outputs, final = self.read(self.drop(self.project(related)))
        keys, state, states = self.of_output(outputs), final[-1], []
        for word in self.embedding(ids[:, : max(1, ids.shape[1] - 1)]).unbind(1):
            weights = torch.softmax(self.score(torch.tanh(keys + self.of_state(state)[:, None])), 1)
            context = (weights.mT @ outputs).squeeze(1)
            state = self.step(self.drop(torch.cat([word, context], 1)), state)
            states.append(state)
        # probabilities of the vocabulary at words only: row and column of each, chosen on the host
        told = torch.arange(1, ids.shape[1])[None] < torch.tensor(lengths)[:, None]
        row, column = (index.to(ids.device, non_blocking=True) for index in told.nonzero(as_tuple=True))
        logits = self.out(torch.stack(states, 1)[row, column])
        return F.cross_entropy(logits, ids[row, column + 1], reduction="sum")


def _scaled(regions: Tensor) -> Tensor:
    """Scale each of the D numbers to unit length over the regions of an image, (B, R, D)."""
    return l2(regions.mT).mT


@register("vsrn", summary="regions reason by graph convolution, a GRU reads them; cosine", paper="ICCV 2019")
class VSRN(DualEncoder):
    """Graph convolutions relate the regions, a GRU reads them, its last state is the image; GRU for captions.

    As in the official code, related regions are scaled before they are read: each of the D numbers has unit
    length over the regions of an image. Agrees with the official modules
    to 1e-6 on random weights.

    Parameters
    ----------
    norm : {"batch", "unit"}
        ``"batch"``: batch norm of the image's vector before it gets unit length (official Flickr30K runs).
        ``"unit"``: regions are scaled before they are related, too (official MS-COCO runs).
    caption_dim : int
        Width of the decoder of :meth:`own_loss`, which no score uses.
    **common
        Sizes; see :class:`~nclib.models.Matcher`. The paper's ``embed_dim`` is 2048.
    """

    norm: str = option("batch", choices=NORMS)
    caption_dim: int = option(512, low=1)

    settings: ClassVar = {
        "f30k": PUBLISHED | {"decay_every": 10, "model_options": {"embed_dim": 2048}},
        "coco": PUBLISHED | {"decay_every": 15, "model_options": {"embed_dim": 2048, "norm": "unit"}},
    }

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        dim, words = self.embed_dim, self.word_dim
        self.image_fc = xavier_linear(self.feature_dim, dim)
        self.relations = nn.Sequential(*(RegionRelations(dim) for _ in range(LAYERS)))
        self.image_gru = nn.GRU(dim, dim, batch_first=True)
        self.image_norm = nn.BatchNorm1d(dim) if self.norm == "batch" else nn.Identity()
        self.embedding = nn.Embedding(self.vocab_size, words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.text_gru = nn.GRU(words, dim, batch_first=True)
        self.decoder = CaptionDecoder(self.vocab_size, words, dim, self.caption_dim)

    def encode_images(self, images: Tensor) -> ReasonedImages:
        """Encode region features (B, R, feature_dim) as unit vectors (B, D)."""
        regions = self.image_fc(self.check_images(images))
        related = _scaled(self.relations(_scaled(regions) if self.norm == "unit" else regions))
        _, final = self.image_gru(related)
        return ReasonedImages(l2(self.image_norm(final[-1])), related if self.training else None)

    def encode_captions(self, tokens: Tokens) -> ToldCaptions:
        """Encode captions as unit vectors (C, D)."""
        tokens = self.check_tokens(tokens)
        lengths, ids = tokens.lengths, tokens.ids[:, : max(tokens.lengths)]
        words = self.embedding(ids)
        if BiGRU.alone(ids.device):
            states, _ = self.text_gru(words)  # (C, W, D)
            last = (sizes_on(lengths, ids.device) - 1)[:, None, None]
            final = states.gather(1, last.expand(-1, 1, self.embed_dim)).squeeze(1)
        else:
            final = self.text_gru(pack(words, lengths)[0])[1][-1]
        return ToldCaptions(l2(final), lengths, ids if self.training else None)

    def own_loss(self, images: ReasonedImages, captions: ToldCaptions) -> dict[str, Tensor]:
        """Return the ranking loss and the loss of telling each caption from the regions of its image.

        Ranking (Eq. 7): triplet with the hardest negatives, summed over the batch. Caption (Eq. 8): minus the
        log-likelihood of the words after the first, end token included, summed over words, mean over the
        batch. The official code also asks for one token of padding after the end, which is not done here.

        Raises
        ------
        ValueError
            If there are not as many images as captions, or they were not encoded in training mode.
        """
        self.check_pairs(images, captions)
        if images.related is None or captions.ids is None:
            raise ValueError("own_loss needs encodings made in training mode; call train() before encoding")
        told = self.decoder(images.related, captions.ids, captions.lengths)
        ranking = triplet(images.vectors @ captions.vectors.t(), MARGIN, "hardest").sum()
        return {"ranking": ranking, "caption": told / len(captions)}
