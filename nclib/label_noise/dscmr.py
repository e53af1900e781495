r"""DSCMR: deep supervised cross-modal retrieval (Zhen, Hu, Wang, Peng; CVPR 2019).

Two branches end in one shared layer, whose outputs :math:`u, v` are the embeddings, and one shared linear
classifier. The loss asks for right predictions (:math:`J_1`), for likeness of equal classes within and
between the modalities (:math:`J_2`), and for equal embeddings of a pair (:math:`J_3`):
:math:`J = J_1 + \lambda J_2 + \eta J_3`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Shape, Terms, option, register
from nclib.label_noise.parts.networks import Branches

PUBLISHED = {"hidden": 2048, "dim": 1024}


@dataclass(frozen=True)
class DSCMROptions(Options):
    """Options of DSCMR; the defaults are the official ones."""

    lam: float = option(1e-3, low=0, help="weight lambda of the likeness of equal classes")
    eta: float = option(1e-1, low=0, help="weight eta of the distance within a pair")


def label_error(prediction: Tensor, y: Tensor) -> Tensor:
    r"""Return :math:`\lVert \hat y_j - e_{y_j} \rVert_2` of every sample, (n,); a norm, not its square.

    From outputs of the classifier without a softmax, (n, K), and given classes, int64 (n,).
    """
    return torch.linalg.vector_norm(prediction - F.one_hot(y, prediction.shape[1]).to(prediction), dim=1)


def _class_likelihood(a: Tensor, b: Tensor, same: Tensor) -> Tensor:
    r"""Return :math:`\log(1 + e^\Theta) - S \Theta` with :math:`\Theta_{ij} = \cos(a_i, b_j) / 2`, (n, m).

    Embeddings (n, L) and (m, L) of either modality; S, (n, m): whether the given classes agree.
    """
    theta = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 2  # (n, m)
    return F.softplus(theta) - same * theta


def likeness(u: Tensor, v: Tensor, y_u: Tensor, y_v: Tensor) -> Tensor:
    """Return :math:`J_2`: the mean over all index pairs of image-image, image-text and text-text terms.

    From the embeddings of images and texts, (n, L), and their given classes, (n,).
    """
    return (
        _class_likelihood(u, u, y_u[:, None] == y_u).mean()
        + _class_likelihood(u, v, y_u[:, None] == y_v).mean()
        + _class_likelihood(v, v, y_v[:, None] == y_v).mean()
    )


class DSCMRNetwork(Branches):
    """One layer per modality, then a shared layer and a shared classifier."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(nn.Linear(shape.image_dim, shape.hidden), nn.Linear(shape.text_dim, shape.hidden))
        self.shared = nn.Linear(shape.hidden, shape.dim)
        self.classifier = nn.Linear(shape.dim, shape.n_classes)

    def finish(self, z: Tensor) -> Tensor:
        """Map the outputs of either layer, (n, hidden), into the common space, (n, L)."""
        return self.shared(F.relu(z))


@register(
    "dscmr",
    summary="label regression, likeness of equal classes and of pairs on one shared layer",
    paper="Zhen et al., CVPR 2019",
)
class DSCMR(DeepMethod):
    """DSCMR; ``options`` is a :class:`DSCMROptions`."""

    Options = DSCMROptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "always": {"lr_schedule": "constant"},
        **{name: {"batch_size": 100, **PUBLISHED} for name in ("wikipedia", "nuswide", "xmedianet")},
    }

    def build(self, shape: Shape) -> nn.Module:
        return DSCMRNetwork(shape)

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        u, v = net.images(batch.images), net.texts(batch.texts)
        j1 = label_error(net.classifier(u), batch.image_labels).mean()
        j1 = j1 + label_error(net.classifier(v), batch.text_labels).mean()
        j2 = likeness(u, v, batch.image_labels, batch.text_labels)
        j3 = torch.linalg.vector_norm(u - v, dim=1).mean()
        return {"label": j1, "likeness": o.lam * j2, "pair": o.eta * j3}
