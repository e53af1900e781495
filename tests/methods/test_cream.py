"""CREAM against plain loops, its phases, and its corner cases."""

import math
from functools import partial

import pytest
import tiny
import torch
from tiny import SCORES as S

from nclib import methods
from nclib.methods.coteaching import Division, loss_inside
from nclib.methods.cream import first_epoch, hardest_hinges, mined_targets, mining_loss
from nclib.methods.parts.detector import predictions
from nclib.runs import resolve


def test_loss_against_nested_loops():
    g = torch.Generator().manual_seed(0)
    B, tau, f = 6, 0.1, 0.08
    scores = 2 * torch.rand(B, B, generator=g, dtype=torch.float64) - 0.7  # cosines below 0 among them
    y = torch.rand(B, generator=g, dtype=torch.float64)
    found = mining_loss(scores, *mined_targets(scores, y, f), tau)
    s, total = scores.tolist(), 0.0
    for i in range(B):
        for line, own in ((s[i], y[i]), ([row[i] for row in s], y[i])):  # row i, column i
            norm = sum(max(x, 0) for j, x in enumerate(line) if j != i) + 1e-6
            weights = [float(1 - own) * max(x, 0) / norm for x in line]
            weights = [float(own) if j == i else w * (w >= f) for j, w in enumerate(weights)]
            logs = [x / tau - math.log(sum(math.exp(z / tau) for z in line)) for x in line]
            total -= sum(w * x for w, x in zip(weights, logs, strict=True))
    assert found.sum().item() == pytest.approx(total, rel=1e-9)


# ------------------------------------------------------------------------------------------- corner cases


@pytest.mark.parametrize("loss", ["infonce", "gce", "triplet"])
def test_hard_targets_give_the_loss_itself(loss):
    eye = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(mining_loss(S, eye, eye, 0.07, loss), loss_inside(S, loss, 0.07))


def test_the_triplet_loss_of_a_soft_target_is_the_nested_loop():
    cells = [[max(0.0, 0.2 + max(r[:j] + r[j + 1 :]) - r[j]) for j in range(4)] for r in S.tolist()]
    torch.testing.assert_close(hardest_hinges(S), torch.tensor(cells, dtype=torch.float64))


@pytest.mark.parametrize(("value", "label", "most"), [(-1e4, 0, 0), (0, 0, 0), (1e4, 0, 1), (1e4, 1, 0)])
def test_extreme_values_stay_finite(value, label, most):
    scores = torch.full((64, 64), float(value))
    scores[0, 0] = -value
    scores.requires_grad_()
    forth, back = mined_targets(scores, torch.full((64,), float(label)))
    loss = mining_loss(scores, forth, back)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert scores.grad.isfinite().all()
    off = forth - torch.diag(forth.diagonal())
    assert off.sum(1).max().item() == pytest.approx(most, abs=1e-5)


@pytest.mark.parametrize(
    ("share", "n", "first"),
    [
        (0.25, 40, 10), (0.375, 40, 15), (0.5, 20, 10), (0.75, 20, 15), (0.25, 10, 3), (0.375, 10, 4),
        (0.25, 3, 1), (0.375, 3, 2), (0.0, 10, 0), (1.0, 10, 10), (0.7, 10, 7),
    ],
)  # fmt: skip
def test_phases_scale_with_the_number_of_epochs(share, n, first):
    assert first_epoch(share, n) == first


# ------------------------------------------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("with_hard", "clean", "expected"),
    [
        (False, 50, [1.0, 0.5, 0.5]),  # clean pairs alone: nothing is mined
        (True, 50, [0.5, 0.5, 0.5]),
        (False, 85, [1.0, 0.5, 0.5]),  # 0.85 is not above 0.85
        (False, 86, [0.0, 0.0, 0.5]),  # noisy pairs keep their filter
    ],
)
def test_filters(with_hard, clean, expected):
    method = methods.build("cream")
    method.with_hard = with_hard
    method.sets = [torch.arange(clean), torch.arange(clean, 95), torch.arange(95, 100)]
    labels = [torch.tensor([0.4, 0.6]), None, torch.tensor([0.5])]
    assert [float(f) for f in method.filters(labels, 100)] == pytest.approx(expected)


