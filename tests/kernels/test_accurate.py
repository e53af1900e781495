"""The kernel of the accurate rule in Triton's interpreter, beside the solver of the host."""

import pytest
import torch
from test_published import FAULTS, problem

import nclib.ot
from nclib.ot import entropic, kernels
from nclib.ot.problem import Problem, SolverSettings, partial_problem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter: log(0), NaN
TOL = {torch.float32: 1e-5, torch.float64: 1e-9}


@pytest.fixture
def by_kernel(monkeypatch):
    """Solve by the kernel as on a GPU; ``found`` collects what it gave."""
    place, solve, found = entropic.place, kernels.accurate, []

    def kept(*given):
        found.append(solve(*given))
        return found[-1]

    monkeypatch.setattr(kernels, "accurate", kept)
    monkeypatch.setattr(entropic, "place", lambda _, kernel, *rest: place("cuda", bool(not found), *rest))
    return found


def gap(plan, best, mass):
    return float(((plan.double() - best).abs().sum((-2, -1)) / mass).max())


@pytest.mark.parametrize("dtype", TOL)
@pytest.mark.parametrize(
    ("shape", "reg"),
    [((1, 1), 0.07), ((7, 13), 0.02), ((3, 13, 7), 0.07), ((2, 2, 16, 9), 0.5), ((2, 129, 40), 0.07)],
)
def test_plans_are_as_near_to_the_optimum_as_asked(shape, reg, dtype, by_kernel):
    cost, p, q, mask = problem(shape, holes=0.3, dtype=dtype)
    mass = torch.linspace(0.1, 0.5, cost[..., 0, 0].numel(), dtype=torch.float64).reshape(shape[:-2])
    for sides, allowed in (((None, None), None), ((None, None), mask), ((p, q), None), ((p, q), mask)):
        by_kernel.clear()
        t = nclib.ot.partial_sinkhorn(cost, mass, *sides, reg=reg, mask=allowed)
        assert t is by_kernel[0]
        assert t.converged.all()
        assert t.plan.dtype == dtype
        given = cost.double(), mass, *sides
        best = nclib.ot.partial_sinkhorn(*given, reg=reg, mask=allowed, tol=1e-12)
        assert gap(t.plan, best.plan, mass) <= TOL[dtype]
        assert t.mass_error.max() <= max(TOL[dtype] / 100, 1e-9)
        evidence = t.certify()
        assert evidence.gap.abs().max() <= 10 * TOL[dtype]


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, "sharp"), (torch.float64, "topics")])
def test_a_batch_of_l2rm(dtype, kind, by_kernel):
    g = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(64, 64, generator=g) + torch.randn(64, 1, generator=g) - 4
    x = torch.nn.functional.normalize(torch.randn(2, 64, 8, generator=g), dim=-1)
    cost = (1 - logits.sigmoid() if kind == "sharp" else (1 - x[0] @ x[1].mT) / 2).to(dtype)
    off = ~torch.eye(64, dtype=torch.bool)
    t = nclib.ot.partial_sinkhorn(cost[None], 0.1, reg=0.01, mask=off)
    assert t is by_kernel[0]
    best = nclib.ot.partial_sinkhorn(cost.double(), 0.1, reg=0.01, mask=off, tol=1e-12)
    assert gap(t.plan, best.plan, 0.1) <= TOL[dtype]
    assert (t.plan[0].diagonal() == 0).all()


def test_weights_of_zero_and_entries_that_nothing_reaches(by_kernel):
    cost, p, q, mask = problem((9, 11), seed=1)
    p[7:], q[8:] = 0, 0
    mask[2], mask[:, 3] = False, False
    cost[2, 4] = torch.inf  # forbidden
    t = nclib.ot.partial_sinkhorn(cost, 0.4, p, q, reg=0.07, mask=mask)
    assert t is by_kernel[0]
    host = nclib.ot.partial_sinkhorn(cost, 0.4, p, q, reg=0.07, mask=mask, tol=1e-12)
    sums = [(x.f[:, None] + x.g, x.f + x.g_slack, x.g + x.f_slack) for x in (t.potentials, host.potentials)]
    for got, want in zip(*sums, strict=True):  # the potentials themselves may differ by a constant
        torch.testing.assert_close(got, want, rtol=0, atol=1e-8)
    torch.testing.assert_close(t.plan, host.plan, rtol=0, atol=1e-9)


