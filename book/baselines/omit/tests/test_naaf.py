"""NAAF: one pair and word at a time, the threshold and its samples, gradients, state."""

import math
from copy import deepcopy

import pytest
import torch
from baselines.omit.naaf import learning_boundary

from nclib.common.tokens import Tokens
from nclib.models import CaptionEncoding, ImageEncoding, build

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 4, "embed_dim": 5, "word_dim": 3}
LENGTHS = (3, 1, 5, 2, 5)


def example(**options):
    torch.manual_seed(0)
    model = build("naaf", **SIZES, **options).double()
    images = torch.randn(5, 4, 6, dtype=torch.float64)
    return model, images, Tokens(torch.randint(1, 20, (5, 5)), LENGTHS)


def unit_rows(*shape):
    rows = torch.randn(*shape, dtype=torch.float64)
    return rows / rows.norm(dim=-1, keepdim=True)


def pair_score(model, regions, words, t):
    """Score of one pair, word by word, from the paper's equations with plain numbers."""
    n, k = len(words), len(regions)
    s = [[float(words[i] @ regions[j]) for j in range(k)] for i in range(n)]
    most = [max(row) - t for row in s]
    total = 0.0
    for i in range(n):
        seen = most[i]
        if not model.training:
            like = [math.exp(model.intra * float(words[i] @ words[other])) for other in range(n)]
            seen = sum(a * b for a, b in zip(like, most, strict=True)) / sum(like)
        if seen < 0:
            total += most[i]
        matched = [j for j in range(k) if s[i][j] > t]
        if matched:
            weight = [math.exp(model.temperature * (s[i][j] - t)) for j in matched]
            context = sum(w * regions[j] for w, j in zip(weight, matched, strict=True)) / sum(weight)
            total += float(words[i] @ context / (words[i].norm() * context.norm()))
        leaky = [[x if x > 0 else 0.1 * x for x in row] for row in s]
        norm = [math.sqrt(sum(row[j] ** 2 for row in leaky)) + 1e-8 for j in range(k)]
        focus = [math.exp(model.temperature * leaky[i][j] / norm[j]) for j in range(k)]
        total += sum(a * b for a, b in zip(focus, s[i], strict=True)) / sum(focus)
    return total / n


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_batch_equals_one_pair_at_a_time(training, threshold, budget):
    model, images, tokens = example()
    model.train(training)
    model.memory_budget = budget
    model.thresholds[:] = torch.tensor([threshold, -1.0] if training else [-1.0, threshold])
    encoded, captions = model.encode_images(images), model.encode_captions(tokens)
    got = model.similarity(encoded, captions).detach()
    encoded, captions = encoded.detach(), captions.detach()
    wanted = [
        [pair_score(model, v, t[:n], threshold) for t, n in zip(captions.words, LENGTHS, strict=True)]
        for v in encoded.regions
    ]
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-7)
    low, high = model.score_range
    assert bool((got >= low).all() and (got <= high).all())


def test_a_word_counts_against_a_pair_only_below_the_threshold():
    """One word at angle 60 degrees to the only region: its context is the region while 0.5 > t."""
    model = build("naaf", **{**SIZES, "embed_dim": 2}).double()
    region = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    word = torch.tensor([[[0.5, math.sqrt(0.75)]]], dtype=torch.float64)
    images, captions = ImageEncoding(region.mean(1), region), CaptionEncoding(word.mean(1), (1,), word)
    for t, wanted in ((0.0, 0.5 + 0.5), (0.4, 0.5 + 0.5), (0.7, 0.5 - 0.2)):
        model.thresholds[:] = t
        for training in (True, False):
            model.train(training)
            assert float(model.similarity(images, captions)) == pytest.approx(wanted, abs=1e-9)


def test_propagation_over_like_words_only_in_evaluation():
    """A word just below the threshold beside three equal words above it counts as matched when testing."""
    model = build("naaf", **{**SIZES, "embed_dim": 2}).double()
    region = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    angles = torch.tensor([1.06, 0.9, 0.9, 0.9], dtype=torch.float64)  # cosines 0.489 and 0.622
    words = torch.stack([angles.cos(), angles.sin()], -1)[None]
    images, captions = ImageEncoding(region.mean(1), region), CaptionEncoding(words.mean(1), (4,), words)
    model.thresholds[:] = 0.5
    trained, tested = (float(model.train(mode).similarity(images, captions)) for mode in (True, False))
    cosine = angles.cos()
    relevance = cosine.mean()
    aggregated = cosine[1:].sum() / 4  # the first word has no region above the threshold
    assert trained == pytest.approx(float(relevance + aggregated + (cosine[0] - 0.5) / 4), abs=1e-9)
    assert tested == pytest.approx(float(relevance + aggregated), abs=1e-9)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("spread", [(0.08, 0.05), (0.05, 0.08), (0.06, 0.06)])
def test_the_boundary_has_the_least_error(alpha, spread):
    matched, other = torch.distributions.Normal(0.5, spread[0]), torch.distributions.Normal(0.2, spread[1])
    t = torch.linspace(0.2, 0.5, 300_001, dtype=torch.float64)
    error = alpha * (1 - other.cdf(t)) + matched.cdf(t)
    moments = torch.tensor([0.5, 0.2]).double(), torch.tensor(spread).double() ** 2
    assert float(learning_boundary(*moments, alpha)) == pytest.approx(float(t[error.argmin()]), abs=1e-4)


