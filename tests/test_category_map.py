"""Mean average precision: order within a step of the keys, ties, devices, memory, the published function."""

import importlib.util
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from nclib.evaluation import category, mean_average_precision

BENCH = Path(__file__).resolve().parents[1] / "book" / "bench" / "map.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_map", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("dim", [3, 64])
def test_equal_to_the_published_function(bench, several, dim):
    data = bench.problem(60, 400, several, dim)
    expected = bench.candidates(several)["published"](*data)
    ours = bench.candidates(several)
    assert ours["nclib"](*data) == pytest.approx(expected, abs=1e-12)
    if not several:
        assert mean_average_precision(*data, k=50) == pytest.approx(bench.published(*data, k=50), abs=1e-12)


def naive(scores, relevant):
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return np.array([relevant[i] for i in order])


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
        np.testing.assert_array_equal(got, naive(row.round(13).tolist(), wanted))
    steps = (-scores * category.LEVELS + category.OFF).astype(int)  # without a look at the full scores
    rough = np.take_along_axis(relevant, np.argsort(steps, 1, kind="stable"), 1)
    assert (rough != found).any()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("k", [None, 7])
def test_the_path_of_an_accelerator(bench, monkeypatch, several, k):
    q, g, ql, gl = bench.problem(30, 80, several, 5)
    g[40:50] = g[:10]  # ties
    empty = "skip" if several else "zero"
    expected = mean_average_precision(q, g, ql, gl, k, empty=empty)
    monkeypatch.setattr(category, "as_matrix", lambda x, name: torch.as_tensor(x))
    asked = []
    inner = category._on_device
    monkeypatch.setattr(category, "_on_device", lambda *args: asked.append(1) or inner(*args))
    got = mean_average_precision(torch.from_numpy(q), torch.from_numpy(g), ql, gl, k, empty=empty, chunk=7)
    assert asked
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
