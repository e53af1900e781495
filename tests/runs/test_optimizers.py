"""Optimisers of pairs: fused on a GPU, and continued from what was saved."""

import pytest
import torch

import nclib
from nclib.runs import checkpoint
from nclib.runs.optimizers import OPTIMIZERS, build


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_on_cuda_is_fused_and_continues_from_what_was_saved(decay, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)  # torch fuses on a CPU as well
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    whole, first = (build("adam", [{"params": [w], "rate": 1.0}], 0.1, decay) for w in weights)
    assert whole.param_groups[0]["fused"]
    assert build("amsgrad", [weights[0]], 0.1, decay).param_groups[0]["amsgrad"]
    for turn in range(4):
        for w in weights:
            w.grad = torch.tensor([1.0, 0.5 - turn, turn])
        whole.step(), first.step()
        checkpoint.save(tmp_path / "state", first.state_dict())
        first = build("adam", [{"params": [weights[1]], "rate": 1.0}], 0.1, decay)
        first.load_state_dict(checkpoint.load(tmp_path / "state"))
    assert torch.equal(*weights)
    assert build("adam", [torch.ones(3, dtype=torch.complex64)], 0.1, decay).param_groups[0]["fused"] is None


def test_an_optimizer_that_was_added_may_be_chosen(monkeypatch):
    with pytest.raises(ValueError, match="optimizer='mine': must be one of 'adam', 'amsgrad'"):
        nclib.resolve("plain", optimizer="mine")
    monkeypatch.setitem(OPTIMIZERS, "mine", OPTIMIZERS["adam"])
    assert nclib.resolve("plain", optimizer="mine").schedule.optimizer == "mine"
