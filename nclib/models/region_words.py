"""What nearly all models share: an encoder of image regions and an encoder of words, each to be chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher
from nclib.models.clip_encoders import ClipPatches, ClipTextEncoder
from nclib.models.clip_towers import GELUS
from nclib.models.encoders import RegionEncoder, TextEncoder
from nclib.models.pixels import PixelEncoder
from nclib.models.registry import choice, local_path, positive_integer, used_with
from nclib.models.text_transformer import TransformerTextEncoder


class RegionWordMatcher(Matcher):
    """A model on region features and words, encoded in one common space.

    Parameters
    ----------
    feature_dim, vocab_size, n_regions : int
        Width of a region feature, number of token ids, regions per image (any number may be given later,
        unless a model says otherwise). With ``image="pixels"`` numbers in a row and rows of a picture.
    embed_dim, word_dim : int
        Width of the common space and of a word embedding.
    sim_dim : int
        Width of a similarity vector, in models that have one.
    dropout : float
        Dropout on the word embeddings of the BiGRU while training.
    text : {"bigru", "transformer", "clip"}
        Text encoder: a BiGRU from scratch, a BERT encoder with weights from ``text_folder``, or the text
        tower of the CLIP model in ``text_file``.
    text_folder, text_file, text_merges, text_words : str
        See :class:`~nclib.models.text_transformer.TransformerTextEncoder` (``text_folder``, ``text_words``)
        and :class:`~nclib.models.clip_encoders.ClipTextEncoder` (the others, and ``text_words``).
    image : {"regions", "pixels", "clip"}
        What an image is: region features, or a picture. A picture goes through the residual network in
        ``image_file``, or through the image tower of the CLIP model there; its cells or patches then take
        the place of regions.
    image_file : str
        See :class:`~nclib.models.pixels.PixelEncoder` and :class:`~nclib.models.clip_encoders.ClipPatches`.
    clip_gelu : {"config", "exact", "quick"}
        Activation of CLIP's towers: as ``open_clip_config.json`` beside the file says (exact without one),
        the exact GELU, or the quick one that OpenAI's weights need.
    finetune : bool
        Train networks that come from a file, at the same rate as the rest; otherwise they stay as they are.

    Raises
    ------
    ValueError
        For a size or choice that is not allowed, or a file that is missing or not asked for.
    """

    def __init__(
        self,
        *,
        feature_dim: int,
        vocab_size: int,
        n_regions: int = 12,
        embed_dim: int = 1024,
        sim_dim: int = 256,
        word_dim: int = 300,
        dropout: float = 0.0,
        text: str = "bigru",
        text_folder: str = "",
        text_words: str = "",
        text_file: str = "",
        text_merges: str = "",
        image: str = "regions",
        image_file: str = "",
        clip_gelu: str = "config",
        finetune: bool = False,
    ) -> None:
        super().__init__(feature_dim=feature_dim, vocab_size=vocab_size, n_regions=n_regions)
        positive_integer(embed_dim=embed_dim, sim_dim=sim_dim, word_dim=word_dim)
        self.embed_dim, self.sim_dim, self.word_dim = embed_dim, sim_dim, word_dim
        choice("text", text, ("bigru", "transformer", "clip"))
        choice("image", image, ("regions", "pixels", "clip"))
        choice("clip_gelu", clip_gelu, ("config", *GELUS))
        local_path("text_folder", text_folder, "text", text, "transformer")
        local_path("text_file", text_file, "text", text, "clip")
        local_path("image_file", image_file, "image", image, "pixels", "clip")
        used_with("text_words", text_words, "", "text", text, "transformer", "clip")
        used_with("text_merges", text_merges, "", "text", text, "clip")
        if clip_gelu != "config" and "clip" not in (text, image):
            raise ValueError(f"clip_gelu={clip_gelu!r} is used with text='clip' or image='clip' only")
        width, self.n_slots = feature_dim, n_regions
        self.pixels: PixelEncoder | ClipPatches | None = None
        if image != "regions":
            self.needs_regions = n_regions
            self.pixels = (
                PixelEncoder(feature_dim, n_regions, file=image_file, finetune=finetune)
                if image == "pixels"
                else ClipPatches(feature_dim, n_regions, file=image_file, gelu=clip_gelu, finetune=finetune)
            )
            width, self.n_slots = self.pixels.width, self.pixels.n_cells
        self.image_encoder: Any = self._region_encoder(width)
        text_encoders: dict[str, Callable[[], nn.Module]] = {
            "bigru": lambda: TextEncoder(vocab_size, word_dim, embed_dim, dropout=dropout),
            "transformer": lambda: TransformerTextEncoder(
                vocab_size, embed_dim, folder=text_folder, words_file=text_words, finetune=finetune
            ),
            "clip": lambda: ClipTextEncoder(
                vocab_size,
                embed_dim,
                file=text_file,
                merges=text_merges,
                words_file=text_words,
                gelu=clip_gelu,
                finetune=finetune,
            ),
        }
        self.text_encoder: Any = text_encoders[text]()

    def _region_encoder(self, width: int) -> nn.Module:
        """Encoder of regions or cells of this width."""
        return RegionEncoder(width, self.embed_dim)

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
