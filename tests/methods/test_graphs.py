"""A compiler makes the graphs of a comparison once: counted over three epochs of every method, on a CPU."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from test_waits import OWN

from nclib.common.method import loss_terms
from nclib.models import compiled, grouping, region_words, sgraf
from nclib.models.encoders import BiGRU

USUAL = ("l2rm", "ncr", "repair")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [m if m in USUAL else pytest.param(m, marks=pytest.mark.exhaustive) for m in tiny.TRAINED]
)
def test_no_epoch_after_the_first_of_its_kind_compiles(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs with and without gradients; MSCN's step ahead has its own. Halves from a bank have none."""
    made: dict[Any, Any] = {}
    graphs: Counter[str] = Counter()

    def compiler(function: Any) -> Any:
        def backend(graph: Any, inputs: Any) -> Any:
            graphs[function.__qualname__] += 1
            return graph.forward

        return torch.compile(function, dynamic=None, fullgraph=True, backend=backend)

    torch._dynamo.reset()
    compiled._configure()
    monkeypatch.setattr(compiled, "_compiled", lambda f: made.get(f) or made.setdefault(f, compiler(f)))
    for module in (compiled, region_words, sgraf):
        monkeypatch.setattr(module, "wanted", lambda device: True)
    for module in (grouping, region_words, sgraf):
        monkeypatch.setattr(module, "accelerated", lambda device: True)
    monkeypatch.setattr(BiGRU, "alone", staticmethod(lambda device: True))
    options = {**OWN.get(method, {}), **({"replace": "random"} if method == "repair" else {})}
    loop = tiny.trainer_of(method, tmp_path, model="saf", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a division that leaves few pairs
        for loop.epoch in range(3):  # warm-up, the first of training, and the first with noisy pairs
            before = graphs.copy()
            if loop.epoch == 1:
                loop.method.begin_training(loop)
            for network in range(len(loop.networks)):
                loop.active = network
                step = loop.method.step if loop.epoch else loop.method.warmup_step
                items = loop.method.begin_epoch(loop) if loop.epoch else loop.batches(purpose="warm-up")
                for item in items:
                    for terms in loss_terms(step(loop, item), step):
                        loop._minimise(terms)
                if loop.epoch:
                    loop.method.end_epoch(loop)
    assert graphs
    assert graphs == before


def test_encodings_of_a_bank_need_no_graph_of_their_own() -> None:
    held, fresh = torch.rand(2, 3, 4).transpose(0, 1), torch.rand(3, 2, requires_grad=True)
    found = compiled.alike(held, fresh)
    assert all(x.requires_grad and x.is_contiguous() for x in found)
    assert found[1] is fresh
    with torch.no_grad():
        assert not compiled.alike(held)[0].requires_grad
