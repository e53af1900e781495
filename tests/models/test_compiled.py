"""Comparison of pairs as one graph for a compiler: no break, one graph for all lengths, the same numbers."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from registered import REGISTERED
from torch.utils._python_dispatch import TorchDispatchMode

from nclib import losses, models
from nclib.models import Tokens, compiled, grouping, omit, omit_matching, region_words, sgraf
from nclib.models.encoders import BiGRU
from nclib.ot import pairs

SIZES = {"feature_dim": 16, "vocab_size": 30, "n_regions": 5, "embed_dim": 32, "sim_dim": 8, "word_dim": 8}
SLOW = pytest.mark.exhaustive
NAMES = [
    "sgr",
    "saf",
    "omit",
    *(pytest.param(n, marks=SLOW) for n in ("scan", "imram", "chan", "naaf", "teran") if n in REGISTERED),
]


def captions(n: int, longest: int) -> Tokens:
    g = torch.Generator().manual_seed(longest)
    lengths = torch.randint(3, longest + 1, (n,), generator=g).tolist()
    return Tokens(torch.randint(1, 30, (n, longest), generator=g), (longest, *lengths[1:]))


def quiet(name: str) -> models.Matcher:
    """Build a model that draws nothing in training."""
    torch.manual_seed(0)
    options = {"drop": 0.0} if hasattr(models.options(name), "drop") else {}
    model = models.build(name, **SIZES, **options).double().train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(part, omit.OMIT):
            part.augments, part.mask_ratio = False, 0.0
    return model


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_serves_all_lengths_and_changes_no_number(name, monkeypatch):
    """What a GPU computes, on a CPU: formulas compiled, directions alone, captions in one group."""
    made, graphs = {}, Counter()
    compiled._configure()

    def compiler(function):
        def backend(graph, inputs):
            graphs[function.__qualname__] += 1
            return graph.forward

        return torch.compile(function, dynamic=None, fullgraph=True, backend=backend)

    monkeypatch.setattr(compiled, "_compiled", lambda f: made.get(f) or made.setdefault(f, compiler(f)))
    node = SimpleNamespace(apply=pairs._formula_scores)  # a GPU's formulas in place of a CPU's node
    monkeypatch.setattr(pairs, "_TransportScores", node)
    model = quiet(name)
    for n, longest in ((6, 9), (6, 7), (5, 12)):
        images, tokens, found = torch.rand(6, 5, 16).double(), captions(n, longest), []
        for on in (False, True):
            for module in (compiled, region_words, sgraf):
                monkeypatch.setattr(module, "wanted", lambda device, on=on: on)
            for module in (grouping, omit, omit_matching, region_words, sgraf):
                monkeypatch.setattr(module, "accelerated", lambda device, on=on: on)
            monkeypatch.setattr(BiGRU, "alone", staticmethod(lambda device, on=on: on))
            model.zero_grad()
            scores = model(images, tokens)
            losses.info_nce(scores[:n, :n], 0.5).sum().backward()
            grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            found.append((scores.detach(), torch.cat(grads)))
        torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)
    assert set(graphs.values()) == {1}
    if isinstance(model, sgraf.SimilarityNodes):
        assert set(graphs) == {
            "SimilarityNodes.encoded", "SimilarityNodes.formulas", "TextEncoder.joined"
        }  # fmt: skip


@pytest.mark.parametrize("width", [64, compiled.HALVES_FROM])
def test_a_map_by_halves_is_a_map_in_float32(width):
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=g) for shape in ((2, 50, width), (16, width), (16,)))
    assert torch.equal(compiled.exact_linear(x, weight, bias), F.linear(x, weight, bias)) == (width == 64)
    results = []
    for of, dtype in ((compiled.exact_linear, torch.float32), (F.linear, torch.float64)):
        given = [part.to(dtype).requires_grad_() for part in (x, weight, bias)]
        out = of(*given)
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), given)])
    for ours, wanted in zip(*results, strict=True):
        assert (ours - wanted).norm() / wanted.norm() < 1e-5  # bfloat16 alone: 3e-3


class InRegisters(TorchDispatchMode):
    """Leaves bfloat16 out, as a compiler does between the operations of a kernel."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and kwargs["dtype"] == torch.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def test_halves_do_not_rest_on_a_cast_that_a_compiler_leaves_out():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 1000)
    with InRegisters():
        high, low = compiled._halves(x)
    assert torch.equal(high, high.to(torch.bfloat16).float())
    assert ((x - high).abs() <= x.abs() / 2**8).all()
    assert torch.equal(low, x - high)
    rest = x.double() - sum(half.double() for half in compiled._halves(x))
    assert (rest.abs() <= x.abs() / 2**16).all()


def test_without_a_compiler_a_gpu_is_told_so_once(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    for lacking, found in (("triton", None), ("a C compiler", object())):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        compiled._compiler_is_there.cache_clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert not any(compiled.wanted(torch.device("cuda")) for _ in range(3))
        compiled._compiler_is_there.cache_clear()
        assert [str(w.message).split(",")[0] for w in said] == [lacking]


def test_what_the_compiler_fails_at_runs_eagerly_with_one_warning(monkeypatch):
    def plus_one(x):
        return x + 1

    def fails(function):
        raise torch._dynamo.exc.Unsupported("no")

    monkeypatch.setattr(compiled, "wanted", lambda device: True)
    monkeypatch.setattr(compiled, "_compiled", fails)
    x = torch.zeros(2)
    with pytest.warns(UserWarning, match="plus_one cannot be compiled .*runs eagerly.*compile='off'"):
        assert torch.equal(compiled.call(plus_one, x, varying=[(x, 0)]), x + 1)
    assert torch.equal(compiled.call(plus_one, x, varying=[(x, 0)]), x + 1)  # without another warning


def test_off_is_off_within_the_block_and_a_cpu_never_compiles(monkeypatch):
    monkeypatch.setattr(compiled, "_compiler_is_there", lambda: True)
    cuda = torch.device("cuda")
    with models.compiling("off"):
        assert not compiled.wanted(cuda)
    assert compiled.wanted(cuda)
    assert not compiled.wanted(torch.device("cpu"))
