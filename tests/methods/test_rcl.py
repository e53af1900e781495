"""RCL against worked numbers and naive loops, and its corner cases."""

import math

import pytest
import torch
from tiny import SCORES as S

from nclib import methods
from nclib.methods import Batch
from nclib.methods.rcl import COMPLEMENTARY, complementary

WORKED = {
    0.05: {"log": 0.916625, "tan": 0.573172, "abs": 0.450762, "exp": 2.45249, "gce": 0.772713},
    0.1: {"log": 0.677820, "tan": 0.547962, "abs": 0.504087, "exp": 2.43759, "gce": 0.634239},
}
NAIVE = {
    "log": lambda x: -math.log(1 - x + 1e-10),
    "tan": math.tan,
    "abs": lambda x: x,
    "exp": lambda x: math.exp(-(1 - x)),
    "gce": lambda x: (1 - (1 - x + 1e-10) ** 0.2) / 0.2,
}


# ------------------------------------------------------------------------------------------ worked numbers


@pytest.mark.parametrize("loss", COMPLEMENTARY)
@pytest.mark.parametrize("tau", WORKED)
def test_worked_values(loss, tau):
    value = complementary(S, loss, tau).mean().item()
    assert value == pytest.approx(WORKED[tau][loss], abs=6e-6, rel=1e-6)
    single = complementary(S.float(), loss, tau).mean().item()
    assert single == pytest.approx(value, abs=3e-7)


def test_worked_probabilities():
    p = torch.softmax(S / 0.1, 1)[1]
    assert p.tolist() == pytest.approx([0.101531, 0.204458, 0.678825, 0.0151858], rel=1e-5)


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


# ------------------------------------------------------------------------------------------ properties of f


def test_every_f_grows_and_exp_has_a_floor():
    p = torch.linspace(0, 1, 201, dtype=torch.float64)
    for f in COMPLEMENTARY.values():
        assert (f(p, 1 - p, 0.2).diff() > 0).all()
    apart = torch.eye(5, dtype=torch.float64)
    floor = complementary(apart, "exp", 1e-3)  # no negative has any probability
    assert floor.tolist() == pytest.approx([2 * 4 / math.e] * 5)
    for name in set(COMPLEMENTARY) - {"exp"}:
        assert complementary(apart, name, 1e-3).abs().max() < 1e-6


def test_gce_runs_from_log_to_abs():
    near_log = complementary(S, "gce", 0.05, q=1e-4)
    assert torch.allclose(near_log, complementary(S, "log", 0.05), rtol=1e-3)
    assert torch.allclose(complementary(S, "gce", 0.05, q=1.0), complementary(S, "abs", 0.05), atol=1e-8)


def test_a_confident_wrong_negative_saturates_and_agrees_in_both_precisions():
    bad = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)  # image 0 is sure of caption 1
    for tau in (0.05, 0.04, 0.01):
        exact, single = complementary(bad, "log", tau), complementary(bad.float(), "log", tau)
        assert torch.allclose(single.double(), exact, rtol=1e-5)
    assert complementary(bad, "log", 0.01)[0].item() == pytest.approx(
        10 * math.log(10) + math.log(2), rel=1e-9
    )


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

    device = torch.device("cpu")

    def generator(self, purpose):
        return torch.Generator().manual_seed(sum(map(ord, purpose)))

    def similarity(self, batch):
        g = torch.Generator().manual_seed(0)
        return torch.rand(40, 40, generator=g)[batch.index][:, batch.index].requires_grad_()


def step(**options):
    index = torch.arange(3, 11)
    return methods.build("rcl", **options).step(Reader(), Batch(index, index, None))


def test_a_step_is_the_mean_over_pairs():
    scores = Reader().similarity(Batch(torch.arange(3, 11), None, None))
    for loss in COMPLEMENTARY:
        terms = step(loss=loss, q=0.7)
        assert list(terms) == ["complementary"]
        assert terms["complementary"].item() == pytest.approx(
            complementary(scores, loss, 0.05, q=0.7).mean().item()
        )
