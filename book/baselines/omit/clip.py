"""CLIP: a transformer over images and one over text, one vector each, compared by cosine (ICML 2021)."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.omit.pictures import PictureReader
from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, option, used_with
from nclib.models.encoders import l2
from nclib.models.pretrained import CaptionReader, load
from nclib.models.region_words import IMAGE_RATE, TEXT_RATE, DualEncoder
from nclib.models.registry import register

LONGEST, HEAD = 77, 64
"""Tokens that the text tower reads at most, and width of a head of its attention."""


RATES = ("text_rate", "image_rate", "held_epochs")


class Attention(nn.Module):
    """Self-attention whose three input maps lie in one matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.randn(3 * width, width) * width**-0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """Map (B, P, H) to (B, P, H); ``causal``: no position looks at later ones."""
        mapped = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = mapped.unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)  # (B, h, P, 64) each
        if torch.is_grad_enabled():  # written out: the fused kernels cannot be differentiated twice
            scores = q @ k.transpose(2, 3) / math.sqrt(HEAD)  # (B, h, P, P)
            if causal:
                later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(later, -math.inf)
            y = torch.softmax(scores, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        mixed: Tensor = self.out_proj(y.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention and a two-layer network on the normalised input, each added to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width)
        self.mlp = nn.Sequential(
            OrderedDict(c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width))
        )

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """Map (B, P, H) to (B, P, H)."""
        x = x + self.attn(self.ln_1(x), causal)
        y: Tensor = x + self.mlp(self.ln_2(x))
        return y


class Transformer(nn.Module):
    """The blocks of a tower."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: Tensor, *, causal: bool = False) -> Tensor:
        """Map (B, P, H) to (B, P, H)."""
        for block in self.resblocks:
            x = block(x, causal)
        return x


class RegionTower(nn.Module):
    """An image tower from scratch: a class token, and region features under a linear map, no positions."""

    def __init__(self, feature_dim: int, width: int, layers: int, out: int) -> None:
        super().__init__()
        self.fc = nn.Linear(feature_dim, width)
        self.class_embedding = nn.Parameter(width**-0.5 * torch.randn(width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(width, layers)
        self.proj = nn.Parameter(width**-0.5 * torch.randn(width, out))

    def forward(self, regions: Tensor) -> Tensor:
        """Map region features (B, R, feature_dim) to embeddings (B, out), not normalised."""
        first = self.class_embedding.expand(len(regions), 1, -1)
        x = self.ln_pre(torch.cat([first, self.fc(regions)], 1))  # (B, 1 + R, H)
        vectors: Tensor = self.ln_post(self.transformer(x)[:, 0]) @ self.proj
        return vectors


class TextTower(nn.Module):
    """A text tower from scratch, in which a token sees itself and the tokens before it.

    What follows the last token of a caption therefore changes nothing, and needs no mask. Captions are cut to
    77 tokens; the last token then takes the last place, as in CLIP.
    """

    def __init__(self, vocab_size: int, width: int, layers: int, out: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(LONGEST, width))
        self.transformer = Transformer(width, layers)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(width**-0.5 * torch.randn(width, out))

    def forward(self, tokens: Tokens) -> Tensor:
        """Map captions to embeddings (C, out), not normalised."""
        ids = tokens.ids[:, : max(tokens.lengths)]
        end = torch.tensor(tokens.lengths).to(ids.device, non_blocking=True)[:, None] - 1
        if ids.shape[1] > LONGEST:
            place = end.clamp_max(LONGEST - 1)
            ids, end = ids[:, :LONGEST].scatter(1, place, ids.gather(1, end)), place
        x = self.token_embedding(ids) + self.positional_embedding[: ids.shape[1]]
        states = self.ln_final(self.transformer(x, causal=True))  # (C, W, H)
        last = states.gather(1, end[..., None].expand(-1, -1, states.shape[-1])).squeeze(1)
        vectors: Tensor = last @ self.text_projection
        return vectors


class PretrainedImages(PictureReader):
    """CLIP's own image tower with its projection: pictures (B, height, 3 width) to embeddings (B, D)."""

    def __init__(self, clip: Any, folder: str, feature_dim: int, **how: Any) -> None:
        super().__init__(clip.vision_model, folder, feature_dim, **how)
        self.projection = clip.visual_projection.requires_grad_(self.finetune)

    def forward(self, images: Tensor) -> Tensor:
        """Embed pictures, not normalised."""
        with self.gradients():
            pooled = self.tower(self.prepare(images)).pooler_output
        vectors: Tensor = self.projection(pooled)
        return vectors


class PretrainedCaptions(CaptionReader):
    """CLIP's own text tower with its projection: captions to embeddings (C, D)."""

    def __init__(self, clip: Any, folder: str, **how: Any) -> None:
        super().__init__(clip.text_model, folder, "clip_folder", **how)
        self.projection = clip.text_projection.requires_grad_(self.finetune)

    def forward(self, tokens: Tokens) -> Tensor:
        """Embed captions, not normalised."""
        _, ends = self.read(tokens)
        vectors: Tensor = self.projection(ends)
        return vectors