# ---------------------------------------------------------------------------------------------- whole runs


trainer_of = partial(tiny.trainer_of, "cream")


def test_a_step_refines_by_both_networks_and_trains_the_three_kinds_in_turn(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.epoch, trainer.active = 2, 1
    method, n = trainer.method, trainer.n_pairs
    g = torch.Generator().manual_seed(0)
    p = torch.rand(2, n, generator=g, dtype=torch.float64)
    method.divisions = [Division(x, x, x > 0.5, torch.zeros(200, 3)) for x in p]
    trainer.each_pair = None  # the divisions are there: network 1 measures nothing
    method.sets = [torch.arange(100), torch.arange(100, 150), torch.arange(150, n)]
    assert len(method.begin_epoch(trainer)) == 7
    parts = [trainer.batch(torch.arange(i, i + 16)) for i in (0, 100, 150)]
    with trainer.evaluating():
        q = [[predictions(trainer.similarity(part, k)) for k in (0, 1)] for part in parts]
    w = p.float()
    expected = [
        w[0, :16] + (1 - w[0, :16]) * q[0][1],  # network 1 learns from the posterior of network 0
        w[:, 100:116].mean(0) + (1 - w[:, 100:116].mean(0)) * q[1][1],
        (q[2][0] + q[2][1]) / 2,
    ]
    found = method.labels(trainer, *parts)
    assert all(torch.allclose(y, z) for y, z in zip(found, expected, strict=True))
    assert not any(y.requires_grad for y in found)

    f = (100 * expected[0].mean() + 50 * expected[1].mean() + 50 * expected[2].mean()) / 200
    steps = method.step(trainer, tuple(parts))
    for name, part, y in zip(("clean", "hard", "noisy"), parts, expected, strict=True):
        terms = next(steps)  # each with the weights of after the one before
        scores = trainer.similarity(part)
        targets = mined_targets(scores.detach(), y, f)
        value = mining_loss(scores, *targets).mean().item()
        assert list(terms) == [name]
        assert terms[name].item() == pytest.approx(value, rel=1e-4)
        trainer._minimise(terms)
    assert list(steps) == []
    assert all(network.training for network in trainer.networks)
    method.with_noisy = False
    assert [list(terms) for terms in method.step(trainer, tuple(parts))] == [["clean"], ["hard"]]
    assert [list(terms) for terms in method.step(trainer, (parts[0], None, None))] == [["clean"]]


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("mined_gradient", [False, True])
def test_gradient_reaches_the_mined_weights_only_when_asked(mined_gradient, tmp_path):
    trainer = trainer_of(tmp_path, mined_gradient=mined_gradient)
    method, batch, y = trainer.method, trainer.batch(torch.arange(16)), torch.full((16,), 0.3)
    method.label = torch.zeros(trainer.n_pairs)
    trainer.networks[0].eval()
    scores = trainer.similarity(batch)
    found, *wanted = (
        torch.autograd.grad(loss, trainer.networks[0].parameters(), retain_graph=True)
        for loss in (
            method._loss(trainer, batch, y, 0.0),
            *(mining_loss(scores, *mined_targets(S, y)).mean() for S in (scores.detach(), scores)),
        )
    )
    for given, mined, a in zip(*wanted, found, strict=True):
        torch.testing.assert_close(a, mined if mined_gradient else given, atol=1e-6, rtol=1e-4)
    assert not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*wanted, strict=True))


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_every_phase_has_an_epoch_in_short_runs(preset):
    s = resolve("cream", preset=preset)
    o, n = s.method_options, s.schedule.epochs
    assert 0 < first_epoch(o.hard_from, n) < first_epoch(o.noisy_from, n) < n
