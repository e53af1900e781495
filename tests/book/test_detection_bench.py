"""The detection benchmark: kinds of wrong pairs, encoders that do not judge their own pairs, measures."""

from __future__ import annotations

import dataclasses
from typing import Any

import detection_pairs as common
import numpy as np
import pytest


def material(pictures: int = 120, per_image: int = 2) -> Any:
    """Return pictures and captions as features that share three topics."""
    rng = np.random.default_rng(0)
    topics = rng.normal(size=(pictures + 30, 3))
    images = topics[:pictures] @ rng.normal(size=(3, 8))
    image_of = np.repeat(np.arange(pictures), per_image)
    of_caption = np.concatenate([image_of, np.arange(pictures, pictures + 30)])
    texts = topics[of_caption] @ rng.normal(size=(3, 6)) + 0.1 * rng.normal(size=(len(of_caption), 6))
    spare = np.arange(len(image_of), len(of_caption))
    return common.Material(images.astype(np.float32), texts.astype(np.float32), image_of, spare)


@pytest.mark.parametrize("noise", [*common.NOISES])
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_as_many_pairs_are_wrong_as_asked(noise: str, rate: float) -> None:
    found = material()
    noisy = common.NOISES[noise](found, rate, np.random.default_rng(1))
    assert noisy.wrong.mean() == pytest.approx(rate, abs=0.03)
    right = ~noisy.wrong
    assert (noisy.image_of[right] == found.image_of[right]).all()
    assert (noisy.caption[right] == np.flatnonzero(right)).all()


def test_kinds_of_wrong_pairs() -> None:
    found, rng = material(), np.random.default_rng(2)
    swap = common.swapped(found, 0.2, rng)
    pairs = set(zip(swap.right, swap.image_of, strict=True))
    assert all((claimed, right) in pairs for right, claimed in pairs)
    shift = common.shifted(found, 0.2, rng)
    step = (shift.image_of - shift.right)[shift.wrong]
    assert (step == 1).mean() > 0.7  # the last picture of a run gets the first
    orphan = common.orphans(found, 0.2, rng)
    assert set(orphan.caption[orphan.wrong]) <= set(found.spare)
    assert (orphan.right[orphan.wrong] == -1).all()
    near = common.near_exchange(found, 0.2, rng, near=5)
    distance = np.linalg.norm(found.images[near.image_of] - found.images[near.right], axis=1)
    random = common.random_exchange(found, 0.2, rng)
    other = np.linalg.norm(found.images[random.image_of] - found.images[random.right], axis=1)
    assert distance[near.wrong].mean() < 0.6 * other[random.wrong].mean()


def test_features_are_judged_by_the_other_half() -> None:
    rng = np.random.default_rng(3)
    images = rng.normal(size=(200, 6)).astype(np.float32)
    captions = (images @ rng.normal(size=(6, 4))).astype(np.float32)
    found = common.Material(images, captions, np.arange(200), np.empty(0, np.int64))
    noisy = common.random_exchange(found, 0.2, rng)
    shown, told = common.cross_fitted(found, noisy, seed=0)
    assert common.measures(-(shown[noisy.image_of] * told).sum(1), noisy.wrong)["auroc"] > 0.85
    # Captions of a half, mirrored at their mean, change the vectors of the other half's pictures only.
    noisy = dataclasses.replace(noisy, caption=np.arange(200), image_of=np.arange(200))
    half = np.random.default_rng([0, 3]).permutation(200) % 2 == 0
    mirrored = captions.copy()
    mirrored[half] = 2 * captions[half].mean(0) - captions[half]
    other = dataclasses.replace(found, captions=mirrored)
    (usual, _), (again, _) = (common.cross_fitted(one, noisy, seed=0) for one in (found, other))
    assert np.allclose(again[half], usual[half], atol=1e-5)
    assert not np.allclose(again[~half], usual[~half], atol=0.1)


def test_measures() -> None:
    wrong = np.array([True] * 20 + [False] * 80)
    perfect = common.measures(wrong.astype(float), wrong, wrong.astype(float))
    assert perfect == {"auroc": 1, "ap": 1, "p100": 0.2, "recall": 1, "fpr95": 0, "ece": 0}
    assert common.measures(~wrong, wrong)["auroc"] == 0
    assert common.measures(~wrong, wrong)["fpr95"] == 1
    halves = common.measures(np.arange(100), wrong, np.full(100, 0.5))
    assert halves["ece"] == pytest.approx(0.3)
    assert halves["recall"] == 0
