"""RCL against naive loops and differences."""

import math

import pytest
import torch
from tiny import SCORES as S

from nclib import methods
from nclib.methods import Batch
from nclib.methods.rcl import COMPLEMENTARY, complementary

NAIVE = {
    "log": lambda x: -math.log(1 - x + 1e-10),
    "tan": math.tan,
    "abs": lambda x: x,
    "exp": lambda x: math.exp(-(1 - x)),
    "gce": lambda x: (1 - (1 - x + 1e-10) ** 0.2) / 0.2,
}


@pytest.mark.parametrize("loss", COMPLEMENTARY)
def test_every_pair_against_nested_loops(loss):
    g = torch.Generator().manual_seed(0)
    scores = torch.rand(6, 6, generator=g, dtype=torch.float64)
    tau, B = 0.07, 6
    expected = []
    for i in range(B):
        value = 0.0
        for row in (scores[i], scores[:, i]):
            total = sum(math.exp(float(s) / tau) for s in row) + 1e-10
            value += sum(NAIVE[loss](math.exp(float(row[j]) / tau) / total) for j in range(B) if j != i)
        expected.append(value)
    assert complementary(scores, loss, tau).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("loss", COMPLEMENTARY)
def test_gradients(loss):
    scores = S.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: complementary(s, loss, 0.2), scores)
    extreme = torch.tensor([[0.0, 1.0], [0.0, 1.0]], requires_grad=True)
    complementary(extreme, loss, 0.001).sum().backward()
    assert extreme.grad.isfinite().all()
    alone = torch.ones(1, 1, requires_grad=True)
    complementary(alone, loss).sum().backward()
    assert alone.grad.isfinite().all()


class Reader:
    """A loop that serves what a step needs."""

    def similarity(self, batch):
        g = torch.Generator().manual_seed(0)
        return torch.rand(40, 40, generator=g)[batch.index][:, batch.index].requires_grad_()


@pytest.mark.parametrize("loss", COMPLEMENTARY)
def test_a_step_is_the_mean_over_pairs(loss):
    batch = Batch(torch.arange(3, 11), None, None)
    terms = methods.build("rcl", loss=loss, q=0.7).step(Reader(), batch)
    expected = complementary(Reader().similarity(batch), loss, 0.05, q=0.7).mean()
    assert {name: value.item() for name, value in terms.items()} == {
        "complementary": pytest.approx(expected.item())
    }
