"""One problem with uniform weights: the quick path agrees with the general one, or leaves it the problem."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nclib.ot
from nclib.ot import cpu

FORMS = ("partial", "balanced")


def solve(form: str, cost: torch.Tensor, mass: float, reg: float, mask, plain: bool, **options):
    """Solve by the quick path, or, with the uniform weights said, by the general one."""
    n, m = cost.shape[-2:]
    p, q = (None, None) if plain else (torch.full((k,), 1 / k, dtype=torch.float64) for k in (n, m))
    if form == "balanced":
        return nclib.ot.sinkhorn(cost, p, q, reg=reg, mask=mask, **options)
    return nclib.ot.partial_sinkhorn(cost, mass, p, q, reg=reg, mask=mask, **options)


@pytest.fixture
def taken(monkeypatch):
    """The number of problems that the quick path solved, in a list."""
    found, run = [0], cpu.solve_plain

    def counted(*args):
        answer = run(*args)
        found[0] += answer is not None
        return answer

    monkeypatch.setattr(cpu, "solve_plain", counted)
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(1, 40),
    st.floats(0.01, 0.9),
    st.sampled_from([0.01, 0.1, 1.0]),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(FORMS),
    st.booleans(),
    st.booleans(),
)
def test_both_paths_agree(seed, n, m, mass, reg, dtype, form, holes, turned):
    g = torch.Generator().manual_seed(seed)
    cost = 2 * torch.rand(n, m, generator=g, dtype=dtype) - 0.5
    if turned:  # memory by columns
        cost = cost.T.contiguous().T
    mask = torch.rand(n, m, generator=g) > 0.1 if holes else None
    if mask is not None:
        mask.fill_diagonal_(True)
        form = "partial" if n != m else form  # all of the weight flows along the diagonal
        mass *= min(n, m) / max(n, m)
    other = solve(form, cost, mass, reg, mask, plain=False)
    if mask is not None:
        cost[~mask] = 1e10  # leaves no trace
    found = solve(form, cost, mass, reg, mask, plain=True)
    close = 1e-6 if dtype == torch.float64 else 5e-3
    torch.testing.assert_close(found.plan, other.plan, rtol=close, atol=1e-9)
    assert found.plan.is_contiguous()
    assert found.converged
    assert found.problem.formulation == other.problem.formulation
    for name in ("plan", "row_error", "col_error", "iterations", "converged"):
        mine, theirs = getattr(found, name), getattr(other, name)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    for mine, theirs in zip(vars(found.potentials).values(), vars(other.potentials).values(), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    assert float(found.certify().gap.abs()) < 1e-4 * reg * max(1.0, float(found.problem.mass)) + 1e-7


def test_a_training_step_takes_the_quick_path(taken):
    cost, off = torch.rand(16, 16), ~torch.eye(16, dtype=torch.bool)
    for dtype in (torch.float32, torch.float64):
        for mask in (off, None):
            nclib.ot.partial_sinkhorn(cost.to(dtype), 0.1, reg=0.07, mask=mask)
            nclib.ot.sinkhorn(cost.to(dtype), reg=0.07, mask=mask)
    assert taken == [8]


@pytest.mark.parametrize(
    "change",
    [
        {"mass": torch.tensor(0.1)},
        {"mass": 1.0},
        {"cost": torch.linspace(0, 1, 50).view(2, 5, 5)},
        {"mask": torch.ones(1, 5, dtype=torch.bool)},
        {"mask": torch.arange(25).view(5, 5) >= 5},  # the first row has no entry
        {"cost": torch.full((5, 5), torch.nan).fill_diagonal_(0.5), "mask": torch.eye(5, dtype=torch.bool)},
        {"reg": 1e-4},  # beyond the range of float32 and of float64
        {"method": "log"},
    ],
    ids=("mass in a tensor", "all mass", "a batch", "mask of a row", "empty row", "nan", "reg", "method"),
)
def test_what_is_not_plain_is_left_to_the_general_path(taken, change):
    g = torch.Generator().manual_seed(0)
    problem = {"cost": torch.rand(5, 5, generator=g), "mass": 0.1, "reg": 0.05, **change}
    found = nclib.ot.partial_sinkhorn(problem.pop("cost"), problem.pop("mass"), **problem)
    assert found.converged.all()
    assert taken == [0] or change == {"reg": 1e-4}


@pytest.mark.parametrize("form", FORMS)
def test_the_lowest_cost_may_be_a_forbidden_one(form, taken):
    cost, off = torch.rand(9, 9, generator=torch.Generator().manual_seed(0)), ~torch.eye(9, dtype=torch.bool)
    plain = solve(form, cost, 0.3, 0.05, off, plain=True)
    found = solve(form, cost - 100 * torch.eye(9), 0.3, 0.05, off, plain=True)
    assert taken == [2]
    assert torch.equal(found.plan, plain.plan)


def test_the_shared_weights_cannot_be_changed():
    found = nclib.ot.partial_sinkhorn(torch.rand(4, 6), 0.1, reg=0.1)
    with pytest.raises(RuntimeError):
        found.problem.p += 1
    found.plan.zero_()
    found.potentials.f.zero_()
    again = nclib.ot.partial_sinkhorn(torch.rand(4, 6), 0.1, reg=0.1)
    assert float(again.plan.sum()) == pytest.approx(0.1)
    assert torch.equal(again.problem.p, torch.full((4,), 0.25, dtype=torch.float64))
