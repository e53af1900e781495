"""Learn the codebook of fragment features that is shipped as ``nclib/data/emoji/codebook.npz``.

Usage, from the root of the repository::

    python tools/learn_codebook.py [--out FILE]

k-means on whitened patches, after Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised
Feature Learning", AISTATS 2011.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from nclib.data.emoji import assets, compose, render
from nclib.data.emoji.features import CODEBOOK, LARGEST, MIDDLE, PATCH, WORDS, responses

QUANTILE = 0.8
PICTURES, REGIONS = 1000, 12  # training pictures of seed 0, and fragments of each


def learn(crops: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Learn a codebook from fragments of training pictures.

    Patches with some contrast are centred, scaled and whitened; k-means on the sphere finds the words; each
    word, taken back to colours and rounded, is a filter. A response counts above its 80 % quantile.

    Parameters
    ----------
    crops : ndarray, float32, (n, 3, 14, 14)
        Whole numbers in 0..255.
    seed : int
        Of the choice of patches and of k-means.

    Returns
    -------
    dict
        The arrays of the shipped file.
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
    """Learn the codebook and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=CODEBOOK, help="default: the shipped file")
    options = parser.parse_args()
    where = {"seed": 0, "split": "train", "block": 0}
    scenes = compose.compose(len(assets.read_names().names), **where)[:PICTURES]
    boxes = compose.draw_boxes(scenes, **where)[:, :REGIONS]
    crops = render.crop(render.Painter(assets.read_drawings()).paint(scenes), boxes)
    book = learn(crops.reshape(-1, *crops.shape[2:]).astype(np.float32))
    np.savez_compressed(options.out, **book)  # type: ignore[arg-type]
    print(f"{options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
