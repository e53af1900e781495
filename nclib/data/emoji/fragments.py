"""Fixed fragment features, in the role of a detector's: responses to a codebook of patches, and the box.

The codebook was learned without labels from patches of training fragments (k-means on whitened patches, after
Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011) by
``python -m nclib.data.emoji.fragments`` and is shipped as ``codebook.npz``. Whole numbers throughout keep the
features equal, bit for bit, on machines whose linear algebra differs in the last digits.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from nclib.data.emoji.compose import SIDE, UNIT

CODEBOOK = Path(__file__).with_name("codebook.npz")
WORDS, PATCH, POOL = 48, 5, 5  # filters, their side, and the side of a pooling cell: 14 - 5 + 1 = 2 * 5
RESPONSES = WORDS * 4
FEATURE_DIM = RESPONSES + 4
# Bytes times filters of at most 31 sum to less than 2**24 over a patch and a cell, so float32 is exact.
LARGEST, MIDDLE, QUANTILE, CHUNK = 31, 128.0, 0.8, 4096


@functools.cache
def codebook() -> dict[str, np.ndarray]:
    """Return the shipped codebook.

    Returns
    -------
    dict
        ``filters`` float32 (48, 3, 5, 5) and ``threshold`` float32 (48,), whole numbers, filters in -31..31;
        ``mean`` and ``scale`` float32 (192,).
    """
    with np.load(CODEBOOK, allow_pickle=False) as file:
        return {name: file[name].astype(np.float32) for name in file.files}


def responses(crops: np.ndarray, filters: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Return how strongly each quarter of a fragment shows each patch of the codebook.

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
    weight, bias = torch.from_numpy(filters), -torch.from_numpy(threshold)
    parts = []
    with torch.no_grad():
        for part in torch.from_numpy(crops).split(CHUNK):
            r = F.conv2d(part - MIDDLE, weight, bias).round_().relu_()  # (n, 48, 10, 10)
            parts.append((F.avg_pool2d(r, POOL) * POOL**2).round_().flatten(1))  # (n, 192)
    return torch.cat(parts).numpy() if parts else np.empty((0, RESPONSES), np.float32)


def features(crops: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the features of fragments.

    Parameters
    ----------
    crops : ndarray, float32, (n, R, 3, 14, 14)
        Whole numbers in 0..255.
    boxes : ndarray, int, (n, R, 3)
        x, y, side in sixteenths of a pixel.

    Returns
    -------
    ndarray, float32, (n, R, 196)
        192 responses with mean 0 and variance 1 over training fragments, then x, y, width and height of the
        box in [-1, 1].
    """
    n, regions = boxes.shape[:2]
    book = codebook()
    found = responses(crops.reshape(n * regions, *crops.shape[2:]), book["filters"], book["threshold"])
    out = np.empty((n, regions, FEATURE_DIM), np.float32)
    out[..., :RESPONSES] = ((found - book["mean"]) * book["scale"]).reshape(n, regions, RESPONSES)
    out[..., RESPONSES:] = boxes[..., [0, 1, 2, 2]] / (0.5 * SIDE * UNIT) - 1.0
    return out


def learn(crops: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Learn a codebook from fragments of training pictures, float32 (n, 3, 14, 14), whole numbers.

    Patches with some contrast are centred, scaled and whitened; k-means on the sphere finds the words; each
    word, taken back to colours and rounded, is a filter. A response counts above its 80 % quantile.
    """
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(seed)
    patches = np.lib.stride_tricks.sliding_window_view(crops, (PATCH, PATCH), axis=(2, 3))
    patches = patches.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 3 * PATCH * PATCH)
    patches = patches[rng.permutation(len(patches))[:60_000]].astype(np.float64)
    patches -= patches.mean(0)
    length = np.linalg.norm(patches, axis=1, keepdims=True)
    patches = (patches / (length + 50.0))[length[:, 0] > 60.0]  # flat patches say nothing
    variance, axes = np.linalg.eigh(np.cov(patches.T))
    whiten = axes @ np.diag((variance + 0.1 * variance.mean()) ** -0.5) @ axes.T
    white = patches @ whiten
    white /= np.linalg.norm(white, axis=1, keepdims=True)
    words = KMeans(WORDS, random_state=seed, n_init=1).fit(white).cluster_centers_
    back = (words / np.linalg.norm(words, axis=1, keepdims=True)) @ whiten
    filters = np.rint(back / np.abs(back).max(1, keepdims=True) * LARGEST).reshape(-1, 3, PATCH, PATCH)
    filters = filters.astype(np.float32)
    with torch.no_grad():
        r = F.conv2d(torch.from_numpy(crops[:2000]) - MIDDLE, torch.from_numpy(filters))
    threshold = np.rint(np.quantile(r.numpy().transpose(1, 0, 2, 3).reshape(WORDS, -1), QUANTILE, axis=1))
    found = responses(crops, filters, threshold.astype(np.float32)).astype(np.float64)
    return {
        "filters": filters.astype(np.int8),
        "threshold": threshold.astype(np.int32),
        "mean": np.rint(found.mean(0)).astype(np.float32),
        "scale": np.array([float(f"{1 / s:.3g}") for s in found.std(0)], np.float32),
    }


def main() -> None:
    """Learn the codebook from the first 1,000 training pictures of seed 0 and write it."""
    from nclib.data.emoji import assets, compose, render

    scenes = compose.compose(
        len(assets.read_names().names), seed=0, split="train", block=0, variant="standard"
    )[:1000]
    boxes = compose.draw_boxes(scenes, seed=0, split="train", block=0)[:, :12]
    crops = render.crop(render.Painter(assets.read_drawings()).paint(scenes), boxes)
    book = learn(crops.reshape(-1, *crops.shape[2:]).astype(np.float32))
    np.savez_compressed(CODEBOOK, **book)  # type: ignore[arg-type]
    print(f"{CODEBOOK}: {CODEBOOK.stat().st_size} bytes")


if __name__ == "__main__":
    main()
