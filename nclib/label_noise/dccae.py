r"""DCCAE: deep canonically correlated autoencoders (Wang, Arora, Livescu, Bilmes; ICML 2015).

DCCA, and the outputs must also rebuild the features:
:math:`+ \frac{\lambda}{n} \sum_i \lVert x_i - D_1(f_1(x_i)) \rVert^2 + \lVert y_i - D_2(f_2(y_i)) \rVert^2`.
The decoders mirror the encoders. Labels are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from nclib.label_noise.base import LabelBatch, LabelLoop, Shape, Terms, option, register
from nclib.label_noise.dcca import DCCA, DCCAOptions
from nclib.label_noise.parts.networks import perceptron


@dataclass(frozen=True)
class DCCAEOptions(DCCAOptions):
    """Options of DCCAE."""

    lam: float = option(1e-2, low=0, help="weight lambda of the reconstruction")


def reconstruction(x: Tensor, rebuilt: Tensor) -> Tensor:
    r"""Return :math:`\lVert x_i - D(f(x_i)) \rVert^2` of every sample, (n,), from x and D(f(x)), (n, d)."""
    return (x - rebuilt).square().sum(1)


@register(
    "dccae", summary="DCCA with decoders that rebuild the features; no labels", paper="Wang et al., ICML 2015"
)
class DCCAE(DCCA):
    """DCCAE; ``options`` is a :class:`DCCAEOptions`."""

    Options: ClassVar[type] = DCCAEOptions

    def build(self, shape: Shape) -> nn.Module:
        net = super().build(shape)
        outputs = len(net.image_mean)  # type: ignore[arg-type]
        net.image_decoder = perceptron(outputs, shape.hidden, shape.hidden, shape.image_dim)
        net.text_decoder = perceptron(outputs, shape.hidden, shape.hidden, shape.text_dim)
        return net

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        net, terms = loop.network, super().step(loop, batch)
        images = net.image_decoder(net.image_net(batch.images))
        texts = net.text_decoder(net.text_net(batch.texts))
        rebuilt = reconstruction(batch.images, images).mean() + reconstruction(batch.texts, texts).mean()
        return terms | {"rebuilt": self.options.lam * rebuilt}
