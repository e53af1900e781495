"""Features of photographs: splits, resuming, and what is said about bad input."""

import json
import sys
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch
from PIL import Image

from nclib.cli import main
from nclib.common import row_writer
from nclib.common.row_writer import ConvertError
from nclib.data import load, own_features, pictures
from nclib.data import prepare as prepare_module
from nclib.data.pictures import principal_axes
from nclib.data.prepare import F8K_LISTS, prepare
from nclib.data.split_lists import draw_splits
from nclib.readers import open_picture
from nclib.readers.network import pixels_of

SIZES = {"train": 24, "dev": 3, "test": 3}


def colours(pixels):
    """Stand in for the network: the mean colour of each 49th of a picture, 1,280 numbers a cell."""
    cells = pixels.reshape(-1, 3, 7, 32, 7, 32).mean((3, 5))
    ramp = np.linspace(0.5, 1.5, pictures.CHANNELS, dtype=np.float32)[None, :, None, None]
    return cells.mean(1, keepdims=True) * ramp + cells[:, :1] * ramp[:, ::-1]


@pytest.fixture(autouse=True)
def network(monkeypatch):
    for module in (prepare_module, own_features):
        monkeypatch.setattr(module, "load_network", lambda: colours)
    monkeypatch.setattr(pictures, "AXES", 8)
    monkeypatch.setattr(prepare_module, "F8K", SIZES)


@pytest.fixture
def photographs(tmp_path):
    """Thirty pictures with five captions each, and the lists of their splits, as those of Flickr8K."""
    folder, rng, rows = tmp_path / "photos", np.random.default_rng(0), ["image,caption"]
    folder.mkdir()
    for i in range(30):
        pixels = rng.integers(0, 255, (40 + i, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
        rows += [f'{i:02d}.png,"a picture, number {i}, version {k}"' for k in range(5)]
    names = iter(f"{i:02d}.png" for i in rng.permutation(30))
    for split, n in SIZES.items():
        (tmp_path / F8K_LISTS[split]).write_text("\n".join(next(names) for _ in range(n)) + "\n")
    (tmp_path / "captions.csv").write_text("\n".join(rows) + "\n")
    return {"images": folder, "captions": tmp_path / "captions.csv", "out": tmp_path / "out"}


def command(given):
    return ["data", "prepare", "f8k", *(f"--{name}={value}" for name, value in given.items())]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["image,tag,split", "x.jpg,one,train"], r"no column of captions: .*: image, tag, split\)"),
        (["image|tag", "x.jpg|one"], r"no column of captions: call it 'caption'.*: image, tag\)"),
        (["file name\ttag", "x.jpg\tone"], r"no column of captions: .*: file_name, tag\)"),
        (["image,caption,split", "x.jpg,one,train", "x.jpg,two,test"], "pair 2: .*x.jpg is in two splits"),
        (["image,caption,split", "x.jpg,one,dev", "y.jpg,one,trian"], "pair 2: split 'trian' is not one of"),
        (["image,caption,split", "x.jpg,one,dev", "y.jpg,one,"], "y.jpg has no split; give one for every"),
    ],
)
def test_bad_tables(tmp_path, monkeypatch, rows, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    with pytest.raises(RuntimeError, match=said):
        load("own", pairs="pairs.csv")


def test_drawn_splits_repeat_and_cover():
    names = [str(i) for i in range(200)]
    split_of = draw_splits(names, 3)
    assert split_of == draw_splits(names, 3) != draw_splits(names, 4)
    assert list(split_of) == names
    assert [list(split_of.values()).count(s) for s in ("train", "dev", "test")] == [160, 20, 20]


def test_photographs_become_data(photographs, capsys):
    out = photographs["out"]
    assert main(command(photographs)) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(out),
        f"nclib run l2rm --dataset f8k --data_options.root {out}",
    ]
    dataset = load("f8k", root=out)
    sizes = [(split.n_images, split.n_captions) for split in dataset.splits.values()]
    assert sizes == [(24, 120), (3, 15), (3, 15)]
    assert (dataset.n_regions, dataset.feature_dim) == (16, 8)
    for split in SIZES:  # a caption stands beside its own picture, in the order of the lists
        names = (out / f"{split}_ids.txt").read_text()
        assert names == (out.parent / F8K_LISTS[split]).read_text()
        captions = (out / f"{split}_caps.txt").read_text().splitlines()
        told = [f"a picture, number {int(name[:2])}, version {k}" for name in names.split() for k in range(5)]
        assert captions == told


