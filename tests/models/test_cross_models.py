"""SCAN and IMRAM: worked numbers, one caption at a time, gradients, budgets."""

import contextlib

import pytest
import torch
from cross_reference import loop_scores
from toy import assert_agree, fill, regions, words

from nclib.common.tokens import Tokens
from nclib.models import CaptionEncoding, ImageEncoding, build, grouping, region_words
from nclib.models import imram as imram_file
from nclib.models.cross import attention, context_cosine, raw_scores

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 4, "embed_dim": 5, "word_dim": 3}


def close(got, wanted, rtol=4e-6):
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=got.dtype), rtol=rtol, atol=1e-6)


def toy_scores(model):
    padded, lengths = words()
    images = ImageEncoding(regions().mean(1), regions())
    return model.double().similarity(images, CaptionEncoding(padded.mean(1), lengths, padded))


def scan(direction, pooling, **options):
    return build(
        "scan", feature_dim=4, vocab_size=4, embed_dim=4, direction=direction, pooling=pooling, **options
    )


@pytest.mark.parametrize(
    ("direction", "pooling", "wanted"),
    [
        ("t2i", "lse", [[0.993783, 1.00173], [0.750502, 0.991187]]),
        ("t2i", "mean", [[0.735322, 0.645645], [0.630237, 0.796261]]),
        ("i2t", "lse", [[0.882947, 1.02279], [1.00528, 1.05011]]),
        ("i2t", "mean", [[0.639741, 0.709310], [0.620027, 0.818384]]),
        ("t2i", "max", [[0.985724, 0.986631], [0.670174, 0.862112]]),
        ("t2i", "sum", [[1.47064, 1.93694], [1.26047, 2.38878]]),
    ],
)
def test_worked_scores_of_scan(direction, pooling, wanted):
    close(toy_scores(scan(direction, pooling)), wanted)


def imram(branch, normalise):
    model = build(
        "imram", feature_dim=4, vocab_size=4, embed_dim=4, branch=branch, normalise=normalise
    ).double()
    with torch.no_grad():
        for a, unit in model.memory.items():
            k = {"text": 1, "image": 3}[a]
            unit.output.weight.copy_(fill((4, 8), k, 0.6))
            unit.output.bias.copy_(fill((4,), k + 1, 0.1))
            unit.gate.weight.copy_(fill((4, 8), k + 2, 0.4))
            unit.gate.bias.copy_(fill((4,), k + 3, 0.2))
    return model


@pytest.mark.parametrize(
    ("branch", "normalise", "wanted"),
    [
        ("text", False, [[2.13521, 1.90166], [1.96985, 2.03493]]),
        ("full", False, [[3.70713, 3.14387], [3.36208, 4.04340]]),
        ("text", True, [[2.18953, 1.83660], [2.15371, 2.33496]]),
        ("image", True, [[1.52249, 1.65328], [1.37794, 2.24855]]),
        ("full", True, [[3.71202, 3.48988], [3.53164, 4.58351]]),
    ],
)
def test_worked_scores_of_imram(branch, normalise, wanted):
    close(toy_scores(imram(branch, normalise)), wanted)


CASES = [
    ("scan", {"direction": d, "pooling": p}) for d in ("t2i", "i2t") for p in ("lse", "mean", "max", "sum")
]
CASES += [("imram", {"branch": b, "normalise": n}) for b in ("text", "image", "full") for n in (True, False)]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize(("chunk", "budget"), [(None, 1 << 30), (2, 1 << 30), (None, 1)])
def test_batch_equals_one_caption_at_a_time(name, options, chunk, budget):
    torch.manual_seed(0)
    model = build(name, **SIZES, **options).double()
    model.memory_budget = budget
    tokens = Tokens(torch.randint(1, 20, (5, 5)), (3, 1, 5, 2, 5))
    images = torch.randn(3, 4, 6, dtype=torch.float64)
    scores = model.similarity(model.encode_images(images), model.encode_captions(tokens), chunk=chunk)
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
