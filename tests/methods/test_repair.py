"""REPAIR: the bank, half-replacing against a plain loop, labels, resume, corner cases."""

import numpy as np
import pytest
import tiny
import torch
from registered import REGISTERED

import nclib
from nclib import losses, models
from nclib.common.tokens import Tokens
from nclib.methods.parts.bank import FeatureBank, pooled
from nclib.methods.repair import half_replacement
from nclib.models import CaptionEncoding, ImageEncoding
from nclib.noise import rank_correlation, rank_labels
from nclib.runs import epoch_arrays

SMALL_RUN = {"mrate": 0.5, "epochs": 1, "bank_size": 64, "K": 5, "data_options": tiny.SMALLER}


def test_half_replacement_equals_a_plain_loop():
    g = torch.Generator().manual_seed(0)
    query, bank = torch.randn(20, 6, generator=g), torch.randn(50, 6, generator=g)
    other, kept = torch.randn(50, 4, generator=g), torch.randn(20, 4, generator=g)
    table = kept @ other.T  # (20, 50)
    found = half_replacement(query, bank, lambda c: table.gather(1, c), 7)
    for i in range(20):
        near = sorted(range(50), key=lambda j: float((query[i] - bank[j]).norm()))[:7]
        assert int(found[i]) == max(near, key=lambda j: float(table[i, j]))


# ------------------------------------------------------------------------------------------------ the bank


def encodings(n, width, seed, start=0):
    g = torch.Generator().manual_seed(seed)
    images = ImageEncoding(torch.randn(n, 4, generator=g), torch.randn(n, 3, 4, generator=g))
    lengths = tuple(int(v) for v in torch.randint(1, width + 1, (n,), generator=g))
    words = torch.randn(n, width, 4, generator=g)
    for row, length in enumerate(lengths):
        words[row, length:] = 0
    captions = CaptionEncoding(torch.randn(n, 4, generator=g), lengths, words)
    return images, captions, torch.arange(start, start + n)


def test_bank_is_a_queue():
    bank, pushed = FeatureBank(10), []
    for turn, (n, width) in enumerate([(4, 5), (3, 2), (6, 7), (1, 1), (5, 3), (11, 4)]):
        images, captions, index = encodings(n, width, turn, 100 * turn)
        bank.push(images, captions, index)
        pushed += [(int(index[i]), images.select([i]), captions.select([i])) for i in range(n)]
        kept = {pair: (image, caption) for pair, image, caption in pushed[-10:]}
        assert len(bank) == len(kept)
        pairs = bank.pairs(torch.device("cpu"))
        assert sorted(pairs.tolist()) == sorted(kept)  # the oldest left
        for slot in range(len(bank)):
            image, caption = kept[int(pairs[slot])]
            at = torch.tensor([slot])
            assert torch.equal(bank.images.select(at).regions, image.regions)
            assert torch.equal(bank.images.select(at).vectors, image.vectors)
            found = bank.captions.select(at)
            assert found.lengths == caption.lengths
            assert torch.equal(found.words, caption.words)  # cut to its length, whatever was there before
            assert torch.allclose(bank.features()[0][slot], pooled(image)[0])
            assert torch.allclose(bank.features()[1][slot], pooled(caption)[0])


def test_pooled_is_the_unit_mean_of_regions_and_of_valid_words():
    images, captions, _ = encodings(6, 5, 3)
    u, t = pooled(images), pooled(captions)
    for i in range(6):
        mean = images.regions[i].mean(0)
        assert torch.allclose(u[i], mean / mean.norm())
        mean = captions.words[i, : captions.lengths[i]].mean(0)
        assert torch.allclose(t[i], mean / mean.norm())
    plain = ImageEncoding(images.vectors)
    assert torch.allclose(pooled(plain), torch.nn.functional.normalize(images.vectors, dim=1))


