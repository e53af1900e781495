"""Checkpoints: bit for bit, atomic, and never pickle."""

import errno
import math
import os

import pytest
import torch

from nclib.runs import checkpoint


def test_round_trip_is_exact(tmp_path):
    shared = torch.randn(3, 4, dtype=torch.float64)
    tree = {
        "a": shared,
        "b": shared.T,  # shares memory with a, not contiguous
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 5),
        "half": torch.randn(2).bfloat16(),
        "plain": {"n": 1, "x": 1e-300, "inf": -math.inf, "s": "ü", "none": None, "flag": True},
        "list": [1, [2, torch.ones(2, dtype=torch.bool)], (3, "t")],
        "ints": {0: {"step": torch.tensor(1.5)}, 7: "seven"},
    }
    path = tmp_path / "deep" / "c.safetensors"
    checkpoint.save(path, tree)
    back = checkpoint.load(path)
    assert torch.equal(back["a"], shared)
    assert torch.equal(back["b"], shared.T)
    assert back["scalar"].dtype == torch.int64
    assert back["empty"].shape == (0, 5)
    assert torch.equal(back["half"], tree["half"])
    assert back["plain"] == tree["plain"]
    assert back["list"][0] == 1
    assert torch.equal(back["list"][1][1], tree["list"][1][1])
    assert back["list"][2] == (3, "t")
    assert set(back["ints"]) == {0, 7}
    assert not list(path.parent.glob("*.part"))


def test_the_file_is_plain_safetensors(tmp_path):
    from safetensors.torch import load_file

    kinds = (torch.bool, torch.float64, torch.uint8, torch.float16, torch.int64, torch.float32, torch.int16)
    tensors = [torch.arange(k + 1).to(kind) for k, kind in enumerate(kinds)]
    checkpoint.save(tmp_path / "c.safetensors", {"all": tensors})
    read = load_file(tmp_path / "c.safetensors")
    assert all(torch.equal(read[f"t{k}"], tensor) for k, tensor in enumerate(tensors))
    assert all(read[f"t{k}"].dtype == kind for k, kind in enumerate(kinds))
    with pytest.raises(TypeError, match="complex128"):
        checkpoint.save(tmp_path / "x.safetensors", {"a": torch.zeros(1, dtype=torch.complex128)})


def test_optimiser_state_survives(tmp_path):
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoint.save(tmp_path / "o.safetensors", optimizer.state_dict())
    fresh = torch.optim.Adam(layer.parameters(), lr=0.5)
    fresh.load_state_dict(checkpoint.load(tmp_path / "o.safetensors"))
    assert fresh.param_groups[0]["lr"] == 0.1
    old, new = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert all(torch.equal(old[i][k], new[i][k]) for i in old for k in old[i])


def test_refuses_what_is_not_plain(tmp_path):
    with pytest.raises(TypeError, match="not object"):
        checkpoint.save(tmp_path / "x.safetensors", {"a": object()})
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.safetensors is not a readable checkpoint"):
        checkpoint.load(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        checkpoint.load(tmp_path / "none.safetensors")


def test_a_file_that_cannot_be_read_is_not_called_missing(tmp_path, monkeypatch):
    """Done by a stand-in for open: for root, every file is readable."""
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, {"a": torch.ones(1)})

    def refuse(file, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(checkpoint, "open", refuse, raising=False)
    with pytest.raises(PermissionError, match=r"Permission denied.*c\.safetensors"):
        checkpoint.load(path)


def test_a_folder_in_place_of_a_checkpoint_is_named(tmp_path):
    with pytest.raises(IsADirectoryError, match="directory"):
        checkpoint.load(tmp_path)


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, {"a": torch.ones(1)})

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, {"a": torch.zeros(1)})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert checkpoint.load(path)["a"] == 1


def test_digest_tells_bits_apart():
    a = {"w": torch.ones(2), "n": torch.tensor(1)}
    assert checkpoint.digest(a) == checkpoint.digest({k: v.clone() for k, v in reversed(a.items())})
    assert checkpoint.digest(a) != checkpoint.digest({**a, "w": torch.tensor([1.0, 1.0 + 1e-7])})
