"""The probability of the given pairs of a batch, and noise-detection metrics, identical for all methods."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from nclib import losses
from nclib.methods.base import Truth
from nclib.noise import detection, division


def predictions(S: Tensor, tau: float = 0.07) -> Tensor:
    """Return the probability of each given pair, the mean of both directions, (B,) in (0, 1).

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    tau : float, > 0
    """
    v2t, t2v = losses.log_probabilities(S, tau)
    return (v2t.diagonal().exp() + t2v.diagonal().exp()) / 2


def detector_report(p_clean: np.ndarray | Tensor, truth: Truth, threshold: float) -> dict[str, float]:
    """Score P(clean) as a detector of matched pairs.

    Parameters
    ----------
    p_clean : array, (N,)
        Probability of every training pair to be matched, in [0, 1].
    truth : Truth
    threshold : float
        A pair is called matched above it.

    Returns
    -------
    dict
        ``auc``, ``ap`` and ``precision_first`` of :func:`nclib.noise.detection`; ``ece`` (calibration
        error); ``division_precision``, ``division_recall`` and ``division_accuracy`` of the pairs called
        matched, and their number ``called_matched``.
    """
    judged = division(p_clean, truth.matched, threshold=threshold)
    return {
        **detection(p_clean, truth.matched),
        "ece": judged["calibration"]["ece"],
        **{f"division_{name}": judged[name] for name in ("precision", "recall", "accuracy")},
        "called_matched": judged["n_called_matched"],
    }