@pytest.mark.parametrize("name", REGISTERED)
def test_bank_gives_back_what_every_model_compares(name):
    torch.manual_seed(0)
    net = models.build(name, feature_dim=6, vocab_size=30, n_regions=4, **tiny.TINY["model_options"]).eval()
    ids = torch.randint(1, 30, (9, 7))
    lengths = (7, 3, 5, 1, 2, 7, 4, 6, 3)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    with torch.no_grad():
        images, captions = net.encode_images(torch.randn(9, 4, 6)), net.encode_captions(Tokens(ids, lengths))
        bank = FeatureBank(20)
        bank.push(images.select(range(4)), captions.select(range(4)), torch.arange(4))
        bank.push(images.select(range(4, 9)), captions.select(range(4, 9)), torch.arange(4, 9))
        index = torch.tensor([8, 0, 3, 3, 5])
        found = net.similarity(bank.images.select(index), bank.captions.select(index))
        expected = net.similarity(images.select(index), captions.select(index))
        assert torch.allclose(found, expected, atol=1e-6)
        paired = net.paired_similarity(bank.images.select(index), bank.captions.select(index))
        assert torch.allclose(paired, found.diagonal(), atol=1e-5)
    u, t = bank.features()
    assert torch.allclose(u.norm(dim=1), torch.ones(9), atol=1e-5)
    assert len(u) == len(t) == 9


# ------------------------------------------------------------------------------------------- steps and labels


def started(tmp_path, **values):
    """A trainer at its first training epoch, divided and labelled."""
    trainer = tiny.trainer_of("repair", tmp_path, **SMALL_RUN | values)
    trainer.epoch = 1
    trainer.method.begin_training(trainer)
    steps = trainer.method.begin_epoch(trainer)
    return trainer, trainer.method, steps


def test_bank_starts_with_clean_pairs_of_the_peers_division(tmp_path):
    trainer, method, _ = started(tmp_path, bank_size=17)  # a batch and one pair
    first = [bank.pairs(trainer.device).tolist() for bank in method.banks]
    for k in (0, 1):
        assert len(set(first[k])) == 17
        assert set(first[k]) <= set(method.divisions[1 - k].clean.tolist())
    trainer.epoch = 2
    method.begin_epoch(trainer)
    assert [bank.pairs(trainer.device).tolist() for bank in method.banks] == first  # only once


def test_pairs_are_labelled_mismatched_while_none_was_called_clean(tmp_path):
    trainer, method, _ = started(tmp_path)
    del method.banks
    method.divisions = [d._replace(is_clean=d.p_clean > 1) for d in method.divisions]
    method._fill_banks(trainer)
    method._label_all(trainer)
    assert [len(bank) for bank in method.banks] == [0, 0]
    assert not method.correlation.any()
    assert not method.labels.any()


