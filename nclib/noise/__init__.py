"""Making noise (mismatched pairs, wrong labels) and finding it (mixtures, rank correlation, division).

Noise is a named artefact: protocol, rate, seed or file, checksum, and the ground truth of what it changed.
Every estimator answers in one form: column 0 of ``predict_proba`` is the probability of being clean.
"""

from __future__ import annotations

from nclib.noise._estimators import ESTIMATORS, available, build
from nclib.noise._scaling import unit_interval
from nclib.noise.division import auc, calibration, division
from nclib.noise.labels import asymmetric_labels, symmetric_labels
from nclib.noise.mismatch import PROTOCOLS, Mismatch, mismatch
from nclib.noise.mixture import BetaMixture, GaussianMixture1d
from nclib.noise.rank import (
    RankCorrespondence,
    RankLabel,
    bank_distances,
    max_ranks,
    nearest_entries,
    rank_anchors,
    rank_correlation,
    rank_correspondence,
    rank_labels,
)

__all__ = [
    "ESTIMATORS",
    "PROTOCOLS",
    "BetaMixture",
    "GaussianMixture1d",
    "Mismatch",
    "RankCorrespondence",
    "RankLabel",
    "asymmetric_labels",
    "auc",
    "available",
    "bank_distances",
    "build",
    "calibration",
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
