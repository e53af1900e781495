r"""DCCA: deep canonical correlation analysis (Andrew, Arora, Bilmes, Livescu; ICML 2013).

Two networks are trained so that their outputs correlate: :math:`\max \lVert T \rVert_{tr}`,
:math:`T = (\Sigma_{11} + r_1 I)^{-1/2} \Sigma_{12} (\Sigma_{22} + r_2 I)^{-1/2}`. A linear CCA of the
training outputs gives the embeddings. Labels are not used, so label noise does not change the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Shape, Terms, option, register
from nclib.label_noise.parts import cca

BATCH = {"batch_size": 800}  # covariances of o outputs need many samples


@dataclass(frozen=True)
class DCCAOptions(Options):
    """Options of DCCA."""

    outputs: int = option(20, low=1, help="width o of the networks' outputs, at most dim")
    top: int = option(0, low=0, help="only the largest correlations count; 0: all")
    r1: float = option(1e-3, above=0, help="ridge on the image covariance")
    r2: float = option(1e-3, above=0, help="ridge on the text covariance")
    loss: str = option(
        "trace", choices=("trace", "squared"), help="trace norm, or squares as in a common library"
    )


def correlation_loss(
    h1: Tensor, h2: Tensor, *, r1: float = 1e-3, r2: float = 1e-3, top: int = 0, loss: str = "trace"
) -> Tensor:
    """Return minus the sum of the ``top`` largest (0: all) canonical correlations of a batch, float64.

    Parameters
    ----------
    h1, h2, r1, r2
        As in :func:`~nclib.label_noise.parts.cca.correlations`.
    loss : {"trace", "squared"}
        Sum of the correlations, or of their squares.
    """
    rho = cca.correlations(h1, h2, r1, r2)
    rho = rho[:top] if top else rho
    return -(rho if loss == "trace" else rho * rho).sum()


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
        "quick": BATCH,
        "standard": BATCH,
        "wikipedia": {"batch_size": 2173},  # all pairs at once
        "nuswide": BATCH,
        "xmedianet": BATCH,
    }

    def build(self, shape: Shape) -> nn.Module:
        return cca.CorrelatedHeads(shape, min(self.options.outputs, shape.dim))

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        h1, h2 = net.image_net(batch.images), net.text_net(batch.texts)
        found = correlation_loss(h1, h2, r1=o.r1, r2=o.r2, top=o.top, loss=o.loss)
        return {"correlation": found.float()}

    def end_epoch(self, loop: LabelLoop) -> None:
        loop.network.fit_cca(loop.train.images, loop.train.texts, self.options.r1, self.options.r2)
