"""NIRNL against plain loops: votes, prototypes, the three losses with their gradients, the passes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import nclib
from nclib import label_noise
from nclib.label_noise import LabelBatch, LabelTruth, Shape, Training, nirnl
from nclib.label_noise.nirnl import KINDS, prototypes, votes


def unit(*degrees):
    x = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([x.cos(), x.sin()], dim=1)


ZV = unit(170, 140, 10, 110, 50, 100, 240, 120)
ZT = unit(110, 280, 60, 355, 225, 260, 20, 100)
Y = torch.tensor([2, 2, 2, 2, 1, 1, 0, 2])
SETS = {"pure": [0, 3, 7], "hard": [1, 2], "noisy": [4, 5, 6]}


def divided(zv=ZV, zt=ZT, yv=Y, yt=Y, n_classes=3, **options):
    """A method at the start of an epoch in which a network gives these embeddings, and its loop."""
    network = SimpleNamespace(images=lambda x: x, texts=lambda x: x)
    train = Training(zv, zt, yv, yt, n_classes)
    loop = SimpleNamespace(
        network=network, train=train, n_classes=n_classes, batch_size=256, embed=lambda: (zv, zt)
    )
    method = label_noise.build("nirnl", **{"neighbours": 3, **options})
    method.begin_epoch(loop)
    return method, loop


def stepped(method, loop, rows, zv=ZV, zt=ZT):
    rows = torch.tensor(rows)
    t = loop.train
    return method.step(loop, LabelBatch(rows, zv[rows], zt[rows], t.image_labels[rows], t.text_labels[rows]))


@pytest.mark.parametrize("rows", [1024, 3])
@pytest.mark.parametrize("k", [3, 50])  # 50: everyone else
def test_the_neighbours_vote(rows, k, monkeypatch):
    monkeypatch.setattr(nirnl, "ROWS", rows)
    found = votes(ZV, Y, 3, k)
    for i in range(8):
        near = sorted((j for j in range(8) if j != i), key=lambda j: -float(ZV[i] @ ZV[j]))[:k]
        assert found[i].tolist() == pytest.approx([np.mean([int(Y[j]) == c for j in near]) for c in range(3)])


def test_prototypes_are_class_means_of_both_halves():
    yt = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])  # noise for images and texts apart
    u, absent = prototypes((ZV, ZT), (Y, yt), 4)
    for c in range(3):
        torch.testing.assert_close(u[c], torch.cat([ZV[c == Y], ZT[yt == c]]).mean(0))
    assert u[3].tolist() == [0, 0]
    assert absent.tolist() == [0, 0, 0, -np.inf]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_loss_whose_belief_and_prototypes_carry_no_gradient(kind):
    """Each half uses its own label, and a class without pairs has no probability."""
    yt = torch.tensor([2, 0, 2, 2, 1, 1, 0, 2])
    method, loop = divided(yt=yt, n_classes=4, margin=0.1)
    rows = (method.kind == KINDS.index(kind)).nonzero()[:, 0].tolist()
    z = [x.clone().requires_grad_() for x in (ZV, ZT)]
    terms = stepped(method, loop, rows, *z)
    total, margin = 0.0, 0.0
    for i in rows:
        p = [(x[i] @ method.u[:3].T).softmax(0) for x in z]
        w = (1 - (1 - p[0]) * (1 - p[1])).detach()
        for half, y, other in zip(p, (Y[i], yt[i]), (0, 1), strict=True):
            loss = 2 * (1 - half[w.argmax()]) if kind == "noisy" else -half[y].log()
            total = total + (w[y] if kind == "hard" else 1) * loss / len(rows)
            for j in rows:
                hinge = method.options.margin + z[other][i] @ z[1 - other][j] - z[0][i] @ z[1][i]
                margin = margin + 0.9 * hinge.clamp_min(0) / len(rows) ** 2
    assert terms[kind].item() == pytest.approx(total.item())
    assert terms[f"margin_{kind}"].item() == pytest.approx(margin.item())
    found, wanted = (torch.autograd.grad(x, z) for x in (sum(terms.values()), total + margin))
    torch.testing.assert_close(found, wanted)


def test_noisy_pairs_get_a_class_and_the_record_says_how_often_it_is_right():
    method, loop = divided()
    for members in SETS.values():
        stepped(method, loop, members)
    assert method.named[SETS["noisy"]].tolist() == [2, 2, 0]
    found = method.diagnostics(LabelTruth(np.array([2, 2, 0, 2, 2, 1, 0, 1])))
    assert [found[f"n_{kind}"] for kind in SETS] == [3, 2, 3]
    accuracies = [found[f"given_accuracy_{kind}"] for kind in SETS]
    assert accuracies == pytest.approx([2 / 3, 1 / 2, 2 / 3])
    assert found["named_accuracy"] == pytest.approx(2 / 3)
    assert found["mean_w"] == pytest.approx(method.belief[SETS["hard"]].mean().item())


def test_passes_over_pure_hard_and_noisy_pairs_in_this_order():
    method, loop = divided()
    loop.batch_size = 2
    steps = method.batches(loop, torch.tensor([7, 6, 5, 4, 3, 2, 1, 0]))
    assert [rows.tolist() for rows in steps] == [[7, 3], [0], [2, 1], [6, 5], [4]]
    method.kind = torch.tensor([2, 0, 1, 2, 2, 2, 2, 2])  # a single pair has no negatives
    assert [rows.tolist() for rows in method.batches(loop, torch.arange(8))] == [[0, 3], [4, 5], [6, 7]]
    method.kind = torch.zeros(8, dtype=torch.int64)
    assert len(method.batches(loop, torch.arange(8))) == 4


def test_last_layers_are_as_wide_as_the_features_say_and_have_no_bias():
    torch.manual_seed(0)
    method = label_noise.build("nirnl")
    net = method.build(Shape(400, 4, 3, hidden=50, dim=40))
    for layers, bound in ((net.image_net, 0.05), (net.text_net, 0.5)):
        assert layers[-1].bias is None
        assert layers[-1].weight.abs().max().item() == pytest.approx(bound, rel=0.02)
    (group,) = method.parameters(net, 0.1)
    assert group["betas"] == (0.9, 0.999)
    schedule = nclib.resolve(
        "nirnl", dataset="wikipedia", preset="paper", data_options={"root": "x"}
    ).schedule
    assert (schedule.batch_size, schedule.lr, schedule.lr_schedule) == (256, 1e-4, "constant")
