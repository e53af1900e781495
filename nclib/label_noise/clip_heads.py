r"""Retrieval with features of a joint encoder such as CLIP: as they are, and by heads trained by contrast.

``zero_shot`` compares the features as they are. ``contrastive_heads`` trains two linear maps and the logit
scale: the target of a row of similarities is uniform over all items of the batch that are given the same
class.

These are stand-ins for the CLIP rows of UOT-RCL's Table III under names of their own: the paper trains CLIP
itself on XMediaNet's pictures, whose split was never published. The logit scale starts at 1 / 0.07 = 14.3,
as in the code that the paper names (Zasder3/train-CLIP-FT), and is at most 100, as in CLIP. What several
positives share the paper leaves open; here they share equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.label_noise.base import (
    DeepMethod,
    LabelBatch,
    LabelLoop,
    Options,
    Projector,
    Shape,
    Terms,
    Training,
    register,
)
from nclib.label_noise.parts.networks import Branches

FIRST_SCALE, LARGEST_SCALE = 1 / 0.07, 100.0  # of the logits: at the start, and CLIP's bound


@dataclass(frozen=True)
class NoOptions(Options):
    """Neither of the two methods has options."""


@register(
    "zero_shot",
    summary="features of a joint encoder such as CLIP as they are; nothing is trained",
    paper="Radford et al., ICML 2021",
)
class ZeroShot(Projector):
    """Cosine of the given features."""

    Options = NoOptions

    def fit(self, train: Training, validate: Callable[[], float]) -> None:
        """Check that both kinds of features lie in one space: ValueError when they differ in width."""
        v, t = train.images.shape[1], train.texts.shape[1]
        if v != t:
            raise ValueError(
                f"zero_shot needs image and text features of one encoder, of equal width; got {v} and {t}"
            )

    def project_images(self, x: Tensor) -> Tensor:
        return x

    def project_texts(self, x: Tensor) -> Tensor:
        return x

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, loop: Any, state: dict[str, Any]) -> None:
        """Restore nothing."""


def contrast(S: Tensor, same: Tensor) -> Tensor:
    """Return the contrastive loss of both directions, per pair, (n,).

    The target of row i is uniform over its positives: cross entropy with the softmax of the row, plus the
    same along columns, halved as CLIP does.

    Parameters
    ----------
    S : Tensor, (n, n)
        Cosines times the logit scale, images in rows.
    same : Tensor, bool, (n, n)
        Positives. A row or column without any counts as its own pair only.
    """
    eye = torch.eye(len(S), dtype=torch.bool, device=S.device)
    losses = []
    for logits, positive in ((S, same), (S.T, same.T)):
        positive = positive | (eye & ~positive.any(1, keepdim=True))
        target = positive / positive.sum(1, keepdim=True)
        losses.append(-(target * logits.log_softmax(1)).sum(1))
    return (losses[0] + losses[1]) / 2


class LinearHeads(Branches):
    """One linear map per encoder, the identity at first where widths allow, and the logit scale."""

    def __init__(self, shape: Shape) -> None:
        dim = shape.image_dim if shape.image_dim == shape.text_dim else shape.dim
        layers = nn.Linear(shape.image_dim, dim), nn.Linear(shape.text_dim, dim)
        super().__init__(*layers)
        self.log_scale = nn.Parameter(torch.tensor(math.log(FIRST_SCALE)))
        if shape.image_dim == shape.text_dim:  # training starts at zero-shot
            for layer in layers:
                nn.init.eye_(layer.weight)
                nn.init.zeros_(layer.bias)

    def images(self, x: Tensor) -> Tensor:
        return super().images(F.normalize(x, dim=1))

    def texts(self, x: Tensor) -> Tensor:
        return super().texts(F.normalize(x, dim=1))

    def finish(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1)


@register(
    "contrastive_heads",
    summary="linear heads on features of a joint encoder by InfoNCE; positives share the given class",
    paper="after the CLIP rows of UOT-RCL's Table III",
)
class ContrastiveHeads(DeepMethod):
    """Supervised training by contrast."""

    Options = NoOptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {"xmedianet": {"batch_size": 128, "epochs": 16}}

    def build(self, shape: Shape) -> nn.Module:
        return LinearHeads(shape)

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        net = loop.network
        with torch.no_grad():  # between the steps, so that a scale at its bound can still fall
            net.log_scale.clamp_(max=math.log(LARGEST_SCALE))
        scale = net.log_scale.exp()
        S = scale * net.images(batch.images) @ net.texts(batch.texts).T  # (n, n)
        return {"contrast": contrast(S, batch.image_labels[:, None] == batch.text_labels).mean()}
