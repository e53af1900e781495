r"""The losses of FGCrossNet (He, Peng, Xie; ACM MM 2019) on fixed features: a stand-in.

FGCrossNet trains one image network end to end on images, video frames, spectrograms and texts drawn as
planes. Its reduction to fixed features in MRL's tables is not documented, so this stand-in has another name.
It keeps the known losses: cross entropy of each modality, a centre loss and a quadruplet ranking loss on the
logits, the last one in the second half of training. The networks are MRL's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Shape, Terms, option, register
from nclib.label_noise.parts.networks import Heads


@dataclass(frozen=True)
class FGCrossNetOptions(Options):
    """Options of the stand-in; weights and margins are those of FGCrossNet."""

    centre: float = option(1e-3, low=0, help="weight of the centre loss")
    ranking: float = option(0.1, low=0, help="weight of the quadruplet ranking loss")
    margin1: float = option(1.0, low=0, help="margin between anchor-positive and anchor-negative")
    margin2: float = option(0.5, low=0, help="margin between anchor-positive and negative-negative")
    ranking_from: float = option(0.5, low=0, high=1, help="share of training before the ranking loss starts")
    centre_rate: float = option(
        1000.0, above=0, help="learning rate of the centres over that of the rest; at most 0.1 in all"
    )


def centre_loss(logits: Tensor, y: Tensor, centres: Tensor) -> Tensor:
    r"""Return :math:`\frac12 \lVert s_j - c_{y_j} \rVert^2`, (n,), of every sample; centres in rows."""
    return (logits - centres[y]).square().sum(1) / 2


def quadruplet(logits: Tensor, y: Tensor, picks: Iterable[Tensor], margin1: float, margin2: float) -> Tensor:
    """Return :math:`[d_{ap} - d_{an} + m_1]_+ + [d_{ap} - d_{nn'} + m_2]_+`, the mean of the positive terms.

    Parameters
    ----------
    logits : Tensor, (m, K)
        Outputs of the classifier, images and texts together.
    y : Tensor, int64, (m,)
        Given classes.
    picks : three Tensors, int64, (m,)
        Candidates for positive, negative and second negative of every anchor; quadruples whose classes do not
        fit (positive of the anchor's class, both negatives of two further ones) are left out.
    margin1, margin2 : float

    Returns
    -------
    Tensor, scalar
        0 without a positive term.
    """
    p, n, o = picks
    fits = (y[p] == y) & (y[n] != y) & (y[o] != y) & (y[o] != y[n])
    # A tiny offset keeps the root's gradient finite at distance 0.
    ap, an, no = (
        (a - b).square().sum(1).add(1e-12).sqrt()
        for a, b in ((logits, logits[p]), (logits, logits[n]), (logits[n], logits[o]))
    )
    terms = torch.stack([(ap - an + margin1).clamp_min(0), (ap - no + margin2).clamp_min(0)]) * fits
    return terms.sum() / (terms > 0).sum().clamp_min(1)


@register(
    "fgcrossnet_losses",
    summary="stand-in: FGCrossNet's losses (classes, centres, quadruplets) on fixed features",
    paper="after He et al., ACM MM 2019",
)
class FGCrossNetLosses(DeepMethod):
    """Cross entropy, centres and quadruplets; ``options`` is a :class:`FGCrossNetOptions`."""

    Options = FGCrossNetOptions

    def build(self, shape: Shape) -> nn.Module:
        net = Heads(shape.image_dim, shape.text_dim, hidden=shape.hidden, dim=shape.dim, unit=False)
        net.classifier = nn.Linear(shape.dim, shape.n_classes)
        net.centres = nn.Parameter(torch.zeros(shape.n_classes, shape.n_classes))
        return net

    def parameters(self, network: nn.Module, lr: float) -> Iterable[Any]:
        rest = [p for name, p in network.named_parameters() if name != "centres"]
        # Published: the gradient of the centres times 1000, to undo the small weight. Adam ignores the scale
        # of a gradient, so the factor becomes one of the learning rate.
        rate = min(lr * self.options.centre_rate, 0.1)
        return [{"params": rest, "lr": lr}, {"params": [network.centres], "lr": rate}]

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        z = torch.cat([net.images(batch.images), net.texts(batch.texts)])
        logits, y = net.classifier(z), torch.cat([batch.image_labels, batch.text_labels])  # (2n, K)
        terms = {
            "class": 2 * F.cross_entropy(logits, y),
            "centre": 2 * o.centre * centre_loss(logits, y, net.centres).mean(),
        }
        if o.ranking and loop.epoch >= o.ranking_from * loop.n_epochs:
            g = loop.generator(f"quadruplets {loop.iteration}")
            drawn = torch.randint(len(y), (3, len(y)), generator=g).to(y.device)
            terms["ranking"] = o.ranking * quadruplet(logits, y, drawn, o.margin1, o.margin2)
        return terms
