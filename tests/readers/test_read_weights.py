"""Weights are read as torch reads them, and nothing but weights."""

import os
import pickle

import numpy as np
import pytest
import torch

from nclib.readers.weights import read_weights


def saved(path, what):
    torch.save(what, path, _use_new_zipfile_serialization=False)
    return path


def test_tensors_are_those_that_torch_reads(tmp_path):
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 2).to(memory_format=torch.channels_last))
    layer.append(torch.nn.BatchNorm2d(5))
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {**layer.state_dict(), "turned": base.T, "part": base[1:3, ::2], "one": torch.tensor(7)}
    found = read_weights(saved(tmp_path / "w.pth", tensors))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), err_msg=name)
        assert found[name].dtype == tensor.numpy().dtype


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize("what", [{"a": Harmful()}, {"a": 3}, {"a": torch.zeros(2, dtype=torch.float16)}])
def test_other_objects_are_refused(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"w\.pth: cannot be read as weights"):
        read_weights(saved("w.pth", what))
    assert not os.path.exists("made")


def test_other_files_and_cut_ones_are_refused(tmp_path):
    path = saved(tmp_path / "w.pth", {"a": torch.ones(100), "b": torch.ones(3)})
    whole = path.read_bytes()
    torch.save({"a": torch.ones(3)}, tmp_path / "zip.pth")
    for bad in (whole[:-5], whole[:200], b"", pickle.dumps(3), (tmp_path / "zip.pth").read_bytes()):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="cannot be read as weights"):
            read_weights(path)
