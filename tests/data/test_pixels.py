"""Flickr30K and MS-COCO as pictures: forms, resuming, what is refused; published weights in their folder."""

import json
import shutil

import numpy as np
import pytest
import torch

from nclib.data import load, pixels
from nclib.data.check import GOOD, MISSING, check, check_more, main
from nclib.data.pictures import main as command
from nclib.data.pixels import prepare
from nclib.data.row_writer import ConvertError
from nclib.data.weights import WEIGHTS, below, named, problem

SPLITS = ["train"] * 4 + ["restval", "val", "val", "test", "test"]


@pytest.fixture
def drawn(tmp_path):
    """Nine JPEGs of several shapes and a JSON file of splits, as MS-COCO has them."""
    from PIL import Image

    folder, rng, entries = tmp_path / "coco_images", np.random.default_rng(0), []
    for i, split in enumerate(SPLITS):
        place = "val2014" if i % 2 else "train2014"
        (folder / place).mkdir(parents=True, exist_ok=True)
        ramp = np.linspace(0, 255, 40 + 3 * i, dtype=np.uint8)[None, :, None]
        picture = np.broadcast_to(ramp, (30, 40 + 3 * i, 3)) // np.array([1, 2, 1 + i], np.uint8)
        Image.fromarray(picture.astype(np.uint8)).save(folder / place / f"{i}.jpg", quality=95)
        told = [{"raw": f" picture {i}\n told {k}", "tokens": []} for k in range(6 if i == 2 else 5)]
        entries.append({"filepath": place, "filename": f"{i}.jpg", "split": split, "sentences": told})
    rng.shuffle(entries[:1])
    (folder / "dataset_coco.json").write_text(json.dumps({"images": entries}))
    return folder


def given(folder, form="square224"):
    out = folder.parent / f"coco_{form}"
    return {"images": folder, "captions": folder / "dataset_coco.json", "out": out, "pixels": form}


def test_pictures_become_data(drawn):
    from PIL import Image

    out = prepare("coco", **given(drawn))
    data = load("coco", root=drawn.parent, pixels="square224")
    assert [split.n_images for split in (data.train, data.val, data.test)] == [5, 2, 2]
    assert (data.feature_dim, data.n_regions) == (672, 224)
    assert data.train.captions.text(10) == "picture 2 told 0"
    assert data.train.captions.text(15) == "picture 3 told 0"  # the sixth caption of picture 2 is left out
    with Image.open(drawn / "val2014" / "5.jpg") as file:
        wanted = np.asarray(file.resize((224, 224), Image.Resampling.BILINEAR))
    got = data.val.features([0]).view(224, 224, 3)
    assert torch.equal(got, torch.from_numpy(wanted.copy()) / 255)
    assert (out / "testall_ids.txt").read_text().split() == ["val2014/7.jpg", "train2014/8.jpg"]
    assert check("coco_square224", drawn.parent).complete(any_size=True)
    assert load("coco", root=out, pixels="square224").checksum == data.checksum


def test_crops_are_as_clip_cuts_them(drawn):
    from PIL import Image

    prepare("coco", **given(drawn, "crop224"))
    data = load("coco", root=drawn.parent, pixels="crop224")
    with Image.open(drawn / "train2014" / "0.jpg") as file:  # 40 x 30
        scaled = np.asarray(file.resize((298, 224), Image.Resampling.BICUBIC))
    wanted = torch.from_numpy(scaled[:, 37 : 37 + 224].copy()) / 255
    assert torch.equal(data.train.features([0]).view(224, 224, 3), wanted)


def test_a_stopped_preparation_goes_on(drawn, monkeypatch, capsys):
    seen, opened = [], pixels.open_picture

    def counted(path):
        seen.append(path.name)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return opened(path)

    monkeypatch.setattr(pixels, "open_picture", counted)
    words = ["coco", *(f"--{k}={v}" for k, v in given(drawn).items())]
    assert command(words) == 130
    assert "the same command continues" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"lacks\n  dev_ims\.npy[^*]*Make them with: nclib"):
        load("coco", root=drawn.parent, pixels="square224")
    assert command(words) == 0
    assert len(seen) == 6 + len(SPLITS) - 5  # those of training were done
    assert "train: 5 pictures, 25 captions" in capsys.readouterr().out
    assert command(words) == 0
    assert "is prepared already" in capsys.readouterr().err


