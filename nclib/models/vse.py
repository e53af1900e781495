"""VSE++: one vector per image and per caption, compared by their cosine (BMVC 2018, arXiv 1707.05612)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nclib.batch import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher, cosine_pairs
from nclib.models.encoders import RegionEncoder, TextEncoder, l2, word_mask
from nclib.models.registry import MODELS, choice


def mean_of_words(words: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return the mean of the valid words: (C, W, D) to (C, D)."""
    mask = word_mask(lengths, words.shape[1], words)
    return torch.bmm(mask[:, None], words).squeeze(1) / mask.sum(1, keepdim=True)


def mean_of_regions(regions: Tensor) -> Tensor:
    """Return the mean over regions: (B, R, D) to (B, D)."""
    return regions.mean(1)


def max_of_regions(regions: Tensor) -> Tensor:
    """Return the largest value over regions, per dimension: (B, R, D) to (B, D)."""
    return regions.amax(1)


REGION_POOLS: dict[str, Callable[[Tensor], Tensor]] = {"mean": mean_of_regions, "max": max_of_regions}
WORD_POOLS: dict[str, Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]] = {
    "mean": lambda words, last, lengths: mean_of_words(words, lengths),
    "last": lambda words, last, lengths: last,
}


@MODELS.register("vse", summary="pooled regions, pooled BiGRU, cosine; fast", paper="VSE++, BMVC 2018")
class VSE(Matcher):
    """Dual encoder on region features: linear map and pooling; BiGRU and pooling; cosine.

    Parameters
    ----------
    feature_dim, vocab_size, n_regions : int
        Width of a region feature, number of token ids, regions per image (any number may be given later).
    embed_dim, word_dim : int
        Width of the common space and of a word embedding.
    sim_dim : int
        Not used; accepted so that all models are built by the same call.
    region_pool : {"mean", "max"}
        How regions become one vector.
    word_pool : {"mean", "last"}
        How words become one vector: mean of the words, or the final states of the two directions.
    dropout : float
        Dropout on the word embeddings while training.
    unit_fragments : bool
        Scale regions and words to unit length before pooling.
    """

    score_range = (-1.0, 1.0)

    def __init__(
        self,
        *,
        feature_dim: int,
        vocab_size: int,
        n_regions: int = 12,
        embed_dim: int = 1024,
        sim_dim: int = 256,
        word_dim: int = 300,
        region_pool: str = "mean",
        word_pool: str = "mean",
        dropout: float = 0.0,
        unit_fragments: bool = False,
    ) -> None:
        super().__init__(feature_dim=feature_dim, vocab_size=vocab_size, n_regions=n_regions)
        self.embed_dim = embed_dim
        self.region_pool = choice("region_pool", region_pool, REGION_POOLS)
        self.word_pool = choice("word_pool", word_pool, WORD_POOLS)
        self.image_encoder = RegionEncoder(feature_dim, embed_dim, unit=unit_fragments)
        self.text_encoder = TextEncoder(vocab_size, word_dim, embed_dim, dropout=dropout, unit=unit_fragments)

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Map region features (B, R, feature_dim) to unit vectors (B, D)."""
        return ImageEncoding(
            l2(REGION_POOLS[self.region_pool](self.image_encoder(self.check_images(images))))
        )

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Map captions to unit vectors (C, D)."""
        words, last = self.text_encoder(self.check_tokens(tokens))
        vectors = l2(WORD_POOLS[self.word_pool](words, last, tokens.lengths))
        return CaptionEncoding(vectors, tokens.lengths)

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
