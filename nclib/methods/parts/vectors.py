"""What IN2R asks of the vectors of any model: their width, a second view, and centring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models import DualEncoder, Matcher

MOMENTUM = 0.1  # of the running means, as in batch normalisation


def centred(x: Tensor, mean: Tensor) -> Tensor:
    """Return vectors (B, D) without a mean (D,), scaled to unit length."""
    return F.normalize(x - mean, dim=1)


class Centred(DualEncoder):
    """A dual encoder whose vectors lose their mean: of the batch in training, of training at test.

    The official code subtracts the mean of the batch at test as well, so that a score depends on the other
    items of the batch. Here the running means of training are subtracted.
    """

    def __init__(self, model: Matcher) -> None:
        if not isinstance(model, DualEncoder):
            raise ValueError(
                f"center='batch' is for models that compare one vector each by their cosine, such as vse and "
                f"vse_inf; {type(model).__name__} does not"
            )
        sizes = {name: getattr(model, name) for name in ("feature_dim", "vocab_size", "n_regions")}
        super().__init__(**sizes, embed_dim=model.embed_dim)
        self.model, self.needs_regions = model, model.needs_regions
        width = width_of(model)
        self.register_buffer("image_mean", torch.zeros(width))
        self.register_buffer("caption_mean", torch.zeros(width))

    def encode_images(self, images: Tensor) -> Any:
        return self._centre(self.model.encode_images(images), self.get_buffer("image_mean"))

    def encode_captions(self, tokens: Tokens) -> Any:
        return self._centre(self.model.encode_captions(tokens), self.get_buffer("caption_mean"))

    def _centre(self, encoding: Any, kept: Tensor) -> Any:
        mean = kept
        if self.training:
            mean = encoding.vectors.float().mean(0)
            kept.lerp_(mean.detach(), MOMENTUM)
        return replace(encoding, vectors=centred(encoding.vectors, mean))


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
