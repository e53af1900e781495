"""Noise (mismatched pairs, wrong labels) and its detection (mixtures, rank correlation, division).

Noise is a named artefact: protocol, rate, seed or file, checksum, number of changes and the ground truth.
Column 0 of every mixture's ``predict_proba`` is the probability of being clean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nclib.common.extras import needed_by
from nclib.noise.beta import BetaMixture, beta_moments
from nclib.noise.division import auc, calibration, detection, division
from nclib.noise.label_noise import (
    LABEL_PROTOCOLS,
    LABEL_SCOPES,
    LabelNoise,
    asymmetric_labels,
    symmetric_labels,
)
from nclib.noise.mismatch import PROTOCOLS, Mismatch, mismatch
from nclib.noise.mixture import GaussianMixture1d, unit_interval
from nclib.noise.published import PUBLISHED

if TYPE_CHECKING:
    from nclib.noise.rank import (
        RankCorrespondence,
        bank_distances,
        max_ranks,
        nearest_entries,
        rank_anchors,
        rank_correlation,
        rank_correspondence,
        rank_labels,
    )

__all__ = [
    "LABEL_PROTOCOLS",
    "LABEL_SCOPES",
    "PROTOCOLS",
    "PUBLISHED",
    "BetaMixture",
    "GaussianMixture1d",
    "LabelNoise",
    "Mismatch",
    "RankCorrespondence",
    "asymmetric_labels",
    "auc",
    "bank_distances",
    "beta_moments",
    "calibration",
    "detection",
    "division",
    "max_ranks",
    "mismatch",
    "nearest_entries",
    "rank_anchors",
    "rank_correlation",
    "rank_correspondence",
    "rank_labels",
    "symmetric_labels",
    "unit_interval",
]


def __getattr__(name: str) -> Any:
    # Rank correlation works on tensors, in batches on their device; the rest needs no torch.
    if name not in __all__:
        raise AttributeError(f"module 'nclib.noise' has no attribute {name!r}")
    with needed_by(f"nclib.noise.{name}"):
        from nclib.noise import rank

    return getattr(rank, name)
