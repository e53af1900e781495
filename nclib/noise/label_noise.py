"""Label noise as a named artefact: protocol, scope, rate, seed, checksum, and the truth for diagnosis."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.files import digest
from nclib.noise import asymmetric_labels, symmetric_labels

PROTOCOLS: dict[str, Callable[..., np.ndarray]] = {
    "symmetric": symmetric_labels,
    "symmetric_exclusive": partial(symmetric_labels, exclusive=True),
    "asymmetric": asymmetric_labels,
}
SCOPES = ("modality", "pair")


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """The labels that a learner is given, and what they should be.

    Parameters
    ----------
    truth : ndarray, int64, (N,)
        True classes.
    image_labels, text_labels : ndarray, int64, (N,)
        Given classes.
    rate : float or None
        Share of labels that were redrawn; None for labels from a file.
    protocol, scope : str
        How they were redrawn, and whether images and texts got noise of their own.
    seed : int or None
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
        """Draw wrong labels.

        Parameters
        ----------
        labels : array of int, (N,)
            True classes, 0..n_classes-1.
        rate : float in [0, 1]
            ``floor(rate * N)`` labels of each modality are redrawn.
        n_classes : int
            K.
        seed : int >= 0
        protocol : {"symmetric", "symmetric_exclusive", "asymmetric"}
            Uniform over all K classes, the true one included, as published, so that a share ``1/K`` of the
            redrawn labels stays right; uniform over the K - 1 wrong classes; or one fixed wrong class each.
        scope : {"modality", "pair"}
            Independent draws for images and texts (the published protocol), or one draw for both.

        Raises
        ------
        ValueError, TypeError
            For an unknown protocol or scope, and as :func:`nclib.noise.symmetric_labels`.
        """
        for name, value, allowed in (("protocol", protocol, PROTOCOLS), ("scope", scope, SCOPES)):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        truth = np.asarray(labels, np.int64)
        images, texts = (
            PROTOCOLS[protocol](truth, rate, n_classes=n_classes, seed=(seed, stream)) for stream in (0, 1)
        )
        return cls(truth, images, images if scope == "pair" else texts, rate, protocol, scope, seed)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], labels: Any, *, n_classes: int) -> LabelNoise:
        """Read noisy labels in the published form: JSON, two lists of N classes, of images and of texts.

        Raises
        ------
        FileNotFoundError
            When there is no such file.
        ValueError
            When the lists do not fit the training pairs or a class is out of range.
        """
        truth = np.asarray(labels, np.int64)
        try:
            given = np.asarray(json.loads(Path(path).read_text("utf8")), dtype=object)
            lists = given.astype(np.int64)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: not two equally long lists of whole numbers ({error})") from error
        if lists.shape != (2, len(truth)) or not (lists == given).all():
            raise ValueError(
                f"{path}: must hold two lists of {len(truth)} whole numbers, found shape {lists.shape}"
            )
        if lists.min() < 0 or lists.max() >= n_classes:
            raise ValueError(
                f"{path}: classes must lie in 0..{n_classes - 1}, found {lists.min()}..{lists.max()}; files "
                "drawn with one class too many must be drawn again"
            )
        return cls(truth, lists[0], lists[1], None, "file", "file", None)

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
