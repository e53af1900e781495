"""What IN2R asks of the vectors of any model: their width, and whether a second view differs."""

from __future__ import annotations

import torch
from torch import nn

from nclib.models import Matcher


@torch.no_grad()
def width_of(network: Matcher) -> int:
    """Return the width D of a network's global vectors."""
    mode = network.training
    vectors = network.eval().encode_images(torch.zeros(1, network.n_regions, network.feature_dim)).vectors
    network.train(mode)
    return int(vectors.shape[1])


def draws(network: nn.Module) -> bool:
    """Return whether a network draws random numbers in training, so that two passes differ."""
    return any(
        getattr(part, "draws_in_training", False) or (isinstance(part, nn.Dropout) and part.p > 0)
        for part in network.modules()
    )
