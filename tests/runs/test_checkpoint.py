"""Checkpoints: bit for bit, atomic, and never pickle."""

import math

import pytest
import torch
from small import fact

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
    assert fact(back) == fact(tree)  # with types and shapes of tensors
    assert (back["list"][2], set(back["ints"])) == ((3, "t"), {0, 7})
    assert torch.equal(back["b"], shared.T)
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


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.safetensors is not a readable checkpoint"):
        checkpoint.load(path)


def test_digest_tells_bits_apart():
    a = {"w": torch.ones(2), "n": torch.tensor(1)}
    assert checkpoint.digest(a) == checkpoint.digest({k: v.clone() for k, v in reversed(a.items())})
    assert checkpoint.digest(a) != checkpoint.digest({**a, "w": torch.tensor([1.0, 1.0 + 1e-7])})
