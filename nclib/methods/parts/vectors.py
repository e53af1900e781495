"""What methods ask of any model: how its encodings are built, and whether a second view differs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nclib.models import Matcher


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
