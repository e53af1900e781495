"""Raw images through a residual network (CVPR 2016) with weights from a local file in torchvision's layout.

The file decides the network: which blocks there are, how many, how wide and in how many groups is read off
the names and shapes of its weights, so that ResNet-18 to -152, Wide ResNet and ResNeXt files all fit.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of the three colours that published weights were trained with (ImageNet)."""

CELL = 32
"""Pixels that one cell of the last feature map covers, in each direction."""


def _convolution(n_in: int, weight: Tensor, stride: int) -> nn.Conv2d:
    n_out, per_group, size, _ = weight.shape
    return nn.Conv2d(n_in, n_out, size, stride, size // 2, groups=n_in // per_group, bias=False)


class Block(nn.Module):
    """Two or three convolutions, added to their input; the last but one takes the stride."""

    def __init__(self, weights: Mapping[str, Tensor], stride: int) -> None:
        super().__init__()
        self.size = 3 if "conv3.weight" in weights else 2
        width = weights["conv1.weight"].shape[1]
        shortcut = weights.get("downsample.0.weight")
        self.downsample: nn.Module = nn.Identity()
        if shortcut is not None:
            norm = nn.BatchNorm2d(shortcut.shape[0])
            self.downsample = nn.Sequential(_convolution(width, shortcut, stride), norm)
        for i in range(1, self.size + 1):
            weight = weights[f"conv{i}.weight"]
            self.add_module(f"conv{i}", _convolution(width, weight, stride if i == self.size - 1 else 1))
            self.add_module(f"bn{i}", nn.BatchNorm2d(weight.shape[0]))
            width = weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, h, w) to (B, C', h / stride, w / stride)."""
        y = x
        for i in range(1, self.size + 1):
            y = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(y))
            y = torch.relu(y if i < self.size else y + self.downsample(x))
        return y


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file, or a file of ``torch.save`` that holds tensors only.

    Raises
    ------
    ValueError
        If there is no such file or it is not a residual network in torchvision's layout.
    """
    if not file.is_file():
        raise ValueError(f"image_file={str(file)!r}: there is no such file")
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        state: dict[str, Tensor] = load_file(file)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
    if not {"conv1.weight", "layer1.0.conv1.weight", "layer4.0.conv1.weight"} <= set(state):
        raise ValueError(
            f"image_file={str(file)!r} is no residual network in torchvision's layout: it must hold "
            "conv1.weight, layer1.0.conv1.weight, ..., layer4.0.conv1.weight"
        )
    return {name: value for name, value in state.items() if not name.startswith("fc.")}


class PixelEncoder(nn.Module):
    """Pictures to the cells of a residual network's last feature map, as if these were region features.

    A picture travels as ``height`` rows of ``3 * width`` numbers in [0, 1], red, green, blue of each pixel in
    turn: the shape (images, rows, numbers) that features have too. The batch norms stay in evaluation mode.

    Parameters
    ----------
    feature_dim, n_rows : int
        Numbers in a row (three times the width of a picture), and rows of a picture.
    file : str
        Local file with the weights; the classifier ``fc`` is left out.
    finetune : bool
        Train the network too.

    Attributes
    ----------
    width, n_cells : int
        Width of a cell's feature and cells of a picture.

    Raises
    ------
    ValueError
        If the file does not fit, or a row is no multiple of three.
    """

    def __init__(self, feature_dim: int, n_rows: int, *, file: str, finetune: bool = False) -> None:
        super().__init__()
        if feature_dim % 3:
            raise ValueError(
                f"feature_dim={feature_dim}: a row of a picture has three numbers per pixel; give images as "
                "(images, height, 3 * width)"
            )
        state = read_weights(Path(file))
        first = state["conv1.weight"]
        self.conv1 = nn.Conv2d(3, first.shape[0], first.shape[2], 2, first.shape[2] // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(first.shape[0])
        self.pool = nn.MaxPool2d(3, 2, 1)
        for i in range(1, 5):
            self.add_module(f"layer{i}", _stage(state, f"layer{i}.", stride=1 if i == 1 else 2))
        self._take(state, file)
        self.requires_grad_(finetune)
        self.finetune = finetune
        last = max(name for name in state if re.match(r"layer4\.0\.bn\d\.weight", name))
        self.width = state[last].shape[0]
        self.n_cells = -(-n_rows // CELL) * -(-(feature_dim // 3) // CELL)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(STD)[:, None, None], persistent=False)
        self.train()

    def _take(self, state: dict[str, Tensor], file: str) -> None:
        own = self.state_dict()
        wrong = [
            name
            for name, value in own.items()
            if "num_batches" not in name and (name not in state or state[name].shape != value.shape)
        ]
        if wrong:
            raise ValueError(f"image_file={file!r}: {wrong[0]!r} is missing or has another shape")
        self.load_state_dict({name: state.get(name, value) for name, value in own.items()})

    def train(self, mode: bool = True) -> PixelEncoder:
        """Set training mode, but leave the batch norms with the statistics of the file."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.training = False
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Map pictures (B, height, 3 width) to cells (B, n_cells, width), row by row."""
        pixels = images.unflatten(-1, (-1, 3)).permute(0, 3, 1, 2)  # (B, 3, height, width)
        with contextlib.nullcontext() if self.finetune else torch.no_grad():
            x = self.pool(torch.relu(self.bn1(self.conv1((pixels - self.mean) / self.std))))
            for i in range(1, 5):
                x = self.get_submodule(f"layer{i}")(x)
        return x.flatten(2).transpose(1, 2)


def _stage(state: Mapping[str, Tensor], prefix: str, stride: int) -> nn.Sequential:
    """Return the blocks of one stage, the first with the stride."""
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    blocks = []
    for i in sorted({int(name.split(".")[0]) for name in own}):
        weights = {n.removeprefix(f"{i}."): value for n, value in own.items() if n.startswith(f"{i}.")}
        blocks.append(Block(weights, stride if i == 0 else 1))
    return nn.Sequential(*blocks)
