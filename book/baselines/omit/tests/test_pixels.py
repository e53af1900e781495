"""Flickr30K and MS-COCO as pictures: forms, resuming, what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from baselines.omit import picture_rows
from baselines.omit.picture_rows import pictures

from nclib.common.row_writer import ConvertError
from nclib.data import load

SPLITS = ["train"] * 4 + ["restval", "val", "val", "test", "test"]


@pytest.fixture
def drawn(tmp_path):
    """Nine JPEGs of several shapes and a JSON file of splits, as MS-COCO has them."""
    from PIL import Image

    folder, entries = tmp_path / "coco_images", []
    for i, split in enumerate(SPLITS):
        place = "val2014" if i % 2 else "train2014"
        (folder / place).mkdir(parents=True, exist_ok=True)
        ramp = np.linspace(0, 255, 40 + 3 * i, dtype=np.uint8)[None, :, None]
        picture = np.broadcast_to(ramp, (30, 40 + 3 * i, 3)) // np.array([1, 2, 1 + i], np.uint8)
        Image.fromarray(picture.astype(np.uint8)).save(folder / place / f"{i}.jpg", quality=95)
        told = [{"raw": f" picture {i}\n told {k}"} for k in range(6 if i == 2 else 5)]
        entries.append({"filepath": place, "filename": f"{i}.jpg", "split": split, "sentences": told})
    (folder / "dataset_coco.json").write_text(json.dumps({"images": entries}))
    return folder


def given(folder, form="square224"):
    out = folder.parent / f"coco_{form}"
    return {"images": folder, "captions": folder / "dataset_coco.json", "out": out, "pixels": form}


def test_crops_are_as_clip_cuts_them(drawn):
    from PIL import Image

    pictures("coco", **given(drawn, "crop224"))
    data = load("coco", root=drawn.parent, pixels="crop224")
    with Image.open(drawn / "train2014" / "0.jpg") as file:  # 40 x 30
        scaled = np.asarray(file.resize((298, 224), Image.Resampling.BICUBIC))
    wanted = torch.from_numpy(scaled[:, 37 : 37 + 224].copy()) / 255
    assert torch.equal(data.train.features([0]).view(224, 224, 3), wanted)


def test_a_stopped_preparation_goes_on(drawn, monkeypatch, capsys):
    seen, opened = [], picture_rows.open_picture

    def counted(path):
        seen.append(path.name)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return opened(path)

    monkeypatch.setattr(picture_rows, "open_picture", counted)
    words = ["coco", *(f"--{k}={v}" for k, v in given(drawn).items())]
    assert picture_rows.main(words) == 130
    assert "the same command continues" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"lacks\n  dev_ims\.npy[^*]*Make them with: python"):
        load("coco", root=drawn.parent, pixels="square224")
    assert picture_rows.main(words) == 0
    assert len(seen) == 6 + len(SPLITS) - 5  # those of training were done
    assert picture_rows.main(words) == 0
    assert "is prepared already" in capsys.readouterr().err


def test_what_is_missing_or_damaged_is_named(drawn):
    words = given(drawn)
    shutil.move(drawn / "train2014" / "0.jpg", drawn / "0.jpg")
    with pytest.raises(ConvertError, match=r"lacks 1 pictures of train: train2014/0\.jpg"):
        pictures("coco", **words)
    (drawn / "train2014" / "0.jpg").write_bytes(b"no picture")
    with pytest.raises(ConvertError, match=r"0\.jpg: the file is not a picture in .*; get the picture again"):
        pictures("coco", **words)
    with pytest.raises(ConvertError, match="is not a folder"):
        pictures("coco", **words | {"images": drawn / "none"})
    for text, message in (
        ("[]", "is not a file of splits such as dataset_coco.json"),
        ('{"images": [{"filename": "a", "split": "dev", "sentences": []}]}', "split dev is not one of train"),
        ('{"images": [{"filename": "a", "split": "val", "sentences": []}]}', "1 pictures have fewer than 5"),
        ('{"images": []}', "has no pictures for train, dev, testall"),
    ):
        (drawn / "other.json").write_text(text)
        with pytest.raises(ConvertError, match=message):
            pictures("coco", **words | {"captions": drawn / "other.json"})
    with pytest.raises(ValueError, match=r"pixels=.*: must be one of 'square224'"):
        pictures("coco", **words | {"pixels": "round"})
