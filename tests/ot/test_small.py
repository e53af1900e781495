"""Many small problems: the released loop and exact scaling, forward and backward."""

import numpy as np
import pytest
import torch

import nclib.ot
from nclib.ot import small, small_cpu


def naive(s, mask, reg, passes, loop, p=None, q=None):
    """The loops as they are described, with autograd."""
    rows, cols = mask.any(-1).double(), mask.any(-2).double()
    p = rows / rows.sum(-1, keepdim=True) if p is None else p
    q = cols / cols.sum(-1, keepdim=True) if q is None else q
    if loop == "released":
        plan = torch.exp(-(1 - s) / reg) * mask
        plan = plan / (plan.sum((-2, -1), keepdim=True) + 1e-6)
        for _ in range(passes):
            plan = plan * (p / (plan.sum(-1) + 1e-6)).unsqueeze(-1)
            plan = plan * (q / (plan.sum(-2) + 1e-6)).unsqueeze(-2)
        return plan
    logk = torch.where(mask, s / reg, -1e30)
    g = torch.zeros_like(q)
    for _ in range(passes):
        f = torch.where(p > 0, p.clamp_min(1e-300).log(), -1e30) - torch.logsumexp(logk + g.unsqueeze(-2), -1)
        f = f.clamp_min(-1e30)
        g = torch.where(q > 0, q.clamp_min(1e-300).log(), -1e30) - torch.logsumexp(logk + f.unsqueeze(-1), -2)
        g = g.clamp_min(-1e30)
    return torch.where(mask, (logk + f.unsqueeze(-1) + g.unsqueeze(-2)).exp(), 0.0)


def ragged(seed, count=7, n=6, m=5):
    g = torch.Generator().manual_seed(seed)
    s = 0.4 * torch.randn(count, n, m, generator=g, dtype=torch.float64).tanh()
    rows = torch.arange(n) < torch.randint(2, n + 1, (count, 1), generator=g)
    cols = torch.arange(m) < torch.randint(2, m + 1, (count, 1), generator=g)
    return s, rows.unsqueeze(-1) & cols.unsqueeze(-2), torch.randn(s.shape, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("loop", ["log", "released"])
@pytest.mark.parametrize("passes", [1, 3, 12])
def test_values_and_gradients_equal_the_plain_loop(loop, passes):
    s, mask, weight = ragged(0)
    a, b = s.clone().requires_grad_(), s.clone().requires_grad_()
    got = nclib.ot.scaling_plan(a, reg=0.1, passes=passes, mask=mask, loop=loop)
    want = naive(b, mask, 0.1, passes, loop)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-13)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("loop", ["log", "released"])
def test_gradients_reach_the_weights_and_agree_with_differences(loop):
    s, _, _ = ragged(1, 2, 4, 3)
    g = torch.Generator().manual_seed(1)
    p = torch.softmax(torch.randn(2, 4, generator=g, dtype=torch.float64), -1).requires_grad_()
    q = torch.softmax(torch.randn(2, 3, generator=g, dtype=torch.float64), -1).requires_grad_()

    def plan(s, p, q):
        return nclib.ot.scaling_plan(s, reg=0.2, passes=4, p=p, q=q, loop=loop)

    assert torch.autograd.gradcheck(plan, (s.requires_grad_(), p, q))


