"""Corner cases of entropic transport: empty rows, passes that a solution takes, scalings out of range."""

import pytest
import torch

import nclib.ot
from nclib.ot import cpu
from nclib.ot.cpu import _Pace
from nclib.ot.device import newton_step


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
PASSES = {"float32": (41, 76, 254), "float64": (49, 86, 281), "torch": (231, 567, 910)}


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


def test_passes_and_newton_steps_have_an_end():
    cost, p, q, mask = (x[0] for x in small_problems(1, 14, 9))
    with pytest.warns(UserWarning, match="max_iter=8"):
        t = nclib.ot.partial_sinkhorn(cost, 0.5, p, q, reg=0.003, mask=mask, max_iter=8)
    assert not t.converged
    pace = _Pace(1e-9, 5.0, 0)
    assert [pace.judge(error, True, False).name for error in (1e-2, 5e-3)] == ["BLOCK", "NEWTON"]
    pace.newtons = cpu.MAX_NEWTON
    assert pace.judge(2.5e-3, True, False).name == "BLOCK"


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
