"""Published weights: how they are named, and what is said of a folder that does not hold them."""

import json

import numpy as np
import torch
from baselines.weights import WEIGHTS, below, problem
from data_check import GOOD, MISSING, check_more, main
from ncbook.variant import published_name


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
        assert published_name(value) == name


def test_folders_of_weights_are_checked(tmp_path, capsys):
    place = tmp_path / "weights" / "bert-base-uncased"
    assert problem(place) == "missing: google-bert/bert-base-uncased (nothing is downloaded here)"
    place.mkdir(parents=True)
    assert problem(place).startswith("lacks config.json")
    (place / "config.json").write_text("{")
    assert problem(place).startswith("lacks tokenizer.json or vocab.txt")
    (place / "vocab.txt").write_text("a")
    assert problem(place).startswith("lacks model.safetensors")
    (place / "model.safetensors").write_text("")
    assert problem(place).startswith("cannot be read, get it again: ")
    small = {**WEIGHTS["bert-base-uncased"].wanted, "hidden_size": 128}
    (place / "config.json").write_text(json.dumps(small))
    assert problem(place) == "is not google-bert/bert-base-uncased: hidden_size is 128, not 768"
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
    assert "missing     f30k_square224                Make them with: python book/baselines/omit/pict" in said


def test_files_of_residual_networks_are_checked_by_their_shapes(tmp_path):
    from baselines.omit.residual import ResidualNetwork

    place = tmp_path / "weights" / "resnet-152"
    place.mkdir(parents=True)
    assert problem(place).startswith("lacks *.pth, which torchvision's")
    with torch.device("cpu"):
        small = ResidualNetwork((1, 1, 1, 1), stem=4, inner=4, out=8, groups=1)
    torch.save(small.state_dict(), place / "a.pth")
    assert "resnet152-394f9c45.pth: blocks is (1, 1, 1, 1), not (3, 8, 36, 3)" in problem(place)
    (place / "a.pth").write_bytes(b"no weights")
    assert "is damaged" in problem(place)


def test_word_vectors_are_checked_by_their_shape(tmp_path):
    place = tmp_path / "weights" / "glove_f30k.npy"
    place.parent.mkdir()
    assert published_name("/data/weights/glove_f30k.npy") == "glove_f30k.npy"
    assert problem(place).startswith("missing: GloVe, by tools/data_convert.py vectors f30k")
    place.write_bytes(b"no array")
    assert "not a .npy file" in problem(place)
    np.save(place, np.zeros((10, 300), np.float32))
    assert problem(place).endswith("shape is (10, 300), not (8481, 300)")
    np.save(place, np.zeros((8481, 300), np.float32))
    assert problem(place) == ""
