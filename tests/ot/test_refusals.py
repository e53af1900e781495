"""What the solvers refuse: each argument by its name, and before anything starts."""

import pytest
import torch
from refusals import refused

import nclib.ot
from nclib.ot import entropic

COST = torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
OFF, QUARTER = ~torch.eye(4, dtype=torch.bool), torch.ones(4) / 4
GIVEN = {
    "partial_sinkhorn": {"cost": COST, "mass": 0.1, "reg": 0.05, "mask": OFF},
    "sinkhorn": {"cost": COST, "p": QUARTER, "q": QUARTER, "reg": 0.1},
    "label_transport": {"cost": COST, "mass": 0.5, "class_marginal": QUARTER, "reg": 0.05},
    "scaling_plan": {"similarity": COST, "reg": 0.1},
}
HELD = [  # decided by what the host holds, wherever the cost lies
    ({"cost": COST.numpy()}, TypeError, "torch tensor"),
    ({"cost": COST.half()}, TypeError, "float32 or float64"),
    ({"cost": COST[0]}, ValueError, "shape"),
    ({"cost": COST.to_sparse()}, TypeError, "dense tensor, got one of layout torch.sparse_coo"),
    ({"cost": COST.to("meta")}, TypeError, "dense tensor, got one without values (device meta)"),
    ({"mass": 1.001, "mask": None}, ValueError, "mass 1.001 is infeasible: at most 1 "),
    ({"mass": -0.1}, ValueError, "mass must be finite and not negative"),
    ({"mass": float("nan")}, ValueError, "mass must be finite"),
    ({"mass": torch.tensor([0.1, 0.2])}, ValueError, "mass of shape"),
    ({"mass": "half"}, TypeError, "mass"),
    ({"p": torch.ones(3)}, ValueError, "p of shape"),
    ({"q": [1.0, -1.0, 0.5, 0.5]}, ValueError, "q must be finite and not negative"),
    ({"p": torch.ones(4, requires_grad=True)}, ValueError, "p requires a gradient"),
    ({"reg": 0.0}, ValueError, "reg"),
    ({"reg": float("inf")}, ValueError, "reg"),
    ({"mask": OFF.float()}, TypeError, "bool"),
    ({"mask": OFF[:3]}, ValueError, "mask of shape"),
    ({"method": "fast"}, ValueError, "method"),
    ({"stop": "early"}, ValueError, "stop"),
    ({"gradient": "unrolled"}, ValueError, "gradient"),
    ({"stop": "published", "gradient": "implicit"}, ValueError, "stop='published' has gradient='none'"),
    ({"tol": 0.0}, ValueError, "tol"),
    ({"tol": 2.0}, ValueError, "tol"),
    ({"max_iter": 0}, ValueError, "max_iter"),
]
NEITHER = torch.tensor([[True, False, False, False]])
SEEN = [  # only values show it, which are not looked at on a GPU
    ("partial_sinkhorn", {"cost": COST * torch.nan}, ValueError, "NaN or infinite"),
    ("partial_sinkhorn", {"cost": COST / 0}, ValueError, "NaN or infinite"),
    ("partial_sinkhorn", {"cost": COST / 0, "mask": None}, ValueError, "NaN or infinite"),
    ("partial_sinkhorn", {"cost": 1e20 * COST, "reg": 1e-3, "mask": None}, ValueError, "below the rounding"),
    ("partial_sinkhorn", {"reg": 1e-300}, ValueError, "partial_exact"),
    ("partial_sinkhorn", {"mask": NEITHER, "mass": 0.3}, ValueError, "infeasible"),
    ("label_transport", {"class_cap": "free"}, ValueError, "class_cap"),
    ("label_transport", {"class_marginal": 2 * QUARTER}, ValueError, "sum to 1"),
    ("label_transport", {"mass": 1.2}, ValueError, "mass"),
    ("label_transport", {"mass": None}, TypeError, "mass"),
    ("sinkhorn", {"p": 4 * QUARTER}, ValueError, "p sums to"),
    ("sinkhorn", {"mask": NEITHER}, ValueError, "infeasible"),
    ("scaling_plan", {"passes": 0}, ValueError, "passes"),
    ("scaling_plan", {"loop": "fast"}, ValueError, "loop"),
    ("scaling_plan", {"p": torch.ones(3) / 3}, ValueError, "p of shape"),
    ("scaling_plan", {"p": torch.tensor([-1.0, 1.0, 1.0, 0.0])}, ValueError, "p must be finite and not neg"),
    ("scaling_plan", {"q": torch.tensor([1.0, torch.nan, 0.0, 0.0])}, ValueError, "q must be finite"),
    ("scaling_plan", {"p": 3 * QUARTER.double(), "q": 4 * QUARTER.double()}, ValueError, "sums to 3"),
    ("scaling_plan", {"p": [0.25] * 4}, TypeError, "p must be a floating tensor, got list"),
    ("scaling_plan", {"reg": -1.0}, ValueError, "reg"),
    ("scaling_plan", {"reg": 1e-320}, ValueError, "is below the rounding of costs"),
]


@pytest.mark.parametrize(
    ("solver", "change", "error", "named"), [*(("partial_sinkhorn", *row) for row in HELD), *SEEN]
)
def test_bad_input_is_refused_by_name(solver, change, error, named):
    refused(error, lambda: getattr(nclib.ot, solver)(**GIVEN[solver] | change), named)


@pytest.mark.parametrize(("change", "error", "named"), HELD)
def test_what_the_host_holds_is_checked_before_the_launch(change, error, named, monkeypatch):
    monkeypatch.setattr(entropic, "place", lambda *_: "kernel")
    given = GIVEN["partial_sinkhorn"] | {"stop": "published"} | change
    refused(error, lambda: nclib.ot.partial_sinkhorn(**given), named)


@pytest.mark.parametrize(("dtype", "total"), [(torch.float32, 1e-100), (torch.float64, 1e-305)])
def test_mass_that_no_plan_can_hold_is_refused(dtype, total):
    cost, weight = COST.to(dtype), total * QUARTER.double()
    for solver, given in (
        ("exact", {"p": weight, "q": weight}),
        ("partial_exact", {"mass": total / 2, "p": weight, "q": weight}),
        ("sinkhorn", {"p": weight, "q": weight, "reg": 0.1}),
        ("partial_sinkhorn", {"mass": total / 2, "p": weight, "q": weight, "reg": 0.1}),
        ("partial_sinkhorn", {"mass": total, "reg": 0.1}),
    ):
        call = getattr(nclib.ot, solver)
        refused(ValueError, lambda call=call, given=given: call(cost, **given), "mass", str(dtype), "near 1")
