"""Encodings of OMIT: fragments of unit length with what their normalisation took away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from nclib.models.base import CaptionEncoding, ImageEncoding, Index, _host_rows, _join, _take


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
        """Return all rows of ``parts``, in order."""
        whole = ImageEncoding.concat(parts)
        norms, spread = (_join([getattr(p, name, None) for p in parts]) for name in ("norms", "spread"))
        return OMITImages(whole.vectors, whole.regions, norms, spread)


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
