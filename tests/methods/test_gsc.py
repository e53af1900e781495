"""GSC and GSC+ against plain loops, and their corner cases."""

import math
from functools import partial

import numpy as np
import pytest
import tiny
import torch

from nclib import losses, methods, models
from nclib.common.tokens import Tokens
from nclib.methods import Truth, coteaching, gsc
from nclib.methods.gsc import own_similarities, structure
from nclib.methods.parts.detector import predictions
from nclib.runs import epoch_arrays


class Loop:
    """A loop in which four pairs were seen in one batch, in another order."""

    n_pairs, active, device = 4, 0, torch.device("cpu")
    networks = (None,)

    def keep(self, **arrays):
        self.kept = arrays


def test_weights_follow_consistency_and_prediction(monkeypatch):
    g, p, omega, c = torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    asked = []

    def divide(values, mixture):
        asked.append(values)
        return coteaching.Division(values, g, g > 0.5, torch.zeros(200, 3))

    monkeypatch.setattr(gsc, "divide", divide)
    method, loop = methods.build("gsc"), Loop()
    method.begin_training(loop)
    method.a, method.b, method.c, method.p = [omega], [1 - omega], [None], [None]
    order = torch.tensor([2, 0, 3, 1])
    method.log = [(order, torch.stack([c, p], dim=1)[order])]
    method.end_epoch(loop)
    assert torch.equal(asked[0], -c)  # so that the larger c is the consistent side
    a, b = 0.7 * g + 0.3 * omega, 0.7 * p + 0.3 * (1 - omega)
    torch.testing.assert_close(torch.stack([method.a[0], method.b[0]]), torch.stack([a, b]))
    torch.testing.assert_close(loop.kept["p_clean"], torch.minimum(a, b))
    torch.testing.assert_close(loop.kept["prediction"], p)
    truth = np.array([True, False, True, False])
    report = method.diagnostics(Truth(truth))
    for name, score in (("auc", torch.minimum(a, b)), ("auc_consistency", c)):
        wins = [float(x > y) for x in score[truth] for y in score[~truth]]
        assert report[name] == np.mean(wins)


def test_losses_against_nested_loops():
    g = torch.Generator().manual_seed(0)
    B = 5
    v, t = (torch.rand(B, B, generator=g, dtype=torch.float64) for _ in range(2))
    omega = torch.rand(B, generator=g, dtype=torch.float64)
    (loss, c), match = structure(v, t, omega), predictions(v, 0.2)
    for i in range(B):
        T = [
            sum(float(v[i, k]) * float(omega[k]) * float(t[j, k]) * float(omega[k]) for k in range(B))
            for j in range(B)
        ]
        expected = -float(omega[i]) * (T[i] - math.log(sum(math.exp(x) for x in T)))
        assert loss[i].item() == pytest.approx(expected, abs=1e-12)
        lengths = [math.sqrt(sum(float(G[i, k] * omega[k]) ** 2 for k in range(B))) for G in (v, t)]
        assert c[i].item() == pytest.approx(T[i] / lengths[0] / lengths[1], abs=1e-12)
        shares = [(line[i] / 0.2).exp() / (line / 0.2).exp().sum() for line in (v[i], v[:, i])]
        assert match[i].item() == pytest.approx(float(sum(shares)) / 2)


# --------------------------------------------------------------------------- similarities in one modality


def encoded(name, lengths=(4, 7, 3)):
    torch.manual_seed(0)
    sizes = {"feature_dim": 8, "vocab_size": 20, "n_regions": 6, "embed_dim": 16, "sim_dim": 4, "word_dim": 8}
    network = models.build(name, **sizes).eval()
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.randint(1, 20, (length,))
    images = network.encode_images(torch.rand(len(lengths), 6, 8))
    return network, images, network.encode_captions(Tokens(ids, tuple(lengths)))


def sgr_score(network, whole, local):
    """Score of one pair from its squared differences (D,) and (n, D), step by step."""
    nodes = torch.stack([network.global_similarity(whole), *(network.local_similarity(x) for x in local)])
    nodes = nodes / (nodes.norm(dim=1, keepdim=True) + 1e-8)
    for step in network.graph.steps:
        edges = torch.softmax(step.query(nodes) @ step.key(nodes).T, dim=1)
        nodes = step.update(edges @ nodes).relu()
    return network.score(nodes[0]).sigmoid().item()


def test_weights_of_zero_stay_finite():
    G = torch.full((256, 256), 1e4, requires_grad=True)
    loss, c = structure(G, G * 1.0, torch.zeros(256))
    loss.sum().backward()
    assert not loss.any()
    assert c.isfinite().all()
    assert G.grad.isfinite().all()


