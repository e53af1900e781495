"""Synthetic category data, made in milliseconds: two noisy views of class means."""

from __future__ import annotations

import json
import math

import numpy as np

from nclib.common.files import digest
from nclib.data.category import CategoryData, CategorySplit, category_datasets
from nclib.data.registry import check_count

LICENCE = "synthetic; no rights reserved (CC0-1.0)"
LATENT = 60
ROWS = 4096  # pairs made at a time in float64
STREAMS = {"train": 1, "val": 2, "test": 3}


@category_datasets.register(
    "planted_category", summary="synthetic: two noisy views of class means; tiny, for tests and checks"
)
def planted_category(
    *,
    n_train: int = 2000,
    n_val: int = 200,
    n_test: int = 400,
    n_classes: int = 10,
    image_dim: int = 200,
    text_dim: int = 100,
    image_noise: float = 1.8,
    text_noise: float = 1.8,
    seed: int = 0,
) -> CategoryData:
    """Make synthetic pairs of features with classes.

    A class is a standard normal vector in 60 dimensions. Either view of a pair adds noise of its own to it
    and passes a fixed random projection and a rectifier. Classes are drawn uniformly.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Pairs per split. The splits do not depend on each other's size.
    n_classes, image_dim, text_dim : int
        K, d_v and d_t.
    image_noise, text_noise : float
        Standard deviation of the noise in every latent dimension, 0 or more.
    seed : int

    Returns
    -------
    CategoryData

    Raises
    ------
    ValueError, TypeError
        When an option is out of range.
    """
    counts = {
        "n_train": n_train, "n_val": n_val, "n_test": n_test, "image_dim": image_dim, "text_dim": text_dim,
    }  # fmt: skip
    counts = {name: check_count(name, value, low=1) for name, value in counts.items()}
    check_count("n_classes", n_classes, low=2)
    check_count("seed", seed, low=0)
    for name, value in (("image_noise", image_noise), ("text_noise", text_noise)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    rng = np.random.default_rng([seed, 0])
    means = rng.standard_normal((n_classes, LATENT))
    views = [rng.standard_normal((LATENT, d)) / np.sqrt(LATENT) for d in (image_dim, text_dim)]

    def split(name: str) -> CategorySplit:
        draw = np.random.default_rng([seed, STREAMS[name]])
        n = counts[f"n_{name}"]
        labels = draw.integers(n_classes, size=n)
        features = []
        for scale, view in zip((image_noise, text_noise), views, strict=True):
            hidden = means[labels] + scale * draw.standard_normal((n, LATENT))
            made = np.empty((n, view.shape[1]), np.float32)
            for i in range(0, n, ROWS):
                made[i : i + ROWS] = np.maximum(hidden[i : i + ROWS] @ view, 0)
            features.append(made)
        return CategorySplit(name, features[0], features[1], labels.astype(np.int64))

    splits = {name: split(name) for name in STREAMS}
    options = {**counts, "n_classes": n_classes, "noise": [image_noise, text_noise], "seed": seed}
    return CategoryData(
        name="planted_category",
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
        label_names=tuple(f"class {k}" for k in range(n_classes)),
        checksum=digest([json.dumps(options, sort_keys=True), *(s.labels for s in splits.values())]),
        licence=LICENCE,
    )