@pytest.mark.parametrize("loop", ["log", "released"])
@pytest.mark.parametrize(("reg", "scale"), [(0.02, 0.4), (0.02, 2.0), (0.005, 0.4), (0.005, 2.0)])
def test_released_constant_keeps_its_weight_in_float32(loop, reg, scale):
    s, mask, weight = ragged(5, 40, 20, 12)
    s = scale * s / 0.8
    fine, rough = s.clone().requires_grad_(), s.float().requires_grad_()
    a = nclib.ot.scaling_plan(fine, reg=reg, mask=mask, loop=loop)
    b = nclib.ot.scaling_plan(rough, reg=reg, mask=mask, loop=loop)
    torch.testing.assert_close(a, naive(s, mask, reg, 3, loop), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(b.double(), a, rtol=0, atol=2e-6)
    (a * weight).sum().backward()
    (b * weight.float()).sum().backward()
    assert rough.grad.isfinite().all()
    assert (fine.grad - rough.grad.double()).abs().max() <= 2e-4 * fine.grad.abs().max() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("orders", [12, 30])
def test_exact_scaling_keeps_weights_that_are_far_apart(dtype, orders):
    """Scalings are products of weights and their inverses, beyond float32 after a few passes."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, m = rng.integers(2, 8, 2)
        s, reg = torch.from_numpy(rng.uniform(-1, 1, (n, m))).to(dtype), 10 ** rng.uniform(-1, 0)
        mask = torch.from_numpy(rng.random((n, m)) < 0.6)
        mask[0, 0] = True
        p, q = (torch.from_numpy(10 ** rng.uniform(-orders, 0, size)) for size in (n, m))
        p, q = (w * mask.any(dim) for w, dim in ((p, 1), (q, 0)))
        p, q = ((w / w.sum()).to(dtype) for w in (p, q))
        got = nclib.ot.scaling_plan(s, reg=reg, passes=5, p=p, q=q, mask=mask)
        want = naive(s.double(), mask, reg, 5, "log", p.double(), q.double())
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-9)


@pytest.fixture
def in_numpy(monkeypatch):
    """The precisions in which problems went to NumPy, in a list."""
    found, run = [], small_cpu.plans

    def noted(problems, *rest):
        found.append(problems.s.dtype)
        return run(problems, *rest)

    monkeypatch.setattr(small_cpu, "plans", noted)
    return found


@pytest.mark.parametrize("loop", ["log", "released"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("passes", [1, 4])
def test_numpy_gives_the_formula_and_its_derivatives_in_chunks(
    loop, weighted, masked, passes, monkeypatch, in_numpy
):
    monkeypatch.setattr(small_cpu, "CHUNK_ENTRIES", 2 * 6 * 5)  # two problems a chunk
    s, mask, pull = ragged(6)
    g = torch.Generator().manual_seed(6)
    p, q = (torch.rand(7, size, generator=g, dtype=torch.float64) for size in (6, 5))
    if masked:
        p, q = p * mask.any(-1), q * mask.any(-2)
        mask[0, 0] = False  # a row with weight and without an entry
        s = torch.where(mask, s, torch.nan)
    else:
        q[:, -1] = 0  # padding
    p, q = (x / x.sum(-1, keepdim=True) for x in (p, q))
    given = {"p": p, "q": q} if weighted else {}
    options = {"reg": 0.05, "passes": passes, "loop": loop, "mask": mask if masked else None}
    found = []
    for limits in (small.FIRST, dict.fromkeys(small.FIRST, -1.0)):  # by NumPy, by the formula
        monkeypatch.setattr(small, "FIRST", limits)
        sides = [x.clone().requires_grad_() for x in (s, *given.values())]
        plan = nclib.ot.scaling_plan(sides[0], **options, **dict(zip(given, sides[1:], strict=True)))
        first = torch.autograd.grad((plan * pull).sum(), sides, retain_graph=True)
        again = torch.autograd.grad((plan * pull).sum(), sides, create_graph=True)
        second = torch.autograd.grad(sum((x**2).sum() for x in again), sides)
        found.append([plan.detach(), *first, *second])
    assert in_numpy == [np.float64]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("loop", ["log", "released"])
@pytest.mark.parametrize("reg", [0.3, 0.05, 0.002])
def test_second_derivatives_are_numbers_and_agree_with_differences(loop, reg):
    s = 0.4 * torch.rand(1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options = {"reg": reg, "passes": 2, "loop": loop}
    plan = lambda x: nclib.ot.scaling_plan(x, **options)  # noqa: E731
    assert torch.autograd.gradgradcheck(plan, s.requires_grad_(), eps=1e-6 * reg, atol=1e-3 / reg**2)
