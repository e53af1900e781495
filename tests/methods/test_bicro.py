"""BiCro: its soft labels and ratios by plain loops, and its corner cases."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from nclib import losses
from nclib.methods.parts.anchors import (
    by_reliability,
    clean_labels,
    closeness_ratios,
    n_anchors,
    noisy_labels,
    small_loss,
)
from nclib.methods.parts.vectors import global_vectors


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


S = tensor(
    [[0.70, 0.10, 0.20, 0.05], [0.15, 0.30, 0.25, 0.20], [0.10, 0.20, 0.55, 0.12], [0.30, 0.10, 0.05, 0.42]]
)


# -- labels and anchors -----------------------------------------------------------------------------------


def test_labels_equal_a_plain_loop():
    g = torch.Generator().manual_seed(0)
    r_image, r_text = 2 * torch.rand(2, 25, generator=g, dtype=torch.float64) - 1
    order = torch.randperm(25, generator=g)
    noisy, clean = noisy_labels(r_image, r_text, 0.5), clean_labels(r_image, r_text, order, 0.6)
    for i, (a, b) in enumerate(zip(r_image.tolist(), r_text.tolist(), strict=True)):
        y = (a + b) / 2
        assert noisy[i].item() == pytest.approx(y if y > 0.5 else 0.0)
        y = 1.0 if i in order[-3:] else 0.5 + (a + b) / 4
        assert clean[i].item() == pytest.approx(y if y > 0.6 else 0.0)


def test_the_most_reliable_pairs_are_the_anchors():
    assert [n_anchors(size) for size in (4, 9, 10, 128)] == [1, 1, 2, 13]
    g = torch.Generator().manual_seed(0)
    scores = 0.72 * torch.rand(20, 20, generator=g, dtype=torch.float64)
    scores.fill_diagonal_(0.9)
    score = (0.2 - losses.triplet(scores, 0.2, "mean") / 2).clamp(0, 0.2).tolist()
    gap = [0.9 - max(float(scores[i, j]) for j in range(20) if j != i) for i in range(20)]
    assert 1 < score.count(0.2) < 20
    order = sorted(range(20), key=lambda i: (score[i], gap[i], -i))  # ties: the gap, then the earlier pair
    assert by_reliability(scores, 0.2).tolist() == order
    assert by_reliability(torch.eye(5), 0.2).tolist() == [4, 3, 2, 1, 0]


def test_warm_up_keeps_the_small_losses():
    ell = losses.triplet(S, 0.2, "mean")
    assert small_loss(ell, 0.5).tolist() == sorted(ell.tolist())[:2]
    assert len(small_loss(ell, 0.1)) == 1  # never none
    assert len(small_loss(torch.rand(10), 0.3)) == 3
    assert len(small_loss(ell, 1.0)) == 4


# -- against plain definitions --------------------------------------------------------------------------


def naive_ratio(x, y):
    if x == 0 or y == 0:
        return 0.0
    return x / y if x / y < 1 else y / x


def test_consistency_equals_a_plain_loop():
    g = torch.Generator().manual_seed(3)
    u, t = torch.randn(9, 4, generator=g).double(), torch.randn(9, 6, generator=g).double()
    u[8], t[8] = u[0], t[1]  # the nearest anchor by picture is another than by caption
    rows = [0, 1, 5]
    cosine = torch.nn.functional.cosine_similarity
    for i in range(9):
        image = [cosine(u[i], u[c], dim=0).item() for c in rows]
        text = [cosine(t[i], t[c], dim=0).item() for c in rows]
        k, m = int(np.argmax(image)), int(np.argmax(text))
        r_image, r_text = closeness_ratios(u[i : i + 1], t[i : i + 1], u[rows], t[rows])
        assert r_image.item() == pytest.approx(naive_ratio(image[k], text[k]), abs=1e-9)
        assert r_text.item() == pytest.approx(naive_ratio(text[m], image[m]), abs=1e-9)


@given(st.integers(2, 40), st.integers(0, 10**6))
def test_labels_lie_in_the_unit_interval_and_anchors_have_one(B, seed):
    g = torch.Generator().manual_seed(seed)
    scores, (u, t) = torch.rand(B, B, generator=g), torch.randn(2, B, 3, generator=g)
    order = by_reliability(scores)
    assert sorted(order.tolist()) == list(range(B))
    anchors = order[-n_anchors(B) :]
    ratios = closeness_ratios(u, t, u[anchors], t[anchors])
    assert all(float(r.max()) <= 1 for r in ratios)
    y = clean_labels(*ratios, order, 0.5)
    assert torch.equal(y[anchors], torch.ones(len(anchors)))
    assert 0 <= float(y.min()) <= float(y.max()) <= 1
    assert not ((y > 0) & (y <= 0.5)).any()


# -- runs -----------------------------------------------------------------------------------------------

trainer_of = partial(tiny.trainer_of, "bicro")


def test_a_step_labels_by_the_peer_and_updates_noisy_then_clean(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.epoch, trainer.active = 2, 1
    method = trainer.method
    method.label = torch.full((2, trainer.n_pairs), torch.nan)
    clean, noisy = trainer.batch(torch.arange(16)), trainer.batch(torch.arange(16, 30))
    peer = trainer.networks[0].eval()
    u, t = global_vectors(peer.encode_images(clean.images), peer.encode_captions(clean.captions))
    scores = trainer.similarity(clean, 0)
    trainer.networks[0].train()
    order = by_reliability(scores, 0.2)
    ratios = closeness_ratios(u, t, u[order[-2:]], t[order[-2:]])
    steps = method.step(trainer, (clean, noisy))
    first = next(steps)
    assert set(first) == {"noisy"}
    labels = method.label[0, :16]
    assert torch.allclose(labels, clean_labels(*ratios, order))
    assert (~method.label[1].isnan()).nonzero()[:, 0].tolist() == noisy.index.tolist()
    before = [p.clone() for p in trainer.networks[1].parameters()]
    trainer._minimise(first)
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.networks[1].parameters(), strict=True))
    second = next(steps)
    margins = losses.soft_margins(labels)
    expected = losses.soft_margin_triplet(trainer.similarity(clean, 1), margins).sum()
    assert second["clean"].item() == pytest.approx(expected.item())  # with the weights of after the first
    assert list(steps) == []
    assert all(network.training for network in trainer.networks)


@pytest.mark.parametrize(("x", "y", "ratio"), [(0, 0, 0), (0, 0.5, 0), (0.5, 0, 0), (0.5, -0.5, -1)])
def test_ratios_at_zero_and_at_opposite_signs(x, y, ratio):
    anchor = tensor([[1.0, 0.0]])
    u, t = (tensor([[c, (1 - c * c) ** 0.5]]) for c in (x, y))  # cosines with the anchor
    for r in closeness_ratios(u, t, anchor, anchor):
        assert r.item() == pytest.approx(ratio, abs=1e-12)
