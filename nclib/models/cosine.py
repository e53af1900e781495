"""Dual encoders: one vector per image and per caption, compared by their cosine."""

from __future__ import annotations

from torch import Tensor

from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher, cosine_pairs
from nclib.models.region_words import RegionWordMatcher


class DualEncoder(Matcher):
    """A model whose encodings hold unit vectors and whose similarity is their cosine.

    Attributes
    ----------
    embed_dim : int
        Width of the vectors.
    """

    score_range = (-1.0, 1.0)
    embed_dim: int

    def similarity(
        self,
        images: ImageEncoding,
        captions: CaptionEncoding,
        *,
        logits: bool = False,
        chunk: int | None = None,
    ) -> Tensor:
        """Return the cosine of every image and every caption, (B, C) in [-1, 1].

        ``logits`` and ``chunk`` change nothing here: a cosine does not saturate, and one product of
        matrices needs no chunks.
        """
        return images.vectors @ captions.vectors.t()

    @property
    def pair_dim(self) -> int:
        """Width of the common space."""
        return self.embed_dim

    def pair_vectors(
        self, images: ImageEncoding, captions: CaptionEncoding, *, paired: bool = False
    ) -> Tensor:
        """Return elementwise products of the unit vectors, (B, C, D) or (B, D); they sum to the cosine."""
        return cosine_pairs(images, captions, paired)

    def paired_similarity(
        self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False
    ) -> Tensor:
        """Return the cosine of image i and caption i, (n,)."""
        return cosine_pairs(images, captions, True).sum(-1)


class CosineMatcher(DualEncoder, RegionWordMatcher):
    """A dual encoder of region features and words."""
