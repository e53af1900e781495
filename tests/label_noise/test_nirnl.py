"""NIRNL against worked numbers: votes, prototypes, the three losses with their gradients, the passes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import nclib
from nclib import label_noise
from nclib.label_noise import LabelBatch, LabelTruth, Shape, Training, nirnl
from nclib.label_noise.nirnl import KINDS, margin_loss, prototypes, votes


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
def test_the_neighbours_vote(rows, monkeypatch):
    monkeypatch.setattr(nirnl, "ROWS", rows)
    qv, qt = votes(ZV, Y, 3, 3), votes(ZT, Y, 3, 3)
    assert qv.argmax(1).tolist() == [2, 2, 1, 2, 2, 2, 2, 2]
    assert qt.argmax(1).tolist() == [2, 1, 2, 2, 2, 2, 2, 2]
    assert (3 * qt[[0, 1, 4]]).round().tolist() == [[1, 0, 2], [0, 2, 1], [0, 1, 2]]
    everyone = votes(ZV, Y, 3, 50)  # all others, not itself
    assert (7 * everyone[6]).round().tolist() == [0, 2, 5]


def test_prototypes_are_class_means_of_both_halves():
    u, absent = prototypes((ZV, ZT), (Y, Y), 4)
    expected = [(0.219846, -0.262003), (-0.102904, 0.014734), (-0.045389, 0.451436), (0, 0)]
    assert np.allclose(u, expected, atol=1e-6)
    assert absent.tolist() == [0, 0, 0, -np.inf]
    yt = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])  # noise for images and texts apart
    apart, _ = prototypes((ZV, ZT), (Y, yt), 3)
    assert torch.allclose(apart[0], torch.cat([ZV[6:7], ZT[:4]]).mean(0))


@pytest.mark.parametrize(
    ("kind", "loss", "margin", "total"),
    [
        ("pure", 1.750702, 1.869433, 3.433192),
        ("hard", 1.261124, 1.948453, 3.014731),
        ("noisy", 2.581847, 3.335456, 5.583758),
    ],
)
def test_each_kind_has_its_loss(kind, loss, margin, total):
    method, loop = divided()
    assert (method.kind == KINDS.index(kind)).nonzero()[:, 0].tolist() == SETS[kind]
    terms = stepped(method, loop, SETS[kind])
    assert terms[kind].item() == pytest.approx(loss, abs=1e-6)
    assert terms[f"margin_{kind}"].item() == pytest.approx(0.9 * margin, abs=1e-6)
    assert sum(terms.values()).item() == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "pair", "image", "text"),
    [
        ("pure", 0, (0.183032, -0.208116), (0.140253, 0.211284)),
        ("hard", 1, (0.157885, 0.746929), (0.816254, -0.341395)),
        ("noisy", 4, (0.452868, 0.060894), (-0.378738, -0.356820)),
    ],
)
def test_the_belief_and_the_prototypes_carry_no_gradient(kind, pair, image, text):
    method, loop = divided()
    zv, zt = ZV.clone().requires_grad_(), ZT.clone().requires_grad_()
    sum(stepped(method, loop, SETS[kind], zv, zt).values()).backward()
    assert zv.grad[pair].tolist() == pytest.approx(image, abs=1e-6)
    assert zt.grad[pair].tolist() == pytest.approx(text, abs=1e-6)


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
    assert found["mean_w"] == pytest.approx((0.555925 + 0.624142) / 2, abs=1e-6)


def test_hinge():
    zv, zt = unit(0, 50, 130), unit(20, 90, 100)
    found = [margin_loss(zv, zt, margin).item() for margin in (0.2, 0.5, 0.9)]
    assert found == pytest.approx([0.222564, 0.619982, 1.168199], abs=1e-6)
    found = [margin_loss(ZV, ZT, margin).item() for margin in (0.2, 0.9)]
    assert found == pytest.approx([1.178559, 2.334411], abs=1e-6)


def test_passes_over_pure_hard_and_noisy_pairs_in_this_order():
    method, loop = divided()
    loop.batch_size = 2
    steps = method.batches(loop, torch.tensor([7, 6, 5, 4, 3, 2, 1, 0]))
    assert [rows.tolist() for rows in steps] == [[7, 3], [0], [2, 1], [6, 5], [4]]
    method.kind = torch.tensor([2, 0, 1, 2, 2, 2, 2, 2])  # a single pair has no negatives
    assert [rows.tolist() for rows in method.batches(loop, torch.arange(8))] == [[0, 3], [4, 5], [6, 7]]
    method.kind = torch.zeros(8, dtype=torch.int64)
    assert len(method.batches(loop, torch.arange(8))) == 4


def test_each_half_uses_its_own_label_and_a_class_without_pairs_has_no_probability():
    yt = torch.tensor([2, 0, 2, 2, 1, 1, 0, 2])
    method, loop = divided(yt=yt, n_classes=4)
    (pair,) = [[i] for i in range(8) if method.kind[i] == 1 and Y[i] != yt[i]]
    p = [(z[pair] @ method.u[:3].T).softmax(1)[0] for z in (ZV, ZT)]
    w = 1 - (1 - p[0]) * (1 - p[1])
    expected = -(w[Y[pair]] * p[0][Y[pair]].log() + w[yt[pair]] * p[1][yt[pair]].log())
    assert stepped(method, loop, pair)["hard"].item() == pytest.approx(expected.item())


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
