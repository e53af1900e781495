"""Encodings of OMIT, fragments of unit length with what their normalisation took away, and small parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.models.base import CaptionEncoding, ImageEncoding, Index, _host_rows, _join, _take
from nclib.models.encoders import xavier_linear
from nclib.models.vse_inf import ResidualRegionEncoder


@dataclass(frozen=True)
class OMITImages(ImageEncoding):
    """Encoded images: unit regions and their unit mean.

    Parameters
    ----------
    norms : Tensor, (B, K), optional
        Lengths of the regions before they were scaled to unit length.
    spread : Tensor, (B, D), optional
        Logarithm of the standard deviations, for ``matching="pem"``.
    """

    norms: Tensor | None = None
    spread: Tensor | None = None

    def select(self, index: Index) -> OMITImages:
        """Return the rows ``index`` (integers, a boolean mask or a slice)."""
        rows = _host_rows(index, len(self))
        return OMITImages(_take(self.vectors, rows), *(
            None if x is None else _take(x, rows) for x in (self.regions, self.norms, self.spread)
        ))  # fmt: skip

    def detach(self) -> OMITImages:
        """Return the same values without a gradient."""
        return OMITImages(self.vectors.detach(), *(
            None if x is None else x.detach() for x in (self.regions, self.norms, self.spread)
        ))  # fmt: skip

    @staticmethod
    def concat(parts: Sequence[ImageEncoding]) -> OMITImages:
        """Return all rows of ``parts``, in order.

        Images that training has masked hold fewer fragments; the missing ones become zero vectors.
        """
        width = max((p.regions.shape[1] for p in parts if p.regions is not None), default=0)
        regions = [
            None if p.regions is None else F.pad(p.regions, (0, 0, 0, width - p.regions.shape[1]))
            for p in parts
        ]
        norms = [getattr(p, "norms", None) for p in parts]
        padded = [None if x is None else F.pad(x, (0, width - x.shape[1])) for x in norms]
        spread = _join([getattr(p, "spread", None) for p in parts])
        vectors = torch.cat([p.vectors for p in parts])
        return OMITImages(vectors, _join(regions), _join(padded), spread)


@dataclass(frozen=True)
class OMITCaptions(CaptionEncoding):
    """Encoded captions: unit words, zero beyond a caption's length, and their unit mean.

    Parameters
    ----------
    norms : Tensor, (C, W), optional
        Lengths of the words before they were scaled to unit length; 0 at padding.
    spread : Tensor, (C, D), optional
        Logarithm of the standard deviations, for ``matching="pem"``.
    """

    norms: Tensor | None = None
    spread: Tensor | None = None

    def select(self, index: Index) -> OMITCaptions:
        """Return the rows ``index``, cut to their longest caption."""
        part, rows = super().select(index), _host_rows(index, len(self))
        width = max(part.lengths, default=0)
        norms = None if self.norms is None else _take(self.norms, rows)[:, :width]
        spread = None if self.spread is None else _take(self.spread, rows)
        return OMITCaptions(part.vectors, part.lengths, part.words, norms, spread)

    def detach(self) -> OMITCaptions:
        """Return the same values without a gradient."""
        part = super().detach()
        norms, spread = (None if x is None else x.detach() for x in (self.norms, self.spread))
        return OMITCaptions(part.vectors, part.lengths, part.words, norms, spread)

    @staticmethod
    def concat(parts: Sequence[CaptionEncoding]) -> OMITCaptions:
        """Return all rows of ``parts``, in order, padded to the longest caption."""
        whole = CaptionEncoding.concat(parts)
        width = 0 if whole.words is None else whole.words.shape[1]
        norms = [getattr(p, "norms", None) for p in parts]
        padded = [None if x is None else F.pad(x, (0, width - x.shape[1])) for x in norms]
        spread = _join([getattr(p, "spread", None) for p in parts])
        return OMITCaptions(whole.vectors, whole.lengths, whole.words, _join(padded), spread)


class AttentionPool(nn.Module):
    """Mean of fragments under softmax weights from tanh(x W1^T) W2^T (PCME, arXiv 2101.05068, Sec. 3.2)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(dim, max(1, dim // 2), bias=False)
        self.second = nn.Linear(max(1, dim // 2), 1, bias=False)
        nn.init.xavier_uniform_(self.first.weight)
        nn.init.xavier_uniform_(self.second.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool (B, n, D) to (B, D); ``mask`` (B, n) is 1 at valid fragments."""
        scores = self.second(torch.tanh(self.first(x))).squeeze(-1)  # (B, n)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return (scores.softmax(1)[..., None] * x).sum(1)


def _identity(feature_dim: int, embed_dim: int) -> nn.Module:
    if feature_dim != embed_dim:
        raise ValueError(
            f"image_encoder='identity' needs embed_dim = feature_dim, got {embed_dim} and {feature_dim}"
        )
    return nn.Identity()


IMAGE_ENCODERS = {"mlp": ResidualRegionEncoder, "linear": xavier_linear, "identity": _identity}
