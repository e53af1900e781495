"""Encodings of OMIT (unit-norm fragments plus their norms) and its image encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.models.base import CaptionEncoding, ImageEncoding, Index, host_rows, join, take
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
        rows = host_rows(index, len(self))
        return OMITImages(take(self.vectors, rows), *(
            None if x is None else take(x, rows) for x in (self.regions, self.norms, self.spread)
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
        spread = join([getattr(p, "spread", None) for p in parts])
        vectors = torch.cat([p.vectors for p in parts])
        return OMITImages(vectors, join(regions), join(padded), spread)


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
        part, rows = super().select(index), host_rows(index, len(self))
        width = max(part.lengths, default=0)
        norms = None if self.norms is None else take(self.norms, rows)[:, :width]
        spread = None if self.spread is None else take(self.spread, rows)
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
        spread = join([getattr(p, "spread", None) for p in parts])
        return OMITCaptions(whole.vectors, whole.lengths, whole.words, join(padded), spread)


def _identity(feature_dim: int, embed_dim: int) -> nn.Module:
    if feature_dim != embed_dim:
        raise ValueError(
            f"image_encoder='identity' needs embed_dim = feature_dim, got {embed_dim} and {feature_dim}"
        )
    return nn.Identity()


IMAGE_ENCODERS = {"mlp": ResidualRegionEncoder, "linear": xavier_linear, "identity": _identity}
