"""What methods ask of any model: fragments and means of its encodings, and whether a second view differs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nclib.models import Matcher
from nclib.models.ensemble import JointEncoding


def fragments_of(encoding: Any) -> Tensor | None:
    """Return the regions (B, R, D) or words (B, W, D) of encoded images or captions; None without any."""
    regions: Tensor | None = getattr(encoding, "regions", None)
    return getattr(encoding, "words", None) if regions is None else regions


def global_vectors(images: Any, captions: Any) -> tuple[Tensor, Tensor]:
    """Return the mean of the regions and the mean of the words of encoded images and captions, (B, D) each.

    Models without fragments give their global vectors; the members of an ensemble stand side by side.
    """
    return _mean(images), _mean(captions)


def _mean(encoding: Any) -> Tensor:
    if isinstance(encoding, JointEncoding):
        return torch.cat([_mean(part) for part in encoding.parts], dim=1)
    x, lengths = fragments_of(encoding), getattr(encoding, "lengths", None)
    if x is None:
        vectors: Tensor = encoding.vectors
        return vectors
    if lengths is None:
        return x.mean(1)
    count = torch.tensor(lengths, dtype=x.dtype).to(x.device, non_blocking=True)
    return x.sum(1) / count[:, None]  # padding is zero


@torch.no_grad()
def blank_encoding(network: Matcher) -> Any:
    """Return an image of zeros as a network encodes it: it shows the shapes of its encodings."""
    mode = network.training
    encoding = network.eval().encode_images(torch.zeros(1, network.n_regions, network.feature_dim))
    network.train(mode)
    return encoding


def draws(network: nn.Module) -> bool:
    """Return whether a network draws random numbers in training, so that two passes differ."""
    return any(
        getattr(part, "draws_in_training", False) or (isinstance(part, nn.Dropout) and part.p > 0)
        for part in network.modules()
    )
