"""SPS against worked numbers and plain loops; kinds of pairs, proxies, runs and corner cases."""

import math
from functools import partial

import numpy as np
import pytest
import tiny
import torch
from tiny import SCORES as S

from nclib import losses, methods
from nclib.methods.coteaching import Division, loss_inside
from nclib.methods.parts.bank import pooled
from nclib.methods.parts.replacing import ReplaceLog
from nclib.methods.sps import (
    asymmetry,
    disagreement,
    pair_log_probabilities,
    probability,
    proxies,
    proxy_labels,
    proxy_loss,
)
from nclib.noise import GaussianMixture1d
from nclib.runs import epoch_arrays

NOISY = torch.tensor([[0.9, 0.1], [0.2, 1.0], [0.6, 0.7]], dtype=torch.float64)
SURE = torch.tensor([[1.0, 0.05], [0.1, 0.9], [0.7, 0.7]], dtype=torch.float64)
TWINS = torch.tensor([[0.8, 0.8, 0.2], [0.7, 0.7, 0.1], [0.1, 0.1, 0.6]], dtype=torch.float64)
run = partial(tiny.run, "sps", data_options=tiny.SMALLER)
trainer_of = partial(tiny.trainer_of, "sps", data_options=tiny.SMALLER)


def started(tmp_path, **values):
    """A trainer before its first training epoch."""
    trainer = trainer_of(tmp_path, **values)
    trainer.epoch = 1
    return trainer, trainer.method


# ------------------------------------------------------------------------------------------ worked numbers


def test_worked_stability():
    assert 25 * asymmetry(S).item() == pytest.approx(0.716250, abs=1e-6)
    cv = torch.tensor([[1, 0.4, 0.1, 0.2], [0.4, 1, 0.3, 0.1], [0.1, 0.3, 1, 0.5], [0.2, 0.1, 0.5, 1]])
    ct = torch.tensor([[1, 0.3, 0.2, 0.2], [0.3, 1, 0.1, 0], [0.2, 0.1, 1, 0.6], [0.2, 0, 0.6, 1]])
    v, t = (torch.linalg.cholesky(c.double()) for c in (cv, ct))  # unit rows with these cosines
    assert 25 * disagreement(3 * v, t).item() == pytest.approx(0.25, abs=1e-6)


def test_worked_proxies_and_labels():
    cosine = torch.nn.functional.cosine_similarity(NOISY[:, None], SURE[None], dim=2)
    expected = [
        [0.998158, 0.219512, 0.780869],
        [0.244839, 0.996241, 0.832050],
        [0.687895, 0.826481, 0.997054],
    ]
    assert cosine.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]
    proxy, best = proxies(NOISY, SURE)
    assert proxy.tolist() == [0, 1, 2]
    assert best.tolist() == pytest.approx(cosine.diagonal().tolist())
    p = probability(S[:3, :3], 0.07)
    assert p.tolist() == pytest.approx([0.999377, 0.362805, 0.991828], abs=1e-6)
    assert proxy_labels(p, best).tolist() == pytest.approx([0.997537, 0, 0.988907], abs=1e-6)


def test_a_shared_proxy_is_one_caption():
    released = probability(TWINS, 0.07)
    assert released.tolist() == pytest.approx([0.653301, 0.346633, 0.997175], abs=1e-6)
    merged = probability(TWINS, 0.07, torch.tensor([2.0, 2.0, 1.0]))
    row = TWINS[:, 1:].div(0.07).softmax(1)  # each caption once
    column = TWINS.div(0.07).softmax(0).diagonal()
    expected = (torch.stack([row[0, 0], row[1, 0], row[2, 1]]) + column) / 2
    assert torch.allclose(merged, expected)
    assert (merged[:2] > 0.5).all()
    assert torch.allclose(probability(S, 0.07, torch.ones(4)), probability(S, 0.07))


