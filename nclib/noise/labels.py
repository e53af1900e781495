"""Wrong class labels for category retrieval (UOT-RCL, MRL, ELRCMR).

The released code of this family draws without a seed, lets the number of classes off by one, or draws ten
classes whatever the data; here the count is exact, the range is 0..K-1, and the seed is an argument. The
papers corrupt images and texts independently: call once per modality with seeds such as ``(seed, 0)`` and
``(seed, 1)``. One label for both is a single call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nclib.noise._checks import Index, Seed, generator, integers, share

__all__ = ["asymmetric_labels", "symmetric_labels"]


def _labels(labels: Any, n_classes: int) -> Index:
    if isinstance(n_classes, bool) or not isinstance(n_classes, (int, np.integer)) or n_classes < 2:
        raise ValueError(f"n_classes must be an integer >= 2, got {n_classes!r}")
    clean = integers(labels, "labels")
    if clean.max() >= n_classes:
        raise ValueError(
            f"labels must lie in 0..{n_classes - 1}, got {int(clean.max())}; labels that start at 1 must be "
            "shifted first"
        )
    return clean


def symmetric_labels(
    labels: Any, rate: float, *, n_classes: int, seed: Seed, exclusive: bool = False
) -> Index:
    """Replace a share of the labels by uniform random ones.

    Parameters
    ----------
    labels : array of int, (n,)
        True classes, 0..n_classes-1.
    rate : float in [0, 1]
        Exactly ``floor(rate * n)`` samples, chosen without replacement, get a random label.
    n_classes : int >= 2
        K.
    seed : int >= 0, or a sequence of them
        Seed of this draw.
    exclusive : bool
        False (the papers' protocol): uniform on all K classes, so a share 1/K of the chosen stays right.
        True: uniform on the K - 1 wrong classes.

    Returns
    -------
    ndarray, int64, (n,)
        Noisy labels; compare with ``labels`` for the ground truth.

    Raises
    ------
    ValueError, TypeError
        If labels, rate, number of classes or seed are out of range.
    """
    clean = _labels(labels, n_classes)
    rng = generator(seed)
    chosen = rng.choice(clean.size, share(rate, clean.size), replace=False)
    noisy = clean.copy()
    step = rng.integers(1 if exclusive else 0, n_classes, chosen.size)
    noisy[chosen] = (clean[chosen] + step) % n_classes
    return noisy


def asymmetric_labels(labels: Any, rate: float, *, n_classes: int, seed: Seed, mapping: Any = None) -> Index:
    """Replace a share of the labels by one fixed wrong class each.

    Parameters
    ----------
    labels : array of int, (n,)
        True classes, 0..n_classes-1.
    rate : float in [0, 1]
        Exactly ``floor(rate * n)`` samples are sent through the mapping.
    n_classes : int >= 2
        K.
    seed : int >= 0, or a sequence of them
        Seed of this draw.
    mapping : array of int, (K,), optional
        Class that each class is mistaken for. Unless given, a random half of the classes is mapped one to
        one onto the other half, which stays as it is (MRL's released code).

    Returns
    -------
    ndarray, int64, (n,)
        Noisy labels.

    Raises
    ------
    ValueError, TypeError
        If labels, rate, number of classes, mapping or seed are out of range.
    """
    clean = _labels(labels, n_classes)
    rng = generator(seed)
    if mapping is None:
        order, half = rng.permutation(n_classes), n_classes // 2
        target = np.arange(n_classes)
        target[order[:half]] = order[half : 2 * half]
    else:
        target = integers(mapping, "mapping")
        if target.size != n_classes or target.max() >= n_classes:
            raise ValueError(f"mapping must hold {n_classes} classes in 0..{n_classes - 1}")
    chosen = rng.choice(clean.size, share(rate, clean.size), replace=False)
    noisy = clean.copy()
    noisy[chosen] = target[clean[chosen]]
    return noisy
