"""Pixels, boxes, fragments and features of the bundled set, against slow and plain computations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nclib.data.emoji import assets, compose, features, render

PER_PIXEL = compose.UNIT


@pytest.fixture(scope="module")
def painter():
    return render.Painter(assets.read_drawings())


@pytest.fixture(scope="module")
def scenes():
    return compose.compose(200, seed=0, split="test", block=0)


@given(st.integers(0, 82), st.integers(0, 82), st.integers(14 * 16, 96 * 16), st.integers(0, 2**32 - 1))
def test_crops_equal_an_average_over_sixteenths(x, y, side, seed):
    side = min(side, (96 - max(x, y)) * 16)
    picture = np.random.default_rng(seed).integers(0, 256, (1, 3, 96, 96), dtype=np.uint8)
    got = render.crop(picture, np.array([[[x * 16, y * 16, side]]]))[0, 0]
    fine = picture[0].repeat(16, 1).repeat(16, 2)[:, y * 16 : y * 16 + side, x * 16 : x * 16 + side]
    edges = (side * np.arange(15) + 7) // 14
    for _ in range(5):
        i, j = np.random.default_rng(seed).integers(14, size=2)
        cell = fine[:, edges[i] : edges[i + 1], edges[j] : edges[j + 1]].astype(np.float64)
        assert np.abs(got[:, i, j] - np.floor(cell.mean((1, 2)) + 0.5)).max() <= 0.0


def test_features_are_exact_whatever_the_order_of_sums(painter, scenes):
    boxes = compose.draw_boxes(scenes, seed=0, split="test", block=0)[:20, :6]
    crops = render.crop(painter.paint(scenes[:20]), boxes)
    assert (crops == np.floor(crops)).all()
    assert crops.min() >= 0
    assert crops.max() <= 255
    book = features.codebook()
    assert (book["filters"] == np.rint(book["filters"])).all()
    assert np.abs(book["filters"]).max() <= features.LARGEST
    flat = crops.reshape(120, 3, 14, 14).astype(np.int64) - 128
    windows = np.lib.stride_tricks.sliding_window_view(flat, (5, 5), axis=(2, 3))
    raw = np.einsum("ncijpq,kcpq->nkij", windows, book["filters"].astype(np.int64))
    raw = np.maximum(raw - book["threshold"].astype(np.int64)[:, None, None], 0)
    sums = raw.reshape(120, 48, 2, 5, 2, 5).sum((3, 5))
    assert sums.max() < 2**24  # exact in float32
    expected = (sums.reshape(120, 192).astype(np.float32) - book["mean"]) * book["scale"]
    got = features.features(crops, boxes)
    assert np.array_equal(got[..., :192].reshape(120, 192), expected)
    assert np.array_equal(features.features(crops[7:9], boxes[7:9]), got[7:9])
    assert np.allclose(got[..., 192:], boxes[..., [0, 1, 2, 2]] / (48 * PER_PIXEL) - 1)
