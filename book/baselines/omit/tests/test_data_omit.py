"""What the package lets data sets read: boxes behind the regions, drawings as rows of pixels."""

import numpy as np
import pytest

from nclib.data import load
from nclib.data.vocabulary import Vocabulary

REGIONS, DIM, EACH = 3, 4, 5


@pytest.fixture
def boxed(tmp_path):
    """Features with boxes, a row per image in train and test, and a row per caption in dev."""
    folder, boxes = tmp_path / "f30k_precomp", []
    folder.mkdir()
    Vocabulary.from_texts(["a dog"]).to_json(folder / "f30k_precomp_vocab.json")
    for seed, (split, n) in enumerate({"train": 12, "dev": 7, "test": 4}.items()):
        rng = np.random.default_rng(seed)
        own = np.sort(rng.random((n, REGIONS, 2, 2), np.float32), 2).reshape(n, REGIONS, 4)
        each = EACH if split == "dev" else 1
        regions = rng.normal(size=(n, REGIONS, DIM)).astype(np.float32)
        np.save(folder / f"{split}_ims.npy", regions.repeat(each, 0))
        np.save(folder / f"{split}_boxes.npy", own.repeat(each, 0))
        (folder / f"{split}_caps.txt").write_text("a dog\n" * n * EACH)
        boxes.append(own)
    return tmp_path, boxes


def test_boxes_stand_behind_the_features_when_asked_for(boxed):
    root, boxes = boxed
    plain, data = load("f30k", root=root), load("f30k", root=root, boxes=True)
    assert (plain.feature_dim, data.feature_dim) == (DIM, DIM + 5)
    assert plain.train.boxes is None
    assert plain.checksum != data.checksum
    for before, split, own in zip(plain.splits.values(), data.splits.values(), boxes, strict=True):
        rows = [split.n_images - 1, 0, 0]
        found = split.features(rows).numpy()
        assert np.array_equal(found[..., :DIM], before.features(rows).numpy())
        assert np.array_equal(found[..., DIM:-1], own[rows])
        assert np.array_equal(split.boxes, own)
        x0, y0, x1, y1 = np.moveaxis(own[rows], -1, 0)
        assert np.allclose(found[..., -1], (x1 - x0) * (y1 - y0), atol=1e-7)
    part = data.train.part(3, 7)
    assert np.array_equal(part.features([1]).numpy(), data.train.features([4]).numpy())
    assert part.feature_dim == DIM + 5


def test_boxes_that_are_missing_or_do_not_fit_are_named(boxed):
    root, _ = boxed
    file = root / "f30k_precomp" / "dev_boxes.npy"
    np.save(file, np.load(file)[::5])
    with pytest.raises(ValueError, match=r"dev_boxes\.npy must be float32 \(35, 3, 4\)"):
        load("f30k", root=root, boxes=True)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"dev_boxes\.npy"):
        load("f30k", root=root, boxes=True)
    with pytest.raises(ValueError, match=r"boxes=True"):
        load("f30k", root=root, boxes=True, pixels="square224")


@pytest.mark.slow
def test_drawings_as_rows_of_pixels():
    few = {"size": "small", "n_train": 60, "n_val": 3, "n_test": 4}
    plain, data = load("emoji", **few), load("emoji", features="pixels", **few)
    assert (data.n_regions, data.feature_dim) == (96, 3 * 96)
    rows = [55, 3, 3]
    wanted = np.stack([plain.train.picture(row) for row in rows]).reshape(3, 96, -1)
    found = data.train.features(rows).numpy()
    np.testing.assert_array_equal(found, wanted.astype(np.float32) / 255)
    assert data.train.boxes is None
    assert data.checksum != plain.checksum
    np.testing.assert_array_equal(data.train.captions.tokens, plain.train.captions.tokens)
    assert data.checksum == load("emoji", features="pixels", **few).checksum
