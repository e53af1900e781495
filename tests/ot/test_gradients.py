"""Gradients by finite differences, and their memory."""

import pytest
import torch

import nclib.ot


def problem(seed: int = 0, n: int = 5, m: int = 4) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    cost = torch.rand(n, m, generator=g, dtype=torch.float64)
    p = torch.rand(n, generator=g, dtype=torch.float64) + 0.1
    q = torch.rand(m, generator=g, dtype=torch.float64) + 0.1
    mask = torch.ones(n, m, dtype=torch.bool)
    mask[1, 2] = mask[3, 0] = False
    return cost, p / p.sum(), q / q.sum(), mask


def solve(kind, cost, p, q, mask, gradient, **options):
    if kind == "balanced":
        return nclib.ot.sinkhorn(cost, p, q, reg=0.1, mask=mask, gradient=gradient, **options)
    return nclib.ot.partial_sinkhorn(cost, 0.6, p, q, reg=0.1, mask=mask, gradient=gradient, **options)


KINDS = ["extended", "balanced"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_the_gradient_of_the_objective(kind):
    cost, p, q, mask = problem(2)
    plan = solve(kind, cost, p, q, mask, "none", tol=1e-12).plan
    step = 1e-5
    for i, j in ((0, 0), (4, 3)):
        moved = []
        for sign in (1, -1):
            shifted = cost.clone()
            shifted[i, j] += sign * step
            moved.append(solve(kind, shifted, p, q, mask, "none", tol=1e-12).certify().objective)
        assert ((moved[0] - moved[1]) / (2 * step)).item() == pytest.approx(plan[i, j].item(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_single_problems_and_float32_works(kind):
    costs = torch.stack([problem(k)[0] for k in range(3)])
    _, p, q, mask = problem()
    weight = torch.rand(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = costs.clone().requires_grad_()
    (solve(kind, batch, p, q, mask, "implicit").plan * weight).sum().backward()
    for k in range(3):
        one = costs[k].clone().requires_grad_()
        (solve(kind, one, p, q, mask, "implicit").plan * weight).sum().backward()
        torch.testing.assert_close(batch.grad[k], one.grad, rtol=1e-6, atol=1e-9)
    rough = costs.float().requires_grad_()
    (solve(kind, rough, p, q, mask, "implicit", tol=1e-6).plan * weight).sum().backward()
    assert rough.grad.dtype == torch.float32
    torch.testing.assert_close(rough.grad.double(), batch.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True])
def test_both_derivatives_of_the_plan_by_finite_differences(kind, padded):
    cost, p, q, mask = problem(3, 4, 3)
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[1, 2] = False
    if padded:
        p[2] = 0
        p /= p.sum()

    def plan(c):
        return solve(kind, c, p, q, mask, "implicit", tol=1e-13).plan

    assert torch.autograd.gradcheck(plan, cost.requires_grad_(), eps=1e-5, atol=1e-6, rtol=1e-5)
    assert torch.autograd.gradgradcheck(plan, cost.requires_grad_(), eps=1e-5, atol=1e-4, rtol=1e-4)
    plan(cost).square().sum().backward()
    assert not cost.grad[~mask].any()
