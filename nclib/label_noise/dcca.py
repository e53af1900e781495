r"""DCCA: deep canonical correlation analysis (Andrew, Arora, Bilmes, Livescu; ICML 2013).

Two networks are trained so that their outputs correlate: :math:`\max \lVert T \rVert_{tr}`,
:math:`T = (\Sigma_{11} + r_1 I)^{-1/2} \Sigma_{12} (\Sigma_{22} + r_2 I)^{-1/2}`. A linear CCA of the
training outputs gives the embeddings. Labels are not used, so label noise does not change the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Shape, Terms, option, register
from nclib.label_noise.parts import cca

BATCH = {"batch_size": 800}  # covariances of o outputs need many samples


@dataclass(frozen=True)
class DCCAOptions(Options):
    """Options of DCCA."""

    outputs: int = option(20, low=1, help="width o of the networks' outputs, at most dim")
    r1: float = option(1e-3, above=0, help="ridge on the image covariance")
    r2: float = option(1e-3, above=0, help="ridge on the text covariance")


@register(
    "dcca",
    summary="networks whose outputs correlate most, then a linear CCA; no labels",
    paper="Andrew et al., ICML 2013",
)
class DCCA(DeepMethod):
    """DCCA; ``options`` is a :class:`DCCAOptions`."""

    Options: ClassVar[type] = DCCAOptions
    drop_last = True  # the covariance of a short batch is too noisy
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "always": {"lr_schedule": "constant"},
        **dict.fromkeys(("quick", "standard", "nuswide", "xmedianet"), BATCH),
        "wikipedia": {"batch_size": 2173},  # all pairs at once
    }

    def build(self, shape: Shape) -> nn.Module:
        return cca.CorrelatedHeads(shape, min(self.options.outputs, shape.dim))

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        h1, h2 = net.image_net(batch.images), net.text_net(batch.texts)
        return {"correlation": -cca.correlations(h1, h2, o.r1, o.r2).sum().float()}

    def end_epoch(self, loop: LabelLoop) -> None:
        loop.network.fit_cca(loop.train.images, loop.train.texts, self.options.r1, self.options.r2)