@register(
    "clip",
    summary="two transformers, one vector each, cosine; pretrained, or small and from scratch",
    paper="CLIP, ICML 2021",
)
class CLIP(DualEncoder):
    """Both towers of CLIP with their own projections.

    With ``clip_folder`` the model is the one in that folder: it reads pictures, and before any training it is
    zero-shot CLIP. Without it two small towers start from random weights, on region features; such a model
    shares CLIP's construction and nothing that CLIP has learned. It needs CLIP's own loss (InfoNCE) and a
    small learning rate, which ``settings`` has for quick runs: the triplet loss on the hardest negatives, or
    the rate of the other models, tends to leave it at chance.

    Parameters
    ----------
    clip_folder, text_words : str
        Folder in the layout of ``transformers``, or a name in the hub's cache, such as
        ``openai/clip-vit-base-patch32``; the data's vocabulary file, to cut its words into CLIP's byte pairs,
        without which the data's ids must be CLIP's.
    finetune : {"head", "all"}
        With a folder: train a linear map on each of the frozen towers' embeddings, which changes nothing at
        the start; or train the towers. Towers from scratch are always trained.
    text_rate, image_rate, held_epochs : float, float, int
        With ``finetune="all"``: what multiplies the learning rate for the towers, whose projections train at
        the whole rate; first epochs in which the projections train alone.
    layers, width : int
        From scratch: layers of each tower, and width of its states, a multiple of 64.
    **common
        Sizes, for pictures as in :class:`~nclib.models.region_words.RegionWordMatcher`. A folder has its own
        ``embed_dim``.

    Attributes
    ----------
    logit_scale : Tensor
        Logarithm of the factor with which CLIP turns cosines into logits of a softmax over captions or
        images. Similarities leave it out, as all methods here expect cosines of a dual encoder.

    Raises
    ------
    ValueError
        For a size or choice that is not allowed, a folder that does not fit, or an option without effect.

    Examples
    --------
    >>> from nclib.models import build
    >>> small = build("clip", feature_dim=8, vocab_size=20, embed_dim=16, width=64, layers=1)
    >>> small.pair_dim, small.score_range
    (16, (-1.0, 1.0))
    """

    clip_folder: str = option("", file=True)
    text_words: str = option("", file=True)
    finetune: str = option("head", choices=("head", "all"))
    text_rate: float = option(TEXT_RATE, above=0)
    image_rate: float = option(IMAGE_RATE, above=0)
    held_epochs: int = option(0, low=0)
    layers: int = option(2, low=1)
    width: int = option(128, low=HEAD)

    settings: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"lr": 5e-4}}

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        folder, layers, width = self.clip_folder, self.layers, self.width
        self.frozen = bool(folder) and self.finetune == "head"
        scale = torch.tensor(math.log(1 / 0.07))
        if folder:
            if (layers, width) != (2, 128):
                raise ValueError("layers and width are for towers from scratch, not for clip_folder")
            clip = load("clip", folder, "clip_folder", finetune=not self.frozen)
            self.needs_regions, self.embed_dim = self.n_regions, clip.config.projection_dim
            scale = clip.logit_scale.detach()
            how: dict[str, Any] = {"finetune": not self.frozen, "held_epochs": self.held_epochs}
            images, text = {**how, "rate": self.image_rate}, {**how, "rate": self.text_rate}
            text |= {"words_file": self.text_words, "vocab_size": self.vocab_size}
            self.image_tower: nn.Module = PretrainedImages(clip, folder, self.feature_dim, **images)
            self.captions: nn.Module = PretrainedCaptions(clip, folder, **text)
        else:
            for name in ("text_words", "finetune", *RATES):
                value = getattr(self, name)
                if value != getattr(type(self), name):
                    raise ValueError(f"{name}={value!r} is used with clip_folder only, which is not given")
            if width % HEAD:
                raise ValueError(f"width must be a multiple of {HEAD}, got {width}")
            self.image_tower = RegionTower(self.feature_dim, width, layers, self.embed_dim)
            self.captions = TextTower(self.vocab_size, width, layers, self.embed_dim)
        for name in RATES if self.frozen else ():
            used_with(name, getattr(self, name), "finetune", self.finetune, "all", usual=getattr(CLIP, name))
        self.logit_scale: Tensor
        self.register_buffer("logit_scale", scale)
        self.image_head, self.text_head = self._head(), self._head()

    def _head(self) -> nn.Module:
        """A linear map that starts as the identity on frozen towers."""
        if not self.frozen:
            return nn.Identity()
        head = nn.Linear(self.embed_dim, self.embed_dim)
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
        return head

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Map region features or pictures (B, R, feature_dim) to unit vectors (B, D)."""
        return ImageEncoding(l2(self.image_head(self.image_tower(self.check_images(images)))))

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Map captions to unit vectors (C, D)."""
        return CaptionEncoding(l2(self.text_head(self.captions(self.check_tokens(tokens)))), tokens.lengths)