def test_all_the_mass_and_none_of_it(by_kernel):
    cost = problem((3, 6, 6), seed=2)[0]
    mass = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    t = nclib.ot.partial_sinkhorn(cost, mass, reg=0.1)
    assert t is by_kernel[0]
    assert t.converged.all()
    host = nclib.ot.partial_sinkhorn(cost, mass, reg=0.1, tol=1e-12)
    torch.testing.assert_close(t.plan, host.plan, rtol=0, atol=1e-9)
    parts = zip(vars(host.potentials).values(), vars(t.potentials).values(), strict=True)
    assert all(torch.equal(want[:1].isinf(), got[:1].isinf()) for want, got in parts)
    assert t.iterations[0] == 0


def test_balanced_transport_and_its_gradient(by_kernel):
    cost = problem((2, 6, 8), seed=5)[0].requires_grad_()
    found = []
    for _ in range(2):  # by the kernel, then on the host
        plan = nclib.ot.sinkhorn(cost, reg=0.2, gradient="implicit").plan
        found.append([plan.detach(), *torch.autograd.grad((plan * cost.detach()).square().sum(), cost)])
    assert torch.equal(found[0][0], by_kernel[0].plan)
    torch.testing.assert_close(*found, rtol=0, atol=1e-8)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_host_refuses_has_not_converged(fault):
    cost, p, q, mask = problem((2, 6, 8), seed=4)
    mass = torch.full((2,), 0.3, dtype=torch.float64)
    FAULTS[fault](cost[1], mask[1], p[1], mass[1])
    given = Problem(cost, mask, p, q, mass, 0.07, "extended")  # as of numbers on a GPU, without a look
    fine = {"far from zero", "no way out of a row"}  # of this rule
    t = kernels.accurate(given, SolverSettings("auto", 1e-9, 1000))
    assert t.converged.tolist() == [True, fault in fine]
    good = nclib.ot.partial_sinkhorn(cost[0], 0.3, p[0], q[0], mask=mask[0], reg=0.07)
    torch.testing.assert_close(t.plan[0], good.plan, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cost, mask: cost[1, 2, 3].fill_(torch.nan), "NaN or infinite"),
        (lambda cost, mask: mask[:, 1:].fill_(False), "mass 0.3 is infeasible"),
    ],
)
def test_an_error_is_that_of_the_host(change, message, by_kernel):
    cost, _, _, mask = problem((2, 6, 8), seed=4)
    change(cost, mask[0] if "infeasible" in message else mask)
    with pytest.raises(ValueError, match=message):
        nclib.ot.partial_sinkhorn(cost, 0.3, reg=0.07, mask=mask)
    assert not by_kernel[0].converged.all()


def test_a_problem_that_needs_newton_steps_is_left_to_the_host(by_kernel):
    cost = problem((24, 24), seed=6)[0]
    t = nclib.ot.partial_sinkhorn(cost, 0.95, reg=0.003)
    assert by_kernel[0].iterations == kernels.MOST_PASSES
    assert not by_kernel[0].converged
    assert t.converged


def test_tiles_and_several_launches_give_the_same(request):
    cost, p, q, mask = problem((3, 33, 20), holes=0.3)
    given = partial_problem(cost, 0.3, p, q, 0.07, mask)
    whole = kernels.accurate(given, SolverSettings("auto", 1e-9, 1000))
    request.getfixturevalue("tiles")
    tiles = kernels.accurate(given, SolverSettings("auto", 1e-9, 1000))
    assert tiles.converged.all()
    assert whole.iterations.tolist() == tiles.iterations.tolist()
    torch.testing.assert_close(tiles.plan, whole.plan, rtol=0, atol=1e-12)