def test_no_boundary_where_the_densities_never_cross():
    """Equal means, and mismatched words weighted so that they are always more frequent."""
    moments = torch.tensor([0.4, 0.4]), torch.tensor([0.01, 0.01])
    assert not bool(learning_boundary(*moments, 2.0).isfinite())


def planted(n=12, regions=6, dim=16, width=7):
    """Pairs whose words lie near regions of the own image."""
    torch.manual_seed(3)
    sources = unit_rows(n, regions, dim)
    lengths = tuple(torch.randint(2, width + 1, (n,)).tolist())
    words = torch.zeros(n, width, dim, dtype=torch.float64)
    for i, length in enumerate(lengths):
        near = sources[i, torch.randint(regions, (length,))] + 0.15 * torch.randn(length, dim)
        words[i, :length] = near / near.norm(dim=-1, keepdim=True)
    return ImageEncoding(sources.mean(1), sources), CaptionEncoding(words.mean(1), lengths, words)


def sampled(images, captions, scores):
    """Largest similarities of the words with the own and with the last image, of captions ranked right."""
    matched, other = [], []
    for c, (words, length) in enumerate(zip(captions.words, captions.lengths, strict=True)):
        if int(scores[:, c].argmax()) == c:
            worst = int(scores[:, c].argmin())
            for word in words[:length]:
                matched.append(max(float(word @ region) for region in images.regions[c]))
                other.append(max(float(word @ region) for region in images.regions[worst]))
    return torch.tensor(matched, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)


def planted_model(**options):
    return build("naaf", **{**SIZES, "embed_dim": 16}, **options).double()


def test_thresholds_learn_from_captions_ranked_right():
    model, (images, captions) = planted_model(samples=20), planted()
    wrong = captions.select([1, 0, *range(2, 12)])  # two captions whose own image is not first
    old = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        scores = model.similarity(images, wrong)
        matched, other = sampled(images, wrong, scores)
        assert 20 <= len(matched) < sum(captions.lengths)
        mean, variance = (
            torch.stack([matched.mean(), other.mean()]),
            torch.stack([matched.var(), other.var()]),
        )
        new = torch.stack(
            [learning_boundary(mean, variance, 2.0), matched.mean() - 3 * matched.std()]
        ).clamp_min(0)
        old = 0.7 * new + 0.3 * old
        torch.testing.assert_close(model.thresholds, old, rtol=0, atol=1e-12)
        assert not bool(model.collected.any())
    assert 0 < float(old[1]) < float(mean[0])
    assert float(mean[1]) < float(old[0]) < float(mean[0])


def test_small_batches_collect_until_there_are_enough():
    (images, captions), whole, parts = planted(), planted_model(samples=2), planted_model(samples=2)
    total = sum(captions.lengths)
    whole.samples = parts.samples = total
    whole.similarity(images, captions)
    for rows in (range(4), range(4, 12)):
        assert not bool(parts.thresholds.any())
        parts.similarity(images.select(rows), captions.select(rows))
    # the last images differ, the own ones do not
    assert float(parts.thresholds[1]) == pytest.approx(float(whole.thresholds[1]), abs=1e-12)
    assert float(parts.thresholds[0]) > 0
    assert not bool(parts.collected.any())


def test_only_training_with_gradients_on_pairs_moves_the_thresholds():
    model, (images, captions) = planted_model(samples=2), planted()
    model.eval().similarity(images, captions)
    model.train()
    with torch.no_grad():
        model.similarity(images, captions)
    model.similarity(images, captions.select(range(5)))
    model.paired_similarity(images, captions)
    assert not bool(model.thresholds.any())
    assert not bool(model.collected.any())
    model.similarity(images, captions)
    assert bool((model.thresholds > 0).all())


def test_state_is_saved_and_continues_exactly():
    model, (images, captions) = planted_model(samples=50), planted()
    for _ in range(3):
        model.similarity(images, captions)
    again = planted_model(samples=50)
    again.load_state_dict(deepcopy(model.state_dict()))
    assert bool(model.thresholds.any())
    for mode in (True, False, True):
        scores = [m.train(mode).similarity(images, captions) for m in (model, again)]
        assert torch.equal(*scores)
    assert torch.equal(model.thresholds, again.thresholds)
    assert torch.equal(model.collected, again.collected)


@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_gradients_are_those_of_the_threshold_used(budget):
    """The threshold moves before the backward pass, which must not see that."""
    results = []
    for samples in (2, 10_000):
        model, (images, captions) = planted_model(samples=samples), planted()
        model.memory_budget = budget
        words = captions.words.clone().requires_grad_()
        encoded = CaptionEncoding(captions.vectors, captions.lengths, words)
        model.similarity(images, encoded).square().sum().backward()
        results.append((words.grad, bool(model.thresholds.any())))
    assert [moved for _, moved in results] == [True, False]
    assert torch.equal(results[0][0], results[1][0])
