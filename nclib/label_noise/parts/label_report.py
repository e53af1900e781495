"""Diagnostics of UOT-RCL: accuracy of corrected labels, and class purity of relation plans."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOGGED = 2**24  # entries of relation plans kept per epoch; later batches of a large set are not kept


def label_report(corrected: Tensor, labels: Tensor) -> dict[str, float]:
    """Return how often the largest corrected label, of N times the plan (N, K), is the true one.

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
    """Return the share of equal classes, (N,) both."""
    return float((named == labels).double().mean())


def relation_report(plans: Sequence[tuple[Tensor, Tensor]], labels: Tensor) -> dict[str, float]:
    """Return shares of the mass of relation plans, each with the value of a uniform plan.

    ``relation_same_class`` lies between pairs of one true class, ``relation_own_pair`` between an image and
    its own text; ``relation_chance`` and ``relation_own_chance`` are the uniform plan's. From the rows, (B,),
    and the plan, (B, B), of every batch; empty without a plan.
    """
    if not plans:
        return {}
    shares = []
    for index, plan in plans:
        same = (labels[index][:, None] == labels[index]).to(plan.dtype)
        mass = torch.stack([(plan * same).sum(), plan.trace()]) / plan.sum()
        shares.append(torch.stack([*mass, same.mean(), mass.new_tensor(1 / len(index))]))
    names = ("relation_same_class", "relation_own_pair", "relation_chance", "relation_own_chance")
    return dict(zip(names, torch.stack(shares).mean(0).tolist(), strict=True))
