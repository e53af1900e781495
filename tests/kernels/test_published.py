"""The kernel of the published rule in Triton's interpreter, beside the loop on the host."""

import pytest
import torch

import nclib.ot
from nclib.ot import entropic, kernels
from nclib.ot.problem import Problem, SolverSettings

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter: log(0), NaN
OPEN = {"reg": 0.07, "stop": "published"}


def problem(shape, seed=0, holes=0.0, dtype=torch.float64):
    """Costs, a mask, and weights that are neither uniform nor of one total."""
    g = torch.Generator().manual_seed(seed)
    *batch, n, m = shape
    cost = 0.2 + torch.rand(shape, generator=g, dtype=dtype)
    p, q = (0.3 + torch.rand(*batch, size, generator=g, dtype=torch.float64) for size in (n, m))
    mask = torch.rand(shape, generator=g) >= holes
    mask[..., 0, :] = mask[..., :, 0] = True
    return cost, p / p.sum(-1, keepdim=True), 1.2 * q / q.sum(-1, keepdim=True), mask


def both(monkeypatch, *given, **options):
    """Solve on the host and by the kernel."""
    host = nclib.ot.partial_sinkhorn(*given, **options)
    with monkeypatch.context() as patch:
        patch.setattr(entropic, "place", lambda *_: "kernel")
        return host, nclib.ot.partial_sinkhorn(*given, **options)


def agree(host, kernel, rtol=1e-9):
    assert kernel.iterations.tolist() == host.iterations.tolist()
    assert kernel.converged.tolist() == host.converged.tolist()
    parts = [(t.plan, t.row_error, t.col_error, *vars(t.potentials).values()) for t in (host, kernel)]
    for want, got in zip(*parts, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=rtol, atol=1e-14 if rtol < 1e-8 else 1e-9)


def plans_agree(monkeypatch, shape, reg, dtype, rtol, every=1):
    cost, p, q, mask = problem(shape, holes=0.3, dtype=dtype)
    mass = torch.linspace(0.1, 0.6, cost[..., 0, 0].numel(), dtype=torch.float64).reshape(shape[:-2])
    ways = [((None, None), None), ((None, None), mask), ((p, q), None), ((p, q), mask)]
    for sides, allowed in ways[::every]:
        host, kernel = both(monkeypatch, cost, mass, *sides, reg=reg, mask=allowed, stop="published")
        agree(host, kernel, rtol)
        assert kernel.plan.isfinite().all()


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize(
    ("shape", "reg"),
    [((1, 1), 0.07), ((7, 13), 0.01), ((3, 7, 13), 0.07), ((2, 2, 16, 9), 0.5), ((128, 128), 0.07)],
)
def test_plans_passes_and_errors_are_those_of_the_host(shape, reg, dtype, rtol, monkeypatch):
    plans_agree(monkeypatch, shape, reg, dtype, rtol)


@pytest.mark.parametrize(
    ("shape", "reg"), [((1, 1), 0.07), ((7, 13), 0.01), ((3, 33, 20), 0.07), ((2, 2, 20, 9), 0.5)]
)
def test_tiles_of_rows_give_what_the_host_does(shape, reg, tiles, monkeypatch):
    plans_agree(monkeypatch, shape, reg, torch.float64, 1e-9, every=3)


def test_a_batch_of_l2rm_with_a_sharp_regularisation(monkeypatch):
    cost, *_ = problem((128, 128), seed=3, dtype=torch.float32)
    off = ~torch.eye(128, dtype=torch.bool)
    agree(*both(monkeypatch, cost, 0.1, reg=0.01, mask=off, stop="published"), rtol=1e-5)


@pytest.mark.parametrize("mass", [0.0, 0.4, 1.0])
def test_all_or_none_of_the_mass_and_rows_without_weight(mass, monkeypatch):
    cost, p, q, _ = problem((9, 11), seed=1)
    p[7:], q[8:] = 0, 0
    p, q = p / p.sum(), q / q.sum()
    host, kernel = both(monkeypatch, cost, mass, p, q, tol=1e-5, **OPEN)
    torch.testing.assert_close(kernel.plan, host.plan, rtol=1e-5, atol=1e-7)
    assert kernel.converged == host.converged
    assert kernel.iterations.item() == pytest.approx(host.iterations.item(), rel=0.05)


@pytest.mark.parametrize("limits", [{"max_iter": 1}, {"max_iter": 4}, {"tol": 1e-7, "max_iter": 5000}])
def test_limits_are_those_of_the_host(limits, monkeypatch):
    cost, p, q, mask = problem((6, 8), seed=2, holes=0.2)
    agree(*both(monkeypatch, cost, 0.3, p, q, mask=mask, **limits, **OPEN), rtol=1e-7)


def test_what_is_not_finite_counts_where_it_is_allowed_only(monkeypatch):
    cost, _, _, mask = problem((3, 6, 8))
    mask[:, 2, 3] = mask[:, 4, 4] = False
    cost[0, 2, 3], cost[1, 2, 3] = torch.nan, torch.inf
    cost[2, 4, 4] = 3.0  # of the official code: forbidden costs raise the corner's
    agree(*both(monkeypatch, cost, 0.3, mask=mask, **OPEN))


FAULTS = {
    "not a number": lambda cost, mask, p, mass: cost[2, 3].fill_(torch.nan),
    "infinite": lambda cost, mask, p, mass: cost[2, 3].fill_(torch.inf),
    "wide": lambda cost, mask, p, mass: cost[2, 3].fill_(40.0),
    "far from zero": lambda cost, mask, p, mass: cost.add_(30.0),
    "no way out of a row": lambda cost, mask, p, mass: mask[2].fill_(False),
    "crowded into one column": lambda cost, mask, p, mass: mask[:, 1:].fill_(False),
    "negative weight": lambda cost, mask, p, mass: p[1].fill_(-0.1),
    "weight not a number": lambda cost, mask, p, mass: p[1].fill_(torch.nan),
    "too heavy": lambda cost, mask, p, mass: mass.fill_(1.01),
    "mass not a number": lambda cost, mask, p, mass: mass.fill_(torch.nan),
}


@pytest.mark.parametrize("tile", [kernels.TILE_ENTRIES, 16])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_only_values_show_give_plans_of_nan(fault, tile, monkeypatch):
    monkeypatch.setattr(kernels, "TILE_ENTRIES", tile)
    cost, p, q, mask = problem((2, 6, 8), seed=4)
    mass = torch.full((2,), 0.3, dtype=torch.float64)
    FAULTS[fault](cost[1], mask[1], p[1], mass[1])
    given = Problem(cost, mask, p, q, mass, 0.07, "extended")  # as of numbers on a GPU, without a look
    t = kernels.published(given, SolverSettings("auto", 1e-3, 1000))
    assert t.plan[1].isnan().all()
    assert not t.converged[1]
    assert t.iterations[1] == 0
    good = nclib.ot.partial_sinkhorn(cost[0], 0.3, p[0], q[0], mask=mask[0], **OPEN)
    torch.testing.assert_close(t.plan[0], good.plan)


def test_a_batch_of_256_in_tiles(monkeypatch):
    cost, *_ = problem((2, 256, 200), seed=5, dtype=torch.float32)
    agree(*both(monkeypatch, cost, 0.1, reg=0.07, stop="published"), rtol=1e-5)
