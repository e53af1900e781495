"""Recall, mean average precision and dual softmax: printed numbers, literal sorts, traps."""

from __future__ import annotations

import math
import tracemalloc
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nclib import evaluation
from nclib.evaluation import (
    Judgements,
    category,
    dual_softmax,
    map_at_r,
    mean_average_precision,
    precision_at_k,
    ranks,
    recall,
)
from nclib.evaluation.scores import count

V1 = np.array(
    [[0.9, 0.2, 0.3, 0.1, 0.5, 0.4], [0.8, 0.1, 0.7, 0.6, 0.2, 0.3], [0.3, 0.95, 0.2, 0.85, 0.35, 0.15]]
)


# ------------------------------------------------------------------------------------- literal references


def literal_rank(scores, wanted, ties):
    """Rank of the best wanted item of one query, by Python's sort."""
    best = max(scores[i] for i in wanted)
    wrong = [s for i, s in enumerate(scores) if i not in wanted]
    above, equal = sum(s > best for s in wrong), sum(s == best for s in wrong)
    if ties == "pessimistic":
        return above + equal
    if ties == "shared":
        return above + equal / 2
    order = sorted(range(len(scores)), key=lambda i: scores[i])[::-1]  # a stable sort, reversed
    return min(order.index(i) for i in wanted)


