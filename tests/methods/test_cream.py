"""CREAM against worked numbers and plain loops, its phases, and its corner cases."""

import math
from functools import partial

import numpy as np
import pytest
import tiny
import torch
from tiny import SCORES as S

from nclib import losses, methods
from nclib.methods.coteaching import Division, loss_inside
from nclib.methods.cream import first_epoch, hardest_hinges, mean_label, mined_targets, mining_loss
from nclib.methods.gsc import predictions
from nclib.methods.ncr import rectified_label
from nclib.noise import GaussianMixture1d
from nclib.runs import epoch_arrays, resolve

Y = torch.tensor([0.95, 0.55, 0.9, 0.4], dtype=torch.float64)
FORTH = [
    [0.95, 0.022794, 0.008824, 0.018382],
    [0.15, 0.55, 0.251785, 0.048214],
    [0.021429, 0.031429, 0.9, 0.047143],
    [0.046875, 0.384374, 0.16875, 0.4],
]
BACK = [
    [0.95, 0.148404, 0.015584, 0.22388],
    [0.029167, 0.55, 0.061039, 0.080597],
    [0.015625, 0.105319, 0.9, 0.295522],
    [0.005208, 0.196276, 0.023377, 0.4],
]


def near(values, expected, abs=1e-6):
    return values.flatten().tolist() == pytest.approx(np.ravel(expected).tolist(), abs=abs)


# ------------------------------------------------------------------------------------------ worked numbers


@pytest.mark.parametrize(("f", "value"), [(0, 2.493785), (0.2, 1.154951), (0.35, 0.678896), (1, 0.485936)])
def test_worked_loss(f, value):
    for filtered in (f, torch.tensor(f)):
        loss = mining_loss(S, *mined_targets(S, Y, filtered))
        assert loss.mean().item() == pytest.approx(value, abs=1e-6)


def test_worked_targets():
    forth, back = mined_targets(S, Y)
    assert near(forth, FORTH)
    assert near(back, BACK)
    assert near(forth.sum(1), [1.0] * 4, abs=1e-5)
    assert near(back.sum(0), [1.0] * 4, abs=1e-5)


def test_worked_labels_and_filter():
    w = torch.tensor([0.95, 0.55, 0.9, 0.7], dtype=torch.float64)
    assert near(rectified_label(w, predictions(S)), [0.999961, 0.637582, 0.999064, 0.969535])
    labels = [torch.full((n,), y) for n, y in ((3, 0.97), (5, 0.6), (2, 0.2))]
    assert mean_label(labels, [40, 40, 40]).item() == pytest.approx(0.59)
    assert mean_label(labels, [90, 30, 60]).item() == pytest.approx((90 * 0.97 + 30 * 0.6 + 60 * 0.2) / 180)
    assert mean_label([labels[0], None, labels[2]], [90, 30, 60]).item() == pytest.approx(0.662, abs=1e-3)


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


@pytest.mark.parametrize("loss", ["infonce", "gce", "triplet"])
def test_hard_targets_give_the_loss_itself(loss):
    eye = torch.eye(4, dtype=torch.float64)
    assert near(mining_loss(S, eye, eye, 0.07, loss), loss_inside(S, loss, 0.07).tolist())


def test_the_triplet_loss_of_a_soft_target_is_the_nested_loop():
    cells = [[max(0.0, 0.2 + max(r[:j] + r[j + 1 :]) - r[j]) for j in range(4)] for r in S.tolist()]
    assert near(hardest_hinges(S), cells)


# ------------------------------------------------------------------------------------------- corner cases


@pytest.mark.parametrize("B", [2, 64])
@pytest.mark.parametrize("value", [-1e4, 0.0, 1e4])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_extreme_values_stay_finite(B, value, label):
    scores = torch.full((B, B), value)
    scores[0, 0] = -value
    scores.requires_grad_()
    forth, back = mined_targets(scores, torch.full((B,), label))
    loss = mining_loss(scores, forth, back)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert scores.grad.isfinite().all()
    off = forth - torch.diag(forth.diagonal())
    assert off.sum(1).max().item() == pytest.approx(1.0 if label == 0 and value > 0 else 0.0, abs=1e-5)


def test_sure_pairs_are_plain_infonce_and_a_filter_of_one_leaves_the_diagonal():
    assert torch.allclose(mining_loss(S, *mined_targets(S, torch.ones(4))), losses.info_nce(S, 0.07))
    forth, back = mined_targets(S, Y, 1.0)
    assert torch.equal(forth, torch.diag(Y))
    assert torch.equal(back, torch.diag(Y))


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


