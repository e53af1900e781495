"""The data set ``emoji_category``: generated scenes about one topic, as fixed image and text features.

The topic of a scene is the class of its main object; every other object is of the same class with a given
probability, else any of the 200. So a picture, like an illustrated article, mostly shows things of its topic.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from nclib.common.checks import check_count, check_counts
from nclib.common.files import digest
from nclib.data.cache import from_cache
from nclib.data.category_data import CategoryData, CategorySplit
from nclib.data.emoji.assets import CLASSES
from nclib.data.emoji.compose import stream
from nclib.data.emoji.features import RESPONSES
from nclib.data.emoji.generate import SPLITS, blocks, cache_key, picture, words
from nclib.data.registry import register
from nclib.data.vocabulary import END, SPECIAL, Vocabulary

TOPIC = 0.75  # probability that a further object of a scene is of its topic
REGIONS = 8  # fragments of a picture: its objects first
IMAGE_DIM, TEXT_DIM = 512, 100
THRESHOLD = 0.5  # subtracted from a random projection before it is rectified
NO_VARIANCE = 1e-10  # share of the largest variance; rounding leaves about 1e-16
TOPIC_STREAM, PROJECTION_SEED = 3, 20


@register(
    "emoji_category",
    task="categories",
    summary="bundled: emoji scenes about one of ten topics, fixed image and text features",
)
def emoji_category(
    *,
    n_train: int = 1500,
    n_val: int = 300,
    n_test: int = 700,
    seed: int = 0,
) -> CategoryData:
    """Load the bundled category data, with pictures and texts, generating them the first time.

    *Image features*: each of eight fragments of the picture (its objects and some others) gives 192 responses
    to the shipped codebook of patches; 512 fixed random projections of them, rectified, are averaged over the
    fragments and standardised over the training pictures. *Text features*: the five captions of a picture are
    one document; its log word counts, weighted by inverse document frequency and of unit length, are taken to
    the 100 leading directions of the training documents (latent semantic analysis); where these documents
    have fewer, the other numbers are 0.
    ``split.details["scenes"]`` tells what is where. Errors as :func:`nclib.data.emoji.pairs.emoji`.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Pairs per split.
    seed : int
        Another seed gives other scenes.
    """
    options = {
        **{"labels": "class", "topic": TOPIC},  # part of the checksum in records
        **check_counts(n_train=n_train, n_val=n_val, n_test=n_test),
        "seed": check_count("seed", seed, low=0),
    }
    build = functools.partial(_build, options=options)
    folder, facts = from_cache("emoji_category", cache_key(options, "texts 2"), build)
    return _open(folder, facts)


def _build(folder: Path, *, options: dict[str, Any]) -> dict[str, Any]:
    """Write features, labels, scenes and captions of all splits; return their checksum."""
    raw = {split: _split(split, options) for split in SPLITS}
    images = raw["train"]["images"].astype(np.float64)
    mean, scale = images.mean(0), 1 / np.maximum(images.std(0), 1e-6)
    to_topics = _latent_semantics(raw["train"]["counts"])
    content: list[Any] = [json.dumps(options, sort_keys=True)]
    for split, arrays in raw.items():
        arrays["images"] = ((arrays["images"] - mean) * scale).astype(np.float32)
        arrays["texts"] = to_topics(arrays.pop("counts"))
        content += [split, *(arrays[key] for key in ("scenes", "tokens", "offsets", "labels"))]
        for key, array in arrays.items():
            np.save(folder / f"{split}_{key}.npy", array, allow_pickle=False)
    # Not of the features, whose last digits may differ between machines.
    return {"checksum": digest(content)}


def _split(split: str, options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    names, lexicon = words()
    class_of = names.class_of
    n, seed = options[f"n_{split}"], options["seed"]

    def on_topic(scenes: np.ndarray, block: int) -> None:
        rng = stream(seed, split, block, TOPIC_STREAM)
        scenes["concept"] = _on_topic(scenes, class_of, rng)

    made = [
        (_pool(block.features[..., :RESPONSES]), block.scenes, block.tokens, block.lengths)
        for block in blocks(split, n, seed=seed, regions=REGIONS, change=on_topic)
    ]
    images, scenes, tokens, lengths = map(np.concatenate, zip(*made, strict=True))
    lengths = lengths.reshape(n, -1).sum(1)
    counts = np.zeros((n, lexicon.vocabulary.size))
    np.add.at(counts, (np.repeat(np.arange(n), lengths), tokens), 1.0)
    return {
        "images": images,
        "scenes": scenes,
        "tokens": tokens,
        "counts": counts,
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "labels": class_of[scenes["concept"][:, 0]].astype(np.int64),
    }


def _on_topic(scenes: np.ndarray, class_of: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Replace objects after the first by ones of the first's class, with probability TOPIC, (n, 4)."""
    concept = scenes["concept"]
    order = np.argsort(class_of, kind="stable")  # concepts by class
    sizes = np.bincount(class_of)
    first = np.cumsum(sizes) - sizes
    theme = class_of[concept[:, :1]]  # (n, 1)
    other = order[first[theme] + rng.integers(0, sizes[theme], concept.shape)]
    replace = rng.random(concept.shape) < TOPIC
    replace[:, 0] = False
    inside = np.arange(concept.shape[1]) < scenes["count"][:, None]
    return np.where(replace, other, concept) * inside


