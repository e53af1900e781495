"""CLIP's two towers in place of networks of features, and pictures that are read when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.data.rows import RowFile
from nclib.label_noise.parts.networks import Branches, Prototypes
from nclib.models.clip import PretrainedImages
from nclib.models.pretrained import Frozen, load


@dataclass(frozen=True, eq=False)
class PictureRows:
    """Pictures on disk in place of a tensor of features; indexing reads them.

    Parameters
    ----------
    rows : RowFile, uint8, (N, height, 3 width)
    device : torch.device or str
        Where batches go.
    """

    rows: RowFile
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> PictureRows:
        """Return the same pictures, for batches on ``device``."""
        return replace(self, device=device)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return the pictures at ``index``, int64 (B,), as float32 (B, height, 3 width) in [0, 1]."""
        found = torch.from_numpy(self.rows.take(index.cpu().numpy()))
        return found.to(self.device) / 255  # bytes travel to the device, not floats

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all pictures in order, ``size`` at a time."""
        for index in torch.arange(len(self)).split(size):
            yield self[index]


class TokenReader(Frozen):
    """CLIP's text tower with its projection: rows of tokens (n, W) to embeddings (n, D).

    A token sees none after it, so that what fills a row behind the end of its text changes nothing.
    """

    def __init__(self, clip: Any, *, finetune: bool) -> None:
        super().__init__(clip.text_model, finetune=finetune)
        self.projection = clip.text_projection.requires_grad_(finetune)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed texts, not normalised."""
        with self.gradients():
            ends = self.tower(input_ids=tokens.long()).pooler_output
        vectors: Tensor = self.projection(ends)
        return vectors


class Towers(Branches):
    """The image tower and the text tower of CLIP, each with its projection.

    Parameters
    ----------
    clip_folder : str
        Where CLIP is, see :func:`nclib.models.pretrained.load`.
    row, n_tokens : int
        Numbers in a row of a picture, three times its width, and tokens of a text.
    finetune : bool
        Whether the towers are trained.
    unit : bool
        Embeddings of unit length.

    Attributes
    ----------
    width : int
        Numbers of an embedding.
    scale : Tensor, ()
        Logarithm of the factor with which CLIP turns cosines into logits.

    Raises
    ------
    ValueError
        When files of CLIP are missing or damaged, or its text tower reads fewer tokens.
    """

    prototypes: Prototypes

    def __init__(
        self, clip_folder: str, row: int, n_tokens: int, *, finetune: bool, unit: bool = True
    ) -> None:
        # Nothing here is differentiated twice, so that fused attention serves for training too.
        clip = load("clip", clip_folder, "clip_folder", finetune=False)
        if n_tokens > (longest := clip.config.text_config.max_position_embeddings):
            raise ValueError(
                f"max_tokens={n_tokens}: the text tower of clip_folder={clip_folder!r} reads up to {longest}"
            )
        images = PretrainedImages(clip, clip_folder, row, finetune=finetune)
        super().__init__(images, TokenReader(clip, finetune=finetune))
        self.width, self.unit = int(clip.config.projection_dim), unit
        self.scale = clip.logit_scale.detach()

    def finish(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=-1) if self.unit else z
