r"""ELRCMR: early-learning regularised contrastive learning (Xu, Liu, Huang, Guo, Hong, Wang; ACM MM 2022).

MRL with three additions: a regulariser that holds the class probabilities to their own running average,
which is formed before wrong labels are learnt; a contrast within each modality between samples of the same
*predicted* class; and a weight that moves from the clustering to the contrastive loss during training.

Symbols: :math:`p` class probabilities, :math:`T` their running average (the target), :math:`\rho` its
momentum, :math:`\Lambda` weight of the regulariser, :math:`\zeta` weight of the contrast within a modality,
:math:`\beta_0, S_\beta` start and length of the moving weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Terms, option, register
from nclib.label_noise.mrl import multimodal_contrast, robust_clustering

CLIP = 1e-4  # probabilities are kept this far from 0 and 1
STEEPNESS = 5.0  # of the moving weight


@dataclass(frozen=True)
class ELRCMROptions(Options):
    """Options of ELRCMR; the defaults are those of the official Wikipedia command."""

    elr: float = option(1.0, low=0, help="weight Lambda of the early-learning regulariser")
    momentum: float = option(0.9, low=0, high=0.9999, help="momentum rho of the targets")
    zeta: float = option(0.001, low=0, help="weight of the contrast within a modality (a sum over the batch)")
    beta: float = option(0.75, low=0, high=1, help="clustering weight beta_0 at first")
    ramp: float = option(
        1.35, above=0, help="S_beta in lengths of the run: where the clustering weight reaches 0"
    )
    tau: float = option(1.0, above=0, help="temperature of the class probabilities")


def update_targets(targets: Tensor, index: Tensor, p: Tensor, momentum: float) -> Tensor:
    r"""Move the targets of some samples towards their clipped probabilities, in place; return them, (n, K).

    :math:`T \leftarrow \rho T + (1 - \rho)\, \bar p / \sum_k \bar p_k` with momentum :math:`\rho`; of the
    targets (N, K) those at ``index``, (n,), move.
    """
    share = p / p.sum(1, keepdim=True)
    targets[index] = momentum * targets[index] + (1 - momentum) * share
    return targets[index]


def early_learning(p: Tensor, targets: Tensor) -> Tensor:
    r"""Return :math:`\log(1 - \sum_k T_k \bar p_k)` of every sample, (n,); lowest where p is near T."""
    return torch.log1p(-(targets * p).sum(1))


def within_modality(z: Tensor, predicted: Tensor) -> Tensor:
    """Return the contrast within a modality, per sample, (n,), of unit embeddings (n, L).

    Positives :math:`P_a` are the other samples of the same predicted class; the sum of their negative
    log-probabilities is divided by :math:`2|P_a| - 1`, as in the official code. Without positives it is 0.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = (predicted[:, None] == predicted) & ~itself
    count = positive.sum(1)
    log_share = (z @ z.T).masked_fill(itself, float("-inf")).log_softmax(1)
    total = -torch.where(positive, log_share, torch.zeros_like(log_share)).sum(1)
    return total / (2 * count - 1).clamp_min(1)


def moving_weight(t: int, start: float, length: float) -> float:
    r"""Return :math:`\beta_t = \beta_0 (1 - \exp(-5 (1 - \min(t, S)/S)^2))` in iteration t, ``length`` S."""
    left = 1 - min(t, length) / length
    return start * (1 - math.exp(-STEEPNESS * left**2))


@register(
    "elrcmr",
    summary="MRL with early-learning targets, a contrast within modalities and a moving weight",
    paper="Xu et al., ACM MM 2022",
)
class ELRCMR(DeepMethod):
    """ELRCMR as in the official code, except that evaluation does not change the targets.

    The official code updates the targets of all training samples after each epoch, too, and takes 4.6e-5 of
    every weight away in each step (it averages a tensor with itself).
    """

    Options = ELRCMROptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        # 3,000 iterations of 22 x 100; 50,000 of 64 x 100 (weight practically constant)
        "wikipedia": {"ramp": 3000 / 2200},
        "xmedianet": {"batch_size": 500, "elr": 0.001, "beta": 1.0, "ramp": 50000 / 6400},
        "nuswide": {"batch_size": 500},
    }

    def __init__(self, options: ELRCMROptions) -> None:
        super().__init__(options)
        self.targets: list[Tensor] = []

    def begin_epoch(self, loop: LabelLoop) -> None:
        if loop.epoch == 0:
            sizes = loop.n_pairs, loop.n_classes
            self.targets = [torch.zeros(sizes, device=loop.device) for _ in range(2)]

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        net.prototypes.normalise()
        z = [net.images(batch.images), net.texts(batch.texts)]
        clustering = regulariser = within = torch.zeros((), device=loop.device)
        for zi, y, targets in zip(z, (batch.image_labels, batch.text_labels), self.targets, strict=True):
            logits = net.prototypes(zi) / o.tau
            p = logits.softmax(1).clamp(CLIP, 1 - CLIP)
            now = update_targets(targets, batch.index, p.detach(), o.momentum)  # before they are used
            clustering = clustering + robust_clustering(logits, y).mean()
            regulariser = regulariser + early_learning(p, now).mean()
            within = within + within_modality(zi, logits.argmax(1)).sum()
        # The counter of the official code starts at 1, after one epoch without updates.
        t = loop.iteration + 1 + loop.n_steps
        beta = moving_weight(t, o.beta, o.ramp * loop.n_epochs * loop.n_steps)
        return {
            "clustering": beta * clustering,
            "early_learning": beta * o.elr * regulariser,
            "contrast": (1 - beta) * multimodal_contrast(*z).mean(),
            "within": (1 - beta) * o.zeta * within,
        }

    def state(self) -> dict[str, Any]:
        return {"targets": self.targets}

    def load_state(self, loop: LabelLoop, state: dict[str, Any]) -> None:
        self.targets = [t.to(loop.device) for t in state["targets"]]
