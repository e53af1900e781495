"""Pairs of one's own as data for training: every door, splits, what is left out, and the run's identity."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ncbook.verify import make_again
from PIL import Image
from test_pictures import colours

import nclib
from nclib.common.row_writer import ConvertError
from nclib.data import load, own_features, pictures

N = 40


@pytest.fixture
def arrays(tmp_path):
    """Forty pictures as embeddings with two captions each, in a mixed order, in one file."""
    rng = np.random.default_rng(0)
    of = rng.permutation(np.repeat(np.arange(N), 2))
    x = rng.normal(size=(N, 8)).astype(np.float32)
    texts = np.array([f"picture number {i} is shown here" for i in of])
    path = tmp_path / "pairs.npz"
    np.savez(path, images=x, captions=x[of], image_of=of, texts=texts)
    return path, x


def number(text):
    return int(text.split()[2])


def test_captions_stay_with_their_picture_and_in_one_split(arrays):
    path, x = arrays
    data = load("own", pairs=path)
    assert repr(data).startswith("Dataset('own': train 32x2, val 4x2, test 4x2 captions; 1 regions of 8;")
    seen = []
    for split in data.splits.values():
        of = [number(split.captions.text(i)) for i in range(split.n_captions)]
        assert of[::2] == of[1::2]
        assert [int(name) for name in split.details["pictures"]] == of[::2]
        np.testing.assert_array_equal(split.features(np.arange(split.n_images))[:, 0], x[of[::2]])
        seen += of[::2]
    assert sorted(seen) == list(range(N))
    assert load("own", pairs=path, seed=1).checksum != data.checksum == load("own", pairs=path).checksum
    assert data.details["pairs_as_found"]


def test_pictures_go_through_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr(own_features, "load_network", lambda: colours)
    monkeypatch.setattr(pictures, "AXES", 8)
    rng, rows = np.random.default_rng(0), ["image,caption"]
    for i in range(24):
        Image.fromarray(rng.integers(0, 255, (30, 20, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        rows += [f"{i}.png,picture number {i}", f"./{i}.png,picture number {i} again"]
    table, same = tmp_path / "t.csv", tmp_path.parent / "same.csv"
    table.write_text("\n".join(rows))
    same.write_text("\n".join(rows).replace("./", ""))
    data = load("own", pairs=str(table), seed=3)
    assert data.checksum == load("own", pairs=same, images=tmp_path, seed=3).checksum
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:  # the features are there, by whatever path the pairs are named
        patch.setattr(own_features, "load_network", lambda: pytest.fail("pictures are read again"))
        assert load("own", pairs="t.csv", images=".", seed=3).checksum == data.checksum
    (tmp_path / "3.png").write_bytes(b"no picture")
    (tmp_path / "4.png").unlink()
    table.write_text("\n".join([*rows, "7.png,"]))
    for _ in range(2):  # made, and then found in the cache
        with pytest.warns(UserWarning, match="5 of 49 pairs are left out"):
            again = load("own", pairs=table)
    assert sum(split.n_images for split in again.splits.values()) == 22


def test_pictures_with_fewer_captions_may_be_left_out(tmp_path):
    frame = pd.DataFrame({"image": [f"{i % 20}" for i in range(50)], "caption": "a picture of something"})
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert load("own", pairs=frame, image_emb=x).train.captions_per_image == 2
    three = load("own", pairs=frame, image_emb=x, captions_per_image=3)
    assert sum(split.n_captions for split in three.splits.values()) == 30
    with pytest.raises(ConvertError, match="no pictures for"):
        load("own", pairs=frame.assign(split="train"), image_emb=x)
    with pytest.raises(ConvertError, match="few to draw splits"):
        load("own", pairs=frame, image_emb=x, captions_per_image=4)


def test_embeddings_that_are_not_numbers_are_left_out(arrays, tmp_path):
    path, x = arrays
    whole = dict(np.load(path))
    whole["images"] = np.where(np.arange(N)[:, None] == 7, np.nan, x)
    whole["images"][8, 3] = 3e38
    np.savez(tmp_path / "nan.npz", **whole)
    with pytest.warns(UserWarning, match="4 of 80 pairs are left out; .* the embedding is NaN, infinite or"):
        data = load("own", pairs=tmp_path / "nan.npz")
    assert sum(split.n_images for split in data.splits.values()) == N - 2


@pytest.mark.slow
def test_a_run_is_named_by_content_and_made_again(arrays, tmp_path, monkeypatch):
    path, _ = arrays
    own = {"model": "vse", "epochs": 1, "warmup_epochs": 0, "batch_size": 8, "progress": False}
    own |= {"dataset": "own", "out": str(tmp_path / "runs")}
    first = nclib.run("plain", data_options={"pairs": str(path)}, **own)
    found = nclib.load(first).search("picture number is shown here")
    assert [number(text) for text in found["caption"]] == found["picture"].astype(int).tolist()
    moved = tmp_path / "elsewhere" / "other.npz"
    moved.parent.mkdir()
    shutil.copy(path, moved)
    monkeypatch.chdir(moved.parent)
    assert nclib.run("plain", data_options={"pairs": "other.npz"}, **own).name == first.name
    file = Path(first.folder) / "record.json"
    assert str(tmp_path / "pairs") not in file.read_text()
    record = nclib.Record.load(file)
    assert (record.settings["mrate"], record.noise["moved"]) == (0, 0)
    again = make_again(record, tmp_path / "again", str(moved))
    assert again.metrics["test"] == first.metrics["test"]