run = partial(tiny.run, "cream")
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
    method.kept, method.possible = torch.zeros(()), 0
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
    mined = 0
    for name, part, y in zip(("clean", "hard", "noisy"), parts, expected, strict=True):
        terms = next(steps)  # each with the weights of after the one before
        scores = trainer.similarity(part)
        targets = mined_targets(scores.detach(), y, f)
        mined += sum(
            int((omega.fill_diagonal_(0) > 0).sum()) for omega in mined_targets(scores.detach(), y, f)
        )
        value = mining_loss(scores, *targets).mean().item()
        assert list(terms) == [name]
        assert terms[name].item() == pytest.approx(value, rel=1e-4)
        trainer._minimise(terms)
    assert list(steps) == []
    assert (int(method.kept), method.possible) == (mined, 3 * 2 * 16 * 15)
    assert all(network.training for network in trainer.networks)
    method.with_noisy = False
    assert [list(terms) for terms in method.step(trainer, tuple(parts))] == [["clean"], ["hard"]]
    assert [list(terms) for terms in method.step(trainer, (parts[0], None, None))] == [["clean"]]


@pytest.mark.parametrize("mined_gradient", [False, True])
def test_gradient_reaches_the_mined_weights_only_when_asked(mined_gradient, tmp_path):
    trainer = trainer_of(tmp_path, mined_gradient=mined_gradient)
    method, batch = trainer.method, trainer.batch(torch.arange(16))
    method.kept, method.possible, method.log = torch.zeros(()), 0, []
    y = torch.full((16,), 0.3)
    trainer.networks[0].eval()
    given = method._loss(trainer, batch, y, 0.0)
    scores = trainer.similarity(batch)
    source = scores if mined_gradient else scores.detach()
    expected = mining_loss(scores, *mined_targets(source, y)).mean()
    weights = list(trainer.networks[0].parameters())
    for a, b in zip(torch.autograd.grad(given, weights), torch.autograd.grad(expected, weights), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    other = mining_loss(scores := trainer.similarity(batch), *mined_targets(scores, y)).mean()
    moved = torch.autograd.grad(other, weights)
    same = torch.autograd.grad(method._loss(trainer, batch, y, 0.0), weights)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(moved, same, strict=True)) == mined_gradient


def test_phases_of_a_run_and_what_is_reported(tmp_path, monkeypatch):
    def halves(_, x):
        p = np.asarray(x < np.median(x), dtype=float)
        return np.stack([p, 1 - p], 1)

    monkeypatch.setattr(GaussianMixture1d, "predict_proba", halves)
    small = {"n_train": 20, "n_val": 8, "n_test": 8}
    record = run(tmp_path, epochs=4, hard_from=0.25, noisy_from=0.75, data_options=small)
    rows = record.curves[1:]
    assert ["loss_hard" in row for row in rows] == [False, True, True, True]
    assert ["loss_noisy" in row for row in rows] == [False, False, False, True]
    assert rows[0]["mined_share"] == 0
    for row in rows:
        assert row["clean_pairs"] + row["hard_pairs"] + row["noisy_pairs"] == 100
        assert 0 <= row["mined_share"] < 1
    kept = epoch_arrays(record.folder)[len(record.curves)]
    assert len(kept["p_clean"]) == len(kept["p_clean_b"]) == 100
    for end in ("", "_b"):
        label = kept["label" + end]
        assert np.isfinite(label).sum() >= rows[-1]["clean_pairs"]
        assert np.nanmin(label) >= 0
        assert np.nanmax(label) <= 1


def test_division_that_calls_nothing_clean_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(GaussianMixture1d, "predict_proba", lambda _, x: np.stack([0 * x, 0 * x + 1], 1))
    with (
        pytest.warns(UserWarning, match="0 of 200 pairs are called clean by both networks"),
        pytest.raises(ValueError, match="returned no steps for network 0 in all 1 epochs after warm-up"),
    ):
        run(tmp_path, epochs=1)


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_every_phase_has_an_epoch_in_short_runs(preset):
    s = resolve("cream", preset=preset)
    o, n = s.method_options, s.schedule.epochs
    assert 0 < first_epoch(o.hard_from, n) < first_epoch(o.noisy_from, n) < n
