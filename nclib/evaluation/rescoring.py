"""Dual-softmax re-scoring of a score matrix with all queries at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from nclib.evaluation.scores import Float, as_matrix, blocks


def dual_softmax(similarity: Any, temperature: float = 0.01, *, direction: str = "i2t") -> Float:
    """Dual-softmax re-scoring: every score times the softmax over the *queries* of its item.

    It looks at all test queries at once (transductive), so such results stand apart from plain ones.
    ``S' = n S softmax(S / T)``, the softmax and its length n over images for image-to-text, over captions
    for text-to-image; the result keeps images in rows.

    Parameters
    ----------
    similarity : Tensor or ndarray, (n_images, n_captions)
        Finite scores.
    temperature : float, > 0
        T; 0.01 suits cosines.
    direction : {"i2t", "t2i"}
        Direction that the result is meant for.

    Returns
    -------
    ndarray, (n_images, n_captions), float32 or float64
        New scores.

    Raises
    ------
    ValueError
        If a score is not finite, the temperature is not positive, or the direction is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from nclib.evaluation import dual_softmax
    >>> dual_softmax(np.array([[0.5, 0.4], [0.4, 0.1]]), 0.1).round(3)
    array([[0.731, 0.762],
           [0.215, 0.009]])
    """
    axes = {"i2t": 0, "t2i": 1}
    if direction not in axes:
        raise ValueError(f"direction must be one of {tuple(axes)}, got {direction!r}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    axis = axes[direction]
    scores = np.concatenate([block for _, block in blocks(as_matrix(similarity))])
    weights = scores / temperature
    weights -= weights.max(axis, keepdims=True)
    np.exp(weights, out=weights)
    weights *= scores.shape[axis] / weights.sum(axis, keepdims=True)
    return scores * weights
