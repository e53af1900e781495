"""SPS against plain loops; kinds of pairs, proxies, runs and corner cases."""

import math
from functools import partial

import numpy as np
import pytest
import tiny
import torch
from tiny import SCORES as S

from nclib import losses, methods
from nclib.methods.coteaching import Division, loss_inside, threshold_division
from nclib.methods.parts.bank import pooled
from nclib.methods.sps import (
    asymmetry,
    disagreement,
    pair_log_probabilities,
    probability,
    proxies,
    proxy_labels,
    proxy_loss,
)

started = partial(tiny.started, "sps", data_options=tiny.SMALLER)


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


def test_probabilities_and_losses_equal_plain_loops():
    g = torch.Generator().manual_seed(0)
    scores, tau = torch.rand(6, 6, generator=g, dtype=torch.float64), 0.07
    proxy = [0, 3, 0, 2, 3, 0]
    scores = scores[:, proxy]
    copies = torch.tensor([proxy.count(j) for j in proxy], dtype=torch.float64)
    found, p = pair_log_probabilities(scores, tau, copies), probability(scores, tau, copies)
    for i in range(6):
        captions = sum(math.exp(scores[i, proxy.index(j)] / tau) for j in set(proxy))  # each once
        images = sum(math.exp(scores[k, i] / tau) for k in range(6))
        own = math.exp(scores[i, i] / tau)
        assert found[:, i].tolist() == pytest.approx([math.log(own / captions), math.log(own / images)])
        assert p[i].item() == pytest.approx((own / captions + own / images) / 2)
    assert torch.allclose(probability(S, 0.07, torch.ones(4)), probability(S, 0.07))
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


def test_the_nearest_sure_picture_gives_the_proxy_and_its_cosine_the_label():
    g = torch.Generator().manual_seed(0)
    noisy, sure, p = torch.rand(7, 3, generator=g), torch.rand(5, 3, generator=g), torch.rand(7, generator=g)
    proxy, best = proxies(noisy, sure)
    labels = proxy_labels(p, best, 0.4)
    for i in range(7):
        cosines = [float(noisy[i] @ x / noisy[i].norm() / x.norm()) for x in sure]
        assert (int(proxy[i]), best[i].item()) == (np.argmax(cosines), pytest.approx(max(cosines)))
        y = float(p[i]) * max(cosines)
        assert labels[i].item() == pytest.approx(y if y > 0.4 else 0.0)


@pytest.mark.parametrize(
    ("p", "kinds"),
    [
        ([0.9, 0.61, 0.6, 0.55, 0.5, 0.1], [2, 2, 1, 1, 0, 0]),
        ([0.9, 0.62, 0.61], [2, 2, 2]),  # though a division calls the least of them noisy
        ([0.9, 0.56, 0.55], [2, 1, 0]),
    ],
)
def test_kinds_of_pairs(p, kinds):
    method, p = methods.build("sps"), torch.tensor(p, dtype=torch.float64)
    method.divisions = [Division(p, p, threshold_division(p), torch.zeros(200, 3)), None]
    assert method.kinds(0).tolist() == kinds


@pytest.mark.parametrize(("epochs", "clean", "noisy"), [(40, 10, 15), (10, 2, 3), (3, 0, 1), (1, 0, 0)])
def test_stages_begin_with_the_share_of_the_epochs(epochs, clean, noisy, tmp_path):
    trainer, method = started(tmp_path, epochs=epochs)
    method.divide_pairs = lambda loop: None
    p = [0.9] * 100 + [0.55] * 30 + [0.1] * 30
    trainer.active, method.divisions = 1, [division_of(p), None]  # the peer divides
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


# ---------------------------------------------------------------------------------------------- whole runs