def test_sgr_compares_regions_by_position_and_words_by_attention():
    network, images, captions = encoded("sgr")
    with torch.no_grad():
        G_v, G_t = own_similarities(network, images, captions)
        v, regions = images.vectors, images.regions
        for i in range(3):
            for j in range(3):
                whole, local = (v[i] - v[j]) ** 2 + 1e-6, (regions[i] - regions[j]) ** 2 + 1e-6
                assert G_v[i, j].item() == pytest.approx(sgr_score(network, whole, local), abs=1e-5)
                source = captions.words[i, : captions.lengths[i]]
                query = captions.words[j, : captions.lengths[j]]
                raw = torch.nn.functional.leaky_relu(source @ query.T, 0.1)
                share = torch.softmax(9 * raw / raw.norm(dim=1, keepdim=True), dim=0)
                context = share.T @ source
                context = context / context.norm(dim=1, keepdim=True)
                whole = (captions.vectors[i] + 1e-3 - captions.vectors[j]) ** 2
                expected = sgr_score(network, whole, (context - query) ** 2)
                assert G_t[i, j].item() == pytest.approx(expected, abs=1e-5)
    assert not torch.allclose(G_t, G_t.T)  # the words of one side ask


def means(encoding):
    """One vector a sample: the mean of its fragments, of an ensemble side by side."""
    if hasattr(encoding, "parts"):
        return torch.cat([means(part) for part in encoding.parts], dim=1)
    rows, counts = getattr(encoding, "regions", None), None
    if hasattr(encoding, "words"):
        rows, counts = encoding.words, encoding.lengths
    if rows is None:
        return encoding.vectors
    return torch.stack([row[:n].mean(0) for row, n in zip(rows, counts or [None] * len(rows), strict=True)])


@pytest.mark.parametrize("name", ["vse", "scan", "saf", "sgraf"])
def test_other_models_compare_global_vectors(name):
    network, images, captions = encoded(name)
    for G, x in zip(own_similarities(network, images, captions), map(means, (images, captions)), strict=True):
        for i in range(3):
            for j in range(3):
                expected = (x[i] @ x[j] / x[i].norm() / x[j].norm()).item()
                assert G[i, j].item() == pytest.approx(expected, abs=1e-5)
        assert G.requires_grad


def test_a_sample_and_itself_give_finite_gradients_in_sgr():
    network, images, captions = encoded("sgr", (3, 3))
    for bias in (network.local_similarity.bias, network.global_similarity.bias):
        torch.nn.init.zeros_(bias)
    sum(G.sum() for G in own_similarities(network, images, captions)).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    assert network.graph.steps[0].update.weight.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------------- corner cases


# ---------------------------------------------------------------------------------------------- whole runs


run = partial(tiny.run, warmup_epochs=0)
trainer_of = partial(tiny.trainer_of, warmup_epochs=0)


@pytest.mark.parametrize("model", ["vse", "sgr"])
@pytest.mark.parametrize("method", ["gsc", "gsc_plus"])
def test_a_step_weights_pairs_by_the_peer(method, model, tmp_path):
    trainer = trainer_of(method, tmp_path, model=model)
    trainer.active = k = len(trainer.networks) - 1
    chosen, n = trainer.method, trainer.n_pairs
    g = torch.Generator().manual_seed(1)
    chosen.omega = [torch.rand(n, generator=g) for _ in trainer.networks]
    chosen.log = []
    batch = trainer.batch(torch.arange(5, 21))
    network = trainer.networks[k].eval()  # no dropout: the same encodings twice
    terms = chosen.step(trainer, batch)
    omega = chosen.omega[0][5:21]  # GSC: its own; GSC+: network 1 trains with the weights of network 0
    images, captions = network.encode_images(batch.images), network.encode_captions(batch.captions)
    scores = network.similarity(images, captions)
    loss, c = structure(*own_similarities(network, images, captions), omega)
    contrast = (omega * losses.info_nce(scores, 0.07)).mean() / 2
    assert terms["contrast"].item() == pytest.approx(contrast.item(), rel=1e-5)
    assert terms["structure"].item() == pytest.approx(0.01 * loss.mean().item(), rel=1e-5)
    ((index, values),) = chosen.log
    assert torch.equal(index, batch.index)
    assert torch.allclose(values, torch.stack([c, predictions(scores)], dim=1))
    assert not values.requires_grad
    ones = chosen.warmup_step(trainer, batch)
    assert ones["contrast"].item() == pytest.approx(losses.info_nce(scores, 0.07).mean().item() / 2, rel=1e-5)


def test_weights_change_after_the_epoch_and_for_both_networks_at_once(tmp_path, monkeypatch):
    seen = []
    begin = gsc.GSC.begin_epoch

    def note(self, loop):
        items = begin(self, loop)
        seen.append([omega.clone() for omega in self.omega])
        return items

    monkeypatch.setattr(gsc.GSC, "begin_epoch", note)
    record = run("gsc_plus", tmp_path)
    kept = epoch_arrays(record.folder)
    first, again, second, same = seen
    assert all((omega == 1).all() for omega in (*first, *again))
    for k, end in enumerate(("", "_b")):
        assert np.allclose(second[k], kept[1]["p_clean" + end])
        assert torch.equal(second[k], same[k])
        assert 0 < kept[2]["p_clean" + end].min() < kept[2]["p_clean" + end].max() < 1
    assert not torch.equal(*second)


def test_a_pair_that_no_batch_holds_gets_the_mean(tmp_path):
    record = run("gsc", tmp_path, batch_size=199, epochs=1)
    kept = epoch_arrays(record.folder)[1]
    for name in ("consistency", "prediction"):
        values = np.sort(kept[name])
        assert np.isfinite(values).all()
        assert np.isclose(kept[name], kept[name].mean(), atol=1e-6).any()
