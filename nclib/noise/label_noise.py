"""Wrong class labels for category retrieval (UOT-RCL, MRL, ELRCMR), as functions and as a named artefact.

The official code of this family draws without a seed, lets the number of classes off by one, or draws ten
classes whatever the data; here the count is exact, the range is 0..K-1, and the seed is an argument. The
papers corrupt images and texts independently, which is the default of :class:`LabelNoise`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.checks import check_choice, check_count
from nclib.common.files import digest
from nclib.noise.checks import Index, Seed, generator, share, vector


def _labels(labels: Any, n_classes: int) -> Index:
    return vector(labels, "labels", "iu", low=0, high=check_count("n_classes", n_classes, low=2) - 1)


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
    ValueError
        Naming the argument, what was given and what is allowed.

    Examples
    --------
    >>> from nclib.noise import symmetric_labels
    >>> symmetric_labels([0, 1, 2, 3, 0, 1, 2, 3], 0.5, n_classes=4, seed=0)
    array([0, 1, 2, 1, 3, 1, 2, 3])
    """
    clean = _labels(labels, n_classes)
    rng = generator(seed)
    chosen = rng.choice(clean.size, share(rate, clean.size), replace=False)
    noisy = clean.copy()
    step = rng.integers(1 if exclusive else 0, n_classes, chosen.size)
    noisy[chosen] = (clean[chosen] + step) % n_classes
    return noisy


def asymmetric_labels(labels: Any, rate: float, *, n_classes: int, seed: Seed) -> Index:
    """Replace a share of the labels by one fixed wrong class each.

    A random half of the classes is mapped one to one onto the other half, which does not change (MRL's
    official code).

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

    Returns
    -------
    ndarray, int64, (n,)
        Noisy labels.

    Raises
    ------
    ValueError
        If labels, rate, number of classes or seed are out of range.
    """
    clean = _labels(labels, n_classes)
    rng = generator(seed)
    order, half = rng.permutation(n_classes), n_classes // 2
    target = np.arange(n_classes)
    target[order[:half]] = order[half : 2 * half]
    chosen = rng.choice(clean.size, share(rate, clean.size), replace=False)
    noisy = clean.copy()
    noisy[chosen] = target[clean[chosen]]
    return noisy


LABEL_PROTOCOLS: dict[str, Callable[..., np.ndarray]] = {
    "symmetric": symmetric_labels,
    "symmetric_exclusive": partial(symmetric_labels, exclusive=True),
    "asymmetric": asymmetric_labels,
}
"""Protocol name to the function that draws it."""

LABEL_SCOPES = ("modality", "pair")
"""Independent draws for images and texts, or one draw for both."""


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """Given class labels of images and texts beside the true ones, with the noise between them.

    Parameters
    ----------
    truth : ndarray, int64, (N,)
        True classes.
    image_labels, text_labels : ndarray, int64, (N,)
        Given classes.
    rate : float or None
        Share of labels that were redrawn; None for labels from a file.
    protocol, scope : str
        How they were redrawn, and whether images and texts got noise of their own; ``"file"`` for a file.
    seed : int or None
        Seed of the draw; None for a file.
    """

    truth: np.ndarray
    image_labels: np.ndarray
    text_labels: np.ndarray
    rate: float | None
    protocol: str
    scope: str
    seed: int | None

    @classmethod
    def draw(
        cls,
        labels: Any,
        rate: float,
        *,
        n_classes: int,
        seed: int,
        protocol: str = "symmetric",
        scope: str = "modality",
    ) -> LabelNoise:
        """Draw wrong labels of images and texts.

        Parameters
        ----------
        labels, rate, n_classes
            As in :func:`symmetric_labels`, with the same errors; the rate holds for each modality.
        seed : int >= 0
            Nothing else is random.
        protocol : {"symmetric", "symmetric_exclusive", "asymmetric"}
            Uniform over all K classes, the true one included (the papers'), so that a share ``1/K`` of the
            redrawn labels stays right; uniform over the K - 1 wrong classes; or one fixed wrong class each.
        scope : {"modality", "pair"}
            Independent draws for images and texts (the papers' protocol), or one draw for both.

        Examples
        --------
        >>> from nclib.noise import LabelNoise
        >>> noise = LabelNoise.draw([0, 1, 2] * 100, 0.6, n_classes=3, seed=0, protocol="symmetric_exclusive")
        >>> noise.true_rate
        0.6
        """
        check_choice("protocol", protocol, tuple(LABEL_PROTOCOLS))
        check_choice("scope", scope, LABEL_SCOPES)
        truth = vector(labels, "labels", "iu")
        draw = partial(LABEL_PROTOCOLS[protocol], truth, rate, n_classes=n_classes)
        images, texts = draw(seed=(seed, 0)), draw(seed=(seed, 1))
        return cls(truth, images, images if scope == "pair" else texts, rate, protocol, scope, seed)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], labels: Any, *, n_classes: int) -> LabelNoise:
        """Read noisy labels from a file of the official code: JSON, a list of N classes per modality.

        Parameters
        ----------
        path : path
            The list of the images comes first.
        labels : array of int, (N,)
            True classes, 0..n_classes-1.

        Raises
        ------
        FileNotFoundError, ValueError
            If there is no such file, the lists do not fit the labels, or a class is out of range, as in files
            of code that draws one class too many.
        """
        truth = np.asarray(labels, np.int64)
        try:
            images, texts = json.loads(Path(path).read_text("utf8"))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} does not hold two lists of whole numbers ({error})") from error
        fits: dict[str, Any] = {"kinds": "iu", "size": len(truth), "low": 0, "high": n_classes - 1}
        lists = {"images": images, "texts": texts}
        images, texts = (vector(x, f"{path}: classes of {what}", **fits) for what, x in lists.items())
        return cls(truth, images, texts, None, "file", "file", None)

    def __len__(self) -> int:
        return 2 * len(self.truth)

    @property
    def true_rate(self) -> float:
        """Share of given labels, of both modalities, that are really wrong."""
        wrong = [(given != self.truth).mean() for given in (self.image_labels, self.text_labels)]
        return float(np.mean(wrong))

    @cached_property
    def checksum(self) -> str:
        """sha256 of the given labels, hexadecimal."""
        return digest([self.image_labels, self.text_labels])

    def describe(self) -> str:
        """Return one line on what was done."""
        how = "labels from a file" if self.rate is None else f"{self.protocol} label noise {self.rate:g}"
        who = {"modality": "drawn for images and texts apart", "pair": "one draw per pair", "file": ""}
        parts = [how, who[self.scope], "" if self.seed is None else f"seed {self.seed}"]
        parts += [f"{100 * self.true_rate:.1f} % of labels wrong", self.checksum[:12]]
        return ", ".join(part for part in parts if part)
