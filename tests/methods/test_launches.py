"""Launches of an L2RM step between its compiled graphs, as a GPU makes them: counted on the device "meta"."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nclib.common.method import loss_terms
from nclib.methods import l2rm
from nclib.methods.parts import apart
from nclib.models import compiled, sgraf
from nclib.models.encoders import BiGRU

BETWEEN = 80
"""Most launches between the graphs of a step, without those of cuDNN, clipping and the optimisers."""

NO_LAUNCH = {
    *("view", "_unsafe_view", "t", "transpose", "expand", "select", "slice", "unsqueeze", "detach", "alias"),
    "copy_",  # of batch norm's statistics: Inductor leaves them in the graph
    *("split", "unbind", "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"),
}


class Launches(TorchDispatchMode):
    """Counts the operations on the device outside of graphs by name, and the graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.inside = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let the compiler compile under this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        on_device = any(isinstance(x, Tensor) and x.is_meta for x in tree_leaves((args, kwargs, out)))
        if on_device and not self.inside and name not in NO_LAUNCH:
            self.found[name] += 1
        return out

    @contextlib.contextmanager
    def graph(self, name: str) -> Any:
        """Count what is launched within as one graph."""
        self.found[name] += not self.inside
        self.inside += 1
        yield
        self.inside -= 1

    def compiler(self, function: Any) -> Any:
        """Compile a function to graphs that are counted, forward and backward."""

        def made(graph: Any, inputs: Any) -> Any:
            def run(given: list[Any]) -> Any:
                with self.graph("graph"):
                    return graph.forward(*given)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        backend = aot_autograd(fw_compiler=made, bw_compiler=made)
        return torch.compile(function, dynamic=None, fullgraph=True, backend=backend)


class Recurrent(torch.autograd.Function):
    """What cuDNN does in launches of its own: one direction of a GRU."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, start: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(given, start, *weights)
        return given.new_empty(*given.shape[:2], start.shape[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


class Idle:
    """An optimiser that moves nothing."""

    def __init__(self, weights: Any) -> None:
        self.weights, self.param_groups = list(weights), [{}]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for w in self.weights:
            w.grad = None

    def step(self) -> None:
        pass


@pytest.mark.slow
def test_a_step_of_l2rm_launches_few_kernels_between_its_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    compiled._configure()
    count, made = Launches(), dict[Any, Any]()
    monkeypatch.setattr(compiled, "_compiled", lambda f: made.get(f) or made.setdefault(f, count.compiler(f)))
    for module in (compiled, sgraf):
        monkeypatch.setattr(module, "wanted", lambda device: True)
    monkeypatch.setattr(BiGRU, "alone", staticmethod(lambda device: True))
    monkeypatch.setattr(
        torch, "gru", lambda x, start, weights, *_: (Recurrent.apply(x, start, *weights), None)
    )
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # not for "meta"
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda *_: None)
    monkeypatch.setattr(torch.optim, "Adam", lambda weights, **_: Idle(weights))
    plan = lambda cost, *_, **__: SimpleNamespace(plan=torch.empty_like(cost))  # noqa: E731  one launch
    monkeypatch.setattr(l2rm, "partial_sinkhorn", plan)
    loop = tiny.trainer_of("l2rm", tmp_path, on="meta", model="sgr")
    loop.__dict__["optimizers"] = [Idle(loop.networks[0].parameters())]
    loop.epoch = 1
    loop.method.begin_training(loop)
    loop.method.log = l2rm.RematchLog(loop.batch_size, loop.device)
    found = {}
    for on in (True, False):
        monkeypatch.setattr(apart, "accelerated", lambda _, on=on: on)
        for _ in range(2):  # the first compiles
            pair = [loop.batch(torch.randperm(loop.n_pairs)[: loop.batch_size]) for _ in range(2)]
            count.found.clear()
            with count:
                for terms in loss_terms(loop.method.step(loop, pair), loop.method.step):
                    loop._minimise(terms)
        found[on] = count.found.copy()
    assert found[True]["graph"] == found[False]["graph"] == 20
    assert found[True]["_foreach_add_"] == 1
    assert found[True]["add"] <= 2  # of encodings that two graphs read
    assert found[True].total() <= found[False].total() - 40
    assert found[True].total() - found[True]["graph"] <= BETWEEN


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_term_apart_gives_the_weights_the_sum_of_all_gradients(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(3, 3, dtype=dtype) for name in ("both", "clean", "noisy", "held")})
    model["held"].requires_grad_(False)
    x, y = torch.randn(2, 4, 3, dtype=dtype)
    found = []
    for on in (True, False):
        monkeypatch.setattr(apart, "accelerated", lambda _, on=on: on)
        model.zero_grad()
        clean = model["held"](model["clean"](model["both"](x).tanh())).square().sum()
        noisy = apart.apart(model["noisy"](model["both"](y)).square().mean(), model.parameters())
        torch.stack([clean, 3 * noisy]).sum().backward()
        found.append({name: w.grad for name, w in model.named_parameters()})
    for name, gradient in found[0].items():
        wanted = found[1][name]
        assert (gradient is None) == name.startswith("held")
        assert gradient is wanted or torch.equal(gradient, wanted)
        assert gradient is None or gradient.is_contiguous()
