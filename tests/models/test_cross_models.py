"""SCAN and IMRAM: worked numbers, one pair at a time, gradients, budgets."""

import pytest
import torch
from cross_reference import loop_scores
from toy import fill, regions, words

from nclib.common.tokens import Tokens
from nclib.models import CaptionEncoding, ImageEncoding, build
from nclib.models.cross import attention, context_cosine, raw_scores, word_attention

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


def test_worked_attention_is_scaled_over_words_not_regions():
    padded, lengths = words()
    mask = (torch.arange(3) < torch.tensor(lengths)[:, None]).double()
    raw = raw_scores(regions(), padded)
    share = attention(raw, mask, None, 9.0)
    pair = raw[0, :, 1], share[0, :, 1].t()
    close(
        pair[0],
        [[0.365148, 0.408248, 0.166667], [-0.182574, 0.408248, 0.5], [0.989949, -0.316228, 0.387298]],
    )
    close(
        pair[1],
        [
            [0.0667492, 0.000166352, 0.933084],
            [0.673764, 0.325394, 0.000841641],
            [0.0124535, 0.963509, 0.0240373],
        ],
    )
    cosine = context_cosine(share, raw, regions() @ regions().mT, padded.norm(dim=-1))
    close(cosine[0, 1], [0.986631, 0.441490, 0.508815])
    wrong = torch.tensor([[0.730401, 0.673015], [0.816951, 0.799469]], dtype=torch.float64)
    assert (toy_scores(scan("t2i", "mean")) - wrong).abs().max() > 0.1


def test_maps_are_the_attention_of_one_pair_at_a_time():
    padded, lengths = words()
    images = ImageEncoding(regions().mean(1), regions())
    captions = CaptionEncoding(padded.mean(1), lengths, padded)
    maps = word_attention(images, captions, 9.0)
    assert maps.shape == (2, 2, 3, 3)
    close(
        maps[0, 1],
        [
            [0.0667492, 0.000166352, 0.933084],
            [0.673764, 0.325394, 0.000841641],
            [0.0124535, 0.963509, 0.0240373],
        ],
    )
    close(maps[1, 0, :2].sum(-1), [1.0, 1.0])
    assert bool((maps[:, 0, 2] == 0).all())
    with pytest.raises(ValueError, match="regions or words are missing"):
        word_attention(ImageEncoding(regions().mean(1)), captions)


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


@pytest.mark.parametrize("branch", ["text", "image"])
def test_worked_rounds_of_imram(branch):
    rounds = {
        "text": [
            [[0.735322, 0.645645], [0.630237, 0.796261]],
            [[0.733056, 0.622668], [0.792108, 0.797026]],
            [[0.666834, 0.633348], [0.547507, 0.441646]],
        ],
        "image": [
            [[0.610009, 0.685619], [0.642922, 0.797103]],
            [[0.484127, 0.550636], [0.385099, 0.813021]],
            [[0.477781, 0.00595211], [0.364212, 0.398346]],
        ],
    }[branch]
    before = 0.0
    for steps, wanted in enumerate(rounds, start=1):
        model = imram(branch, False)
        model.steps = steps
        scores = toy_scores(model)
        torch.testing.assert_close(scores - before, torch.tensor(wanted).double(), rtol=0, atol=2e-6)
        before = scores


# one pair at a time, with contexts formed in full


def attend_pair(sources, queries, against, temperature):
    """Contexts (Q, D) of queries over sources."""
    score = torch.nn.functional.leaky_relu(queries @ sources.t(), 0.1)  # (Q, K)
    score = score / (score.pow(2).sum(0, keepdim=True).sqrt() + 1e-8)
    context = torch.softmax(temperature * score, 1) @ sources
    return context, torch.nn.functional.cosine_similarity(against, context, dim=1, eps=1e-8)


def scan_pair(model, image, caption):
    sources, queries = (image, caption) if model.direction == "t2i" else (caption, image)
    _, cosine = attend_pair(sources, queries, queries, model.temperature)
    k = model.sharpness
    pools = {
        "lse": lambda x: torch.log(torch.exp(k * x).sum()) / k,
        "mean": torch.mean,
        "max": torch.max,
        "sum": torch.sum,
    }
    return pools[model.pooling](cosine)


def imram_pair(model, image, caption):
    total = 0.0
    for side, unit in model.memory.items():
        sources, first = (image, caption) if side == "text" else (caption, image)
        query = first
        for _ in range(model.steps):
            context, cosine = attend_pair(sources, query, first, model.temperature)
            total = total + cosine.mean()
            both = torch.cat([query, context], 1)
            gate = torch.sigmoid(unit.gate(both))
            query = gate * query + (1 - gate) * torch.tanh(unit.output(both))
            if model.normalise:
                query = query / (query.norm(dim=1, keepdim=True) + 1e-8)
    return total


CASES = [
    ("scan", {"direction": d, "pooling": p}) for d in ("t2i", "i2t") for p in ("lse", "mean", "max", "sum")
]
CASES += [("imram", {"branch": b, "normalise": n}) for b in ("text", "image", "full") for n in (True, False)]
PAIRS = {"scan": scan_pair, "imram": imram_pair}


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize(("chunk", "budget"), [(None, 1 << 30), (2, 1 << 30), (None, 1)])
def test_batch_equals_one_pair_at_a_time(name, options, chunk, budget):
    torch.manual_seed(0)
    model = build(name, **SIZES, **options).double()
    model.memory_budget = budget
    lengths = (3, 1, 5, 2, 5)
    ids = torch.randint(1, 20, (5, 5))
    images = torch.randn(3, 4, 6, dtype=torch.float64)
    pull = torch.randn(3, 5, dtype=torch.float64)
    results = []
    for batched in (True, False):
        model.zero_grad()
        encoded, captions = model.encode_images(images), model.encode_captions(Tokens(ids, lengths))
        if batched:
            scores = model.similarity(encoded, captions, chunk=chunk)
        else:
            pair = PAIRS[name]
            scores = torch.stack(
                [
                    torch.stack([pair(model, v, t[:n]) for t, n in zip(captions.words, lengths, strict=True)])
                    for v in encoded.regions
                ]
            )
        (scores * pull).sum().backward()
        grads = {
            key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in model.named_parameters()
        }
        results.append((scores, {key: grad.clone() for key, grad in grads.items()}))
    (got, grads), (wanted, wanted_grads) = results
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)
    for key, grad in grads.items():
        torch.testing.assert_close(grad, wanted_grads[key], rtol=1e-8, atol=1e-12, msg=key)
    low, high = model.score_range
    assert bool((got >= low).all() and (got <= high).all())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_loop_over_captions_of_the_benchmark_agrees(name, options):
    torch.manual_seed(0)
    model = build(name, **SIZES, **options).double()
    images = torch.randn(3, 4, 6, dtype=torch.float64)
    tokens = Tokens(torch.randint(1, 20, (4, 5)), (3, 1, 5, 2))
    torch.testing.assert_close(loop_scores(model, images, tokens), model(images, tokens), rtol=0, atol=1e-13)


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
