"""Fixed fragment features in place of a detector's: responses to a codebook of patches, and the box.

The codebook was learned without labels from patches of training fragments (k-means on whitened patches, after
Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011) by
``tools/learn_codebook.py`` and is shipped as ``codebook.npz``. Whole numbers throughout keep the
features equal, bit for bit, on machines whose linear algebra differs in the last digits.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from nclib.data.emoji.compose import SIDE, UNIT

CODEBOOK = Path(__file__).with_name("codebook.npz")
WORDS, PATCH, POOL = 48, 5, 5  # filters, their side, and the side of a pooling cell: 14 - 5 + 1 = 2 * 5
RESPONSES = WORDS * 4
FEATURE_DIM = RESPONSES + 4
# Bytes times filters of at most 31 sum to less than 2**24 over a patch and a cell, so float32 is exact.
LARGEST, MIDDLE, CHUNK = 31, 128.0, 4096


@functools.cache
def codebook() -> dict[str, np.ndarray]:
    """Return the shipped codebook: ``filters, threshold, mean, scale``, float32.

    Filters, (48, 3, 5, 5) in -31..31, and thresholds, (48,), are whole numbers; the others are (192,).
    """
    with np.load(CODEBOOK, allow_pickle=False) as file:
        return {name: file[name].astype(np.float32) for name in file.files}


def responses(crops: np.ndarray, filters: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Return the responses of each quarter of a fragment to each patch of the codebook.

    Parameters
    ----------
    crops : ndarray, float32, (n, 3, 14, 14)
        Whole numbers in 0..255.
    filters, threshold : ndarray
        Of the codebook.

    Returns
    -------
    ndarray, float32, (n, 192)
        Whole numbers: rectified responses above threshold, summed over the quarters.
    """
    import torch
    import torch.nn.functional as F

    weight, bias = torch.from_numpy(filters), -torch.from_numpy(threshold)
    parts = []
    with torch.no_grad():
        for part in torch.from_numpy(crops).split(CHUNK):
            r = F.conv2d(part - MIDDLE, weight, bias).round_().relu_()  # (n, 48, 10, 10)
            parts.append((F.avg_pool2d(r, POOL) * POOL**2).round_().flatten(1))  # (n, 192)
    return torch.cat(parts).numpy() if parts else np.empty((0, RESPONSES), np.float32)


def features(crops: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the features of fragments, float32 (n, R, 196).

    192 responses with mean 0 and variance 1 over training fragments, then x, y, width and height of the box
    in [-1, 1]; ``crops`` and ``boxes`` as :func:`nclib.data.emoji.render.crop` returns and takes them.
    """
    n, regions = boxes.shape[:2]
    book = codebook()
    pooled = responses(crops.reshape(n * regions, *crops.shape[2:]), book["filters"], book["threshold"])
    out = np.empty((n, regions, FEATURE_DIM), np.float32)
    out[..., :RESPONSES] = ((pooled - book["mean"]) * book["scale"]).reshape(n, regions, RESPONSES)
    out[..., RESPONSES:] = boxes[..., [0, 1, 2, 2]] / (0.5 * SIDE * UNIT) - 1.0
    return out
