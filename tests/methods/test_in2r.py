"""IN2R against plain loops: its losses, queue, prototypes and views."""

import math
from functools import partial

import pytest
import tiny
import torch
import torch.nn.functional as F
from registered import REGISTERED

from nclib import methods, models
from nclib.common.tokens import Tokens
from nclib.methods.in2r import Refiner, elite_threshold, nearest, sce, unit
from nclib.methods.parts.neighbours import Queue
from nclib.methods.parts.vectors import blank_encoding, draws

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 5, "embed_dim": 16, "sim_dim": 8, "word_dim": 8}
trainer_of = partial(tiny.trainer_of, "in2r", mrate=0.5, lr=5e-3, queue=64, data_options=tiny.SMALLER)


# ---------------------------------------------------------------------------------------------- the losses


def test_sce_against_nested_loops():
    scores, tau = torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0.07
    total = 0.0
    for matrix in (scores, scores.T):
        for i, row in enumerate(matrix.tolist()):
            p = [math.exp(s / tau) / sum(math.exp(r / tau) for r in row) for s in row]
            reverse = -sum(p[j] * math.log((i == j) + 1e-7) for j in range(5))
            total += -math.log(p[i]) + reverse
    assert sce(scores, tau).item() == pytest.approx(total / 2 / 5, rel=1e-9)


def test_neighbours_are_those_of_a_plain_loop():
    g = torch.Generator().manual_seed(0)
    query, keys = torch.randn(6, 4, generator=g), torch.randn(20, 4, generator=g)
    found = nearest(query, keys, 3)
    for i in range(6):
        assert found[i].tolist() == sorted(range(20), key=lambda j: -float(query[i] @ keys[j]))[:3]
    assert nearest(query, keys[:2], 3).shape == (6, 2)


def test_a_prototype_is_the_mean_of_neighbours_after_plain_attention():
    refiner, H = Refiner(6, heads=2, dropout=0.0), torch.randn(5, 6)
    q, k, v = (H @ refiner.attention.in_proj_weight.T + refiner.attention.in_proj_bias).chunk(3, dim=1)
    heads = [(q[:, h] @ k[:, h].T / 3**0.5).softmax(1) @ v[:, h] for h in (slice(0, 3), slice(3, 6))]
    out = refiner.attention.out_proj
    x = H + torch.cat(heads, dim=1) @ out.weight.T + out.bias
    x = ((x - x.mean(1, keepdim=True)) / x.std(1, unbiased=False, keepdim=True)).mean(0)
    torch.testing.assert_close(refiner(H[None])[0], x / x.norm(), rtol=1e-3, atol=1e-4)


# ----------------------------------------------------------------------------------------------- the queue


def test_queue_keeps_the_last_chosen_pairs():
    queue, kept, g = Queue(7), [], torch.Generator().manual_seed(0)
    for n in (4, 3, 6, 1, 5, 12):
        v, t = torch.randn(n, 3, generator=g), torch.randn(n, 3, generator=g)
        chosen = torch.rand(n, generator=g) < 0.7
        queue.push(v.requires_grad_(), t, chosen)
        kept = [*kept, *((v[i].tolist(), t[i].tolist()) for i in range(n) if chosen[i])][-7:]
        assert sorted(zip(*(rows.tolist() for rows in queue.rows()), strict=True)) == sorted(kept)
    assert not queue.rows()[0].requires_grad
    other = Queue(7)
    other.load_state(queue.state(), torch.device("cpu"))
    for each in (queue, other):
        each.push(v[:3], t[:3], torch.tensor([True, False, True]))
    assert all(map(torch.equal, queue.rows(), other.rows()))


# ------------------------------------------------------------------------------------------------ networks


def test_both_networks_start_alike_and_carry_two_refiners():
    method, networks = methods.build("in2r"), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        networks.append(method.prepare(models.build("vse", **SIZES)))
    assert set(networks[0].refiners) == {"text", "image"}
    for p, q in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(p, q)
        assert p is not q


@pytest.mark.parametrize("name", REGISTERED)
def test_width_and_draws_of_every_model(name):
    network = models.build(name, **SIZES)
    captions = network.eval().encode_captions(Tokens(torch.tensor([[4, 5, 6]]), (3,)))
    assert blank_encoding(network).vectors.shape[1] == captions.vectors.shape[1]
    assert not network.training
    network.train()
    batch, tokens = torch.rand(6, 5, 6), Tokens(torch.arange(1, 19).view(6, 3), (3,) * 6)

    def differs(encode, given):
        return not torch.equal(encode(given).vectors, encode(given).vectors)

    found = [differs(network.encode_images, batch), differs(network.encode_captions, tokens)]
    assert any(found) <= draws(network)  # global vectors need not depend on what is drawn


