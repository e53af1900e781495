"""BiCro against worked numbers, its soft labels by a plain loop, and its corner cases."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

import nclib
from nclib import losses, models
from nclib.methods import Truth
from nclib.methods.parts.anchors import (
    LabelLog,
    by_reliability,
    clean_labels,
    closeness_ratios,
    global_vectors,
    n_anchors,
    noisy_labels,
    small_loss,
)
from nclib.noise import BetaMixture
from nclib.runs import epoch_arrays


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


S = tensor(
    [[0.70, 0.10, 0.20, 0.05], [0.15, 0.30, 0.25, 0.20], [0.10, 0.20, 0.55, 0.12], [0.30, 0.10, 0.05, 0.42]]
)
U = tensor([[1, 0.1], [0.2, 1], [0.9, 0.5], [0.4, 0.8]])
T = tensor([[0.9, 0.2], [1, 0.3], [0.8, 0.6], [0.1, 1]])
NCR_S = tensor(
    [[0.82, 0.31, 0.12, 0.25], [0.28, 0.35, 0.47, 0.09], [0.15, 0.22, 0.76, 0.33], [0.05, 0.41, 0.18, 0.54]]
)
LOSSES = np.array([0.11, 0.13, 0.16, 0.18, 0.22, 0.25, 0.31, 0.62, 0.71, 0.78, 0.90, 0.97])
INTENDED = [0.996169, 0.844982, 1.0, 0.909923]


def close(found, expected, tolerance=1e-6):
    assert torch.as_tensor(found).flatten().tolist() == pytest.approx(expected, abs=tolerance)


# -- worked numbers -------------------------------------------------------------------------------------


def test_labels_of_noisy_pairs():
    anchors = tensor([[1, 0.2], [0.3, 1]]), tensor([[0.9, 0.4], [0.1, 1]])
    u, t = tensor([[0.8, 0.5], [0.2, 0.9], [1, -0.1]]), tensor([[0.7, 0.6], [1, 0.3], [0.2, 0.8]])
    r_image, r_text = closeness_ratios(u, t, *anchors)
    close(r_image, [0.976353, 0.382241, 0.643844])
    close(r_text, [0.976353, 0.407433, 0.192645])
    close(noisy_labels(r_image, r_text, 0.5), [0.976353, 0, 0])
    # three pairs have one anchor; as an order whose last is out of the way, only the mapping is seen
    r = torch.cat([r_image, tensor([1.0])]), torch.cat([r_text, tensor([1.0])])
    close(clean_labels(*r, torch.tensor([0, 1, 2, 3])), [0.988177, 0.697419, 0.709122, 1.0])


def test_beta_mixture_of_the_division():
    x = (LOSSES - LOSSES.min()) / (LOSSES.max() - LOSSES.min())
    mixture = BetaMixture.bicro().fit(x)
    close(mixture.a_, [0.327703, 0.845661])
    close(mixture.b_, [1.4384, 0.398659], 1e-5)
    close(mixture.weights_, [0.587133, 0.412867])
    expected = [
        0.994335,
        0.910593,
        0.859179,
        0.833163,
        0.789195,
        0.760008,
        0.706306,
        0.433679,
        0.340717,
        0.260499,
    ]
    posterior = mixture.predict_proba(x)
    close(posterior[:, 0], [*expected, 0.102761, 0.000103166])
    assert np.array_equal(posterior.sum(1), np.ones(12))


def test_clean_labels():
    assert n_anchors(4) == 1
    assert n_anchors(128) == 13
    close(torch.clamp(0.2 - losses.triplet(S, 0.2, "mean") / 2, 0, 0.2), [0.2, 0.15, 0.2, 0.19])
    order = torch.tensor([1, 3, 0, 2])
    ratios = closeness_ratios(U, T, U[order[-1:]], T[order[-1:]])
    close(clean_labels(*ratios, order), INTENDED)
    margins = losses.soft_margins(tensor(INTENDED))
    assert losses.soft_margin_triplet(S, margins).sum().item() == pytest.approx(0.154958, abs=1e-6)


def test_tied_scores_prefer_the_larger_gap_then_the_earlier_pair():
    assert by_reliability(S, 0.2).tolist() == [1, 3, 2, 0]  # 0 and 2 tie; 0.70 - 0.20 > 0.55 - 0.20
    same = torch.eye(5, dtype=torch.float64)
    assert by_reliability(same, 0.2).tolist() == [4, 3, 2, 1, 0]


def test_warm_up_keeps_the_small_losses():
    ell = losses.triplet(S, 0.2, "mean")
    close(ell, [0, 0.1, 0, 0.02])
    assert small_loss(ell, 0.5).sum().item() == 0
    assert small_loss(losses.triplet(NCR_S, 0.2, "mean"), 0.75).sum().item() == pytest.approx(0.0175)
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


def test_ratios_at_zero_and_at_opposite_signs():
    anchor = tensor([[1.0, 0.0]])
    close(torch.stack(closeness_ratios(tensor([[1.0, 0]]), tensor([[0.0, 1]]), anchor, anchor)), [0.0, 0.0])
    close(torch.stack(closeness_ratios(tensor([[0.0, 1]]), tensor([[0.0, 1]]), anchor, anchor)), [0.0, 0.0])
    below = closeness_ratios(tensor([[1.0, 0]]), tensor([[-1.0, 1]]), anchor, anchor)
    assert max(r.item() for r in below) < 0
    assert noisy_labels(*below, 0.0).item() == 0


@given(st.integers(2, 40), st.integers(0, 10**6))
def test_labels_lie_in_the_unit_interval_and_anchors_have_one(B, seed):
    g = torch.Generator().manual_seed(seed)
    scores, u, t = (
        torch.rand(B, B, generator=g),
        torch.randn(B, 3, generator=g),
        torch.randn(B, 3, generator=g),
    )
    order = by_reliability(scores)
    assert sorted(order.tolist()) == list(range(B))
    anchors = order[-n_anchors(B) :]
    ratios = closeness_ratios(u, t, u[anchors], t[anchors])
    assert all(float(r.max()) <= 1 for r in ratios)
    y = clean_labels(*ratios, order, 0.5)
    assert torch.equal(y[anchors], torch.ones(len(anchors)))
    assert 0 <= float(y.min()) <= float(y.max()) <= 1
    assert not ((y > 0) & (y <= 0.5)).any()


def test_global_vectors_are_means_of_fragments():
    split = nclib.data.load("planted", n_train=8).train
    images, tokens = split.features(np.arange(4)), split.captions.batch(np.arange(4))
    for name in ("vse", "saf", "sgraf"):
        network = models.build(
            name,
            feature_dim=images.shape[2],
            vocab_size=500,
            n_regions=images.shape[1],
            embed_dim=8,
            sim_dim=4,
        ).eval()
        i, c = network.encode_images(images), network.encode_captions(tokens)
        u, t = global_vectors(i, c)
        assert u.shape == t.shape == (4, 16 if name == "sgraf" else 8)
        if name == "saf":
            assert torch.allclose(u[2], i.regions[2].mean(0))
            assert torch.allclose(t[2], c.words[2, : c.lengths[2]].mean(0))


def test_report_of_the_labels():
    log = LabelLog()
    assert log.report(Truth(np.array([True, False])))["label_auc"] is None
    log.clean = [(torch.tensor([0, 3]), torch.tensor([1.0, 0.6]))]
    log.anchors = [(torch.tensor([0, 3]), torch.tensor([1.0, 0.0]))]
    log.noisy = [(torch.tensor([1, 2]), torch.tensor([0.0, 0.8])), (torch.tensor([4]), torch.tensor([0.9]))]
    report = log.report(Truth(np.array([True, False, True, False, False])))
    assert report["label_auc"] == 0.5  # 0.8 beats 0.0 and loses to 0.9
    assert report["label_matched"] == pytest.approx(0.8)
    assert report["label_mismatched"] == pytest.approx(0.45)
    assert report["clean_label_auc"] == 1
    assert report["anchor_precision"] == 1


# -- runs -----------------------------------------------------------------------------------------------

run = partial(tiny.run, "bicro")
trainer_of = partial(tiny.trainer_of, "bicro")


def test_a_step_labels_by_the_peer_and_updates_noisy_then_clean(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.epoch, trainer.active = 2, 1
    method = trainer.method
    method.logs = [LabelLog(), LabelLog()]
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
    assert torch.allclose(method.logs[1].clean[0][1], clean_labels(*ratios, order))
    assert not method.logs[0].clean
    before = [p.clone() for p in trainer.networks[1].parameters()]
    trainer._minimise(first)
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.networks[1].parameters(), strict=True))
    second = next(steps)
    margins = losses.soft_margins(method.logs[1].clean[0][1])
    expected = losses.soft_margin_triplet(trainer.similarity(clean, 1), margins).sum()
    assert second["clean"].item() == pytest.approx(expected.item())  # with the weights of after the first
    assert list(steps) == []
    assert all(network.training for network in trainer.networks)


def test_noisy_pairs_train_in_the_second_half_only_and_labels_are_reported(tmp_path):
    record = run(tmp_path, epochs=2)
    first, second = record.curves[1:]
    assert "loss_noisy" not in first
    assert first["label_auc"] is None
    assert "loss_noisy" in second
    for name in ("auc", "label_matched", "label_mismatched", "clean_label_matched", "anchor_precision"):
        assert 0 <= second[name] <= 1
    kept = epoch_arrays(record.folder)[3]
    for end in ("", "_b"):
        clean = kept["p_clean_b" if end == "" else "p_clean"] > 0.5  # the peer divides
        assert not (np.isfinite(kept["label_clean" + end]) & ~clean).any()
        assert not (np.isfinite(kept["label_noisy" + end]) & clean).any()
        assert np.nanmax(kept["label_clean" + end]) == 1
        assert (kept["label_clean" + end][kept["anchor" + end]] == 1).all()
