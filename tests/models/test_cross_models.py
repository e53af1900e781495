"""SCAN and IMRAM: one caption at a time, gradients, budgets."""

import contextlib

import pytest
import torch
from cross_reference import loop_scores
from toy import assert_agree

from nclib.common.tokens import Tokens
from nclib.models import build, grouping, region_words
from nclib.models import imram as imram_file
from nclib.models.cross import attention, context_cosine, raw_scores

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 4, "embed_dim": 5, "word_dim": 3}


CASES = [
    ("scan", {"direction": d, "pooling": p}) for d in ("t2i", "i2t") for p in ("lse", "mean", "max", "sum")
]
CASES += [("imram", {"branch": branch}) for branch in ("text", "image", "full")]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_batch_equals_one_caption_at_a_time(name, options, budget):
    torch.manual_seed(0)
    model = build(name, **SIZES, **options).double()
    model.memory_budget = budget
    tokens = Tokens(torch.randint(1, 20, (5, 5)), (3, 1, 5, 2, 5))
    images = torch.randn(3, 4, 6, dtype=torch.float64)
    scores = model.similarity(model.encode_images(images), model.encode_captions(tokens))
    assert_agree(model, scores, loop_scores(model, images, tokens), atol=1e-12)


def test_a_context_of_length_zero_gives_finite_gradients():
    """Two opposite regions with equal shares cancel."""
    sources = torch.tensor([[[1.0, 0, 0], [-1.0, 0, 0]]], requires_grad=True)
    queries = torch.tensor([[[0.0, 1, 0]]], requires_grad=True)
    raw = raw_scores(sources, queries)
    share = attention(raw, None, None, 9.0)
    cosine = context_cosine(share, raw, sources @ sources.mT, queries.norm(dim=-1))
    assert cosine.item() == 0.0
    cosine.sum().backward()
    assert bool(sources.grad.isfinite().all() and queries.grad.isfinite().all())


def test_parameter_count_of_the_memory():
    model = build("imram", feature_dim=4, vocab_size=4)
    assert sum(p.numel() for p in model.memory.parameters()) == 8_392_704


def test_imram_in_groups_of_two_gigabytes_on_an_accelerator(monkeypatch):
    """Groups that are computed again give the scores and all gradients of one group; their sizes by shape."""
    for module in (grouping, imram_file, region_words):
        monkeypatch.setattr(module, "accelerated", lambda device: True)
    torch.manual_seed(0)
    model = build("imram", **SIZES).double()
    tokens = Tokens(torch.randint(1, 20, (5, 5)), (3, 1, 5, 2, 5))
    pictures, found = torch.randn(3, 4, 6, dtype=torch.float64), []
    for most in (None, 1):
        model.zero_grad()
        monkeypatch.setattr(type(model), "group_bytes", most)
        scores = model(pictures, tokens)
        scores.square().sum().backward()
        found.append([scores.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)
    monkeypatch.undo()

    sizes = {"feature_dim": 16, "vocab_size": 30, "n_regions": 36, "embed_dim": 1024, "word_dim": 8}
    large, seen = build("imram", **sizes).to("meta"), []
    lengths = tuple(8 + i % 9 for i in range(128))  # of the benchmark
    ids = torch.ones(128, 16, dtype=torch.int64, device="meta")

    def noted(regions, words, sizes):
        seen.append(words.shape[:2])
        return regions.new_zeros(len(regions), len(words))

    monkeypatch.setattr(large, "_scores", noted)
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: contextlib.nullcontext())  # not for "meta"
    large(torch.empty(128, 36, 16, device="meta"), Tokens(ids, lengths))
    per_word, per_caption = large.training_bytes(torch.empty(128, 36, 1024, device="meta"))
    assert sum(n for n, _ in seen) == 128
    assert max(n * (w * per_word + per_caption) for n, w in seen) <= 1.2 * large.group_bytes
    assert len(seen) < 16  # each of them still fills a card
