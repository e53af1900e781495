"""Features of photographs: tables of captions, splits, resuming, and what is said about bad input."""

import json
import re
import sys
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch
from PIL import Image

import nclib
from nclib.common import row_writer
from nclib.common.row_writer import ConvertError
from nclib.data import pictures
from nclib.data import prepare as prepare_module
from nclib.data.pictures import principal_axes
from nclib.data.prepare import F8K_LISTS, main, prepare
from nclib.data.split_lists import draw_splits
from nclib.readers import open_picture
from nclib.readers.network import pixels_of


class Colours:
    """Stands in for the network: the mean colour of each ninth of a picture, 1,280 numbers a cell."""

    def extract_features(self, pixels):
        cells = torch.nn.functional.adaptive_avg_pool2d(pixels, 7)
        ramp = torch.linspace(0.5, 1.5, pictures.CHANNELS)[None, :, None, None]
        return cells.mean(1, keepdim=True) * ramp + cells[:, :1] * ramp.flip(1)


@pytest.fixture(autouse=True)
def network(monkeypatch):
    monkeypatch.setattr(prepare_module, "load_network", lambda device: Colours())
    monkeypatch.setattr(pictures, "AXES", 8)


@pytest.fixture
def photographs(tmp_path):
    """Thirty pictures, two or three captions each."""
    folder, rng, rows = tmp_path / "photos", np.random.default_rng(0), ["image,caption"]
    folder.mkdir()
    for i in range(30):
        pixels = rng.integers(0, 255, (40 + i, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
        rows += [f'{i:02d}.png,"a picture, number {i}, version {k}"' for k in range(2 + i % 2)]
    (tmp_path / "captions.csv").write_text("\n".join(rows) + "\n")
    return {"images": folder, "captions": tmp_path / "captions.csv", "out": tmp_path / "out"}


def command(given):
    return ["own", *(f"--{name}={value}" for name, value in given.items())]


# -- tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["image,tag,split", "x.jpg,one,train"], r"no column of captions: .*: image, tag, split\)"),
        (["image|tag", "x.jpg|one"], r"no column of captions: call it 'caption'.*: image, tag\)"),
        (["file name\ttag", "x.jpg\tone"], r"no column of captions: .*: file_name, tag\)"),
        (["image,caption,split", "x.jpg,one,train", "x.jpg,two,test"], "pair 2: x.jpg is in two splits"),
        (["image,caption,split", "x.jpg,one,dev", "y.jpg,one,trian"], "pair 2: split 'trian' is not one of"),
        (["image,caption,split", "x.jpg,one,dev", "y.jpg,one,"], "y.jpg has no split; give one for every"),
    ],
)
def test_bad_tables(photographs, rows, said, capsys):
    photographs["captions"].write_text("\n".join(rows))
    assert main(command(photographs)) == 1
    assert re.search(said, capsys.readouterr().err)


def test_drawn_splits_repeat_and_cover(tmp_path):
    names = [str(i) for i in range(200)]
    split_of = draw_splits(names, 3)
    assert split_of == draw_splits(names, 3) != draw_splits(names, 4)
    assert list(split_of) == names
    assert [list(split_of.values()).count(s) for s in ("train", "dev", "test")] == [160, 20, 20]


# -- preparing ----------------------------------------------------------------------------------------------


def test_own_pictures_become_data(photographs, capsys):
    out = photographs["out"]
    assert main(command(photographs)) == 0
    said = capsys.readouterr().out.splitlines()
    assert (said[0], said[-1].split()[:3], said[-1].split()[-1]) == (str(out), ["nclib", "run", "l2rm"], "6")
    dataset = nclib.data.load("region_files", root=out)
    sizes = [(split.n_images, split.n_captions) for split in dataset.splits.values()]
    assert sizes == [(24, 48), (3, 6), (3, 6)]
    assert (dataset.n_regions, dataset.feature_dim) == (16, 8)
    for split in ("train", "dev", "test"):  # a caption stands beside its own picture
        names = (out / f"{split}_ids.txt").read_text().split()
        captions = (out / f"{split}_caps.txt").read_text().splitlines()
        told = [f"a picture, number {int(name[:2])}, version {k}" for name in names for k in (0, 1)]
        assert captions == told


def test_features_are_the_cells_on_their_axes(photographs):
    folder, out = photographs["images"], photographs["out"]
    prepare("own", **photographs)
    names = (out / "train_ids.txt").read_text().split()
    pixels = torch.stack([torch.from_numpy(pixels_of(open_picture(folder / n))) for n in names])
    cells = torch.nn.functional.adaptive_avg_pool2d(Colours().extract_features(pixels), 4)
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
    other = prepare("own", **photographs | {"out": out.with_name("other")})
    assert (other / "train_ims.npy").read_bytes() == (out / "train_ims.npy").read_bytes()
    assert not list(out.glob("*_cells.npy*"))


def test_missing_and_broken_pictures_are_left_out_and_other_content_is_refused(photographs, capsys):
    folder, out, table = (photographs[name] for name in ("images", "out", "captions"))
    (folder / "03.png").unlink()
    (folder / "04.png").write_bytes((folder / "04.png").read_bytes()[:100])
    prepare("own", **photographs)
    manifest = json.loads((out / "prepared.json").read_text())
    assert (manifest["missing"], manifest["broken"]) == (["03.png"], ["04.png"])
    assert sum(manifest["pictures"].values()) == 28
    assert "1 missing pictures, 03.png" in capsys.readouterr().err
    prepare("own", **photographs)
    assert "is prepared already" in capsys.readouterr().err
    table.write_text(table.read_text().replace("number 5", "no 5"))
    with pytest.raises(ConvertError, match="holds features of other pictures or captions"):
        prepare("own", **photographs)


@pytest.mark.parametrize("where", [".", "features", "../photos"])
def test_output_among_the_pictures_is_refused(photographs, capsys, where):
    folder = photographs["images"]
    before = sorted(folder.iterdir())
    assert main(command(photographs | {"out": folder / where})) == 1
    assert "is the folder of the pictures or lies in it; choose another --out" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_flickr8k_needs_its_lists_and_pictures(photographs):
    def refused(said, **more):
        with pytest.raises(ConvertError, match=said):
            prepare("f8k", **photographs, **more)

    refused("the official splits are missing")
    for name in F8K_LISTS.values():
        (photographs["captions"].parent / name).write_text("00.png\n" if "train" in name else "")
    refused("Flickr8K has")
    refused("captions-per-image 3: Flickr8K has 5", captions_per_image=3)
    assert not photographs["out"].exists()


def test_without_the_extra_it_says_so(photographs, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ImportError, match=r"pip install 'noisy-correspondence\[pictures\]'"):
        prepare("own", **photographs)
