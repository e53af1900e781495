"""SBE: one slot, one fragment and one pair at a time; its loss terms; padding; what does not fit."""

import math

import pytest
import torch
from baselines.omit.sbe import SBE, relative_codes, smooth_chamfer
from torch.nn.functional import gelu
from toy import assert_agree

from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.runs.pair_trainer import _groups

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 5, "embed_dim": 8, "word_dim": 5}
QUIET = {"drop": 0.0, "dropout": 0.0}
IDS = torch.tensor([[1, 5, 9, 2, 0, 0], [1, 7, 2, 0, 0, 0], [1, 4, 4, 8, 6, 2], [2, 0, 0, 0, 0, 0]])
LENGTHS = (4, 3, 6, 1)


def example(**options):
    """A model in double precision without random draws, three images and four captions."""
    torch.manual_seed(0)
    model = build("sbe", **SIZES, **QUIET | options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        model.image_encoder.norm.running_mean.normal_()
        model.image_encoder.norm.running_var.uniform_(0.5, 2)
    return model, torch.randn(3, 5, 6, dtype=torch.float64), Tokens(IDS, LENGTHS)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def times(layer, x):
    found = torch.stack([dot(row, x) for row in layer.weight])
    return found if layer.bias is None else found + layer.bias


def normed(layer, x):
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return layer.weight * (x - mean) / (variance + layer.eps) ** 0.5 + layer.bias


def code(place, width):
    """Codes of one place, two numbers at a time."""
    found = []
    for k in range(0, width, 2):
        found += [math.sin(place / 10000 ** (k / width)), math.cos(place / 10000 ** (k / width))]
    return torch.tensor(found[:width], dtype=torch.float64)


def slots_of(module, fragments, codes):
    """Slots that read the fragments of one sample, one head, slot and fragment at a time."""
    x = [normed(module.fragment_norm, f) for f in fragments]
    keys = [times(module.key, f + c) for f, c in zip(x, codes, strict=True)]
    values = [times(module.value, f) for f in x]
    z = list(module.slots)
    width = len(values[0]) // 4
    for _ in range(module.steps):
        queries = [times(module.query, normed(module.slot_norm, slot)) for slot in z]
        read = [[] for _ in z]
        for head in range(4):
            part = slice(head * width, (head + 1) * width)
            share = [[] for _ in z]
            for key in keys:
                weights = [torch.exp(dot(query[part], key[part]) / math.sqrt(width)) for query in queries]
                for k, weight in enumerate(weights):
                    share[k].append(weight / sum(weights))
            for k, row in enumerate(share):
                mixed = sum(s * value[part] for s, value in zip(row, values, strict=True))
                read[k].append(mixed / (sum(row) + 1e-7))
        for k, parts in enumerate(read):
            z[k] = z[k] + times(module.out, torch.cat(parts))
            hidden = gelu(times(module.network[1], normed(module.network[0], z[k])))
            z[k] = z[k] + times(module.network[4], hidden)
    return [normed(module.norm, slot) for slot in z]


def image_set(model, image):
    encoder, regions = model.image_encoder, []
    for feature in image:
        x = times(encoder.fc, feature)
        h = times(encoder.first, x)
        h = (h - encoder.norm.running_mean) / (encoder.norm.running_var + encoder.norm.eps).sqrt()
        h = torch.relu(encoder.norm.weight * h + encoder.norm.bias)
        regions.append(x + times(encoder.second, h))
    whole = torch.stack([max(r[d] for r in regions) for d in range(8)])
    slots = slots_of(model.image_set, regions, [torch.zeros(8, dtype=torch.float64)] * len(regions))
    return slots, [normed(model.image_norm, whole) + slot for slot in slots]


def caption_set(model, ids):
    words = [model.text_encoder.embedding.weight[i] for i in ids]
    _, final = model.text_encoder.gru(torch.stack(words)[None])
    whole = (final[0, 0] + final[1, 0]) / 2
    codes = [code(2 * math.pi * (j + 1) / len(words), 5) for j in range(len(words))]
    slots = slots_of(model.text_set, words, codes)
    return slots, [normed(model.text_norm, whole) + slot for slot in slots]


def score(a, b, alpha):
    """Smooth Chamfer similarity of two sets, one pair of embeddings at a time."""
    cosine = [[dot(x, y) / (x.norm() * y.norm()) for y in b] for x in a]
    rows = [torch.log(sum(torch.exp(alpha * c) for c in row)) for row in cosine]
    columns = [torch.log(sum(torch.exp(alpha * row[k]) for row in cosine)) for k in range(len(b))]
    return sum(rows) / (2 * alpha * len(a)) + sum(columns) / (2 * alpha * len(b))


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, {"n_embeds": 3, "steps": 2, "alpha": 5.0}, {"n_embeds": 1}])
@pytest.mark.parametrize("budget", [4 << 30, 1])
def test_batch_equals_one_pair_at_a_time(options, budget):
    model, images, tokens = example(**options)
    model.eval()
    model.memory_budget = budget
    scores = model.similarity(model.encode_images(images), model.encode_captions(tokens))
    ours = [image_set(model, image)[1] for image in images]
    theirs = [caption_set(model, row[:n])[1] for row, n in zip(IDS, LENGTHS, strict=True)]
    rows = [torch.stack([score(a, b, model.alpha) for b in theirs]) for a in ours]
    assert_agree(model, scores, torch.stack(rows), atol=1e-7, rtol=1e-5)  # l2 adds 1e-8 to a length
    largest = math.log(model.n_embeds) / model.alpha
    assert model.score_range == (largest - 1, largest + 1)


