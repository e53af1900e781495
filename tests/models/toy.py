"""The shared worked example of the papers' formulas, and comparisons with loops."""

import torch
from torch import Tensor

from nclib.models import Matcher


def fill(shape, a, amplitude):
    """amp sin(a + 1.3 i + 0.7 j), zero-based."""
    rows = a + 1.3 * torch.arange(shape[0], dtype=torch.float64)
    if len(shape) == 1:
        return amplitude * torch.sin(rows)
    return amplitude * torch.sin(rows[:, None] + 0.7 * torch.arange(shape[1], dtype=torch.float64))


def unit_rows(rows):
    rows = torch.tensor(rows, dtype=torch.float64)
    return rows / rows.norm(dim=-1, keepdim=True)


IMAGES = [[[1, 2, 0, 1], [0, 1, -1, 2], [3, 0, 1, 0]], [[-1, 1, 2, 0], [2, 2, 1, 1], [0, -1, 1, 3]]]
CAPTIONS = [[[1, 1, 0, 1], [0, 2, 1, -1]], [[2, 0, 1, 0], [-1, 1, 1, 1], [1, -1, 0, 2]]]


def regions():
    """Unit regions (2, 3, 4)."""
    return unit_rows(IMAGES)


def words():
    """Unit words, padded (2, 3, 4), and their counts."""
    padded = torch.zeros(2, 3, 4, dtype=torch.float64)
    padded[0, :2] = unit_rows(CAPTIONS[0])
    padded[1] = unit_rows(CAPTIONS[1])
    return padded, (2, 3)


def assert_agree(model: Matcher, got: Tensor, wanted: Tensor, atol: float, rtol: float = 1e-7) -> None:
    """Ask for equal scores in the range of the model, and for equal gradients of a weighted sum of them."""
    gradients = []
    for scores in (got, wanted):
        model.zero_grad()
        (scores * fill(scores.shape, 1, 1.0)).sum().backward()
        gradients.append(
            {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in model.named_parameters()}
        )
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)
    torch.testing.assert_close(*gradients, rtol=rtol, atol=atol)
    low, high = model.score_range
    assert bool((got >= low).all() and (got <= high).all())
