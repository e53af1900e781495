r"""MRL: learning cross-modal retrieval with noisy labels (Hu, Peng, Zhu, Zhen, Lin; CVPR 2021).

A bounded clustering loss that gives unlikely labels a small gradient, and a contrastive loss that needs no
label at all: every sample against all samples of both modalities in the batch.

Symbols: :math:`z^v, z^t` unit embeddings, :math:`C` class prototypes, :math:`p` class probabilities,
:math:`\tau_1, \tau_2` temperatures, :math:`\beta` weight of the clustering loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Terms, option, register


@dataclass(frozen=True)
class MRLOptions(Options):
    """Options of MRL; the defaults are those of the official command for Wikipedia.

    That command trains for 30 epochs; the presets take the 100 of the paper.
    """

    beta: float = option(0.7, low=0, high=1, help="weight of the clustering loss; the rest is contrastive")
    tau1: float = option(1.0, above=0, help="temperature of the class probabilities")
    tau2: float = option(1.0, above=0, help="temperature of the contrastive loss")


def robust_clustering(logits: Tensor, y: Tensor) -> Tensor:
    r"""Return :math:`\log(1 - p_y)`, at most 0, of every sample, (n,); Eq. 5, before the mean.

    Computed as the log-sum-exp over the other classes minus that over all, which keeps full precision where
    :math:`p_y` is close to 1.

    Parameters
    ----------
    logits, y : Tensor, (n, K), and int64, (n,)
        :math:`zC / \tau_1` and the given classes.
    """
    others = logits.scatter(1, y[:, None], float("-inf"))
    return others.logsumexp(1) - logits.logsumexp(1)


def multimodal_contrast(zv: Tensor, zt: Tensor, tau: float = 1.0) -> Tensor:
    """Return the contrastive loss :math:`L_c` (Eq. 6), per pair, (n,): the sum of both anchors of a pair.

    Row a of :math:`Z = [z^v; z^t]`, of unit embeddings (n, L) each, has one positive, the other modality of
    its pair, against all samples of both modalities except itself.
    """
    n = len(zv)
    z = torch.cat([zv, zt])
    s = (z @ z.T) / tau  # (2n, 2n)
    s = s.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=s.device), float("-inf"))
    total = s.logsumexp(1)  # (2n,)
    positive = (zv * zt).sum(1) / tau
    return total[:n] + total[n:] - 2 * positive


@register(
    "mrl",
    summary="robust clustering log(1 - p_y) and a multimodal contrastive loss",
    paper="Hu et al., CVPR 2021",
)
class MRL(DeepMethod):
    """MRL; ``options`` is an :class:`MRLOptions`."""

    Options = MRLOptions
    # 200 classes need a larger share of the clustering loss (paper, Fig. 4).
    settings: ClassVar[dict[str, dict[str, Any]]] = {"xmedianet": {"beta": 0.9, "batch_size": 500}}

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        net.prototypes.normalise()
        zv, zt = net.images(batch.images), net.texts(batch.texts)
        lr = robust_clustering(net.prototypes(zv) / o.tau1, batch.image_labels).mean()
        lr = lr + robust_clustering(net.prototypes(zt) / o.tau1, batch.text_labels).mean()
        lc = multimodal_contrast(zv, zt, o.tau2).mean()
        return {"clustering": o.beta * lr, "contrast": (1 - o.beta) * lc}
