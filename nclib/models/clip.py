"""CLIP: a transformer over images and one over text, a vector each, compared by their cosine (ICML 2021)."""

from __future__ import annotations

import contextlib
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding
from nclib.models.clip_encoders import ClipCaptions, Pictures, read_pieces
from nclib.models.clip_file import HEAD, MEAN, STD, read_clip
from nclib.models.clip_towers import ImageTower, Sizes, TextTower, Transformer
from nclib.models.cosine import DualEncoder
from nclib.models.encoders import l2
from nclib.models.registry import MODELS, choice, positive_integer

LONGEST = 77
"""Pieces that CLIP's text tower reads at most."""


class RegionTower(nn.Module):
    """The image tower on region features: a linear map takes the place of the patches, without positions.

    Parameters
    ----------
    sizes : Sizes
        Of the transformer.
    feature_dim, out : int
        Width of a region feature and of an embedding.
    """

    def __init__(self, sizes: Sizes, feature_dim: int, out: int) -> None:
        super().__init__()
        width = sizes.width
        self.fc = nn.Linear(feature_dim, width)
        self.class_embedding = nn.Parameter(width**-0.5 * torch.randn(width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(sizes)
        self.proj = nn.Parameter(width**-0.5 * torch.randn(width, out))

    def embed(self, regions: Tensor) -> Tensor:
        """Map region features (B, R, feature_dim) to embeddings (B, out), not normalised."""
        first = self.class_embedding.expand(len(regions), 1, -1)
        x = self.ln_pre(torch.cat([first, self.fc(regions)], 1))  # (B, 1 + R, H)
        vectors: Tensor = self.ln_post(self.transformer(x)[:, 0]) @ self.proj
        return vectors


@MODELS.register(
    "clip",
    summary="two transformers, one vector each, cosine; from a CLIP file, or small and from scratch",
    paper="CLIP, ICML 2021",
)
class CLIP(DualEncoder):
    """Both towers of CLIP with their own projections.

    With ``clip_file`` the model is the one in that file: it reads pictures, and before any training it is
    zero-shot CLIP. Without a file two small towers start from random weights, on region features or, with
    ``patch``, on pictures; such a model shares CLIP's construction and nothing of what CLIP has learned. It
    wants CLIP's own loss (InfoNCE) and a small rate, which ``settings`` has for quick runs: the triplet loss
    on the hardest negatives, or the rate of the other models, tends to leave it at chance.

    Parameters
    ----------
    feature_dim, vocab_size, n_regions : int
        Width of a region feature, number of token ids, regions per image. For pictures numbers in a row
        (three times the width) and rows.
    embed_dim : int
        Width of the common space of towers from scratch; a file has its own.
    sim_dim, word_dim : int
        Taken like by all models; nothing here has such a width.
    clip_file : str
        Local file with the weights; see :func:`~nclib.models.clip_file.read_clip`.
    text_merges, text_words : str
        Files that cut the data's words into CLIP's pieces; see
        :class:`~nclib.models.clip_encoders.ClipTextEncoder`.
    clip_gelu : {"config", "exact", "quick"}
        Activation; OpenAI's weights need ``quick``; ``config`` is what ``open_clip_config.json`` beside the
        file says, ``exact`` without one.
    finetune : {"head", "all"}
        With a file: train a linear map on each of the frozen towers' embeddings, which changes nothing at
        the start; or train the towers. Towers from scratch are always trained.
    patch : int
        From scratch: side of a patch in pixels; 0 for region features.
    layers, width : int
        From scratch: layers of each tower, and width of its states, a multiple of 64.

    Attributes
    ----------
    logit_scale : Tensor
        Logarithm of the factor with which CLIP turns cosines into logits of a softmax over captions or
        images. Similarities leave it out, as all methods here expect cosines of a dual encoder.

    Raises
    ------
    ValueError
        For a size or choice that is not allowed, a file that does not fit, or one that nothing reads.
    """

    settings: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"lr": 5e-4}}

    def __init__(
        self,
        *,
        feature_dim: int,
        vocab_size: int,
        n_regions: int = 12,
        embed_dim: int = 1024,
        sim_dim: int = 256,
        word_dim: int = 300,
        clip_file: str = "",
        text_merges: str = "",
        text_words: str = "",
        clip_gelu: str = "config",
        finetune: str = "head",
        patch: int = 0,
        layers: int = 2,
        width: int = 128,
    ) -> None:
        super().__init__(feature_dim=feature_dim, vocab_size=vocab_size, n_regions=n_regions)
        positive_integer(embed_dim=embed_dim, sim_dim=sim_dim, word_dim=word_dim, layers=layers, width=width)
        choice("finetune", finetune, ("head", "all"))
        self.image_tower: ImageTower | RegionTower
        self.prepare: nn.Module = nn.Identity()
        self.finetune = finetune == "all" or not clip_file
        self.logit_scale: Tensor
        scale = torch.tensor(math.log(1 / 0.07))
        if clip_file:
            if patch or (layers, width) != (2, 128):
                raise ValueError("patch, layers and width are for towers from scratch, not for clip_file")
            found = read_clip(clip_file, "clip_file", clip_gelu)
            for part in ("vision_cfg", "text_cfg", "preprocess_cfg"):
                found.check(part)
            self.image_tower, text = found.image_tower(embeddings=True), found.text_tower(embeddings=True)
            self.prepare = Pictures(feature_dim, self.image_tower.size, *found.colours)
            pieces = read_pieces(
                found, text.vocab_size, merges=text_merges, words_file=text_words, vocab_size=vocab_size
            )
            scale = scale if found.logit_scale is None else found.logit_scale.reshape(())
            embed_dim, other = found.visual["proj"].shape[1], found.text["text_projection"].shape[1]
            if embed_dim != other:
                raise ValueError(
                    f"{found.name}: embeddings are {embed_dim} wide for images and {other} for text"
                )
            self.needs_regions = n_regions
        else:
            given = {"text_merges": text_merges, "text_words": text_words}
            given |= {"clip_gelu": clip_gelu.replace("config", ""), "finetune": finetune.replace("head", "")}
            unread = next((name for name, value in given.items() if value), None)
            if unread:
                raise ValueError(
                    f"{unread}={given[unread]!r} is used with clip_file only, which is not given"
                )
            if width % HEAD or isinstance(patch, bool) or not isinstance(patch, int) or patch < 0:
                raise ValueError(
                    f"width must be a multiple of {HEAD} and patch pixels (0: region features), got "
                    f"width={width}, patch={patch!r}"
                )
            sizes = Sizes(width, 4 * width, layers, width // HEAD)
            self.image_tower = RegionTower(sizes, feature_dim, embed_dim)
            if patch:
                side = min(n_regions, feature_dim // 3)
                if side < patch:
                    raise ValueError(f"patch={patch} is larger than a picture, whose shorter side is {side}")
                self.prepare = Pictures(feature_dim, side // patch * patch, MEAN, STD)
                self.image_tower = ImageTower(sizes, patch=patch, grid=side // patch, out=embed_dim)
                self.needs_regions = n_regions
            text = TextTower(sizes, vocab_size=vocab_size, longest=LONGEST, out=embed_dim)
            pieces = torch.arange(vocab_size)[:, None]
        self.embed_dim = embed_dim
        self.image_tower.requires_grad_(self.finetune)
        self.captions = ClipCaptions(text, pieces, finetune=self.finetune)
        self.register_buffer("logit_scale", scale)
        self.image_head, self.text_head = self._head(), self._head()

    def _head(self) -> nn.Module:
        """A linear map that changes nothing yet, where the towers stay as they are."""
        if self.finetune:
            return nn.Identity()
        head = nn.Linear(self.embed_dim, self.embed_dim)
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
        return head

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Map region features or pictures (B, R, feature_dim) to unit vectors (B, D)."""
        images = self.check_images(images)
        with contextlib.nullcontext() if self.finetune else torch.no_grad():
            vectors = self.image_tower.embed(self.prepare(images))
        return ImageEncoding(l2(self.image_head(vectors)))

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Map captions to unit vectors (C, D)."""
        _, ends = self.captions.read(self.check_tokens(tokens))
        with contextlib.nullcontext() if self.finetune else torch.no_grad():
            vectors = self.captions.tower.project(ends)
        return CaptionEncoding(l2(self.text_head(vectors)), tokens.lengths)
