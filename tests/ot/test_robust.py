"""Never NaN, never a wrong claim: random problems of every kind, on every device there is."""

import numpy as np
import pytest
import torch

import nclib.ot
from nclib.ot.device import newton_step

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def any_problem(rng):
    """A random problem: ties, huge and tiny costs, heavy tails, holes, weights of zero, any mass."""
    n, m = rng.integers(1, 12, 2)
    cost = [
        lambda: rng.random((n, m)),
        lambda: rng.integers(0, 3, (n, m)).astype(float),
        lambda: rng.normal(size=(n, m)) * 10 ** rng.uniform(-3, 6),
        lambda: rng.exponential(size=(n, m)) ** 3,
    ][rng.integers(4)]()
    p = np.ones(n) if rng.random() < 0.4 else rng.random(n) + 0.01
    q = np.ones(m) if rng.random() < 0.4 else rng.random(m) + 0.01
    if rng.random() < 0.3 and n > 1:
        p[0] = 0
    mask = rng.random((n, m)) < rng.choice([0.3, 0.7, 1.0])
    mask[-1, -1] = True
    cost, p, q, mask = (torch.from_numpy(np.asarray(x)) for x in (cost, p, q, mask))
    most = nclib.ot.max_flow(mask, p, q).item()
    mass = most * rng.choice([0.0, 0.01, 0.1, 0.5, 0.9, rng.random()])
    reg = max((cost.max() - cost.min()).item(), 1e-6) * 10 ** rng.uniform(-4, 0)
    return cost, mass, p, q, mask, reg


@pytest.mark.parametrize("seed", range(4))
def test_never_nan_and_converged_means_converged(seed):
    rng = np.random.default_rng(seed)
    unfinished = 0
    for _ in range(30):
        cost, mass, p, q, mask, reg = any_problem(rng)
        dtype = torch.float32 if rng.random() < 0.5 else torch.float64
        t = nclib.ot.partial_sinkhorn(cost.to(dtype), mass, p, q, reg=reg, mask=mask, max_iter=600)
        assert t.plan.isfinite().all()
        assert (t.plan >= 0).all()
        unfinished += not t.converged
        if t.converged:
            c = t.certify()
            tolerance = 2e-5 if dtype == torch.float32 else 2e-9
            assert c.mass_violation.item() < (1e-6 if dtype == torch.float32 else 1e-8)
            assert c.row_violation.item() < tolerance
            assert c.col_violation.item() < tolerance
            # the gap is made of first-order errors times potentials
            scale = (reg + cost.abs().max().item()) * max(mass, 1e-12)
            assert c.gap.item() < 100 * tolerance * scale * 50
    assert unfinished <= 1


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_gives_the_plan_of_the_cpu(device):
    g = torch.Generator().manual_seed(1)
    cost = torch.rand(3, 30, 24, generator=g, dtype=torch.float64)
    mask = torch.rand(3, 30, 24, generator=g) > 0.1
    mass = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)
    want = nclib.ot.partial_sinkhorn(cost, mass, reg=0.01, mask=mask)
    got = nclib.ot.partial_sinkhorn(
        cost.to(device), mass.to(device), reg=0.01, mask=mask.to(device), method="scaling"
    )
    assert got.plan.device.type == device
    torch.testing.assert_close(got.plan.cpu(), want.plan, rtol=1e-6, atol=1e-9)


def test_an_empty_row_of_a_plain_problem_has_no_potential():
    cost = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[3], mask[:, 5] = False, False
    t = nclib.ot.partial_sinkhorn(cost, 0.4, reg=0.1, mask=mask)
    assert t.converged
    assert t.potentials.f[3] == t.potentials.g[5] == -torch.inf
    for stop in ("accurate", "published"):
        with pytest.raises(ValueError, match="infeasible"):
            nclib.ot.partial_sinkhorn(cost, 0.88, reg=0.1, mask=mask, stop=stop)


def small_problems(count, n, m):
    """Random problems with holes; the first row and column allow everything, so that any mass can flow."""
    g = torch.Generator().manual_seed(0)
    cost, p, q = (
        torch.rand(*shape, generator=g, dtype=torch.float64)
        for shape in ((count, n, m), (count, n), (count, m))
    )
    mask = torch.rand(count, n, m, generator=g) > 0.2
    mask[:, 0], mask[:, :, 0] = True, True
    p, q = p + 0.05, q + 0.05
    return cost, p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True), mask


#: Passes that all problems take together at regularisations of 0.05, 0.01 and 0.003.
PASSES = {
    "float32": (41, 76, 254),
    "float64": (49, 86, 281),
    "torch": (231, 567, 910),
}


@pytest.mark.parametrize("route", PASSES)
def test_a_solution_takes_as_many_passes_as_it_did(route):
    """A wrong Newton step, pace or level still ends at the plan, after more passes."""
    wanted = PASSES[route]
    cost, p, q, mask = small_problems(6, 14, 9) if route.startswith("float") else small_problems(16, 8, 6)
    cost = cost.float() if route == "float32" else cost
    for reg, want in zip((0.05, 0.01, 0.003), wanted, strict=True):
        t = nclib.ot.partial_sinkhorn(cost, 0.5, p, q, reg=reg, mask=mask)
        assert t.converged.all()
        assert t.iterations.sum().item() == pytest.approx(want, rel=0.02, abs=1)


def test_a_newton_step_is_solved_shortened_and_left_out():
    eye = torch.eye(2, dtype=torch.float64)
    right = torch.tensor([1.0, -0.5], dtype=torch.float64)
    step = newton_step(torch.stack([2 * eye, 0.01 * eye, -eye]), right.expand(3, 2))
    want = [[0.5, -0.25], [30.0, -15.0], [0.0, 0.0]]  # 100 and -50 are too long; the last is not definite
    torch.testing.assert_close(step, torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("seed", [23, 24, 38, 41, 75])
def test_scalings_below_the_smallest_number_are_left_to_the_logarithms(seed):
    g = torch.Generator().manual_seed(seed)
    cost = 1 - torch.sigmoid(2 * torch.randn(6, 17, generator=g) - 4)
    q, p = (torch.rand(n, generator=g).double() + 0.01 for n in (17, 6))
    found = nclib.ot.sinkhorn(cost, p / p.sum(), q / q.sum(), reg=0.003)
    exact = nclib.ot.sinkhorn(cost.double(), p / p.sum(), q / q.sum(), reg=0.003)
    assert bool(found.converged)
    torch.testing.assert_close(found.plan.double(), exact.plan, rtol=0, atol=1e-4)