def _pool(responses: np.ndarray) -> np.ndarray:
    """Rectified random projections, averaged over fragments: (n, R, 192) -> (n, 512)."""
    rng = np.random.default_rng(PROJECTION_SEED)
    projection = (rng.standard_normal((RESPONSES, IMAGE_DIM)) / np.sqrt(RESPONSES)).astype(np.float32)
    return np.maximum(responses @ projection - THRESHOLD, 0).mean(1)


def _latent_semantics(counts: np.ndarray) -> Any:
    """Return the map from word counts, (n, words), to the leading directions of these documents."""
    df = (counts > 0).sum(0)
    idf = np.where(df > 0, np.log((1 + len(counts)) / (1 + df)), 0.0)
    idf[: len(SPECIAL)] = 0.0

    def weighted(x: np.ndarray) -> np.ndarray:
        y = np.log1p(x) * idf
        return y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-12)

    x = weighted(counts)
    with threadpool_limits(1):  # several threads add in another order
        variances, axes = np.linalg.eigh(x.T @ x)  # ascending
    # With fewer documents than dimensions, rounding alone chooses the directions without variance.
    axes = np.where(variances > NO_VARIANCE * variances[-1], axes, 0.0)[:, ::-1][:, :TEXT_DIM]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    return lambda c: (weighted(c) @ axes * np.sqrt(TEXT_DIM)).astype(np.float32)


def _text(tokens: np.ndarray, offsets: np.ndarray, vocabulary: Vocabulary, row: int) -> str:
    """Return the captions of a picture in one line."""
    ids = tokens[offsets[row] : offsets[row + 1]]
    captions = np.split(ids, np.flatnonzero(ids == END)[:-1] + 1)
    return "; ".join(vocabulary.decode(caption) for caption in captions)


def _open(folder: Path, facts: Mapping[str, Any]) -> CategoryData:
    _, lexicon = words()

    def split(name: str) -> CategorySplit:
        images, texts, y, scenes, tokens, offsets = (
            np.load(folder / f"{name}_{key}.npy", allow_pickle=False)
            for key in ("images", "texts", "labels", "scenes", "tokens", "offsets")
        )

        picture_of = functools.partial(picture, scenes)
        text_of = functools.partial(_text, tokens, offsets, lexicon.vocabulary)
        return CategorySplit(name, images, texts, y, picture_of, text_of, {"scenes": scenes})

    return CategoryData(
        name="emoji_category",
        **{name: split(name) for name in SPLITS},
        label_names=tuple(CLASSES),
        checksum=facts["checksum"],
        details={"concepts": lexicon.names},
    )
