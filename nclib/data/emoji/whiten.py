"""Fixed fragment features: colours projected on principal components, and the box; nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nclib.data.emoji.compose import SIDE, UNIT

COMPONENTS = 64
FEATURE_DIM = COMPONENTS + 4
FLOOR = 0.01 * 255.0**2  # added to each variance (0.01 for colours in [0, 1]), so that noise is not blown up
# 11 bits after the point: with bytes as input every sum stays below 255 sqrt(588) 2**11 < 2**24 and is exact
BITS = 11


@dataclass(frozen=True)
class Whitening:
    """Principal components of fragments' colours.

    Parameters
    ----------
    mean : ndarray, float32, (588,)
        Whole numbers.
    axes : ndarray, float32, (588, 64)
        Multiples of ``2**-11``; each column has length 1 up to that rounding.
    scale : ndarray, float32, (64,)
        Three significant digits.
    """

    mean: np.ndarray
    axes: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, crops: np.ndarray) -> Whitening:
        """Fit to fragments of training pictures, whole numbers in 0..255, float32 (..., 3, 14, 14).

        The rounding of all three arrays makes the features equal on machines whose linear algebra
        differs in the last digits.
        """
        flat = crops.reshape(-1, np.prod(crops.shape[-3:]))
        mean = np.rint(flat.mean(0, dtype=np.float64)).astype(np.float32)
        centred = (flat - mean).astype(np.float64)
        variance, vectors = np.linalg.eigh(centred.T @ centred / len(flat))  # ascending
        variance, vectors = variance[::-1][:COMPONENTS], vectors[:, ::-1][:, :COMPONENTS]
        vectors = vectors * np.where(vectors.sum(0) < 0, -1.0, 1.0)  # the sign is free: fix it
        scale = 1.0 / np.sqrt(variance + FLOOR)
        scale /= np.sqrt(np.mean(variance * scale**2))  # overall standard deviation 1
        return cls(
            mean,
            (np.rint(vectors * 2**BITS) / 2**BITS).astype(np.float32),
            np.array([float(f"{s:.3g}") for s in scale], np.float32),
        )

    def features(self, crops: np.ndarray, boxes: np.ndarray) -> np.ndarray:
        """Return the features of fragments.

        Parameters
        ----------
        crops : ndarray, float32, (n, R, 3, 14, 14)
            Whole numbers in 0..255.
        boxes : ndarray, int, (n, R, 3)
            x, y, side in sixteenths of a pixel.

        Returns
        -------
        ndarray, float32, (n, R, 68)
            64 whitened colours, then x, y, width and height of the box in [-1, 1].
        """
        n, regions = boxes.shape[:2]
        out = np.empty((n, regions, FEATURE_DIM), np.float32)
        centred = crops.reshape(n * regions, -1) - self.mean
        out[..., :COMPONENTS] = (centred @ self.axes * self.scale).reshape(n, regions, COMPONENTS)
        out[..., COMPONENTS:] = boxes[..., [0, 1, 2, 2]] / (0.5 * SIDE * UNIT) - 1.0
        return out
