"""Synthetic data of both shapes, made in milliseconds: concepts with regions and words, views of classes."""

from __future__ import annotations

import functools
import json

import numpy as np

from nclib.common.checks import check_count, check_counts, check_number
from nclib.common.files import digest
from nclib.data.category_data import CategoryData, CategorySplit
from nclib.data.dataset import Captions, Dataset, Split
from nclib.data.registry import register
from nclib.data.vocabulary import SPECIAL, Vocabulary

STREAMS = {"train": 1, "val": 2, "test": 3}
SYNONYMS = 2
LATENT = 60  # dimensions of a class mean
ROWS = 4096  # pairs with categories made at a time in float64


@register("planted", summary="synthetic concepts behind regions and words; tiny, for tests and checks")
def planted(
    *,
    n_train: int = 256,
    n_val: int = 64,
    n_test: int = 64,
    regions: int = 12,
    feature_dim: int = 32,
    n_concepts: int = 40,
    concepts_per_image: int = 4,
    captions_per_image: int = 5,
    noise: float = 0.3,
    seed: int = 0,
) -> Dataset:
    """Make synthetic images and captions.

    An image holds a few distinct concepts. Each region is the unit vector of one of them plus Gaussian
    noise; the first regions show every concept once. A caption names between two and all concepts of its
    image in random order, each by one of two synonyms, so word order carries nothing and every word has a
    meaning that a region shows.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Images per split, at least 1. The splits do not depend on each other's size.
    regions, feature_dim : int
        R, at least ``concepts_per_image``, and F.
    n_concepts, concepts_per_image, captions_per_image : int
        Counts.
    noise : float
        Length scale of the noise on a region, relative to the concept's unit vector; 0 or more.
    seed : int

    Returns
    -------
    Dataset
        With ground-truth relevance (share of the named concepts that the image holds).

    Raises
    ------
    ValueError, TypeError
        When an option is out of range.
    """
    check_counts(n_train=n_train, n_val=n_val, n_test=n_test, feature_dim=feature_dim)
    check_count("captions_per_image", captions_per_image)
    check_count("seed", seed, low=0)
    check_count("concepts_per_image", concepts_per_image, low=2)
    check_count("n_concepts", n_concepts, low=concepts_per_image)
    check_count("regions", regions, low=concepts_per_image)
    check_number("noise", noise, low=0)

    words = [f"concept{k}{'ab'[s]}" for k in range(n_concepts) for s in range(SYNONYMS)]
    vocabulary = Vocabulary((*SPECIAL, *words))
    prototypes = np.random.default_rng([seed, 0]).normal(size=(n_concepts, feature_dim))
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)

    def split(name: str, n: int) -> Split:
        rng = np.random.default_rng([seed, STREAMS[name]])
        m = concepts_per_image
        held = rng.permuted(np.tile(np.arange(n_concepts), (n, 1)), axis=1)[:, :m]  # (n, m)
        shown = np.concatenate([np.tile(np.arange(m), (n, 1)), rng.integers(m, size=(n, regions - m))], 1)
        content = prototypes[np.take_along_axis(held, shown, 1)]  # (n, R, F)
        images = content + noise / np.sqrt(feature_dim) * rng.normal(size=content.shape)
        n_captions = n * captions_per_image
        image_of = np.arange(n_captions) // captions_per_image
        order = rng.permuted(np.tile(np.arange(m), (n_captions, 1)), axis=1)
        named = held[image_of[:, None], order]  # (n_captions, m)
        told = np.arange(m) < rng.integers(2, m + 1, size=n_captions)[:, None]  # the first 2..m of the order
        ids = len(SPECIAL) + named * SYNONYMS + rng.integers(SYNONYMS, size=named.shape)
        edge = np.ones((n_captions, 1), int)
        tokens = np.concatenate([edge, ids, 2 * edge], 1)
        keep = np.concatenate([edge == 1, told, edge == 1], 1)
        offsets = np.concatenate([[0], np.cumsum(keep.sum(1))]).astype(np.int64)
        has = np.zeros((n, n_concepts), np.float32)
        np.put_along_axis(has, held, 1.0, axis=1)
        says = np.zeros((n_captions, n_concepts), np.float32)
        np.put_along_axis(says, named, told / told.sum(1, keepdims=True), axis=1)
        return Split(
            name,
            images.astype(np.float32),
            Captions(tokens[keep].astype(np.int32), offsets, vocabulary),
            image_of,
            captions_per_image,
            relevance_source=functools.partial(_share, has, says),
        )

    train, val, test = split("train", n_train), split("val", n_val), split("test", n_test)
    content = [a for s in (train, val, test) for a in (s.images, s.captions.tokens, s.captions.offsets)]
    return Dataset("planted", train, val, test, vocabulary, digest(content))


def _share(has: np.ndarray, says: np.ndarray, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
    """Return the share of the concepts that captions name, among those that images hold."""
    return np.minimum(has[images] @ says[captions].T, 1.0)


@register(
    "planted_category",
    task="categories",
    summary="synthetic: two noisy views of class means; tiny, for tests and checks",
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
    Errors as :func:`planted`.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Pairs per split. The splits do not depend on each other's size.
    n_classes, image_dim, text_dim : int
        K, d_v and d_t.
    image_noise, text_noise : float
        Standard deviation of the noise in every latent dimension, 0 or more.
    seed : int
    """
    counts = check_counts(n_train=n_train, n_val=n_val, n_test=n_test, image_dim=image_dim, text_dim=text_dim)
    check_count("n_classes", n_classes, low=2)
    check_count("seed", seed, low=0)
    check_number("image_noise", image_noise, low=0)
    check_number("text_noise", text_noise, low=0)
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

    train, val, test = (split(name) for name in STREAMS)
    options = {**counts, "n_classes": n_classes, "noise": [image_noise, text_noise], "seed": seed}
    return CategoryData(
        "planted_category",
        train,
        val,
        test,
        label_names=tuple(f"class {k}" for k in range(n_classes)),
        checksum=digest([json.dumps(options, sort_keys=True), train.labels, val.labels, test.labels]),
    )
