"""HREM: one fragment, one pair and one sample at a time; relations of a batch; negatives that are drawn."""

import math

import pytest
import torch
from baselines.omit.hrem import FragmentPooling, RelationLayer, drawn_triplet
from torch_layer import layer_of_torch

from nclib.common.tokens import Tokens
from nclib.models import build

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 5, "embed_dim": 8, "word_dim": 4}
IDS = torch.tensor([[1, 5, 9, 2, 0, 0], [1, 7, 2, 0, 0, 0], [1, 4, 4, 8, 6, 2], [1, 3, 12, 11, 2, 0]])
LENGTHS = (4, 3, 6, 5)


def example(**options):
    """A model in double precision without dropout, four images and captions."""
    torch.manual_seed(0)
    quiet = {"drop": 0.0, "attention_dropout": 0.0, "relations_after": 0, "top": 4}
    model = build("hrem", **SIZES, **quiet | options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model, torch.randn(4, 5, 6, dtype=torch.float64), Tokens(IDS, LENGTHS)


@pytest.mark.parametrize(
    ("dim", "given", "heads"), [(16, {}, 16), (24, {}, 8), (6, {}, 2), (12, {"heads": 4, "hidden": 20}, 4)]
)
def test_the_layer_is_torchs_transformer_layer(dim, given, heads):
    torch.manual_seed(1)
    mine = RelationLayer(dim, 0.0, **given).double()
    assert mine.heads == heads
    assert mine.first.out_features == given.get("hidden", dim)
    x, bias = torch.randn(2, 7, dim, dtype=torch.float64), torch.randn(7, 7, dtype=torch.float64)
    bias[torch.rand(7, 7) < 0.4] = -math.inf
    bias.fill_diagonal_(0.5)
    torch.testing.assert_close(
        mine(x, bias[None]), layer_of_torch(mine)(x, src_mask=bias), rtol=0, atol=1e-12
    )


def test_pooling_is_that_of_each_set_alone():
    torch.manual_seed(2)
    pool = FragmentPooling(8, 0.7, 0.0).double()
    x, lengths = torch.randn(3, 5, 8, dtype=torch.float64), (5, 1, 3)
    found = pool(x, lengths)
    for row, n in enumerate(lengths):
        own = x[row, :n]
        largest = [sum(sorted(own[:, d].tolist())[-2:]) / min(2, n) for d in range(8)]
        largest = torch.tensor(largest, dtype=torch.float64)
        related = pool.layer(own[None], own.new_zeros(1, 1, n))[0].mean(0)
        torch.testing.assert_close(found[row], 0.7 * largest + 0.3 * related, rtol=0, atol=1e-12)


def unit(row):
    return row / (row.norm() + 1e-8)


def matches(regions, words):
    """Matches of the words and of the regions of one pair, two fragments at a time."""
    R, W = len(regions), len(words)
    raw = [[float(unit(r) @ unit(w)) for w in words] for r in regions]
    raw = [[s if s > 0 else 0.1 * s for s in row] for row in raw]
    over_words = [math.hypot(*raw[i]) + 1e-8 for i in range(R)]
    over_regions = [math.hypot(*(raw[i][j] for i in range(R))) + 1e-8 for j in range(W)]
    of_words = [max(raw[i][j] / over_words[i] for i in range(R)) for j in range(W)]
    of_regions = [max(raw[i][j] / over_regions[j] for j in range(W)) for i in range(R)]
    return of_words, of_regions


def relevance(network, match, top):
    mean = sum(match) / len(match)
    best = sorted(match, reverse=True)[:top] + [0.0] * max(0, top - len(match))
    hidden = torch.relu(network[0](torch.tensor(best, dtype=torch.float64)))
    return float(network[2](hidden)) + mean, mean


@torch.no_grad()
def related_by_loop(relations, images, captions):
    """Vectors under the relations and the penalty, one pair of samples at a time."""
    v, t, n, top = images.vectors, captions.vectors, len(images), relations.top
    of_images = [f[:k] for f, k in zip(images.fragments, images.lengths, strict=True)]
    of_captions = [f[:k] for f, k in zip(captions.fragments, captions.lengths, strict=True)]
    every = torch.cat([v, t])
    value, mean = torch.zeros(2 * n, 2 * n, dtype=v.dtype), torch.zeros(2 * n, 2 * n, dtype=v.dtype)
    for a in range(2 * n):
        for b in range(2 * n):
            if (a < n) == (b < n):
                value[a, b] = math.exp(-float((every[a] - every[b]).norm()))
                mean[a, b] = every[a] @ every[b]
                continue
            of_words, of_regions = matches(of_images[min(a, b)], of_captions[max(a, b) - n])
            if a < n:
                value[a, b], mean[a, b] = relevance(relations.of_regions, of_regions, top)
            else:
                value[a, b], mean[a, b] = relevance(relations.of_words, of_words, top)
    bias = torch.full_like(value, -math.inf)
    count = max(1, int(n * relations.share))
    for a in range(2 * n):
        for side in (range(n), range(n, 2 * n)):
            for b in sorted(side, key=lambda b: -mean[a, b])[:count]:
                bias[a, b] = relations.weight * value[a, b]
    found = relations.layer(every[None], bias[None])[0]
    found = torch.stack([unit(row) for row in found])
    penalty = 0.0
    for rows, columns in ((range(n), range(n, 2 * n)), (range(n, 2 * n), range(n))):
        for a in rows:
            p = torch.softmax(torch.stack([value[a, b] for b in columns]), 0)
            near = [torch.exp(-(every[a] - every[b]).norm()) for b in columns]
            q = torch.softmax(torch.stack(near), 0)
            penalty += float((p * (p / q).log()).sum()) / n
    return found[:n], found[n:], penalty


@pytest.mark.parametrize("options", [{}, {"top": 3, "share": 0.8}, {"relation_weight": 1.5, "share": 0.1}])
def test_relations_of_a_batch_equal_the_plain_loop(options):
    model, images, tokens = example(**options)
    encoded = model.encode_images(images), model.encode_captions(tokens)
    wanted = related_by_loop(model.relations, *encoded)
    for budget in (1 << 30, 1):  # all captions at once, and one at a time
        v, t, penalty = model.relations(*encoded, budget)
        torch.testing.assert_close(v, wanted[0], rtol=0, atol=1e-7)
        torch.testing.assert_close(t, wanted[1], rtol=0, atol=1e-7)
        assert penalty.item() == pytest.approx(wanted[2], abs=1e-7)


def test_regions_that_were_dropped_are_not_related():
    model, images, tokens = example(drop=0.5, top=6)
    torch.manual_seed(5)
    encoded = model.encode_images(images), model.encode_captions(tokens)
    assert len(set(encoded[0].lengths)) > 1
    wanted = related_by_loop(model.relations, *encoded)
    found = model.relations(*encoded, 1 << 30)
    for got, want in zip(found[:2], wanted[:2], strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-7)


def weights_of(row, own, farthest):
    """Shares with which the negatives of one query are drawn, n = 512 in the density on the sphere."""
    logs = []
    for k, s in enumerate(row):
        d = max(0.5, math.sqrt(2 - 2 * s))
        logs.append(
            -math.inf if k == own or d >= farthest else -510 * math.log(d) - 254.5 * math.log(1 - d * d / 4)
        )
    largest = max(logs)
    return [0.0] * len(row) if largest == -math.inf else [math.exp(x - largest) for x in logs]


def test_negatives_are_drawn_by_their_distance():
    rows = [[0.3, 0.28, 0.279, -0.9], [0.1, 0.5, 0.102, 0.9], [0.05, -0.05, 0.1, 0], [0.9, 0.1, 0, 1]]
    S = torch.tensor(rows)
    wanted = torch.zeros(4)
    for scores in (S.tolist(), S.t().tolist()):
        for i, row in enumerate(scores):
            shares = weights_of(row, i, 1.7)
            hinges = [max(0.0, 0.2 + s - row[i]) for s in row]
            wanted[i] += sum(w * h for w, h in zip(shares, hinges, strict=True)) / max(sum(shares), 1e-9)
    torch.manual_seed(0)
    draws = torch.stack([drawn_triplet(S, 1.7) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), wanted, rtol=0, atol=0.02)
    assert draws.std(0).max() > 0.01


def test_a_query_without_negatives_adds_nothing():
    S = torch.tensor([[0.0, -0.9], [-0.9, 0.0]], requires_grad=True)
    assert torch.equal(drawn_triplet(S, 1.7), torch.zeros(2))
    assert torch.equal(drawn_triplet(torch.zeros(1, 1), 1.7), torch.zeros(1))
    drawn_triplet(S, 1.99).sum().backward()
    assert torch.equal(S.grad, torch.tensor([[0.0, 0.0], [0.0, 0.0]]))  # margin met: 0.2 - 0.9 < 0
    near = torch.tensor([[0.5, 0.4], [0.45, 0.5]], requires_grad=True)
    drawn_triplet(near, 1.7).sum().backward()
    assert torch.equal(near.grad, torch.tensor([[-2.0, 2.0], [2.0, -2.0]]))


def test_terms_of_the_loss_and_their_gradients():
    model, images, tokens = example(relations_after=1, relation_penalty=7.0)
    encoded = model.encode_images(images), model.encode_captions(tokens)
    early = model.own_loss(*encoded)
    assert early["related"] == early["penalty"] == 0
    assert early["ranking"] > 0
    torch.manual_seed(3)
    terms = model.own_loss(*encoded)
    assert model.steps == 2
    v, t, penalty = model.relations(*encoded, 1 << 30)
    torch.testing.assert_close(terms["penalty"], 7 * penalty)
    torch.manual_seed(3)
    a, b = (e.vectors for e in encoded)
    wanted = sum(drawn_triplet(x @ y.t(), 1.7).sum() for x, y in ((a, t), (v, b), (v, t)))
    torch.testing.assert_close(terms["related"], wanted)
    sum(terms.values()).backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # the softmax takes out what all keys share, the batch norm what all regions share
    assert {name.rpartition(".")[2] for name in still} <= {"bias"}, still
    assert torch.equal(model.state_dict()["steps"], torch.tensor(2))  # a continued run goes on counting


def test_samples_are_encoded_alone_when_testing():
    model, images, tokens = example()
    model.eval()
    whole, some = model.encode_images(images), model.encode_images(images[1:3])
    torch.testing.assert_close(whole.vectors[1:3], some.vectors, rtol=0, atol=1e-12)
    assert whole.fragments is None
    with pytest.raises(ValueError, match="own_loss needs encodings made in training mode"):
        model.own_loss(whole, model.encode_captions(tokens))
