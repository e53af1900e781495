"""What UOT-RCL's record says about corrected labels, confident pairs and relations, given the truth."""

from __future__ import annotations

import torch
from torch import Tensor

LOGGED = 2**24  # entries of relation plans kept per epoch: the first batches of a large set


def label_report(corrected: Tensor, labels: Tensor) -> dict[str, float]:
    """Return how often the largest corrected label is the true one.

    Parameters
    ----------
    corrected : Tensor, (N, K)
        N times the plan; rows sum to 0..1.
    labels : Tensor, int64, (N,)
        True classes.

    Returns
    -------
    dict
        ``corrected_accuracy`` over all pairs; ``corrected_accuracy_by_mass``, each pair counted by its mass;
        ``corrected_mass_right``, the share of the mass that lies on true classes.
    """
    right = (corrected.argmax(1) == labels).double()
    moved = corrected.sum(1).double()
    total = moved.sum().clamp_min(1e-12)
    on_truth = corrected.gather(1, labels[:, None]).double().sum()
    return {
        "corrected_accuracy": float(right.mean()),
        "corrected_accuracy_by_mass": float((right * moved).sum() / total),
        "corrected_mass_right": float(on_truth / total),
    }


def accuracy(named: Tensor, labels: Tensor) -> float:
    """Return the share of equal classes."""
    return float((named == labels).double().mean())


class RelationLog:
    """Keeps relation plans of an epoch, to tell later how much of them links pairs of one class."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._entries = 0

    def add(self, index: Tensor, plan: Tensor) -> None:
        """Keep the plan of the pairs at ``index`` while there is room."""
        if self._entries + plan.numel() <= LOGGED:
            self._kept.append((index, plan))
            self._entries += plan.numel()

    def report(self, labels: Tensor) -> dict[str, float]:
        """Return the mass between pairs of the same true class, of the plans and of a uniform plan."""
        if not self._kept:
            return {}
        found = []
        for index, plan in self._kept:
            same = (labels[index][:, None] == labels[index]).to(plan.dtype)
            found.append(torch.stack([(plan * same).sum() / plan.sum(), same.mean()]))
        mass, chance = torch.stack(found).mean(0).tolist()
        return {"relation_same_class": mass, "relation_chance": chance}
