r"""ACMR: adversarial cross-modal retrieval (Wang, Yang, Xu, Hanjalic, Shen; ACM MM 2017).

Two embedding networks with tanh, a linear classifier of labels on both embeddings, and a classifier that
tells images from texts, whose gradient is reversed on its way back into the embedding networks.

:math:`L = 100\, L_{label} + L_{tri} + L_{dom}`. In the official code the domain loss reaches no embedding
network, and the label classifier is never trained; here both are, as the paper describes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Shape, Terms, option, register
from nclib.label_noise.parts.networks import Branches, perceptron

WIDTHS = {"wikipedia": ((512, 100), (40, 100)), "nuswide": ((1000,), (300,))}  # hidden, image and text


@dataclass(frozen=True)
class ACMROptions(Options):
    """Options of ACMR; the defaults are those of the official triplet script."""

    label_weight: float = option(100.0, low=0, help="weight of the label classification")
    adversarial: float = option(1.0, low=0, help="weight of the domain loss; 0: no adversary")
    margin: float = option(0.1, low=0, help="margin of the triplet loss")
    positive: float = option(5.0, above=0, help="weight of the positive distance in the triplet loss")
    emb: int = option(40, low=4, help="width e of the embedding")
    widths: str = option("wikipedia", choices=tuple(WIDTHS), help="hidden widths of the official script for")


def reverse_gradient(x: Tensor, strength: float) -> Tensor:
    """Return ``x``; its gradient comes back multiplied by ``-strength``."""
    same = x.view_as(x)
    if same.requires_grad:
        same.register_hook(lambda gradient: -strength * gradient)
    return same


def reversal_strength(p: float) -> float:
    """Return :math:`2 / (1 + e^{-10 p}) - 1`, p in [0, 1] the share of training that is over."""
    return 2 / (1 + math.exp(-10 * p)) - 1


def hard_negatives(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per sample, the batch item of another class with the most similar raw features.

    Parameters
    ----------
    x, y : Tensor, (n, d) and int64, (n,)
        Raw features and given classes in the anchor's modality.

    Returns
    -------
    index, found : Tensor, int64 and bool, (n,)
        ``found``: whether the batch holds another class; ``index`` is meaningless where it does not.
    """
    unit = F.normalize(x, dim=1)
    same = y[:, None] == y
    return (unit @ unit.T).masked_fill(same, float("-inf")).argmax(1), ~same.all(1)


def _half_squared(a: Tensor, b: Tensor) -> Tensor:
    """Return half the squared distance of every row, (n,)."""
    return (a - b).square().sum(1) / 2


def batch_triplet(
    v: Tensor, t: Tensor, negatives: tuple[Tensor, Tensor], found: Tensor, margin: float, positive: float
) -> Tensor:
    r"""Return :math:`[m + c\,\ell(v, t^+) - \ell(v, t^-)]_+ + [m + c\,\ell(t, v^+) - \ell(t, v^-)]_+`.

    :math:`\ell` is half the squared distance **summed over the batch**, so the hinge acts once per batch and
    direction, as in the official script.

    Parameters
    ----------
    v, t : Tensor, (n, e)
        Embeddings; the positive of row i is row i.
    negatives : (Tensor, Tensor), int64, (n,)
        Of images among the texts, of texts among the images.
    found : Tensor, bool, (n,)
        Samples that count: those with a negative.
    margin, positive : float
        m, and c, the weight of the positives.
    """
    close = (_half_squared(v, t) * found).sum()
    terms = [
        margin + positive * close - (_half_squared(anchor, other[index]) * found).sum()
        for anchor, other, index in ((v, t, negatives[0]), (t, v, negatives[1]))
    ]
    return torch.stack(terms).clamp_min(0).sum()


def _tanh(*widths: int) -> nn.Sequential:
    return perceptron(*widths, activation=nn.Tanh).append(nn.Tanh())


@register(
    "acmr",
    summary="label classification, a batch triplet loss, and an adversary that tells the modalities apart",
    paper="Wang et al., ACM MM 2017",
)
class ACMR(DeepMethod):
    """ACMR as its paper describes it; ``options`` is an :class:`ACMROptions`."""

    Options = ACMROptions
    drop_last = True  # as in the official scripts; the triplet loss sums over the batch
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "always": {"lr_schedule": "constant"},
        "standard": {"batch_size": 64, "emb": 64},
        "quick": {"batch_size": 64, "emb": 64},  # the width of the other methods' spaces
        "wikipedia": {"batch_size": 64, "epochs": 50},
        "nuswide": {"batch_size": 64, "epochs": 50, "widths": "nuswide"},
        "xmedianet": {"batch_size": 64, "epochs": 50, "widths": "nuswide"},
    }

    def build(self, shape: Shape) -> nn.Module:
        (images, texts), e = WIDTHS[self.options.widths], self.options.emb
        net = Branches(_tanh(shape.image_dim, *images, e), _tanh(shape.text_dim, *texts, e))
        net.classifier = nn.Linear(e, shape.n_classes)
        # linear layers without activations
        net.domain = nn.Sequential(nn.Linear(e, e // 2), nn.Linear(e // 2, e // 4), nn.Linear(e // 4, 2))
        return net

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        v, t = net.images(batch.images), net.texts(batch.texts)
        label = F.cross_entropy(net.classifier(v), batch.image_labels)
        label = label + F.cross_entropy(net.classifier(t), batch.text_labels)
        of_v, found_v = hard_negatives(batch.images, batch.image_labels)
        of_t, found_t = hard_negatives(batch.texts, batch.text_labels)
        triplet = batch_triplet(v, t, (of_v, of_t), found_v & found_t, o.margin, o.positive)
        terms = {"label": o.label_weight * label, "triplet": triplet}
        if o.adversarial:
            z = reverse_gradient(torch.cat([v, t]), reversal_strength(loop.epoch / loop.n_epochs))
            is_text = torch.arange(2 * len(v), device=v.device) // len(v)
            terms["domain"] = o.adversarial * F.cross_entropy(net.domain(z), is_text)
        return terms
