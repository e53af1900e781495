"""CHAN: one pair and word at a time, dropping, self-attention, gradients."""

import math

import pytest
import torch

from nclib.common.tokens import Tokens
from nclib.models import build

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 4, "embed_dim": 16, "word_dim": 3}
LENGTHS = (3, 1, 5, 2, 5)
POOLS = {
    "lse": lambda s: math.log(sum(math.exp(10 * x) for x in s)) / 10,
    "mean": lambda s: sum(s) / len(s),
    "max": max,
    "sum": sum,
}


def example(**options):
    torch.manual_seed(0)
    model = build("chan", **SIZES, **options).double()
    images = torch.randn(3, 4, 6, dtype=torch.float64)
    return model, images, Tokens(torch.randint(1, 20, (5, 5)), LENGTHS)


@pytest.mark.parametrize("pooling", POOLS)
@pytest.mark.parametrize("attend", [True, False])
@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_batch_equals_one_pair_at_a_time(pooling, attend, budget):
    model, images, tokens = example(pooling=pooling, attend=attend)
    model.eval()
    model.memory_budget = budget
    encoded, captions = model.encode_images(images), model.encode_captions(tokens)
    got = model.similarity(encoded, captions).detach()
    encoded, captions = encoded.detach(), captions.detach()
    wanted = [
        [
            POOLS[pooling]([max(float(word @ region) for region in regions) for word in words[:n]])
            for words, n in zip(captions.words, LENGTHS, strict=True)
        ]
        for regions in encoded.regions
    ]
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)
    low, high = model.score_range
    assert bool((got >= low).all() and (got <= high).all())


def test_regions_attend_to_regions_of_their_image():
    """Eight heads of two numbers each, formed one query and one head at a time."""
    model, images, _ = example()
    encoder, dim, heads = model.eval().image_encoder, 16, 8
    with torch.no_grad():
        for parameter in encoder.attend.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        got = encoder(images)
        for picture, regions in zip(images, got, strict=True):
            x = encoder.fc(picture)  # (R, D)
            y = torch.stack([(row - row.mean()) / (row.var(correction=0) + 1e-5).sqrt() for row in x])
            q, k, v = (y @ encoder.attend.in_proj_weight.t() + encoder.attend.in_proj_bias).split(dim, 1)
            for i in range(len(x)):
                parts = []
                for h in range(heads):
                    own = slice(h * dim // heads, (h + 1) * dim // heads)
                    share = torch.softmax(k[:, own] @ q[i, own] / math.sqrt(dim / heads), 0)
                    parts.append(share @ v[:, own])
                whole = x[i] + encoder.attend.out_proj(torch.cat(parts))
                torch.testing.assert_close(regions[i], whole / whole.norm(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("attend", [True, False])
def test_dropped_regions_count_nothing(attend, monkeypatch):
    """Scores in training are those of the kept regions alone; an image never loses all."""
    model, images, tokens = example(attend=attend, drop=0.5)
    chance = torch.tensor([[0.1, 0.9, 0.2, 0.8], [0.0, 0.1, 0.2, 0.3], [0.9, 0.9, 0.9, 0.1]])
    captions = model.eval().encode_captions(tokens)
    model.train()
    monkeypatch.setattr(torch, "rand", lambda shape: chance)
    regions = model.encode_images(images)
    monkeypatch.undo()
    assert regions.regions.shape == (3, 4, 16)  # as many for every batch
    got = model.similarity(regions, captions)
    model.eval()
    for i, kept in enumerate(([1, 3], [0], [0, 1, 2])):
        wanted = model.similarity(model.encode_images(images[i : i + 1, kept]), captions)
        torch.testing.assert_close(got[i], wanted[0], rtol=0, atol=1e-12)


def test_any_width_has_heads_that_divide_it():
    for width, heads in ((5, 1), (12, 4), (24, 8)):
        model = build("chan", **{**SIZES, "embed_dim": width})
        assert model.image_encoder.attend.num_heads == heads
        assert model.encode_images(torch.randn(2, 4, 6)).regions.shape[2] == width