def test_probabilities_and_loss_equal_plain_loops():
    g = torch.Generator().manual_seed(0)
    scores, tau = torch.rand(6, 6, generator=g, dtype=torch.float64), 0.07
    proxy = [0, 3, 0, 2, 3, 0]
    scores = scores[:, proxy]
    copies = torch.tensor([proxy.count(j) for j in proxy], dtype=torch.float64)
    found = pair_log_probabilities(scores, tau, copies)
    for i in range(6):
        captions = sum(math.exp(scores[i, proxy.index(j)] / tau) for j in set(proxy))
        images = sum(math.exp(scores[k, i] / tau) for k in range(6))
        own = math.exp(scores[i, i] / tau)
        assert found[:, i].tolist() == pytest.approx([math.log(own / captions), math.log(own / images)])
    v, t = torch.randn(5, 3, generator=g).double(), torch.randn(5, 4, generator=g).double()
    total = 0.0
    for i in range(5):
        for j in range(5):
            cosines = [float(x[i] @ x[j] / (x[i].norm() * x[j].norm())) for x in (v, t)]
            total += (cosines[0] - cosines[1]) ** 2
    assert disagreement(v, t).item() == pytest.approx(total / 25)
    assert asymmetry(scores).item() == pytest.approx(
        sum(float(scores[i, j] - scores[j, i]) ** 2 for i in range(6) for j in range(6)) / 36
    )


@pytest.mark.parametrize("loss", ["infonce", "gce", "triplet"])
def test_proxies_train_with_the_loss_inside_and_copies_are_one_caption(loss):
    own, scores = torch.arange(4), S.clone()
    assert proxy_loss(scores, own, loss, 0.1).tolist() == pytest.approx(loss_inside(S, loss, 0.1).tolist())
    scores[:, 1] = scores[:, 0]  # a copy of caption 0, and the nearest to image 1
    scores[1, 2] = 0.0
    copied = proxy_loss(scores, torch.tensor([0, 0, 2, 3]), loss, 0.1)
    fewer = loss_inside(scores, loss, 0.1)
    assert bool((copied <= fewer + 1e-12).all())
    assert float(copied[1]) < float(fewer[1])


# ------------------------------------------------------------------------------------ kinds of pairs, steps


def division_of(p):
    p = torch.tensor(p, dtype=torch.float64)
    return Division(p, p, p > 0.5, torch.zeros(200, 3))


def test_kinds_of_pairs():
    method = methods.build("sps")
    method.divisions = [division_of([0.9, 0.61, 0.6, 0.55, 0.5, 0.1]), None]
    assert method.kinds(0).tolist() == [2, 2, 1, 1, 0, 0]


def test_forced_noisy_pairs_stay_strictly_clean_above_that_threshold():
    x = np.r_[np.linspace(0, 0.2, 150), np.linspace(0.21, 0.3, 50)]
    method = methods.build("sps", sure=0.5)
    division = method.posterior(None, 0, torch.as_tensor(x))
    assert GaussianMixture1d.published().fit(x).n_iter_ > 0
    p = torch.tensor([0.55 if i < 5 else 0.9 for i in range(200)], dtype=torch.float64)
    is_clean = p > p.sort().values[2]
    method = methods.build("sps")
    method.divisions = [division._replace(p_clean=p, is_clean=is_clean), None]
    assert torch.bincount(method.kinds(0), minlength=3).tolist() == [5, 0, 195]
    method.divisions = [division._replace(p_clean=p + 0.06, is_clean=is_clean), None]
    assert torch.bincount(method.kinds(0), minlength=3).tolist() == [0, 0, 200]


@pytest.mark.parametrize(("epochs", "clean", "noisy"), [(40, 10, 15), (10, 2, 3), (3, 0, 1), (1, 0, 0)])
def test_stages_begin_with_the_share_of_the_epochs(epochs, clean, noisy, tmp_path):
    trainer, method = started(tmp_path, epochs=epochs)
    method.divide_pairs = lambda loop: None
    p = [0.9] * 100 + [0.55] * 30 + [0.1] * 30
    method.divisions = [division_of(p), division_of(p)]
    for epoch in range(epochs):
        trainer.epoch = 1 + epoch
        items = list(method.begin_epoch(trainer))
        assert len(items) == 7
        assert [c is not None for _, c in items] == [epoch >= clean] * 2 + [False] * 5
        assert all((n is not None) == (epoch >= noisy) for (_, n), _ in items)
        if epoch >= noisy:  # noisy pairs are shuffled again when they run out, clean ones are not
            assert sum(len(n) for (_, n), _ in items) > 30
        if epoch > noisy:
            break


