"""Parts of the scripts that rebuild the shipped files."""

import hashlib

import build_emoji
import learn_codebook
import numpy as np
import pytest

from nclib.data.emoji import assets, compose, features, render


def test_the_listed_sums_are_those_of_the_shipped_files():
    for line in (assets.FOLDER / assets.SUMS).read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        assert hashlib.sha256((assets.FOLDER / name).read_bytes()).hexdigest() == digest
    attribution = (assets.FOLDER / "ATTRIBUTION.md").read_text()
    for package in build_emoji.SOURCES:
        version = package.removesuffix("_all.deb").removesuffix(".tgz").replace("_", " ")
        assert version.rsplit("-", 1)[-1].split()[-1] in attribution
    assert {p.name for p in (assets.FOLDER / "licences").iterdir()} == {
        part.split("/")[1].split("`")[0] for part in attribution.split("`licences")[1:]
    }


@pytest.mark.exhaustive
def test_learning_a_codebook_gives_whole_numbers_within_bounds():
    scenes = compose.compose(200, seed=0, split="test", block=0)
    painter = render.Painter(assets.read_drawings())
    boxes = compose.draw_boxes(scenes, seed=0, split="test", block=0)[:40, :6]
    crops = render.crop(painter.paint(scenes[:40]), boxes).reshape(240, 3, 14, 14).astype(np.float32)
    book = learn_codebook.learn(crops, seed=1)
    assert book["filters"].shape == (48, 3, 5, 5)
    assert np.abs(book["filters"]).max(axis=(1, 2, 3)).min() == features.LARGEST
    assert np.isfinite(book["scale"]).all()
