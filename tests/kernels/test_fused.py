"""Kernels of Triton in its interpreter: against the plain path. Collected where triton is installed."""

from types import SimpleNamespace

import pytest
import torch

import nclib.ot
from nclib.ot.small import LOOPS, transport_scores


class Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it lies on a GPU, so that what a GPU computes runs here."""

    device = property(lambda self: SimpleNamespace(type="cuda"))


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """Count the launches of a test."""
    from nclib.ot import _fused

    found, launch = [], _fused._launch

    def counted(kernel, tensors, *given, **flags):
        found.append(kernel)
        plain = [x.as_subclass(torch.Tensor) for x in tensors]
        launch(kernel, tuple(plain), *given, **flags)

    monkeypatch.setattr(_fused, "_launch", counted)
    return found


def problem(shape=(2, 5, 4, 3), shared=False, seed=0):
    """Cosines, weights and captions of different length; padded words have weight 0."""
    g = torch.Generator().manual_seed(seed)
    b, n, m, c = shape
    mask = torch.arange(m)[:, None] < torch.randint(1, m + 1, (c,), generator=g)
    s = 0.7 * (2 * torch.rand(shape, generator=g) - 1) * mask
    p = torch.randn(1 if shared else b, n, 1 if shared else c, generator=g).softmax(1)
    q = torch.randn(1 if shared else b, m, c, generator=g).masked_fill(~mask, -torch.inf).softmax(1)
    return (s, p, q), mask


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("lam", "passes", "skip", "shared"), [(0.02, 3, 1, False), (0.1, 1, 0, True), (0.02, 6, 0, True)]
)
def test_scores_and_gradients_equal_the_plain_path(loop, lam, passes, skip, shared, launches):
    given, mask = problem(shared=shared)
    found = []
    for kind, on in ((torch.Tensor, False), (Elsewhere, True)):
        dtype = torch.float32 if on else torch.float64  # the oracle rounds less
        sides = [x.to(dtype).as_subclass(kind).requires_grad_() for x in given]
        with nclib.ot.fused(on):
            scores = transport_scores(*sides, lam=lam, iterations=passes, loop=loop, skip=skip)
        grads = torch.autograd.grad(scores.square().sum(), sides)
        found.append([x.detach().as_subclass(torch.Tensor).double() for x in (scores, *grads)])
    assert len(launches) == 2
    valid = (1, mask, 1, mask)  # padding has no say
    for a, b, counts in zip(*found, valid, strict=True):
        assert b.isfinite().all()
        torch.testing.assert_close(b * counts, a * counts, rtol=2e-4, atol=2e-5 * float(a.abs().max()))


def test_second_derivatives_take_the_plain_path():
    given, _ = problem()
    found = []
    for kind, on in ((torch.Tensor, False), (Elsewhere, True)):
        s, p, q = (x.as_subclass(kind).requires_grad_() for x in given)
        with nclib.ot.fused(on):
            scores = transport_scores(s, p, q, lam=0.1, iterations=2, loop="log", skip=0)
            first = torch.autograd.grad(scores.square().sum(), s, create_graph=True)[0]
        found.append(torch.autograd.grad(first.square().sum(), s)[0].as_subclass(torch.Tensor))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3 * float(found[0].abs().max()))


def test_what_does_not_fit_stays_on_the_plain_path(launches):
    given, _ = problem()
    with nclib.ot.fused():
        transport_scores(*given, lam=0.1, iterations=2, loop="log", skip=0)  # on a CPU
        fine = (x.double().as_subclass(Elsewhere) for x in given)
        transport_scores(*fine, lam=0.1, iterations=2, loop="log", skip=0)
        wide = (x.as_subclass(Elsewhere) for x in problem((1, 128, 65, 1))[0])
        transport_scores(*wide, lam=0.1, iterations=2, loop="log", skip=0)
    assert launches == []