def test_a_step_labels_first_and_then_updates_for_each_kind(tmp_path):
    trainer, method = started(tmp_path, label_threshold=0.0)
    trainer.active = 1
    p = torch.linspace(0.1, 0.9, trainer.n_pairs).tolist()
    method.divisions = [division_of(p), division_of(p[::-1])]
    method.log = ReplaceLog()
    sure, clean, noisy = (trainer.batch(torch.arange(a, a + 12)) for a in (0, 20, 40))
    net = trainer.networks[1].eval()
    with torch.no_grad():
        w = method.divisions[0].p_clean[clean.index].float()
        y_clean = w + (1 - w) * probability(trainer.similarity(clean), 0.07)
        u, bank = (pooled(net.encode_images(b.images)) for b in (noisy, sure))
        proxy, cosine = proxies(u, bank)
        copies = (proxy[:, None] == proxy[None]).sum(1).float()
        swapped = trainer.batch(noisy.index)
        captions = net.encode_captions(sure.captions).select(proxy)
        T = net.similarity(net.encode_images(swapped.images), captions)
        y = proxy_labels(probability(T, 0.07, copies), cosine, 0.0)
    net.train()
    steps = method.step(trainer, ((sure, noisy), clean))
    first = next(steps)
    assert set(first) == {"sure", "symmetry", "geometry"}
    assert first["sure"].item() == pytest.approx(
        losses.info_nce(trainer.similarity(sure), 0.07).mean().item()
    )
    trainer._minimise(first)
    second = next(steps)
    expected = (y_clean * losses.info_nce(trainer.similarity(clean), 0.07)).mean()
    assert second["clean"].item() == pytest.approx(expected.item(), rel=1e-5)  # labels of before
    trainer._minimise(second)
    third = next(steps)
    T = net.similarity(net.encode_images(noisy.images), net.encode_captions(sure.captions).select(proxy))
    expected = -(y * pair_log_probabilities(T, 0.07, copies).sum(0)).mean()
    assert third["noisy"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert list(steps) == []
    kept = method.log.arrays()
    assert kept["replaced_by"].tolist() == sure.index[proxy].tolist()
    assert kept["replaced_label"].tolist() == pytest.approx(y.tolist(), rel=1e-4)
    assert not kept["replaced_image"].any()


# ---------------------------------------------------------------------------------------------- whole runs


def test_noisy_pairs_join_later_and_the_kinds_are_recorded(tmp_path):
    record = run(tmp_path, noisy_from=0.5)
    first, second = record.curves[1:]
    assert "loss_noisy" not in first
    assert "loss_noisy" in second
    assert second["n_sure"] + second["n_clean"] + second["n_noisy"] == 160
    assert 0 <= second["auc"] <= 1
    assert second["replaced"] > 0
    kept = epoch_arrays(record.folder)[3]
    assert np.array_equal(kept["kind"] == 2, kept["p_clean"] > 0.6)
    assert np.array_equal(kept["kind_b"] == 2, kept["p_clean_b"] > 0.6)
    noisy = {0: kept["kind"] == 0, 1: kept["kind_b"] == 0}
    assert (noisy[0] | noisy[1])[kept["replaced_pair"]].all()  # of the peer's division
    assert ((kept["kind"] == 2) | (kept["kind_b"] == 2))[kept["replaced_by"]].all()


def test_a_division_without_strictly_clean_pairs_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(GaussianMixture1d, "predict_proba", lambda _, x: np.stack([0 * x + 0.55] * 2, 1))
    with (
        pytest.warns(UserWarning, match="0 of 160 pairs are called strictly clean"),
        pytest.raises(ValueError, match="returned no steps for network 0"),
    ):
        run(tmp_path, epochs=1)
