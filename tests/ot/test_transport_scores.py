"""The autograd node behind OMIT: against ordinary operations and the general solver, in blocks."""

from types import SimpleNamespace

import pytest
import torch

import nclib.ot
from nclib.ot import pairs
from nclib.ot.pairs import transport_scores
from nclib.ot.small import LOOPS


class Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it lies on a GPU, so that what a GPU computes runs here."""

    device = property(lambda self: SimpleNamespace(type="cuda"))


def problem(seed=0, shape=(5, 4, 6, 7), dtype=torch.float64, scale=0.7):
    """Cosines, weights that differ from pair to pair, and captions of different length."""
    g = torch.Generator().manual_seed(seed)
    b, n, m, c = shape
    mask = torch.arange(m)[:, None] < torch.randint(1, m + 1, (c,), generator=g)
    s = scale * (2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1) * mask
    p = torch.randn(b, n, c, generator=g, dtype=torch.float64).softmax(1)
    q = torch.randn(b, m, c, generator=g, dtype=torch.float64).masked_fill(~mask, -torch.inf).softmax(1)
    return s.to(dtype), p.to(dtype), q.to(dtype), mask


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize(("lam", "iterations"), [(0.1, 1), (0.1, 4), (0.01, 3), (0.001, 3)])
def test_node_equals_ordinary_operations_and_the_general_solver(loop, skip, lam, iterations, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_ENTRIES", 2 * 4 * 6 * 7)  # three blocks of images
    s, p, q, mask = problem()
    sides = [x.requires_grad_() for x in (s, p, q)]
    options = {"lam": lam, "iterations": iterations, "loop": loop, "skip": skip}
    found = transport_scores(*sides, **options)
    plain = transport_scores(*sides, **options, plain=True)
    turned = s.permute(0, 3, 1, 2)
    plan = nclib.ot.scaling_plan(
        turned, reg=lam, passes=iterations, p=p.permute(0, 2, 1), q=q.permute(0, 2, 1), loop=loop
    )
    general = (plan * turned)[..., skip:, skip:].sum((-2, -1))
    torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(found, general, rtol=1e-8, atol=1e-12)
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((x * pull).sum(), sides) for x in (found, plain))
    valid = (mask.expand_as(s), torch.ones_like(p), mask.expand_as(q))  # padding has no say
    for a, b, counts in zip(ours, theirs, valid, strict=True):
        scale = float(b.abs().max()) + 1e-12
        torch.testing.assert_close(a * counts / scale, b * counts / scale, rtol=0, atol=1e-8)
        assert a.isfinite().all()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("lam", [0.1, 0.001])
def test_what_a_gpu_computes_equals_what_the_cpu_does(loop, lam):
    found = []
    for kind in (torch.Tensor, Elsewhere):
        sides = [x.as_subclass(kind).requires_grad_() for x in problem()[:3]]
        scores = transport_scores(*sides, lam=lam, iterations=3, loop=loop, skip=1)
        grads = torch.autograd.grad(scores.square().sum(), sides)
        found.append([x.detach().as_subclass(torch.Tensor) for x in (scores, *grads)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)