def literal_ranks(S, p, ties):
    rows, columns = S.tolist(), S.T.tolist()
    i2t = [literal_rank(r, range(i * p, i * p + p), ties) for i, r in enumerate(rows)]
    return i2t, [literal_rank(c, [j // p], ties) for j, c in enumerate(columns)]


def literal_ap(order, relevant, k):
    hits, total = 0, 0.0
    for place, item in enumerate(order[:k], 1):
        if relevant[item]:
            hits += 1
            total += hits / place
    return total / hits if hits else None


@st.composite
def score_matrices(draw):
    n, p = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    levels = draw(st.sampled_from([1, 2, 5, 1000]))  # few levels: many ties
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, levels, (n, n * p)) / 8, p


# -------------------------------------------------------------------------------------------------- recall


def test_constant_scores_are_at_chance_not_perfect():
    i2t, t2i, n_ties = ranks(np.ones((3, 6)), 2)
    assert i2t.tolist() == [4, 2, 0]
    assert t2i.tolist() == [2, 2, 1, 1, 0, 0]
    assert n_ties == 9
    for ties in evaluation.TIES:
        assert recall(np.zeros((200, 1000)), 5, ties=ties)["rsum"] < 20
    assert recall(np.zeros((200, 1000)), 5, ties="pessimistic")["i2t_meanr"] == 996


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    S, x, y = V1.copy(), torch.eye(4, dtype=torch.float64), torch.arange(4)
    S[1, 2] = x[1, 2] = bad
    for measure, said in (
        (lambda: recall(S, 2), "image 1, caption 2"),
        (lambda: map_at_r(S, np.ones((3, 6))), "image 1, caption 2"),
        (lambda: dual_softmax(S), "image 1, caption 2"),
        (lambda: map_at_r(V1, S * math.nan), "relevance is nan at image 0, caption 0"),
        (lambda: precision_at_k(x, torch.eye(4), y, y, 1), "queries holds NaN or infinite"),
        (lambda: precision_at_k(torch.eye(4), x, y, y, 1), "gallery holds NaN or infinite"),
    ):
        with pytest.raises(ValueError, match=said):
            measure()
    with pytest.raises(ValueError, match="queries holds"):  # cannot be squared
        precision_at_k(torch.eye(4, dtype=torch.float64) * 1e200, torch.eye(4), y, y, 1)


def test_correlation_of_errors_is_of_the_recalls_of_each_query():
    g = torch.Generator().manual_seed(0)
    parts = [torch.randn(40, 40, generator=g) + 2 * torch.eye(40) for _ in range(3)]
    lost = [np.concatenate(literal_ranks(S, 1, "stable")) for S in parts]
    errors = [[sum(rank >= k for k in (1, 5, 10)) / 3 for rank in one] for one in lost]
    pairs = [np.corrcoef(errors[i], errors[j])[0, 1] for i, j in ((0, 1), (0, 2), (1, 2))]
    assert evaluation.error_correlation(parts, 1) == pytest.approx(np.mean(pairs))
    assert evaluation.error_correlation(parts[:1] * 2, 1) == pytest.approx(1)
    assert evaluation.error_correlation([torch.eye(4), torch.eye(4)], 1) is None


def test_huge_finite_scores_are_fine():
    assert recall(V1 * 1e300, 2) == recall(V1, 2)
    assert recall((V1 * 1e30).astype(np.float32), 2) == recall(V1, 2)


@pytest.mark.parametrize("ties", evaluation.TIES)
@given(case=score_matrices())
def test_ranks_are_a_literal_sort(ties, case):
    S, p = case
    i2t, t2i, n_ties = ranks(S, p, ties)
    expected = literal_ranks(S, p, ties)
    assert i2t.tolist() == expected[0]
    assert t2i.tolist() == expected[1]
    strict, loose = (literal_ranks(S, p, rule) for rule in ("shared", "pessimistic"))
    tied = sum(a != b for a, b in zip(strict[0] + strict[1], loose[0] + loose[1], strict=True))
    assert n_ties == tied


@pytest.mark.parametrize("levels", [30, 10_000])
def test_blocks_and_wide_counts_agree_with_numpys_sort(levels):
    # More rows than a block, more columns than a byte counts.
    S = np.random.default_rng(0).integers(0, levels, (150, 750)).astype(np.float32)
    i2t, t2i, _ = ranks(S, 5)
    order = np.argsort(S, axis=1, kind="stable")[:, ::-1]
    assert i2t.tolist() == [np.flatnonzero(o // 5 == i)[0] for i, o in enumerate(order)]
    order = np.argsort(S, axis=0, kind="stable")[::-1]
    assert t2i.tolist() == [np.flatnonzero(order[:, j] == j // 5)[0] for j in range(750)]


@pytest.mark.parametrize("n", [255, 256, 300])
def test_last_places_beyond_a_byte(n):
    i2t, t2i, _ = ranks(1 - np.eye(n, dtype=np.float32), 1)
    assert set(i2t) == set(t2i) == {n - 1}
    assert count(np.ones((n, 2), np.bool_), 0).tolist() == [n, n]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_tensors_that_stay_on_their_device_until_read(monkeypatch, dtype):
    # The path of a matrix on an accelerator: the tensor itself is cut into blocks.
    S = torch.from_numpy(np.random.default_rng(0).integers(0, 60, (130, 260)))
    expected = recall(S, 2), evaluation.relevant_recall(S, S > 50), dual_softmax(S.double(), 40.0)
    for module in (evaluation.ranking, evaluation.relevance, evaluation.scores):
        monkeypatch.setattr(module, "as_matrix", lambda x, name="": x)
    S = S.to(dtype)
    assert recall(S, 2) == expected[0]
    assert evaluation.relevant_recall(S, (S > 50).float()) == expected[1]
    np.testing.assert_allclose(dual_softmax(S, 40.0), expected[2], rtol=1e-5)


def test_folds_are_blocks_averaged():
    S = np.random.default_rng(0).random((20, 40))
    folded = recall(S, 2, folds=5)
    parts = [recall(S[4 * f : 4 * f + 4, 8 * f : 8 * f + 8], 2) for f in range(5)]
    for key in folded:
        expected = sum(p[key] for p in parts) / (1 if key == "n_ties" else 5)
        assert folded[key] == pytest.approx(expected, abs=1e-12)
    assert folded["rsum"] > recall(S, 2)["rsum"]  # fewer distractors
    S[1, 30] = math.inf  # in no block
    with pytest.raises(ValueError, match="similarity is inf at image 1, caption 30"):
        recall(S, 2, folds=5)


# ---------------------------------------------------------------------------------------- true relevance


@given(case=score_matrices(), seed=st.integers(0, 2**32))
def test_relevance_measures_are_the_literal_loops(case, seed):
    S, _ = case
    relevance = np.random.default_rng(seed).integers(0, 3, S.shape) / 2
    relevance[0, 0] = 1
    found = map_at_r(S, relevance) | evaluation.relevant_recall(S, relevance)
    for direction, scores, truth in (("i2t", S, relevance), ("t2i", S.T, relevance.T)):
        expected = {"map_at_r": [], "r1": [], "r5": [], "r10": [], "meanr": []}
        for row, wanted in zip(scores.tolist(), truth >= 1, strict=True):
            size = int(wanted.sum())
            if size == 0:
                continue
            order = sorted(range(len(row)), key=lambda i: row[i])[::-1]
            hits = [bool(wanted[i]) for i in order[:size]]
            first = next(k for k, i in enumerate(order) if wanted[i])
            precisions = (h * sum(hits[: k + 1]) / (k + 1) for k, h in enumerate(hits))
            values = [100 * sum(precisions) / size]
            values += [*(100 * (first < k) for k in (1, 5, 10)), first + 1]
            for name, value in zip(expected, values, strict=True):
                expected[name].append(value)
        for name, values in expected.items():
            assert found[f"{direction}_{name}"] == pytest.approx(np.mean(values))


# -------------------------------------------------------------------------------------- category retrieval


@given(
    seed=st.integers(0, 2**32), multi=st.booleans(), k=st.sampled_from([None, 1, 4]), chunk=st.integers(1, 9),
    empty=st.sampled_from(["zero", "skip"]),
)  # fmt: skip
def test_map_is_the_literal_loop(seed, multi, k, chunk, empty):
    rng = np.random.default_rng(seed)
    q, g = rng.normal(size=(7, 3)), rng.normal(size=(11, 3))
    g[5:8] = g[:3]  # equal scores, ordered by position
    if multi:
        ql, gl = rng.random((7, 4)) < 0.3, rng.random((11, 4)) < 0.3
        gl[0], ql[0] = True, True
        relevant = ql.astype(int) @ gl.T.astype(int) > 0
    else:
        ql, gl = rng.integers(0, 4, 7), rng.integers(0, 4, 11)
        ql[0] = gl[0]
        relevant = ql[:, None] == gl
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, g)]
    values = []
    for scores, wanted in zip((units[0] @ units[1].T).round(12), relevant, strict=True):
        order = sorted(range(11), key=lambda i, s=scores: (-s[i], i))
        values.append(literal_ap(order, wanted, k or 11))
    counted = [v for v in values if v is not None]
    given = {"k": k, "empty": empty, "chunk": chunk}
    if empty == "skip" and not counted:
        with pytest.raises(ValueError, match="nothing to average"):
            mean_average_precision(q, g, ql, gl, **given)
        return
    expected = np.mean(counted) if empty == "skip" else sum(counted) / 7
    got = mean_average_precision(torch.from_numpy(q), g, ql, torch.from_numpy(gl), **given)
    assert got == pytest.approx(expected, abs=1e-12)


def test_scores_closer_than_a_step_keep_their_order():
    rng = np.random.default_rng(0)
    scores = rng.uniform(-1, 1, (40, 60))
    scores[:, 10:16] = scores[:, :6] + rng.choice([-3e-11, 3e-11], (40, 6))  # within one step of 1e-9
    scores[5:8, 20:] = scores[5:8, :1] + rng.choice([0.0, 2e-11, -2e-11], (3, 40))  # a row full of near ties
    scores[9, 30:] = scores[9, :30] + rng.choice([-2e-11, 2e-11], 30)  # more than a few groups of near ties
    scores[30] = 0.5
    relevant = rng.random((40, 60)) < 0.4
    found = category._ranked(scores, relevant)
    for row, wanted, got in zip(scores, relevant, found, strict=True):
        np.testing.assert_array_equal(got, wanted[np.argsort(-row.round(13), kind="stable")])
    steps = (-scores * category.LEVELS + category.OFF).astype(int)  # without a look at the full scores
    rough = np.take_along_axis(relevant, np.argsort(steps, 1, kind="stable"), 1)
    assert (rough != found).any()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("k", [None, 7])
def test_the_path_of_an_accelerator(monkeypatch, several, k):
    rng = np.random.default_rng(0)
    q, g = (rng.normal(size=(n, 5)) for n in (30, 80))
    ql, gl = ((rng.random((n, 4)) < 0.3) if several else rng.integers(0, 4, n) for n in (30, 80))
    g[40:50] = g[:10]  # ties
    empty = "skip" if several else "zero"
    expected = mean_average_precision(q, g, ql, gl, k, empty=empty)
    monkeypatch.setattr(category, "as_matrix", lambda x, name: torch.as_tensor(x))
    inner = Mock(wraps=category._on_device)
    monkeypatch.setattr(category, "_on_device", inner)
    got = mean_average_precision(torch.from_numpy(q), torch.from_numpy(g), ql, gl, k, empty=empty, chunk=7)
    assert inner.called
    assert got == pytest.approx(expected, abs=1e-12)
    near = torch.tensor([[1.0, 1e-4], [1.0, 0.0]], dtype=torch.float64)  # cosines 5e-9 apart
    assert mean_average_precision(near[1:], near, [0], [1, 0]) == 1
    monkeypatch.setattr(category, "_kind", lambda device: torch.float32)  # an accelerator without float64
    assert mean_average_precision(q, g, ql, gl, k, empty=empty) == pytest.approx(expected, abs=1e-4)


def test_no_matrix_of_all_scores():
    rng = np.random.default_rng(0)
    n = 4000  # all scores in float64 would take 128 MB, and their order as much again
    q = rng.normal(size=(n, 16)).astype(np.float32)
    y = rng.integers(0, 10, n)
    tracemalloc.start()
    mean_average_precision(q[:600], q, y[:600], y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6


@pytest.mark.parametrize("n_classes", [1, 31, 32, 33, 64, 65, 200])
def test_several_labels_as_bits(n_classes):
    rng = np.random.default_rng(n_classes)
    one, two = (rng.random((n, n_classes)) < 2 / n_classes for n in (9, 14))
    one[0], two[0] = np.arange(n_classes) == n_classes - 1, True
    words = [category._words(labels.astype(int)) for labels in (one, two)]
    expected = one.astype(int) @ two.T.astype(int) > 0
    np.testing.assert_array_equal(category._relevant(*words), expected)


# -------------------------------------------------------------------------------------------- dual softmax

DSL = np.array([[0.5, 0.45, 0.1], [0.48, 0.3, 0.2], [0.47, 0.1, 0.4]])


def test_dual_softmax_numbers():
    i2t = [[0.586041, 1.07713, 0.0126030], [0.460617, 0.160227, 0.0685171], [0.408101, 0.00722813, 1.01255]]
    t2i = [[0.923164, 0.503935, 0.00338167], [1.17445, 0.121334, 0.0297576], [0.926833, 0.00487545, 0.391704]]
    np.testing.assert_allclose(dual_softmax(DSL, 0.1), i2t, rtol=5e-6)
    np.testing.assert_allclose(dual_softmax(DSL, 0.1, direction="t2i"), t2i, rtol=5e-6)
    np.testing.assert_allclose(dual_softmax(DSL, 0.01)[0], [1.26569, 1.35, 2.80729e-14], rtol=5e-6)
    np.testing.assert_allclose(dual_softmax(torch.from_numpy(DSL).float(), 0.1), i2t, rtol=1e-5)


def test_agreement_with_people():
    judged = Judgements(np.arange(4), np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]), fits_from=2.5)
    assert judged.agreement([0.1, 0.2, 0.3, 0.4]) == {"tau": 1.0, "auc": 1.0, "ap": 1.0}
    turned = judged.agreement(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert (turned["tau"], turned["auc"]) == (-1.0, 0.0)
    with pytest.raises(ValueError, match=r"score, .* must be float64 \(4,\), got float64 \(3,\)"):
        judged.agreement([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="0 of 4 judged pairs fit; both kinds are needed"):
        Judgements(judged.image, judged.caption, judged.rating, 5.0).agreement([0.1, 0.2, 0.3, 0.4])


# ---------------------------------------------------------------------------------------------- neighbours


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("same_items", [False, True])
def test_precision_of_short_lists_against_a_loop(several, same_items, monkeypatch):
    monkeypatch.setattr("nclib.evaluation.neighbours.ROWS", 3)  # several blocks
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(7, 5, generator=g), torch.randn(9, 5, generator=g)
    kind = torch.randint(3, (2, 9), generator=g)
    kind = (torch.rand(2, 9, 3, generator=g) < 0.4).long() if several else kind
    own, others = kind[0][: len(x)], kind[1]
    if same_items:
        y, others = x, own
    hits = []
    for i in range(len(x)):
        score = torch.cosine_similarity(x[i], y, dim=1)
        if same_items:
            score[i] = -2
        for j in score.argsort(descending=True)[:4].tolist():
            hits.append(bool((own[i] & others[j]).any()) if several else bool(own[i] == others[j]))
    found = precision_at_k(x, y, own, others, 4, same_items=same_items)
    assert found == pytest.approx(np.mean(hits))
    assert same_items or found == precision_at_k(x, y, own, others, 4)  # the default
