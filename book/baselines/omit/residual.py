"""Residual networks of torchvision's layout, whatever their depth and groups: ResNet-152, ResNeXt-101 (WSL).

ResNet is by He et al. (CVPR 2016), ResNeXt by Xie et al. (CVPR 2017), its weights from hashtags by Mahajan et
al. (ECCV 2018). The file of weights says how many blocks and groups a network has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

STAGES = 4
HEAD = ("fc.weight", "fc.bias")
"""Weights of the classifier, which no cell needs."""


class Bottleneck(nn.Module):
    """Three convolutions, the second with the stride and the groups, added to the input."""

    def __init__(self, width: int, inner: int, out: int, *, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 1, bias=False)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(n) for n in (inner, inner, out))
        self.downsample: nn.Module | None = None
        if stride > 1 or width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, width, h, w) to (B, out, h / stride, w / stride)."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(y)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResidualNetwork(nn.Module):
    """A residual network without its classifier.

    Parameters
    ----------
    blocks : tuple of int
        Blocks of the four stages.
    stem, inner, out, groups : int
        Channels behind the first convolution, within and behind the blocks of the first stage (twice as many
        in each further one), and groups of the 3 x 3 convolutions.
    """

    def __init__(self, blocks: tuple[int, ...], *, stem: int, inner: int, out: int, groups: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type="resnet")
        self.conv1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        width = stem
        for stage, n in enumerate(blocks):
            sizes, found = (inner << stage, out << stage), []
            for i in range(n):
                stride = 2 if stage and not i else 1
                found.append(Bottleneck(width, *sizes, stride=stride, groups=groups))
                width = sizes[1]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*found))

    def forward(self, pictures: Tensor) -> SimpleNamespace:
        """Map pictures (B, 3, h, w) to ``last_hidden_state``, the last map (B, C, h / 32, w / 32)."""
        x = torch.relu(self.bn1(self.conv1(pictures)))
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        for stage in range(STAGES):
            x = getattr(self, f"layer{stage + 1}")(x)
        return SimpleNamespace(last_hidden_state=x)


def file_in(folder: str) -> Path | None:
    """Return the only ``.pth`` file of a folder that has no ``config.json``; None without one."""
    place = Path(folder).expanduser()
    found = [] if (place / "config.json").exists() else sorted(place.glob("*.pth"))
    return found[0] if len(found) == 1 else None


def read(file: Path, option: str) -> dict[str, Tensor]:
    """Return the weights in a file; those of a zip archive stay on disk until they are used.

    A ValueError names the option when the file is damaged or holds something else than weights.
    """
    try:  # older files, such as that of WSL, are not zip archives and are read whole
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # whatever a damaged file leads the parser to
        said = str(error).split(". ")[0].splitlines()[0][:120]
        raise ValueError(f"{option}: {file} is damaged ({said}); get it again") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{option}: {file} does not hold weights by name")
    return state


def shape_of(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the sizes of a network from its weights, as :class:`ResidualNetwork` takes them.

    A ValueError when these are not the weights of a network of bottlenecks.
    """
    blocks = [0] * STAGES
    for name in state:
        if place := re.fullmatch(r"layer([1-4])\.(\d+)\.conv3\.weight", name):
            stage = int(place[1]) - 1
            blocks[stage] = max(blocks[stage], int(place[2]) + 1)
    if "conv1.weight" not in state or 0 in blocks:
        raise ValueError("no residual network of bottlenecks (conv1, layer1 to layer4)")
    grouped, last = state["layer1.0.conv2.weight"].shape, state["layer1.0.conv3.weight"].shape
    sizes = {"stem": state["conv1.weight"].shape[0], "inner": grouped[0], "out": last[0]}
    return {"blocks": tuple(blocks), **sizes, "groups": grouped[0] // grouped[1]}


def load(file: Path, option: str) -> ResidualNetwork:
    """Load a network with all its weights but the classifier's, in evaluation mode.

    A ValueError names the option when the file is damaged, or a weight is missing or has another shape.
    """
    state = {k: v for k, v in read(file, option).items() if k not in HEAD}
    try:
        network = ResidualNetwork(**shape_of(state))
        network.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
    except (ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{option}: {file} holds another network: {str(error)[:300]}") from None
    return network.eval()
