"""Checkpoints: bit for bit, atomic, and never pickle."""

import math
import re

import pytest
import torch

from nclib.runs import checkpoint, epoch_arrays
from nclib.runs.loop import SavedLoop


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


class Counted(SavedLoop):
    """Epochs that train nothing and keep their number."""

    criterion, stream = "rsum", "test"

    def __init__(self, folder, seed, epochs):
        super().__init__(
            seed=seed, device=torch.device("cpu"), folder=folder, identity={"fingerprint": f"{seed}"}
        )
        self.n_planned = epochs

    def _train_epoch(self, progress):
        self.keep(x=[self.seed, self.epoch])
        return {"phase": "training"}

    def _validate(self):
        return {"rsum": 1.0}

    def _weights(self):
        return self._state()

    def _state(self):
        return {}

    def _put(self, weights):
        """Nothing is trained."""

    def _load_state(self, saved):
        """Nothing is trained."""

    def _line(self, row):
        return ""


def kept(folder, seed):
    """Make a run of two epochs; return its files of arrays."""
    Counted(folder, seed, 2).fit(progress=False)
    return sorted((folder / "epochs").iterdir())


def test_arrays_of_epochs_are_bound_to_their_checkpoint(tmp_path):
    first, second = kept(tmp_path / "a", 1)
    (other, _) = kept(tmp_path / "b", 2)
    data = first.read_bytes()
    middle = len(data) // 2
    wrong = {
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "cut": data[:middle],
        "no file of arrays": b"junk",
        "another epoch": second.read_bytes(),
        "another run": other.read_bytes(),
    }
    assert [a["x"].tolist() for a in epoch_arrays(tmp_path / "a").values()] == [[1, 0], [1, 1]]
    for content in wrong.values():
        first.write_bytes(content)
        with pytest.raises(
            ValueError, match=rf"{re.escape(str(first))} was changed, or belongs to another epoch or run"
        ):
            epoch_arrays(tmp_path / "a")
    first.unlink()
    with pytest.raises(FileNotFoundError, match=r"001\.npz"):
        epoch_arrays(tmp_path / "a")
    first.write_bytes(data)
    (tmp_path / "a" / "epochs" / "003.npz").write_bytes(data)  # of no epoch of the run
    assert list(epoch_arrays(tmp_path / "a")) == [1, 2]
    (tmp_path / "a" / "checkpoint.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        epoch_arrays(tmp_path / "a")