# ------------------------------------------------------------------------------------------------ one step


def started(folder, **values):
    """Return the trainer and the method at the start of the second training epoch of network A."""
    trainer = trainer_of(folder, **values)
    torch.manual_seed(0)
    trainer.epoch = 1
    method = trainer.method
    method.begin_epoch(trainer)
    return trainer, method


def test_the_first_network_has_no_rectification_in_its_first_epoch(tmp_path):
    trainer, method = started(tmp_path)
    steps = method.begin_epoch(trainer)
    assert {noisy is None for _, noisy in steps} == {True}
    method.is_elite = torch.ones(160, dtype=torch.bool)
    assert set(method.step(trainer, (trainer.batch(torch.arange(16)), None))) == {"triplet", "intra"}
    assert (len(method.queues[0]), len(method.queues[1])) == (16, 0)
    trainer.active = 1
    assert {noisy is None for _, noisy in method.begin_epoch(trainer)} == {False}


def test_the_peers_posteriors_say_who_enters_the_queue(tmp_path):
    trainer, method = started(tmp_path)
    with torch.no_grad():  # both start alike
        for p in trainer.networks[1].parameters():
            p += 0.1 * torch.randn_like(p)
    method.begin_epoch(trainer)
    peer, index = method.divisions[1], torch.arange(40, 56)
    assert not torch.equal(method.divisions[0].p_clean, peer.p_clean)
    w = peer.p_clean
    bar = float(w[w > 0.5].mean())
    batch = trainer.batch(index)
    v = unit(trainer.networks[0].encode_images(batch.images))
    method.step(trainer, (batch, None))
    expected = [k for k, i in enumerate(index.tolist()) if peer.is_clean[i] and w[i] > bar]
    assert torch.equal(method.queues[0].rows()[0], v[expected])
    assert 0 < len(expected) < 16
    assert elite_threshold(0.4 * w) == 1.0  # nobody is trusted


def test_a_step_equals_a_plain_loop(tmp_path):
    trainer, method = started(tmp_path, intra=0.7, gamma=2.0, K=3, dropout=0.0)
    net = trainer.networks[0]
    net.refiners.eval()  # without their dropout
    v_q, t_q = (F.normalize(torch.randn(30, 16), dim=1) for _ in range(2))
    method.queues[1].push(v_q, t_q, torch.ones(30, dtype=torch.bool))
    clean, noisy = (trainer.batch(torch.arange(start, start + 16)) for start in (0, 64))
    terms = method.step(trainer, (clean, noisy))

    def hinge(scores, margin):
        total = 0.0
        for i in range(len(scores)):
            row = [scores[i, j] for j in range(len(scores)) if j != i]
            column = [scores[j, i] for j in range(len(scores)) if j != i]
            total += sum(max(0.0, float(margin - scores[i, i] + max(each))) for each in (row, column))
        return total

    def encoded(batch):
        with torch.no_grad():
            return net.encode_images(batch.images).vectors, net.encode_captions(batch.captions).vectors

    v, t = encoded(clean)
    assert terms["triplet"].item() == pytest.approx(hinge(v @ t.T, 0.2), rel=1e-4)
    within = hinge(v @ v.T, 0.3) + hinge(t @ t.T, 0.3)
    assert terms["intra"].item() == pytest.approx(0.7 * within, rel=1e-4)

    v, t = encoded(noisy)
    t_hat, v_hat = [], []
    for i in range(16):
        by_image = sorted(range(30), key=lambda j: -float(v[i] @ v_q[j]))[:3]
        by_caption = sorted(range(30), key=lambda j: -float(t[i] @ t_q[j]))[:3]
        t_hat.append(net.refiners["text"](t_q[by_image][None])[0])
        v_hat.append(net.refiners["image"](v_q[by_caption][None])[0])
    expected = (sce(v @ torch.stack(t_hat).T) + sce(t @ torch.stack(v_hat).T)) / 2
    assert terms["rectify"].item() == pytest.approx(2 * expected.item(), rel=1e-4)


def test_models_without_draws_get_a_second_view_by_dropout(tmp_path):
    for model, drawn in (("vse", False), ("saf", True)):
        trainer, method = started(tmp_path / model, model=model, dropout=0.5)
        batch = trainer.batch(torch.arange(16))
        assert draws(trainer.networks[0]) == drawn
        v, t = map(unit, trainer.encode(batch, 0))
        for x, other in zip((v, t), method._view(trainer, batch, v, t), strict=True):
            share = float((other == 0).float().mean())
            assert (0.3 < share < 0.7) != drawn
            assert not torch.allclose(x, other)
            assert torch.allclose(other.norm(dim=1), torch.ones(16), atol=1e-5)
