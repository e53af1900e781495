"""No step waits for a GPU: each runs on the device "meta", whose tensors have no values to be read."""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from registered import REGISTERED
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nclib import losses, models
from nclib.common.method import loss_terms
from nclib.common.tokens import Tokens
from nclib.methods.l2rm import L2RM

OWN: dict[str, dict[str, Any]] = {
    **tiny.FEW,
    "cream": {"hard_from": 0.0, "noisy_from": 0.0},
    "pcsr": {"classes": 12, "refinable_from": 0.0, "ambiguous_from": 0.0},
    "plain": {"ema": 0.5},
    "repair": {"bank_size": 64, "eta": 0.9, "replace": "image"},  # lengths of captions are on the host
    "sps": {"clean_from": 0.0, "noisy_from": 0.0, "sure": 0.99},
}

ATEN = torch.ops.aten


class NoWaiting(TorchDispatchMode):
    """Refuses what the host waits for without reading a value: copies that block, rows named on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        how = kwargs or {}
        if func is ATEN._to_copy.default and args[0].is_cpu and how.get("device") == torch.device("meta"):
            assert how.get("non_blocking"), "a copy to the device without non_blocking=True"
        rows = args[1] if func in (ATEN.index.Tensor, ATEN.index_put_.default) and args[0].is_meta else ()
        assert all(x is None or (x.is_meta and x.dtype == torch.int64) for x in rows), "rows on the host"
        return func(*args, **how)


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave autocast out, which is not for "meta"."""
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: contextlib.nullcontext())


@pytest.mark.parametrize("name", REGISTERED)
def test_no_model_reads_a_value_back(name: str) -> None:
    sizes = {"feature_dim": 16, "vocab_size": 30, "n_regions": 5, "embed_dim": 32, "sim_dim": 8}
    model = models.build(name, **sizes, word_dim=8).to("meta")
    pictures = torch.empty(3, 5, 16, device="meta")
    tokens = Tokens(torch.ones(3, 7, dtype=torch.int64, device="meta"), (7, 4, 5))
    with NoWaiting():
        images, captions = model.encode_images(pictures), model.encode_captions(tokens)
        own = model.own_loss(images, captions).values()
        sum(own, losses.triplet(model.similarity(images, captions)).sum()).backward()
        with torch.no_grad():
            model.eval()(pictures, tokens)


@pytest.mark.parametrize("method", tiny.TRAINED)
def test_no_step_reads_a_value_back(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tiny.trainer_of(method, tmp_path, on="meta", model="bow", **OWN.get(method, {}))

    def each_pair(values: Any) -> Tensor:
        with loop.evaluating():
            shape = values(loop.batch(torch.arange(loop.batch_size))).shape[1:]
        return torch.rand(loop.n_pairs, *shape)

    monkeypatch.setattr(loop, "each_pair", each_pair)
    monkeypatch.setattr(L2RM, "refine", lambda self, cost: cost)  # transport has tests of its own
    torch.manual_seed(0)
    for loop.epoch in range(3):
        if loop.epoch == 1:
            loop.method.begin_training(loop)
        for network in range(len(loop.networks)):
            loop.active = network
            step = loop.method.step if loop.epoch else loop.method.warmup_step
            with monkeypatch.context() as between:  # epochs values are read; any will do here
                between.setattr(Tensor, "cpu", lambda x: torch.randint(2, x.shape).to(x.dtype))
                items = loop.method.begin_epoch(loop) if loop.epoch else loop.batches(purpose="warm-up")
            with NoWaiting():
                for item in islice(items, 2):
                    for terms in loss_terms(step(loop, item), step):
                        loop._minimise(terms)
