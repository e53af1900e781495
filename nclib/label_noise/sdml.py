r"""SDML: scalable deep multimodal learning (Hu, Zhen, Peng, Liu; SIGIR 2019).

The common space is fixed before training: the first K columns :math:`P` of a random orthogonal matrix. Each
modality is trained alone, an autoencoder whose code :math:`z` predicts the class through :math:`P`:

.. math::
   L = \alpha \frac1n \sum_j \lVert D(z_j) - x_j \rVert_2
     + (1 - \alpha) \frac1n \sum_j \lVert P^\top z_j - e_{y_j} \rVert_2

(norms, not squares). As in the official code the decoder's output has unit length, unlike the features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Shape, Terms, option, register
from nclib.label_noise.dscmr import label_error
from nclib.label_noise.parts.networks import Heads, Prototypes, perceptron

PUBLISHED = {"hidden": 1024, "dim": 512, "epochs": 200}


@dataclass(frozen=True)
class SDMLOptions(Options):
    """Options of SDML; the defaults are the official ones."""

    alpha: float = option(0.5, low=0, high=1, help="weight alpha of the reconstruction")
    text_rate: float = option(2.0, above=0, help="learning rate of the text networks over that of the images")


def reconstruction_error(decoded: Tensor, x: Tensor) -> Tensor:
    r"""Return :math:`\lVert D(z_j) - x_j \rVert_2` of every sample, (n,), from D(z) and x, (n, d)."""
    return torch.linalg.vector_norm(decoded - x, dim=1)


@register(
    "sdml",
    summary="an autoencoder per modality, classes predicted through a fixed random projection",
    paper="Hu et al., SIGIR 2019",
)
class SDML(DeepMethod):
    """SDML; ``options`` is an :class:`SDMLOptions`."""

    Options = SDMLOptions
    drop_last = True
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "always": {"lr_schedule": "constant"},
        "wikipedia": {"batch_size": 100, **PUBLISHED},
        "nuswide": {"batch_size": 100, **PUBLISHED},
        "xmedianet": {"batch_size": 500, **PUBLISHED},  # from 100 classes on
    }

    def build(self, shape: Shape) -> nn.Module:
        net = Heads(shape.image_dim, shape.text_dim, hidden=shape.hidden, dim=shape.dim)
        net.image_decoder = perceptron(shape.dim, shape.hidden, shape.hidden, shape.image_dim)
        net.text_decoder = perceptron(shape.dim, shape.hidden, shape.hidden, shape.text_dim)
        net.register_buffer("projection", Prototypes(shape.dim, shape.n_classes).weight.detach())  # P, (L, K)
        return net

    def parameters(self, network: nn.Module, lr: float) -> Iterable[Any]:
        """Return one group per modality; the two share nothing, so one optimiser trains them apart."""
        return [
            {"params": [p for name, p in network.named_parameters() if name.startswith(side)], "lr": rate}
            for side, rate in (("image_", lr), ("text_", lr * self.options.text_rate))
        ]

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        a, net = self.options.alpha, loop.network
        terms = {}
        for name, encode, decode, x, y in (
            ("image", net.images, net.image_decoder, batch.images, batch.image_labels),
            ("text", net.texts, net.text_decoder, batch.texts, batch.text_labels),
        ):
            z = encode(x)  # (n, L), unit rows
            rebuilt = F.normalize(decode(z), dim=1)  # (n, d)
            terms[f"{name}_rebuilt"] = a * reconstruction_error(rebuilt, x).mean()
            terms[f"{name}_label"] = (1 - a) * label_error(z @ net.projection, y).mean()
        return terms
