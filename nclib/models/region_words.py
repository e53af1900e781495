"""Base of the models on regions and words, with a choice of encoders for each."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher
from nclib.models.encoders import RegionEncoder, TextEncoder
from nclib.models.options import option, required_path, used_with
from nclib.models.pretrained import PretrainedCells, PretrainedText


class RegionWordMatcher(Matcher):
    """A model on region features and words, encoded in one common space.

    Parameters
    ----------
    dropout : float
        Dropout on the word embeddings of the BiGRU while training.
    text : {"bigru", "bert", "clip"}
        Text encoder: a BiGRU from scratch, or the BERT or CLIP model in ``text_folder``.
    text_folder : str
        Folder with the weights in the layout of ``transformers``, or a name in the hub's cache; see
        :func:`nclib.models.pretrained.load`.
    text_words : str
        The data's vocabulary file, to cut its words into the pieces of the text encoder; see
        :class:`~nclib.models.pretrained.CaptionReader`.
    image : {"regions", "resnet", "clip"}
        What an image is: region features, or a picture, which goes through the residual network or the CLIP
        model in ``image_folder``; its cells or patches then take the place of regions.
    image_folder : str
        Like ``text_folder``; see :class:`~nclib.models.pretrained.PretrainedCells`.
    finetune : bool
        Train pretrained networks too, at the same rate as the rest; otherwise they keep their weights.
    **common
        Sizes; see :class:`~nclib.models.Matcher`. For pictures ``feature_dim`` is the numbers in a row (three
        times the width) and ``n_regions`` the rows.

    Raises
    ------
    ValueError
        For a size or choice that is not allowed, or a path that is missing or has no effect.
    """

    dropout: float = option(0.0, low=0, high=1)
    text: str = option("bigru", choices=("bigru", "bert", "clip"))
    text_folder: str = option("")
    text_words: str = option("")
    image: str = option("regions", choices=("regions", "resnet", "clip"))
    image_folder: str = option("")
    finetune: bool = option(False)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        required_path("text_folder", self.text_folder, "text", self.text, "bert", "clip")
        required_path("image_folder", self.image_folder, "image", self.image, "resnet", "clip")
        used_with("text_words", self.text_words, "", "text", self.text, "bert", "clip")
        width, self.n_slots = self.feature_dim, self.n_regions
        self.pixels: PretrainedCells | None = None
        if self.image != "regions":
            self.needs_regions = self.n_regions
            self.pixels = PretrainedCells(
                width, self.n_regions, kind=self.image, folder=self.image_folder, finetune=self.finetune
            )
            width, self.n_slots = self.pixels.width, self.pixels.n_cells
        self.image_encoder: Any = self.region_encoder(width)
        self.text_encoder: Any = self.word_encoder()

    def region_encoder(self, width: int) -> nn.Module:
        """Return the encoder of regions or cells of this width; a subclass may have its own."""
        return RegionEncoder(width, self.embed_dim)

    def word_encoder(self) -> nn.Module:
        """Return the encoder of words that ``text`` names."""
        if self.text == "bigru":
            return TextEncoder(self.vocab_size, self.word_dim, self.embed_dim, dropout=self.dropout)
        return PretrainedText(
            self.vocab_size,
            self.embed_dim,
            kind=self.text,
            folder=self.text_folder,
            words_file=self.text_words,
            finetune=self.finetune,
        )

    def encode_regions(self, images: Tensor) -> Tensor:
        """Encode region features (B, R, feature_dim), or pictures, as regions (B, R, D)."""
        images = self.check_images(images)
        regions: Tensor = self.image_encoder(images if self.pixels is None else self.pixels(images))
        return regions

    def encode_words(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Encode captions as words (C, W, D), zero beyond their lengths, and sentence vectors (C, D)."""
        words, last = self.text_encoder(self.check_tokens(tokens))
        return words, last

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Encode region features (B, R, feature_dim) as unit regions (B, R, D) and their mean (B, D)."""
        regions = self.encode_regions(images)
        return ImageEncoding(regions.mean(1), regions)

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Encode captions as unit words (C, W, D) and sentence vectors (C, D)."""
        words, last = self.encode_words(tokens)
        return CaptionEncoding(last, tokens.lengths, words)
