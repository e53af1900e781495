"""The kernel for partial transport in Triton's interpreter: against the plain path in float64."""

import importlib
from pathlib import Path

import pytest
import torch

import nclib.ot
from nclib.ot.backends import device, fused, fused_partial

pytestmark = pytest.mark.filterwarnings(
    "ignore:(divide|invalid|overflow).*:RuntimeWarning"
)  # the interpreter's
KEYS = ("f", "g", "f_slack", "g_slack")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Let tensors on the CPU pass for those on a GPU; count the problems that the plain path was left."""
    left, solve = [], device.solve

    def counted(problem, buffers, index, *how):
        if fused._asked:
            left.append(len(index))
        return solve(problem, buffers, index, *how)

    monkeypatch.setattr(fused, "asked", lambda s: fused._asked and s.dtype == torch.float32)
    monkeypatch.setattr(device, "solve", counted)
    return left


def costs(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def both(cost, mass, **options):
    """Return what the kernel gives and what the plain path gives in float64, to its tolerance there."""
    exact = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in options.items()}
    best = nclib.ot.partial_sinkhorn(cost.double(), mass, **exact | {"max_iter": 1000})
    with nclib.ot.fused():
        return nclib.ot.partial_sinkhorn(cost, mass, **options), best


def same(found, best, rtol=1e-5):
    """Compare plans in the L1 norm, relative to the mass of each problem, and what the evidence says."""
    mass = best.problem.mass.clamp_min(1e-30)
    gap = (found.plan.double() - best.plan).abs().sum((-2, -1)) / mass
    assert bool((gap <= rtol).all()), gap
    assert bool(found.converged.all())
    assert bool((found.mass_error <= 1e-6).all())
    assert found.plan.dtype == torch.float32
    for key in KEYS:
        a, b = (getattr(x.potentials, key) for x in (found, best))
        assert torch.equal(a.isfinite(), b.isfinite()), key
    p = found.potentials
    exponent = (p.f.unsqueeze(-1) + p.g.unsqueeze(-2) - found.problem.cost) / found.problem.reg
    plan = exponent.exp() if found.problem.mask is None else exponent.exp() * found.problem.mask
    torch.testing.assert_close(plan.float(), found.plan, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("size", [1, 5, 24, 128, 130, 512])
@pytest.mark.parametrize("reg", [0.02, 0.1])
def test_square_batches_with_a_forbidden_diagonal(size, reg, here):
    off = ~torch.eye(size, dtype=torch.bool) if size > 1 else None
    same(*both(costs(size, size), 0.1, reg=reg, mask=off))
    assert here == []
    assert fused_partial.settings(size, size)["HELD"] == (size <= 128)


@pytest.mark.parametrize("mass", [1e-3, 0.02, 0.5, 0.95, 1.0])
def test_masses_up_to_all_that_there_is(mass, here):
    same(*both(costs(20, 20), mass, reg=0.1))
    assert sum(here) == (mass < 0.01)  # there the rounding of float32 exceeds the tolerance


@pytest.mark.parametrize(("n", "m"), [(3, 40), (40, 3), (130, 129), (260, 70)])
def test_sides_of_different_length_weights_and_random_masks(n, m, here):
    g = torch.Generator().manual_seed(n)
    p, q = torch.rand(n, generator=g), torch.rand(m, generator=g)
    mask = torch.rand(n, m, generator=g) < 0.7
    p[0] = q[1] = 0  # padding
    mask[1], mask[:, 2] = False, False  # a row and a column that nothing can leave or reach
    p, q = p / p.sum(), q / q.sum()
    found, best = both(costs(n, m), 0.2, reg=0.1, mask=mask, p=p, q=q)
    same(found, best)
    assert (found.plan[~mask] == 0).all()
    assert (found.plan[:2] == 0).all()
    assert found.potentials.f[1] == -torch.inf
    assert here == []


def test_a_batch_holds_easy_hard_and_empty_problems(here):
    cost, few = costs(4, 12, 12), {"reg": 0.02, "max_iter": 60}
    cost[1] *= 30  # the kernel leaves the range of float32
    mass = torch.tensor([0.2, 0.6, 0.0, 0.4], dtype=torch.float64)
    found, best = both(cost, mass, **few)
    same(found, best)
    assert (found.plan[2] == 0).all()
    assert here[0] == 2  # the second and the empty one
    with nclib.ot.fused():
        alone = nclib.ot.partial_sinkhorn(cost[[0, 3]], mass[[0, 3]], **few)
    assert torch.equal(alone.plan, found.plan[[0, 3]])


def test_slow_contraction_goes_to_the_plain_path(here):
    same(*both(costs(12, 12), 0.9, reg=0.02, max_iter=60))
    assert here == [1]


def test_bad_problems_are_refused_as_elsewhere():
    cost, off = costs(6, 6), torch.zeros(6, 6, dtype=torch.bool)
    off[0] = True  # one row can leave
    for broken, options, message in (
        (cost, {"mask": off}, "infeasible"),
        (torch.where(cost > 0.9, torch.inf, cost), {}, "NaN or infinite"),
        (torch.where(cost > 0.9, torch.nan, cost), {}, "NaN or infinite"),
        (cost, {"mask": off.float()}, "bool"),
        (cost, {"mask": off[:3]}, "does not fit"),
    ):
        with nclib.ot.fused(), pytest.raises((TypeError, ValueError), match=message):
            nclib.ot.partial_sinkhorn(broken, 0.5, reg=0.1, **options)


def test_forbidden_costs_are_not_read():
    cost, mask = costs(9, 9), ~torch.eye(9, dtype=torch.bool)
    broken = cost.masked_fill(~mask, torch.nan)
    with nclib.ot.fused():
        plans = [nclib.ot.partial_sinkhorn(x, 0.3, reg=0.1, mask=mask).plan for x in (cost, broken)]
    assert torch.equal(*plans)


def test_balanced_problems_and_implicit_gradients(here):
    cost = costs(3, 7, 7)
    with nclib.ot.fused():
        found = nclib.ot.sinkhorn(cost, reg=0.2)
    same(found, nclib.ot.sinkhorn(cost.double(), reg=0.2))
    grads = []
    for on in (False, True):
        x = cost.clone().to(torch.float32 if on else torch.float64).requires_grad_()
        with nclib.ot.fused(on):
            plan = nclib.ot.partial_sinkhorn(x, 0.3, reg=0.1, gradient="implicit").plan
        (plan.square() * cost).sum().backward()
        grads.append(x.grad.double())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-3, atol=1e-4 * float(grads[0].abs().max()))


def test_what_the_kernel_does_not_take(here):
    cost = costs(6, 6)
    for options in ({"formulation": "capped"}, {"method": "log"}, {"stop": "published"}):
        plain = nclib.ot.partial_sinkhorn(cost, 0.3, reg=0.1, **options).plan
        with nclib.ot.fused():
            assert torch.equal(nclib.ot.partial_sinkhorn(cost, 0.3, reg=0.1, **options).plan, plain)
    wide = nclib.ot.problem.partial_problem(costs(2, 513), 0.1, None, None, 0.1, None, "extended")
    with nclib.ot.fused():
        assert not fused_partial.takes(wide, nclib.ot.problem.Settings("auto", 1e-5, 100))


def test_make_gpu_measures_both_paths(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "book" / "bench")
    gpu = importlib.import_module("gpu")
    monkeypatch.setattr(gpu, "no_kernels", lambda bench: {})
    monkeypatch.setattr(gpu, "SOLVERS", {name: gpu.SOLVERS[name] for name in gpu.KERNELS})
    monkeypatch.setattr(gpu, "timed", lambda run, device, seconds: {"ms": 1.0, "found": run() is not None})
    bench = gpu.Bench(torch.device("cpu"), True, "", tmp_path)
    rows = gpu.fused_problems(2, bench)["rows"]
    assert [row["path"] for row in rows] == ["plain", "fused"] * 2
    assert all(row["difference"] < 1e-4 and row["bytes"] > 0 for row in rows), rows
    agreed = gpu.agree_transport(bench)
    assert agreed["agree"]
    assert {f"{name}, fused float32" for name in gpu.KERNELS} <= agreed["cases"].keys()
    solvers = gpu.on_device(8, gpu.ot_partial.costs(8)["narrow"], 0.07, bench)
    torch.testing.assert_close(solvers["nclib fused"](), solvers["nclib"](), rtol=1e-4, atol=1e-7)