def test_labels_are_those_of_the_whole_set(tmp_path):
    trainer, method, _ = started(tmp_path)
    every = trainer.batch(torch.arange(trainer.n_pairs))
    for k in (0, 1):
        with trainer.evaluating():
            u = pooled(trainer.networks[k].encode_images(every.images))
            t = pooled(trainer.networks[k].encode_captions(every.captions))
        bank_u, bank_t = method.banks[k].features()
        corre = rank_correlation(torch.cdist(u, bank_u), torch.cdist(t, bank_t))
        assert torch.allclose(method.correlation[:, k], corre, atol=2e-3)  # a near tie may fall otherwise
        gamma = corre.sort(descending=True).values[: (160 + 9) // 10].mean()
        mu = corre.sort().values[: (160 + 99) // 100].mean()
        assert method.anchors[k][0].item() == pytest.approx(mu.item(), abs=2e-3)
        assert method.anchors[k][1].item() == pytest.approx(gamma.item(), abs=2e-3)
        assert torch.equal(method.labels[:, k], rank_labels(method.correlation[:, k], *method.anchors[k]))


@pytest.mark.parametrize("active", [0, 1])
def test_step_labels_then_feeds_the_bank_then_replaces(active, tmp_path):
    trainer, method, _ = started(tmp_path)
    trainer.active = active
    method.begin_epoch(trainer)
    call_noisy(method)
    pushed = [bank.state()["next"] for bank in method.banks]
    for turn in (1, 2):
        clean, noisy = (trainer.batch(16 * turn + torch.arange(start, start + 16)) for start in (0, 64))
        y = method.labels[clean.index, 1 - active]
        expected = losses.soft_margin_triplet(trainer.similarity(clean), losses.soft_margins(y)).sum()
        terms = method.step(trainer, (clean, noisy))
        assert terms["clean"].item() == pytest.approx(expected.item(), rel=1e-5)
        now = [bank.state()["next"] for bank in method.banks]
        assert now[active] == (pushed[active] + 16 * turn) % 64
        assert now[1 - active] == pushed[1 - active]
        again = method._replaced(trainer, noisy)  # with the clean pairs of this step in the bank
        assert terms["noisy"].item() == again["noisy"].item() > 0
        draw = torch.rand(16, generator=trainer.generator(f"replace {turn}")) < 0.5
        kept = method.log.arrays()
        found = kept["replaced_pair"][-16:][kept["replaced_image"][-16:]]
        assert torch.equal(found, noisy.index[draw])


def call_noisy(method):
    """Let both networks call every pair mismatched."""
    method.divisions = [d._replace(p_clean=torch.full_like(d.p_clean, 0.1)) for d in method.divisions]


@pytest.mark.parametrize("replace", ["random", "image", "text"])
def test_noisy_loss_equals_a_plain_loop(replace, tmp_path, monkeypatch):
    trainer, method, _ = started(tmp_path, replace=replace)
    call_noisy(method)
    net, bank = trainer.networks[0], method.banks[0]

    def saturating(images, captions, *, logits=False):
        scores = 100 + (images.vectors * captions.vectors).sum(1)
        return scores if logits else scores.sigmoid()  # 1 for all candidates

    monkeypatch.setattr(net, "paired_similarity", saturating)
    noisy = trainer.batch(torch.arange(40, 56))
    method.turn = 7
    terms = method._replaced(trainer, noisy)
    log = method.log.arrays()
    assert sorted(log["replaced_pair"].tolist()) == list(range(40, 56))
    shares = {"random": 0.5, "image": 1.0, "text": 0.0}
    draw = torch.rand(16, generator=trainer.generator("replace 7")) < shares[replace]
    with trainer.evaluating():
        images, captions = net.encode_images(noisy.images), net.encode_captions(noisy.captions)
        u, t = bank.features()
        rows = []  # (image vector, caption vector, entry), the replaced images first
        for i in [*draw.nonzero()[:, 0].tolist(), *(~draw).nonzero()[:, 0].tolist()]:
            own = pooled(captions)[i] if draw[i] else pooled(images)[i]
            distance = (own - (t if draw[i] else u)).norm(dim=1)
            near = distance.argsort(stable=True)[:5]
            if draw[i]:
                score = bank.images.select(near).vectors @ captions.vectors[i]
                entry = int(near[score.argmax()])
                image = bank.images.select(torch.tensor([entry])).vectors[0]
                rows.append((image, captions.vectors[i], entry))
            else:
                score = bank.captions.select(near).vectors @ images.vectors[i]
                entry = int(near[score.argmax()])
                caption = bank.captions.select(torch.tensor([entry])).vectors[0]
                rows.append((images.vectors[i], caption, entry))
            assert entry == int(
                (bank.pairs(trainer.device) == log["replaced_by"][len(rows) - 1]).nonzero()[0]
            )
    v, c, entries = (list(part) for part in zip(*rows, strict=True))
    v, c = torch.stack(v), torch.stack(c)
    corre = rank_correlation(torch.cdist(v, u), torch.cdist(c, t))
    y = rank_labels(corre, *method.anchors[0])
    assert torch.allclose(log["replaced_label"], y, atol=5e-3)
    margin = losses.soft_margins(log["replaced_label"])
    scores, total = v @ c.T, 0.0
    for i in range(16):
        others = [j for j in range(16) if entries[j] != entries[i]]
        for costs in ([scores[i, j] for j in others], [scores[j, i] for j in others]):
            total += max([0.0, *(float(margin[i] + s - scores[i, i]) for s in costs)])
    assert terms["noisy"].item() == pytest.approx(0.15 * total, rel=1e-4)


def test_gradient_reaches_the_live_halves_only_through_the_network(tmp_path):
    trainer, method, _ = started(tmp_path)
    call_noisy(method)
    method._replaced(trainer, trainer.batch(torch.arange(16)))["noisy"].backward()
    assert all(p.grad is None for p in trainer.networks[1].parameters())
    assert any(p.grad is not None for p in trainer.networks[0].parameters())
    bank = method.banks[0]
    assert not any(x.requires_grad for x in (*bank.features(), bank.images.select(torch.arange(3)).vectors))


# --------------------------------------------------------------------------------------------- in real runs


def test_record_holds_what_replacing_did(tmp_path):
    record = tiny.run("repair", tmp_path, **SMALL_RUN, eta=0.6)
    trainer = nclib.open_run(record).trainer
    truth, kept = trainer.pairs.truth(), epoch_arrays(record.folder)[2]
    found = record.diagnostics
    assert found["replaced"] == len(kept["replaced_pair"]) > 0
    assert found["replaced_precision"] == pytest.approx(1 - truth.matched[kept["replaced_pair"]].mean())
    pair, by, image = kept["replaced_pair"], kept["replaced_by"], kept["replaced_image"]
    relevance = truth.relevance(torch.arange(160), torch.arange(160)).numpy()
    new = relevance[np.where(image, by, pair), np.where(image, pair, by)]
    assert found["new_relevance"] == pytest.approx(new.mean(), rel=1e-6)
    assert found["old_relevance"] == pytest.approx(relevance[pair, pair].mean(), rel=1e-6)
    auc = [nclib.noise.auc(kept[name], truth.matched) for name in ("correlation", "correlation_b")]
    assert found["rc_auc"] == pytest.approx(np.mean(auc))
    assert found["bank_mb"] == 2 * 2 * 64 * 16 * 4 / 1e6  # networks, halves, pairs, numbers, bytes


@pytest.mark.parametrize(
    ("low", "pairs", "selected"),
    [
        ((0.1, 0.1), range(16), range(16)),
        ((0.1, 0.3), range(16), []),  # eta is 0.25 for both
        ((0.25, 0.1), range(16), []),
        ((0.1, 0.1), [3, 8], [3, 8]),
        ((0.1, 0.1), [3], []),  # one pair has no negatives
    ],
)
def test_pairs_that_both_networks_doubt_are_replaced(low, pairs, selected, tmp_path):
    trainer, method, _ = started(tmp_path)
    for d, p in zip(method.divisions, low, strict=True):
        d.p_clean.fill_(0.9)[list(pairs)] = p
    terms = method._replaced(trainer, trainer.batch(torch.arange(16)))
    replaced = method.log.arrays().get("replaced_pair", torch.empty(0))
    assert sorted(replaced.tolist()) == list(selected)
    assert bool(terms) == bool(selected)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_half_precision_halves_the_fragments_and_global_vectors_are_kept_once(precision):
    bank, size = FeatureBank(10, precision), 4 if precision == "fp32" else 2
    images, captions, index = encodings(6, 5, 0)
    bank.push(images, captions, index)
    of_pooled = 2 * 10 * 4 * 4
    assert bank.nbytes == size * 10 * (4 + 3 * 4 + 4 + 5 * 4) + of_pooled
    regions = bank.images.select(torch.arange(6)).regions
    assert regions.dtype == torch.float32
    assert torch.allclose(regions, images.regions, atol=2e-2)
    assert torch.equal(bank.features()[0], pooled(images))  # ranks are not to suffer
    vectors = FeatureBank(10)
    vectors.push(ImageEncoding(images.vectors), CaptionEncoding(captions.vectors, captions.lengths), index)
    assert vectors.nbytes == of_pooled