def test_what_is_missing_or_damaged_is_named(drawn):
    words = given(drawn)
    shutil.move(drawn / "train2014" / "0.jpg", drawn / "0.jpg")
    with pytest.raises(ConvertError, match=r"lacks 1 pictures of train: train2014/0\.jpg"):
        prepare("coco", **words)
    (drawn / "train2014" / "0.jpg").write_bytes(b"no picture")
    with pytest.raises(ConvertError, match=r"0\.jpg: the file is not a picture; get the picture again"):
        prepare("coco", **words)
    with pytest.raises(ConvertError, match="is not a folder"):
        prepare("coco", **words | {"images": drawn / "none"})
    for text, message in (
        ("[]", "is not a file of splits such as dataset_coco.json"),
        ('{"images": [{"filename": "a", "split": "dev", "sentences": []}]}', "split dev is not one of train"),
        ('{"images": [{"filename": "a", "split": "val", "sentences": []}]}', "1 pictures have fewer than 5"),
        ('{"images": []}', "has no pictures for train, dev, testall"),
    ):
        (drawn / "other.json").write_text(text)
        with pytest.raises(ConvertError, match=message):
            prepare("coco", **words | {"captions": drawn / "other.json"})
    with pytest.raises(ValueError, match="pixels must be one of 'square224'"):
        prepare("coco", **words | {"pixels": "round"})


def test_another_form_does_not_replace_what_is_there(drawn):
    prepare("coco", **given(drawn))
    with pytest.raises(ConvertError, match="holds other pictures or another form"):
        prepare("coco", **given(drawn) | {"pixels": "crop224"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["coco"], "--pixels belongs to f30k and coco, which need it"),
        (["own", "--pixels", "crop224"], "--pixels belongs to f30k and coco"),
        (["f30k", "--pixels", "crop224", "--seed", "3"], "--seed is not for f30k"),
    ],
)
def test_options_of_other_preparations_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        command([*words, "--images", "i", "--captions", "c", "--out", "o"])
    assert message in capsys.readouterr().err


def test_pictures_have_one_form(drawn):
    prepare("coco", **given(drawn))
    with pytest.raises(ValueError, match="half=True is for features"):
        load("coco", root=drawn.parent, pixels="square224", half=True)


# ----------------------------------------------------------------------------------------------- weights


def test_published_weights_are_told_by_their_folder():
    assert below("/data", "weights/resnet-152") == "/data/weights/resnet-152"
    assert below("/data", "square224") == "square224"
    assert below("/data", True) is True
    for value, name in (
        ("/data/weights/resnet-152", "resnet-152"),
        ("resnet-152", "resnet-152"),
        ("/data/mine/resnet-152", ""),
        ("weights/mine", ""),
        (0.1, ""),
    ):
        assert named(value) == name


def test_folders_of_weights_are_checked(tmp_path, capsys):
    place = tmp_path / "weights" / "bert-base-uncased"
    assert problem(place) == "missing: google-bert/bert-base-uncased (nothing is downloaded here)"
    place.mkdir(parents=True)
    assert problem(place).startswith("lacks config.json")
    (place / "config.json").write_text("{")
    assert problem(place) == "config.json is damaged; get it again"
    small = dict(WEIGHTS["bert-base-uncased"].config) | {"hidden_size": 128}
    (place / "config.json").write_text(json.dumps(small))
    assert problem(place).startswith("lacks tokenizer.json")
    (place / "vocab.txt").write_text("a")
    assert problem(place).startswith("lacks model.safetensors")
    (place / "model.safetensors").write_text("")
    assert problem(place) == "config.json: hidden_size is 128, google-bert/bert-base-uncased has 768"
    (place / "config.json").write_text(json.dumps(small | {"hidden_size": 768}))
    assert problem(place) == ""
    states = {line.file: line.state for line in check_more(tmp_path)}
    assert states["weights/bert-base-uncased"] == GOOD
    assert states["weights/resnet-152"] == states["f30k_square224"] == MISSING
    (tmp_path / "f30k_precomp").mkdir()
    (tmp_path / "f30k_precomp" / "test_caps.txt").write_text("a\n" * 5)
    main([str(tmp_path)])
    said = capsys.readouterr().out
    assert "missing     weights/resnet-152            torchvision's resnet152-394f9c45.pth" in said
    assert "missing     f30k_square224                Make them with: nclib data prepare f30k" in said


def test_files_of_residual_networks_are_checked_by_their_shapes(tmp_path):
    from nclib.models.residual import ResidualNetwork

    place = tmp_path / "weights" / "resnet-152"
    place.mkdir(parents=True)
    assert problem(place).startswith("must hold one .pth file")
    with torch.device("cpu"):
        small = ResidualNetwork((1, 1, 1, 1), stem=4, inner=4, out=8, groups=1)
    torch.save(small.state_dict(), place / "a.pth")
    assert "is another network (blocks (1, 1, 1, 1)" in problem(place)
    (place / "a.pth").write_bytes(b"no weights")
    assert "is damaged" in problem(place)


def test_word_vectors_are_checked_by_their_shape(tmp_path):
    place = tmp_path / "weights" / "glove_f30k.npy"
    place.parent.mkdir()
    assert named("/data/weights/glove_f30k.npy") == "glove_f30k.npy"
    assert problem(place).startswith("missing: GloVe, by nclib data convert vectors f30k")
    place.write_bytes(b"no array")
    assert "not a .npy file" in problem(place)
    np.save(place, np.zeros((10, 300), np.float32))
    assert problem(place).startswith("has the shape (10, 300), must be (8481, 300)")
    np.save(place, np.zeros((8481, 300), np.float32))
    assert problem(place) == ""
