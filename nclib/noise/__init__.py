"""Making noise (mismatched pairs, wrong labels) and finding it (mixtures, division).

Noise is a named artefact: protocol, rate, seed or file, checksum, and the ground truth of what it changed.
Every estimator answers in one form: column 0 of ``predict_proba`` is the probability of being clean.
"""

from __future__ import annotations

from nclib.noise._estimators import ESTIMATORS, available, build
from nclib.noise._scaling import unit_interval
from nclib.noise.mixture import BetaMixture, GaussianMixture1d

__all__ = ["ESTIMATORS", "BetaMixture", "GaussianMixture1d", "available", "build", "unit_interval"]