def test_terms_of_the_loss_and_their_gradients():
    model, images, tokens = example()
    tokens = Tokens(IDS[:3], LENGTHS[:3])
    model.eval()
    ours = [image_set(model, image) for image in images]
    theirs = [caption_set(model, row[:n]) for row, n in zip(IDS[:3], LENGTHS, strict=False)]
    S = [[score(a, b, 16.0) for _, b in theirs] for _, a in ours]
    ranking = 0.0
    for i in range(3):
        ranking += max(max(0.0, 0.2 + S[i][j] - S[i][i]) for j in range(3) if j != i) / 3
        ranking += max(max(0.0, 0.2 + S[j][i] - S[i][i]) for j in range(3) if j != i) / 3
    near = 0.0
    for slots, _ in ours + theirs:
        u = [slot / slot.norm() for slot in slots]
        near += sum(torch.exp(-2 * (u[i] - u[j]).square().sum()) for i in range(4) for j in range(i)) / 6 / 3
    x, y = ([e / e.norm() for _, found in side for e in found] for side in (ours, theirs))
    kernel = [
        sum(torch.exp(-(p - q).norm() / 2) for p in a for q in b) / len(a) / len(b)
        for a, b in ((x, x), (x, y), (y, y))
    ]
    terms = model.own_loss(model.encode_images(images), model.encode_captions(tokens))
    assert set(terms) == {"ranking", "diversity", "mmd"}
    wanted = (ranking, 0.01 * near, 0.01 * (kernel[0] - 2 * kernel[1] + kernel[2]))
    for got, value in zip(terms.values(), wanted, strict=True):
        torch.testing.assert_close(got, value, rtol=0, atol=1e-7)
    sum(terms.values()).backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not still


def test_padding_and_dropped_regions_count_nothing():
    model, images, tokens = example()
    dirty = IDS.masked_fill(torch.arange(6)[None] >= torch.tensor(LENGTHS)[:, None], 13)
    clean, other = model.encode_captions(tokens), model.encode_captions(Tokens(dirty, LENGTHS))
    torch.testing.assert_close(clean.members, other.members, rtol=0, atol=1e-12)
    alone = model.encode_captions(Tokens(IDS[1:2, :3], (3,)))
    torch.testing.assert_close(alone.members, clean.members[1:2], rtol=0, atol=1e-12)
    codes = relative_codes((2, 4), 5, images)
    assert codes.shape == (2, 4, 5)
    torch.testing.assert_close(codes[0, 1], codes[1, 3], rtol=0, atol=1e-12)
    model.drop = 0.5
    model.eval()
    whole = model.encode_images(images).members
    model.train()
    model.image_encoder.norm.eval()
    regions, sizes = model.image_encoder(images), (5, 2, 3)
    model.kept_regions = lambda _: (regions, sizes)
    kept = model.encode_images(images).members
    for row, n in enumerate(sizes):
        model.kept_regions = lambda _, row=row, n=n: (regions[row : row + 1, :n], (n,))
        torch.testing.assert_close(
            model.encode_images(images).members, kept[row : row + 1], rtol=0, atol=1e-12
        )
    torch.testing.assert_close(kept[0], whole[0], rtol=0, atol=1e-12)
    assert not torch.allclose(kept[1], whole[1])


def test_the_similarity_between_the_mean_and_the_maximum():
    cosines = torch.tensor([[[0.9, -0.2], [0.1, 0.4]]])
    sharp = smooth_chamfer(cosines, 500.0)
    torch.testing.assert_close(sharp, torch.tensor([(0.9 + 0.4 + 0.9 + 0.4) / 4]), rtol=0, atol=1e-4)
    flat = smooth_chamfer(cosines, 1e-3) - math.log(2) / 1e-3
    torch.testing.assert_close(flat, cosines.mean((1, 2)), rtol=0, atol=2e-3)


def test_the_text_encoder_learns_at_a_rate_of_its_own():
    model = SBE(feature_dim=6, vocab_size=9, embed_dim=16, word_dim=8, words_rate=10.0)
    groups = {group["rate"]: set(group["params"]) for group in _groups(model)}
    text = set(model.text_encoder.parameters())
    assert groups == {10.0: text, 1.0: set(model.parameters()) - text}
