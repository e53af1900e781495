"""Where transport is solved, and that nothing waits for a GPU; no GPU is needed."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import nclib.ot
from nclib.ot import entropic, kernels
from nclib.ot.transport import moved


@pytest.mark.parametrize(
    ("kind", "kernel", "stop", "method", "shape", "where"),
    [
        ("cpu", False, "published", "auto", (128, 128), "here"),
        ("cpu", False, "accurate", "auto", (1000, 128, 128), "here"),
        ("cuda", True, "published", "auto", (128, 128), "kernel"),
        ("cuda", True, "published", "scaling", (64, 16, 1000), "kernel"),  # padded to 2**14 entries
        ("cuda", True, "published", "auto", (64, 129, 512), "kernel"),  # in tiles of rows
        ("cuda", True, "published", "auto", (513, 512), "host"),
        ("cuda", True, "published", "log", (128, 128), "host"),
        ("cuda", False, "published", "auto", (128, 128), "host"),
        ("cuda", True, "accurate", "auto", (128, 128), "kernel"),
        ("cuda", True, "accurate", "scaling", (64, 512, 300), "kernel"),
        ("cuda", True, "accurate", "auto", (16, 1000), "host"),
        ("cuda", False, "accurate", "auto", (2, 4, 128, 128), "host"),
        ("cuda", False, "accurate", "auto", (256, 128, 128), "here"),
        ("cuda", False, "accurate", "auto", (5000, 4, 4), "here"),
        ("cuda", True, "accurate", "log", (8, 8), "here"),
    ],
)
def test_the_place_depends_on_device_rule_number_and_size(kind, kernel, stop, method, shape, where):
    assert entropic.place(kind, kernel, stop, method, shape) == where


SOLVERS = {
    "published": lambda c, **rest: nclib.ot.partial_sinkhorn(c, 0.2, reg=0.05, stop="published", **rest),
    "partial": lambda c, **rest: nclib.ot.partial_sinkhorn(c, 0.2, reg=0.05, **rest),
    "balanced": lambda c, **rest: nclib.ot.sinkhorn(c, reg=0.05, **rest),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_copy_on_the_host_gives_what_the_host_gives(solver, monkeypatch):
    cost = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
    mask = ~torch.eye(6, dtype=torch.bool)
    found = []
    for where in ("here", "host"):
        monkeypatch.setattr(entropic, "place", lambda *_, where=where: where)
        t = SOLVERS[solver](cost, mask=mask)
        found.append([t.plan, t.row_error, t.iterations, t.potentials.f, t.problem.p])
        assert not t.problem.cost.requires_grad
        assert t.problem.cost.data_ptr() == cost.data_ptr()
        if solver != "published":
            plan = SOLVERS[solver](cost, mask=mask, gradient="implicit").plan
            found[-1] += torch.autograd.grad(plan.square().sum(), cost)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_all_of_a_result_goes_to_the_device():
    t = moved(SOLVERS["partial"](torch.rand(3, 4, 5), mask=torch.ones(4, 5).bool()), torch.device("meta"))
    parts = [*vars(t).values(), *vars(t.potentials).values(), *vars(t.problem).values()]
    tensors = [x for x in parts if isinstance(x, torch.Tensor)]
    assert len(tensors) == 14
    assert all(x.is_meta for x in tensors)


class Kernel:
    """A kernel that starts nothing, on tensors without values."""

    def __getitem__(self, grid):
        self.grid = grid
        return lambda *given, **flags: setattr(self, "given", given)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_the_kernel_is_reached_without_waiting(batch, masked, given, monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(nclib.ot, "_triton", SimpleNamespace(published=kernel), raising=False)
    monkeypatch.setattr(kernels, "available", lambda device: device.type == "cuda")
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: nullcontext())
    # tensors of this mode have no values: what asks for one fails
    with FakeTensorMode(allow_non_fake_inputs=True):
        cost = torch.rand(*batch, 9, 12, device="cuda")
        mask = torch.ones(9, 12, dtype=torch.bool, device="cuda") if masked else None
        mass, *sides = [torch.rand(x, device="cuda") for x in (batch, 9, 12)] if given else [0.3]
        t = nclib.ot.partial_sinkhorn(cost, mass, *sides, reg=0.07, mask=mask, stop="published")
        assert t.plan.device == t.iterations.device == t.potentials.f.device == cost.device
    assert t.plan.shape == (*batch, 9, 12)
    assert t.converged.shape == t.row_error.shape == batch
    assert kernel.grid == (6 if batch else 1,)
    assert {x.device.type for x in kernel.given if isinstance(x, torch.Tensor)} == {"cuda"}
