"""What the detection benchmark is made of: true pairs, ways to make them wrong, encoders, and measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib import data
from nclib.auditing.crossfit import crossfit
from nclib.auditing.neighbours import Side, centres_of, nearest_centres
from nclib.common.cca import CCA, fit_cca, tf_idf, word_counts, word_weights
from nclib.data import Captions
from nclib.noise import calibration, detection, mismatch
from nclib.noise.checks import share

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# ----------------------------------------------------------------------------------------------- true pairs


@dataclass(frozen=True, eq=False)
class Material:
    """Pictures and captions whose pairs are right, and captions of pictures that are not among them.

    Parameters
    ----------
    images : ndarray, float32, (N, F)
        Mean fragment of each picture.
    captions : Captions, or ndarray, float32, (all captions, F')
        Words, or features.
    image_of : ndarray of int, (M,)
        Picture that each of the first M captions describes.
    spare : ndarray of int
        Rows of captions whose pictures are elsewhere.
    """

    images: Floats
    captions: Captions | Floats
    image_of: Ints
    spare: Ints


def photographs(root: Path, seed: int, pictures: int, per_image: int, spare: int, first: int = 0) -> Material:
    """Draw training photographs of Flickr8K and keep their first captions.

    Parameters
    ----------
    root : Path
        Holds the prepared data.
    seed : int
        Of the order from which photographs are taken.
    pictures, per_image, spare : int
        Photographs, captions of each, and further photographs that lend one caption each.
    first : int
        Place in the order to begin at; materials that do not overlap in it share no photograph.
    """
    return _drawn(data.load("f8k", root=root).train, seed, pictures, per_image, spare, first)


def scenes(seed: int, pictures: int, per_image: int, spare: int) -> Material:
    """Draw bundled scenes, as :func:`photographs`."""
    return _drawn(data.load("emoji", size="medium").train, seed, pictures, per_image, spare, 0)


def _drawn(split: data.Split, seed: int, pictures: int, per_image: int, spare: int, first: int) -> Material:
    order = np.random.default_rng([seed, 1]).permutation(split.n_images)[first:]
    # Rows stay in the order of the file, as far as it goes: a shifted run is a run of the file.
    chosen = np.sort(order[:pictures])
    rows = (chosen[:, None] * split.captions_per_image + np.arange(per_image)).ravel()
    others = order[pictures : pictures + spare] * split.captions_per_image
    images = split.features(chosen).mean(1).numpy()
    scale = split.features(np.arange(1000)).mean(1).std().item()
    captions = split.captions.take(np.concatenate([rows, others]))
    image_of = np.repeat(np.arange(len(chosen)), per_image)
    return Material(images / scale, captions, image_of, np.arange(len(rows), len(rows) + len(others)))


def everything(split: data.Split) -> Material:
    """Return all pictures and captions of a split."""
    images = split.features(np.arange(split.n_images)).mean(1).numpy()
    return Material(images / images.std(), split.captions, split.image_of, np.zeros(0, np.int64))


def articles(root: Path, seed: int) -> Material:
    """Return the Wikipedia pairs, all splits: shallow picture features against ten topics, one text each."""
    found = data.load("wikipedia", root=root)
    splits = (found.train, found.val, found.test)
    images, texts = (np.concatenate([getattr(s, kind) for s in splits]) for kind in ("images", "texts"))
    order = np.random.default_rng([seed, 1]).permutation(len(images))
    n = len(images) * 3 // 4  # the rest lends its texts
    return Material(np.sqrt(images[order[:n]]), np.sqrt(texts[order]), np.arange(n), np.arange(n, len(order)))


# ---------------------------------------------------------------------------------------------- wrong pairs


@dataclass(frozen=True, eq=False)
class Noisy:
    """Pairs of which some are wrong: the picture that each caption claims and the one that it describes.

    ``caption`` is the row of the caption, ``right`` its picture, -1 for a picture that is not here; ``type``
    is the type of the pair, where captions were exchanged within types.
    """

    image_of: Ints
    caption: Ints
    right: Ints
    type: Ints | None = None

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether a pair is wrong, (M,)."""
        return self.right != self.image_of


def _exchanged(true: Ints, groups: Sequence[Ints]) -> Noisy:
    """Hand the pictures round within each group of captions."""
    claimed = true.copy()
    for group in groups:
        claimed[group] = true[np.roll(group, 1)]
    return Noisy(claimed, np.arange(len(true)), true)


def random_exchange(found: Material, rate: float, rng: np.random.Generator) -> Noisy:
    """Exchange pictures among captions drawn at random, each gets a wrong one."""
    claimed = mismatch(found.image_of, rate, seed=int(rng.integers(2**31)), protocol="pairs")
    return Noisy(claimed, np.arange(len(claimed)), found.image_of)


def directions(images: Floats) -> Floats:
    """Return centred features of unit length."""
    x = images - images.mean(0)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def near_exchange(found: Material, rate: float, rng: np.random.Generator, near: int = 20) -> Noisy:
    """Hand pictures round in groups of three captions whose pictures look alike.

    ``near`` is the number of nearest pictures, by cosine of the centred input features, from which a group is
    taken.
    """
    x = directions(found.images)
    similarity = x @ x.T
    np.fill_diagonal(similarity, -2)
    nearest = np.argpartition(-similarity, near, axis=1)[:, :near]
    wanted, free = share(rate, len(found.image_of)), np.ones(len(found.image_of), bool)
    ends = np.cumsum(np.bincount(found.image_of))
    captions_of = np.split(np.argsort(found.image_of, kind="stable"), ends[:-1])
    groups: list[Ints] = []
    for caption in rng.permutation(len(free)):
        if 3 * len(groups) >= wanted:
            break
        group = [caption]
        for image in rng.permutation(nearest[found.image_of[caption]]):
            left = captions_of[image][free[captions_of[image]]]
            if len(left) and len(group) < 3:
                group.append(rng.choice(left))
        if free[caption] and len(group) == 3:
            groups.append(np.array(group))
            free[group] = False
    return _exchanged(found.image_of, groups)


def type_exchange(found: Material, rate: float, rng: np.random.Generator) -> Noisy:
    """Hand pictures round among captions of one type of picture: a cluster of the centred features."""
    x = directions(found.images)
    side, types = Side(lambda rows: x[rows], np.ones(len(x), bool)), min(20, max(2, len(x) // 100))
    kind = nearest_centres(side, centres_of(side, types, 32, 6), 1)[:, 0].astype(np.int64)[found.image_of]
    parts = (rng.permutation(np.flatnonzero(kind == k)) for k in range(types))
    moved = _exchanged(found.image_of, [part[: share(rate, len(part))] for part in parts])
    return Noisy(moved.image_of, moved.caption, moved.right, kind)


def swapped(found: Material, rate: float, rng: np.random.Generator) -> Noisy:
    """Swap the pictures of captions drawn two by two."""
    pairs = rng.permutation(len(found.image_of))[: 2 * (share(rate, len(found.image_of)) // 2)].reshape(-1, 2)
    different = found.image_of[pairs[:, 0]] != found.image_of[pairs[:, 1]]
    return _exchanged(found.image_of, list(pairs[different]))


def shifted(found: Material, rate: float, rng: np.random.Generator, runs: int = 4) -> Noisy:
    """Move the pictures of some runs of rows by one, as a line lost from a file does."""
    n = len(found.images)
    length = share(rate, n) // runs
    places = rng.permutation(n // length)[:runs] * length
    claimed = np.arange(n)
    for place in places:
        run = np.arange(place, place + length)
        claimed[run] = np.roll(run, -1)
    return Noisy(claimed[found.image_of], np.arange(len(found.image_of)), found.image_of)


def orphans(found: Material, rate: float, rng: np.random.Generator) -> Noisy:
    """Replace captions by captions of pictures that are not here."""
    m = len(found.image_of)
    chosen = rng.choice(m, share(rate, m), replace=False)
    caption, right = np.arange(m), found.image_of.copy()
    caption[chosen] = rng.choice(found.spare, len(chosen), replace=len(chosen) > len(found.spare))
    right[chosen] = -1
    return Noisy(found.image_of, caption, right)


NOISES: dict[str, Callable[[Material, float, np.random.Generator], Noisy]] = {
    "random": random_exchange,
    "near": near_exchange,
    "type": type_exchange,
    "swap": swapped,
    "shift": shifted,
    "orphan": orphans,
}

# ----------------------------------------------------------------------------------------------- embeddings


Encoders = tuple[CCA, Any]  # a linear model of pictures and words, and its weights of words


def fitted(found: Material, image_of: Ints, caption: Ints) -> Encoders:
    """Fit encoders to pairs in closed form, as ``nclib.run("linear")`` does without its filter."""
    assert isinstance(found.captions, Captions)
    counts = _counted(found, caption)
    weights = word_weights(counts)
    return fit_cca(found.images.astype(np.float64), tf_idf(counts, weights), image_of, ridge=4.0), weights


def encode(encoders: Encoders, found: Material, caption: Ints) -> tuple[Floats, Floats]:
    """Return the vectors of all pictures and of some captions."""
    model, weights = encoders
    images = model.images(found.images.astype(np.float64))
    texts = model.texts(tf_idf(_counted(found, caption), weights))
    return images[:, :256].astype(np.float32), texts[:, :256].astype(np.float32)


def _counted(found: Material, caption: Ints) -> Any:
    assert isinstance(found.captions, Captions)
    taken = found.captions.take(caption)
    return word_counts(taken.tokens, taken.offsets, taken.vocabulary.size)


def cross_fitted(found: Material, noisy: Noisy, *, seed: int) -> tuple[Floats, Floats]:
    """Return vectors of the pictures and captions by models that were not trained on the pair.

    Of words, as ``nclib audit`` makes them without embeddings; of features, by ridge regression of the
    captions on the pictures of the other half.
    """
    if isinstance(found.captions, Captions):
        texts = [found.captions.text(int(row)) for row in noisy.caption]
        return crossfit(found.images, texts, noisy.image_of, np.ones(len(texts), bool), seed=seed)
    x, y = found.images - found.images.mean(0), found.captions[noisy.caption]
    y = y - y.mean(0)
    half = np.random.default_rng([seed, 3]).permutation(len(x)) % 2
    shown = np.empty((len(x), y.shape[1]), np.float32)
    for part in (0, 1):
        rows = half[noisy.image_of] != part
        own = x[noisy.image_of[rows]]
        ridge = own.T @ own + 0.1 * np.trace(own.T @ own) / x.shape[1] * np.eye(x.shape[1])
        shown[half == part] = x[half == part] @ np.linalg.solve(ridge, own.T @ y[rows])
    return shown, y.astype(np.float32)


# ------------------------------------------------------------------------------------------------- measures


def measures(
    suspicion: Any, wrong: NDArray[np.bool_], p_wrong: Any = None, budget: float = 0.2
) -> dict[str, float]:
    """Judge how well wrong pairs are found.

    Parameters
    ----------
    suspicion : array, (M,)
        Larger means more likely wrong.
    wrong : ndarray of bool, (M,)
        The truth, with some wrong and some right pairs.
    p_wrong : array, (M,), optional
        P(wrong).
    budget : float
        Share of the pairs that somebody checks.

    Returns
    -------
    dict
        ``auroc``, ``ap`` (average precision), ``p100`` (share wrong of the first 100), ``recall`` (share of
        the wrong pairs within the budget), ``fpr95`` (share of the right pairs called wrong when 95 % of the
        wrong ones are), and with ``p_wrong`` the calibration error ``ece`` (ten bins).
    """
    suspicion = np.asarray(suspicion, np.float64)
    first = wrong[np.argsort(-suspicion, kind="stable")]
    until = int(np.searchsorted(np.cumsum(first), 0.95 * wrong.sum())) + 1
    by_score = detection(-suspicion, ~wrong)
    found: dict[str, Any] = {
        "auroc": by_score["auc"],
        "ap": by_score["ap"],
        "p100": first[:100].mean(),
        "recall": first[: share(budget, len(first))].sum() / wrong.sum(),
        "fpr95": (~first[:until]).sum() / (~wrong).sum(),
    }
    if p_wrong is not None:
        found["ece"] = calibration(1 - np.asarray(p_wrong, np.float64), ~wrong)["ece"]
    return {name: float(value) for name, value in found.items()}
