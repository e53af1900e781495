"""Pictures read by pretrained residual networks and CLIP's image tower, in place of regions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.omit import residual
from nclib.common.transformers import library_for
from nclib.models.pretrained import Frozen, load
from nclib.models.region_words import PICTURE_NETWORKS

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of red, green and blue in the pictures that residual networks are trained on."""

CLIP_COLOURS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""The same for CLIP."""


class Pictures(nn.Module):
    """Pictures as rows of numbers to what an image tower reads.

    A picture travels as ``height`` rows of ``3 * width`` numbers in [0, 1], red, green, blue of each pixel in
    turn: the shape (images, rows, numbers) that region features have too. With ``size`` it is scaled
    bicubically with antialiasing until the shorter side fits, and cut to a square around the centre, as CLIP
    prepares pictures.

    Parameters
    ----------
    feature_dim : int
        Numbers in a row, three times the width of a picture; else a ValueError.
    mean, std : sequence of float
        Of red, green and blue.
    size : int, optional
        Side of the square in pixels.
    crop : bool
        In training cut a random part of each picture, 60 to 100 % of each side, scale it back, and mirror
        every second one, as the official codes of VSE-infinity and OMIT.
    """

    def __init__(
        self,
        feature_dim: int,
        mean: Sequence[float],
        std: Sequence[float],
        size: int | None = None,
        *,
        crop: bool = False,
    ) -> None:
        super().__init__()
        self.draws_in_training = crop
        if feature_dim % 3:
            raise ValueError(
                f"feature_dim={feature_dim}: the model reads pictures, whose rows have three numbers per "
                "pixel; choose data or data_options that give images as (images, height, 3 * width) in "
                "[0, 1], not region features"
            )
        self.size = size
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, height, 3 width) in [0, 1] to (B, 3, size, size), or (B, 3, height, width)."""
        x = images.unflatten(-1, (-1, 3)).permute(0, 3, 1, 2)  # (B, 3, height, width)
        if self.training and self.draws_in_training:
            x = random_crops(x)
        if self.size:
            height, width = x.shape[2:]
            if min(height, width) != self.size:
                sides = [self.size * side // min(height, width) for side in (height, width)]
                x = F.interpolate(x, sides, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
            top, left = (round((side - self.size) / 2) for side in x.shape[2:])
            x = x[:, :, top : top + self.size, left : left + self.size]
        return (x - self.mean) / self.std


def random_crops(pictures: Tensor, least: float = 0.6) -> Tensor:
    """Cut a random part of each picture, scale it to the size of the whole, and mirror every second one.

    Parameters
    ----------
    pictures : Tensor, (B, 3, height, width)
    least : float, in (0, 1]
        Smallest share of each side; height and width keep their proportion.

    Returns
    -------
    Tensor, (B, 3, height, width)
        Draws come from torch's global generator on the CPU.
    """
    n = len(pictures)
    share, side = least + (1 - least) * torch.rand(n), torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    shift = (2 * torch.rand(n, 2) - 1) * (1 - share)[:, None]
    zero = torch.zeros(n)
    rows = [torch.stack([share * side, zero, shift[:, 0]], 1), torch.stack([zero, share, shift[:, 1]], 1)]
    maps = torch.stack(rows, 1).to(pictures.device, pictures.dtype, non_blocking=True)  # (B, 2, 3)
    places = F.affine_grid(maps, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, places, padding_mode="border", align_corners=False)


class PictureReader(Frozen):
    """A residual network or CLIP's image tower, and what prepares pictures for it.

    Mean and deviation of the colours are those in the ``preprocessor_config.json`` of ``folder``, if any;
    ``tuning`` as in :class:`~nclib.models.pretrained.Frozen`.
    """

    def __init__(
        self,
        tower: Any,
        folder: str,
        feature_dim: int,
        *,
        crop: bool = False,
        **tuning: Any,
    ) -> None:
        super().__init__(tower, **tuning)
        self.clip = tower.config.model_type != "resnet"
        quiet = ("_raise_exceptions_for_missing_entries", "_raise_exceptions_for_connection_errors")
        file = None
        if not isinstance(tower, residual.ResidualNetwork):
            file = library_for(folder, "image_folder").utils.cached_file(
                folder, "preprocessor_config.json", local_files_only=True, **dict.fromkeys(quiet, False)
            )
        found = json.loads(Path(file).read_text(encoding="utf8")) if file else {}
        mean, std = CLIP_COLOURS if self.clip else IMAGENET
        size = tower.config.image_size if self.clip else None
        colours = found.get("image_mean", mean), found.get("image_std", std)
        self.prepare = Pictures(feature_dim, *colours, size, crop=crop)


class PretrainedCells(PictureReader):
    """Pictures to the cells of a residual network, or the patches of CLIP's image tower, in place of regions.

    A cell is a place of the last feature map. A patch is the state of its place after the last norm, without
    the projection, which CLIP applies to the class token only.

    Parameters
    ----------
    feature_dim, n_rows : int
        Numbers in a row (three times the width of a picture), and rows of a picture.
    kind, folder : str
        ``"resnet"`` or ``"clip"``, and where it is: see :func:`nclib.models.pretrained.load`; of a residual
        network also a folder with one ``.pth`` file of torchvision's layout.
    finetune : bool
        Train the network too. Batch norms stay in evaluation mode.
    crop : bool
        As in :class:`Pictures`.
    class_token : bool
        Put the state of CLIP's class token, which describes the whole picture, before the patches.
    **tuning
        ``rate`` and ``held_epochs`` of :class:`~nclib.models.pretrained.Frozen`.

    Attributes
    ----------
    width, n_cells : int
        Width of a cell's feature and cells of a picture.
    projection : Tensor, (D, width), or None
        Weights with which CLIP itself maps its class token to the space of its captions.
    """

    def __init__(
        self,
        feature_dim: int,
        n_rows: int,
        *,
        kind: str,
        folder: str,
        finetune: bool = False,
        crop: bool = False,
        class_token: bool = False,
        **tuning: Any,
    ) -> None:
        file = residual.file_in(folder) if kind == "resnet" else None
        network: Any = (
            load(kind, folder, "image_folder", finetune=finetune)
            if file is None
            else residual.load(file, "image_folder")
        )
        tower = network.vision_model if kind == "clip" else network
        tuning |= {"finetune": finetune, "fixed_norms": True}
        super().__init__(tower, folder, feature_dim, crop=crop, **tuning)
        self.first = int(not class_token)
        own = network.visual_projection.weight.detach() if kind == "clip" else None
        self.projection: Tensor | None
        self.register_buffer("projection", own, persistent=False)
        with torch.no_grad():
            one = self(torch.zeros(1, n_rows, feature_dim, device=self.prepare.mean.device))
        self.n_cells, self.width = one.shape[1:]

    def forward(self, images: Tensor) -> Tensor:
        """Map pictures (B, height, 3 width) to cells (B, n_cells, width), row by row."""
        with self.gradients():
            states: Tensor = self.tower(self.prepare(images)).last_hidden_state
            if self.clip:
                patches: Tensor = self.tower.post_layernorm(states[:, self.first :])
                return patches
        return states.flatten(2).transpose(1, 2)


PICTURE_NETWORKS |= dict.fromkeys(("resnet", "clip"), PretrainedCells)
