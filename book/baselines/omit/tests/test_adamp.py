"""AdamP beside a literal loop."""

import math

import pytest
import torch
from baselines.omit.adamp import AdamP


def adamp(w, gradients, lr, decay):
    """Weights after one step per gradient, and along what each step was cut."""
    mean, square, ways = torch.zeros_like(w), torch.zeros_like(w), []
    for t, gradient in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        step = mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
        for way, shape in (("rows", w.shape), ("whole", (1, -1))):
            rows, slopes, moves = (x.reshape(shape) for x in (w, gradient, step))
            cosines = [
                abs(a @ b) / max(math.sqrt(a @ a * (b @ b)), 1e-8) for a, b in zip(rows, slopes, strict=True)
            ]
            if max(cosines) < 0.1 / math.sqrt(rows.shape[1]):  # orthogonal enough: along w nothing moves
                units = [a / (math.sqrt(a @ a) + 1e-8) for a in rows]
                cut = [move - (unit @ move) * unit for unit, move in zip(units, moves, strict=True)]
                step = torch.stack(cut).reshape(w.shape)
                ways.append(way)
                break
        else:
            ways.append("none")
        w = (1 - lr * decay * (1.0 if ways[-1] == "none" else 0.1)) * w - lr * step
    return w, ways


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamp_is_its_equations(decay):
    torch.manual_seed(0)
    start, lr = torch.randn(2, 3, dtype=torch.float64), 0.01
    swapped = start.flip(0) * torch.tensor([[1.0], [-1.0]]) + 0.01  # orthogonal as a whole, not row by row
    across = torch.linalg.cross(start, torch.randn(2, 3, dtype=torch.float64))  # to each row
    near = across + 0.09 * start * across.norm(dim=1, keepdim=True) / start.norm(dim=1, keepdim=True)
    gradients = [across, swapped, torch.randn(2, 3, dtype=torch.float64), across, near, swapped]
    w = torch.nn.Parameter(start.clone())
    optimizer = AdamP([w], lr, weight_decay=decay)
    for gradient in gradients:
        w.grad = gradient.clone()
        optimizer.step()
    wanted, ways = adamp(start, gradients, lr, decay)
    assert set(ways) == {"rows", "whole", "none"}
    torch.testing.assert_close(w.detach(), wanted, rtol=1e-12, atol=1e-14)