def test_features_are_the_cells_on_their_axes(photographs):
    folder, out = photographs["images"], photographs["out"]
    prepare(**photographs)
    names = (out / "train_ids.txt").read_text().split()
    pixels = np.stack([pixels_of(open_picture(folder / n)) for n in names])
    cells = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(colours(pixels)), 4)
    cells = cells.flatten(2).transpose(1, 2).numpy().astype(np.float16).astype(np.float64)
    mean, axes = principal_axes(cells[::2], 8)
    np.testing.assert_allclose(np.load(out / "train_ims.npy"), (cells - mean) @ axes, atol=2e-3)
    np.testing.assert_allclose(axes.T @ axes, np.eye(8), atol=1e-9)


def test_a_stopped_preparation_continues(photographs, monkeypatch):
    out = photographs["out"]
    monkeypatch.setattr("nclib.common.row_writer.BLOCK", 5)
    steps = [DEFAULT, DEFAULT, KeyboardInterrupt, *[DEFAULT] * 99]
    counted = Mock(wraps=row_writer._count, side_effect=steps)
    monkeypatch.setattr(row_writer, "_count", counted)
    assert (main(command(photographs)), main(command(photographs))) == (130, 0)
    done = [call.args[1] for call in counted.mock_calls]
    assert done[:4] == [5, 10, 15, 15]  # the rows on disk are not made again
    other = prepare(**photographs | {"out": out.with_name("other")})
    assert (other / "train_ims.npy").read_bytes() == (out / "train_ims.npy").read_bytes()
    assert not list(out.glob("*_cells.npy*"))


def test_missing_and_broken_pictures_of_a_table_are_left_out(photographs, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path / "cache"))
    folder, table = photographs["images"], photographs["captions"]
    (folder / "03.png").unlink()
    (folder / "04.png").write_bytes((folder / "04.png").read_bytes()[:100])
    with pytest.warns(UserWarning, match="10 of 150 pairs are left out"):
        load("own", pairs=table, images=folder)
    (file,) = (tmp_path / "cache").rglob("prepared.json")
    manifest = json.loads(file.read_text())
    assert (manifest["missing"], manifest["broken"]) == ([str(folder / "03.png")], [str(folder / "04.png")])
    assert sum(manifest["pictures"].values()) == 28
    assert f"1 missing pictures, {folder / '03.png'}" in capsys.readouterr().err


def test_other_content_is_refused(photographs, capsys):
    table = photographs["captions"]
    prepare(**photographs)
    prepare(**photographs)
    assert "is prepared already" in capsys.readouterr().err
    table.write_text(table.read_text().replace("number 5", "no 5"))
    with pytest.raises(ConvertError, match="holds features of other pictures or captions"):
        prepare(**photographs)


@pytest.mark.parametrize("where", [".", "features", "../photos"])
def test_output_among_the_pictures_is_refused(photographs, capsys, where):
    folder = photographs["images"]
    before = sorted(folder.iterdir())
    assert main(command(photographs | {"out": folder / where})) == 2
    assert "is the folder of the pictures or lies in it; choose another --out" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_flickr8k_needs_its_lists_and_pictures(photographs):
    def refused(said):
        with pytest.raises(ConvertError, match=said):
            prepare(**photographs)

    table, lists = photographs["captions"], photographs["captions"].parent
    text = table.read_text()
    (photographs["images"] / "03.png").unlink()
    refused("lacks 1 pictures of Flickr8K: 03.png")
    table.write_text(text.replace("05.png", "06.png", 1))
    refused("2 pictures of Flickr8K do not have 5 captions: ")
    (lists / F8K_LISTS["train"]).write_text("00.png\n")
    refused("Flickr8K has")
    (lists / F8K_LISTS["train"]).unlink()
    refused("the official splits are missing")
    assert not photographs["out"].exists()


def test_without_the_extra_it_says_so(photographs, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(prepare_module, "F8K", SIZES)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'noisy-correspondence\[pictures\]'"):
        prepare(**photographs)
    assert not photographs["out"].exists()
