"""PCSR against plain loops; pseudo-classes, replaced captions, stages and runs."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch
from registered import REGISTERED

from nclib import models
from nclib.common.tokens import Tokens
from nclib.methods.coteaching import Division
from nclib.methods.parts.classes import PseudoClasses, consistency, steps_of
from nclib.methods.pcsr import next_threshold
from nclib.models import CaptionEncoding, ImageEncoding
from nclib.noise import GaussianMixture1d

trainer_of = partial(tiny.trainer_of, "pcsr", classes=12, data_options=tiny.SMALLER)
started = partial(tiny.started, "pcsr", classes=12, data_options=tiny.SMALLER)


# ------------------------------------------------------------------------------------------- pseudo-classes


def test_fragments_at_the_steps_of_the_head():
    g = torch.Generator().manual_seed(0)
    words = torch.randn(3, 7, 2, generator=g)
    lengths = (7, 5, 2)
    for row, length in enumerate(lengths):
        words[row, length:] = 0
    captions = CaptionEncoding(torch.zeros(3, 2), lengths, words)
    wide = steps_of(captions, 9)
    assert torch.equal(wide[:, :7], words)
    assert not wide[:, 7:].any()
    narrow = steps_of(captions, 4)
    for row, length in enumerate(lengths):
        if length <= 4:  # its words as they are
            assert torch.equal(narrow[row], words[row, :4])
            continue
        for step in range(4):
            at = (step + 0.5) * length / 4 - 0.5
            low = int(at)
            expected = words[row, low].lerp(words[row, min(low + 1, length - 1)], at - low)
            assert torch.allclose(narrow[row, step], expected, atol=1e-6)
    alone = steps_of(captions.select([1]), 4)
    assert torch.allclose(alone[0], narrow[1])  # whatever else is in the batch
    regions = torch.randn(2, 4, 3, generator=g)
    assert torch.equal(steps_of(ImageEncoding(torch.zeros(2, 3), regions), 4), regions)
    vectors = torch.randn(2, 3, generator=g)
    assert torch.equal(steps_of(ImageEncoding(vectors), 1), vectors[:, None])


@pytest.mark.parametrize("name", REGISTERED)
def test_every_model_has_pseudo_classes(name):
    torch.manual_seed(0)
    net = models.build(name, feature_dim=6, vocab_size=30, n_regions=4, embed_dim=16, sim_dim=8, word_dim=8)
    head = PseudoClasses(net, 5)
    assert net.training
    images = torch.randn(3, 4, 6)
    ids = torch.randint(1, 30, (3, 9))
    tokens = Tokens(ids * (torch.arange(9) < torch.tensor([[9], [4], [1]])), (9, 4, 1))
    for encoding in (net.encode_images(images), net.encode_captions(tokens)):
        logits = head(encoding)
        assert logits.shape == (3, 5)
        assert torch.isfinite(logits).all()


# ------------------------------------------------------------------------------------------ votes and kinds


def values_of(ell, log_pi):
    return torch.cat([ell[:, None].float(), log_pi], dim=1)


def test_votes_kinds_and_change_over_epochs(tmp_path):
    trainer, method = started(tmp_path)
    n = trainer.n_pairs
    method.divided = [{}, {}]
    ell = torch.linspace(0, 0.1, n)
    ell[: n // 2] += 0.8
    g = torch.Generator().manual_seed(0)
    first = torch.randn(n, 12, generator=g).log_softmax(1)
    second = first.clone()
    moved = torch.arange(0, n, 4)
    second[moved] = first[moved].roll(3, 1)
    method.posterior(trainer, 0, values_of(ell, first))
    assert not method.divided[0]["stable"].any()  # nothing to compare with
    assert not method.log_pi  # scoring keeps nothing
    method._keep(trainer, torch.arange(1, n), first[1:])
    assert (method.divided[0]["consistency"] == 1).all()
    theta = next_threshold(1.0, torch.ones(n), 1, 3)
    assert method.theta == [theta, 0.0]
    trainer.epoch = 2
    method.posterior(trainer, 0, values_of(ell, second))
    found = method.divided[0]
    assert found["consistency"].tolist() == [0 if i % 4 == 0 else 2 for i in range(n)]
    is_clean = ell < 0.5
    assert method.theta[0] == next_threshold(theta, found["consistency"], 2, 3)
    expected = torch.where(is_clean, 2, (found["consistency"] > method.theta[0]).int())
    assert found["kind"].tolist() == expected.tolist()
    assert (found["stable"][moved] < 0.5).float().mean() > 0.9
    assert (found["stable"][1::4] > 0.5).all()
    kl = (second.exp() * (second - first)).sum(1)[1:]
    scaled = (kl - kl.min()) / (kl.max() - kl.min())
    p = GaussianMixture1d.published().fit(scaled.double()).predict_proba(scaled.double())[:, 0]
    assert found["stable"].tolist() == pytest.approx([0, *p.tolist()], abs=1e-5)  # 0: never trained on
    assert torch.equal(method.log_pi[0][1:], first[1:])
    assert not method.n_votes[1].any()


def test_distributions_are_kept_in_steps_of_noisy_pairs_under_their_own_numbers(tmp_path):
    trainer, method, net = ready(tmp_path)
    clean, noisy = trainer.batch(torch.arange(0, 65, 13)), trainer.batch(torch.arange(3, 159, 13))
    method._clean(trainer, clean)
    assert not method.log_pi
    method._replaced(trainer, clean, noisy, "refinable")
    kept = method.log_pi[1]
    assert (~kept.isnan()).all(1).nonzero()[:, 0].tolist() == noisy.index.tolist()
    with trainer.evaluating():
        expected = net.pseudo_classes(net.encode_images(noisy.images)).log_softmax(1)
    assert torch.allclose(kept[noisy.index], expected, atol=1e-6)
    assert method.log_pi[0].isnan().all()


def test_the_head_learns_after_warm_up_only(tmp_path):
    trainer = trainer_of(tmp_path)
    before = [p.clone() for p in trainer.networks[0].pseudo_classes.parameters()]
    trainer.epoch = 0
    trainer._train_epoch(False)
    head = list(trainer.networks[0].pseudo_classes.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, head, strict=True))
    trainer.epoch = 1
    trainer._train_epoch(False)
    assert not any(torch.equal(a, b) for a, b in zip(before, head, strict=True))


# ------------------------------------------------------------------------------------------------ the steps


@pytest.mark.parametrize(
    ("epochs", "refinable", "ambiguous"), [(50, 25, 40), (10, 5, 8), (3, 1, 2), (1, 0, 0)]
)
def test_stages_begin_with_the_share_of_the_epochs(epochs, refinable, ambiguous, tmp_path):
    trainer, method = started(tmp_path, epochs=epochs)
    n = trainer.n_pairs
    kind = torch.tensor([2] * 100 + [1] * 30 + [0] * (n - 130), dtype=torch.uint8)
    p = (kind == 2).double()
    division = Division(p, p, kind == 2, torch.zeros(200, 3))

    def divide_pairs(loop):
        method.divisions, method.divided = [division] * 2, [{"kind": kind}] * 2
        return division

    method.divide_pairs = divide_pairs
    for epoch in sorted({0, refinable, refinable - 1, ambiguous - 1, ambiguous, epochs - 1} - {-1}):
        trainer.epoch = 1 + epoch
        items = list(method.begin_epoch(trainer))
        assert len(items) == 7
        assert {r is not None for (_, r), _ in items} == {epoch >= refinable}
        assert {a is not None for _, a in items} == {epoch >= ambiguous}
        if epoch >= refinable:
            assert {int(kind[i]) for (_, r), _ in items for i in r.index} == {1}
        assert trainer._may_be_tested() == (epoch >= ambiguous)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, 10),
        ({"ambiguous_from": 1.0}, 7),
        ({"ambiguous_from": 1.0, "refinable_from": 1.0}, 2),
        ({"epochs": 1}, 2),
    ],
    ids=str,
)
def test_the_last_stage_is_tested(given, first, tmp_path):
    trainer, _ = started(tmp_path, **{"epochs": 10, **given})
    may = []
    for epoch in range(trainer.n_planned):
        trainer.epoch = epoch
        may.append(trainer._may_be_tested())
    assert may.index(True) + 1 == first
    assert all(may[first - 1 :])


def ready(tmp_path, **values):
    """A method in the middle of an epoch of network 1, whose pairs are labelled at random."""
    trainer, method = started(tmp_path, **values)
    trainer.active = 1
    g = torch.Generator().manual_seed(0)
    p, stable = torch.rand(2, trainer.n_pairs, generator=g, dtype=torch.float64)
    method.divisions = [Division(p, p, p > 0.5, torch.zeros(200, 3)), None]
    method.divided = [{"stable": stable}, {}]
    with torch.no_grad():  # apart, so that cosines differ
        for parameter in trainer.networks[1].pseudo_classes.parameters():
            parameter.normal_(0, 1, generator=g)
    return trainer, method, trainer.networks[1]


def test_clean_loss_equals_a_plain_loop(tmp_path):
    trainer, method, net = ready(tmp_path)
    clean = trainer.batch(torch.arange(0, 117, 13))
    terms = method._clean(trainer, clean)
    S = trainer.similarity(clean).detach()
    w, w_c = method.divisions[0].p_clean[clean.index], method.divided[0]["stable"][clean.index]
    pi, rho = (
        net.pseudo_classes(e).softmax(1).detach()
        for e in (net.encode_images(clean.images), net.encode_captions(clean.captions))
    )
    hinge = classes = 0.0
    for i in range(9):
        y = float(w[i] + (1 - w[i]) * (w_c[i] if w_c[i] > 0.5 else 0))
        margin = 0.2 * (10**y - 1) / 9
        hinge += max(0.0, *(float(margin + S[i, j] - S[i, i]) for j in range(9) if j != i))
        hinge += max(0.0, *(float(margin + S[j, i] - S[i, i]) for j in range(9) if j != i))
        classes -= float(pi[i, int(rho[i].argmax())].log()) / 9
    mean = pi.mean(0)
    assert terms["clean"].item() == pytest.approx(hinge, rel=1e-4)
    assert terms["classes"].item() == pytest.approx(classes, rel=1e-4)
    assert terms["entropy"].item() == pytest.approx(
        10 * float((mean * mean.clamp_min(1e-30).log()).sum()), rel=1e-3
    )


@pytest.mark.parametrize("kind", ["refinable", "ambiguous"])
def test_replaced_captions_equal_a_plain_loop(kind, tmp_path):
    trainer, method, net = ready(tmp_path, label_threshold=0.9)
    clean, noisy = trainer.batch(torch.arange(0, 65, 13)), trainer.batch(torch.arange(3, 159, 13))
    terms = method._replaced(trainer, clean, noisy, kind)
    net.eval()
    with torch.no_grad():
        pi, known = (net.pseudo_classes(net.encode_images(b.images)).softmax(1) for b in (noisy, clean))
        T = net.similarity(net.encode_images(noisy.images), net.encode_captions(clean.captions))
        rho = net.pseudo_classes(net.encode_captions(noisy.captions)).softmax(1)
    chosen, labels = [], []
    for i in range(12):
        cosines = [float(pi[i] @ known[j] / (pi[i].norm() * known[j].norm())) for j in range(5)]
        chosen.append(int(np.argmax(cosines)))
        labels.append(max(cosines) if max(cosines) >= 0.9 else 0.0)
    assert len(set(chosen)) > 1
    assert 0 < sum(y == 0 for y in labels) < 12
    expected = 0.0
    for i in range(12):
        margin = 0.2 * (10 ** labels[i] - 1) / 9
        others = [j for j in range(12) if j != i and chosen[j] != chosen[i]]
        own = float(T[i, chosen[i]])
        expected += max(0.0, *(margin + float(T[i, chosen[j]]) - own for j in others))
        expected += max(0.0, *(margin + float(T[j, chosen[i]]) - own for j in others))
    assert terms[kind].item() == pytest.approx(expected, rel=1e-4)
    assert terms[kind].requires_grad
    if kind == "ambiguous":
        p = pi[torch.arange(12), rho.argmax(1)]
        assert terms["robust"].item() == pytest.approx(float(((1 - p**0.7) / 0.7).mean()), rel=1e-4)
        mean = pi.mean(0)
        assert terms["entropy_ambiguous"].item() == pytest.approx(
            10 * float((mean * mean.log()).sum()), rel=1e-4
        )
    else:
        assert set(terms) == {"refinable"}


def test_consistency_is_the_lead_in_votes_and_moves_the_threshold():
    votes = torch.randint(9, (20, 5), generator=torch.Generator().manual_seed(0), dtype=torch.int16)
    g = consistency(votes)
    assert g.tolist() == [a - b for a, b, *_ in (sorted(row, reverse=True) for row in votes.tolist())]
    wanted = 0.4 + 0.5 * 5 / 55  # share of the pairs above the threshold
    found = (next_threshold(2.25, g, 5, 55) - 0.7 * 2.25) / 0.3
    assert found == pytest.approx(2.25 - 0.2 * (wanted - np.mean([x > 2.25 for x in g.tolist()])))
