"""Optimisers of pairs: AdamP and AMSGrad beside literal loops; which of them a run takes."""

import itertools
import math

import pytest
import torch

from nclib.runs import checkpoint
from nclib.runs.optimizers import AdamP, build


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def along_removed(step, w, gradient):
    """The step without its part along the weights, if all rows are orthogonal enough to their gradients."""
    for row, slope in zip(w, gradient, strict=True):
        cosine = abs(dot(row, slope)) / max(math.sqrt(dot(row, row) * dot(slope, slope)), 1e-8)
        if cosine >= 0.1 / math.sqrt(len(row)):
            return None
    result = []
    for row, move in zip(w, step, strict=True):
        unit = [a / (math.sqrt(dot(row, row)) + 1e-8) for a in row]
        result.append([b - dot(unit, move) * a for a, b in zip(unit, move, strict=True)])
    return result


def adamp(w, gradients, lr, decay):
    """Weights (rows) after one step per gradient, number by number."""
    n, d = len(w), len(w[0])
    mean, square, ways = [[0.0] * d for _ in w], [[0.0] * d for _ in w], []
    for t, gradient in enumerate(gradients, 1):
        step = [[0.0] * d for _ in w]
        for i in range(n):
            for j in range(d):
                mean[i][j] = 0.9 * mean[i][j] + 0.1 * gradient[i][j]
                square[i][j] = 0.999 * square[i][j] + 0.001 * gradient[i][j] ** 2
                root = math.sqrt(square[i][j] / (1 - 0.999**t)) + 1e-8
                step[i][j] = mean[i][j] / (1 - 0.9**t) / root
        by_row = along_removed(step, w, gradient)
        whole = along_removed(*([list(itertools.chain(*rows))] for rows in (step, w, gradient)))
        ways.append("rows" if by_row else "whole" if whole else "none")
        if by_row:
            step = by_row
        elif whole:
            step = [whole[0][i * d : (i + 1) * d] for i in range(n)]
        shrink = 1 - lr * decay * (0.1 if by_row or whole else 1.0)
        w = [[shrink * a - lr * b for a, b in zip(*rows, strict=True)] for rows in zip(w, step, strict=True)]
    return w, ways


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamp_is_its_equations_number_by_number(decay):
    torch.manual_seed(0)
    start, lr = torch.randn(2, 3, dtype=torch.float64), 0.01
    swapped = start.flip(0) * torch.tensor([[1.0], [-1.0]]) + 0.01  # orthogonal as a whole, not row by row
    across = torch.linalg.cross(start, torch.randn(2, 3, dtype=torch.float64))  # to each row
    gradients = [across, swapped, torch.randn(2, 3, dtype=torch.float64), across, swapped]
    w = torch.nn.Parameter(start.clone())
    optimizer = AdamP([w], lr, weight_decay=decay)
    for gradient in gradients:
        w.grad = gradient.clone()
        optimizer.step()
    wanted, ways = adamp(start.tolist(), [g.tolist() for g in gradients], lr, decay)
    assert set(ways) == {"rows", "whole", "none"}
    torch.testing.assert_close(w.detach(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-14)


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
