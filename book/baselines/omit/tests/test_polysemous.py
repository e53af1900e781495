"""PVSE and PCME: worked numbers, one pair at a time, their own loss terms."""

import math

import numpy as np
import pytest
import torch
from baselines.omit.pcme import PCME, with_words_dropped
from baselines.omit.pvse import ResidualPooling, SetEncoding
from toy import assert_agree, fill, regions, words

import nclib
from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.runs import experiment_of, resolve

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 4, "embed_dim": 8, "word_dim": 3}
IMAGE_GLOBALS = torch.tensor([[0.2, -0.1, 0.4], [-0.3, 0.5, 0.1]], dtype=torch.float64)
TEXT_GLOBALS = torch.tensor([[0.1, 0.3, -0.2], [0.4, 0.0, 0.2]], dtype=torch.float64)


def close(got, wanted, rtol=4e-6, atol=1e-6):
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=got.dtype), rtol=rtol, atol=atol)


def worked_pvse():
    """Encodings of the worked example: one block with given weights for both modalities."""
    block = ResidualPooling(4, 3, 2).double()
    with torch.no_grad():
        block.attention.first.weight.copy_(fill((2, 4), 1, 0.5))
        block.attention.second.weight.copy_(fill((2, 2), 2, 0.5))
        block.fc.weight.copy_(fill((3, 4), 3, 0.5))
        block.fc.bias.copy_(fill((3,), 4, 0.5))
        block.norm.weight.copy_(1 + fill((3,), 5, 0.2))
        block.norm.bias.copy_(fill((3,), 6, 0.5))
    padded, lengths = words()
    mask = (torch.arange(3) < torch.tensor(lengths)[:, None]).double()
    return block(IMAGE_GLOBALS, regions()), block(TEXT_GLOBALS, padded, mask)


def test_worked_scores_and_losses_of_pvse():
    image, text = worked_pvse()
    model = build("pvse", **SIZES).double()
    images, captions = model._encoding(*image), model._encoding(*text)
    scores = model.similarity(images, captions)
    close(scores, [[-0.749838, 0.952537], [0.390671, -0.0248320]])
    terms = model.own_loss(images, captions)
    close(terms["ranking"], 2.31788)
    close(terms["diversity"] / 0.1, 0.707018)
    close(terms["mmd"] / 0.01, 0.310784)
    close(sum(terms.values()), 2.39169)


@pytest.mark.parametrize("name", ["pvse", "sbe"])
def test_one_embedding_has_no_diversity_term(name):
    model = build(name, **SIZES, n_embeds=1)
    images = model.encode_images(torch.randn(3, 4, 6))
    terms = model.own_loss(images, images)
    sum(terms.values()).backward()
    assert terms["diversity"] == 0
    assert abs(terms["mmd"].item()) < 1e-7
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def worked_pcme(**options):
    model = build("pcme", **SIZES | {"embed_dim": 4}, n_samples=2, slope=15.0, shift=15.0, **options).double()
    unit = torch.nn.functional.normalize
    spread = [
        torch.tensor([[-2, -1.5, -1], [-1, -2, -1.5]], dtype=torch.float64),
        torch.tensor([[-1.5, -1, -2], [-2, -2, -1]], dtype=torch.float64),
    ]
    draws = [
        [[[0.5, -1, 0.2], [-0.3, 0.8, 1.1]], [[1, 0, -0.5], [0.4, -0.6, 0.9]]],
        [[[-0.7, 0.3, 0.1], [0.6, -0.2, -1]], [[0, 0.5, 0.5], [-1.1, 0.2, 0.3]]],
    ]
    encodings = []
    for mean, s, eps in zip((IMAGE_GLOBALS, TEXT_GLOBALS), spread, draws, strict=True):
        mean = unit(mean, dim=-1)
        points = mean[:, None] + s.exp()[:, None] * torch.tensor(eps, dtype=torch.float64)
        encodings.append(SetEncoding(mean, points, s))
    return model, *encodings


def test_worked_probabilities_and_losses_of_pcme():
    model, images, captions = worked_pcme()
    close(
        images.members,
        [
            [[0.504103, -0.441348, 0.946447], [0.395835, -0.0397138, 1.27754]],
            [[-0.139213, 0.845154, 0.0574658], [-0.359941, 0.763953, 0.369848]],
        ],
    )
    scores = model.similarity(images, captions)
    close(scores, [[3.92736e-14, 0.998021], [0.573750, 3.68634e-05]], rtol=1e-5, atol=0)
    logits = model.similarity(images, captions, logits=True)
    torch.testing.assert_close(torch.sigmoid(logits), scores, rtol=1e-9, atol=0)
    own = torch.eye(2, dtype=logits.dtype)  # PCME's loss: -log p of a pair, -log (1 - p) of the others
    pairs = torch.nn.functional.softplus((1 - 2 * own) * logits)
    close(pairs.diagonal().sum(), 41.0765)
    close(pairs.sum() - pairs.diagonal().sum(), 7.07783)
    terms = model.own_loss(images, captions)
    close(terms["kl"] / model.kl, 6.84520)
    close(terms["contrastive"], 2 * pairs.sum().item())
    close(sum(terms.values()), 96.3088)
    for paired, every in (
        (model.paired_similarity(images, captions), scores),
        (model.paired_similarity(images, captions, logits=True), logits),
    ):
        torch.testing.assert_close(paired, every.diagonal(), rtol=1e-9, atol=0)


def test_worked_inner_products_of_pcme():
    model, images, captions = worked_pcme(compare="dot")
    scores = model.similarity(images, captions)
    close(scores, [[-2.97658, 4.07403], [1.87497, -0.158206]])
    torch.testing.assert_close(model.paired_similarity(images, captions), scores.diagonal())


# one sample and one pair at a time


def pooled(block, vector, x):
    share = torch.softmax(
        torch.tanh(x @ block.attention.first.weight.t()) @ block.attention.second.weight.t(), 0
    )
    residual = torch.sigmoid(torch.stack([block.fc((weight[:, None] * x).sum(0)) for weight in share.t()]))
    z = vector + residual
    z = (z - z.mean(1, keepdim=True)) / (z.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return z * block.norm.weight + block.norm.bias


def sentence_vector(layer, x):
    states, _ = layer.gru(x[None])
    if layer.sentence == "last_token":
        return states[0, -1]
    half = states.shape[2] // 2
    return torch.cat([states[0, -1, :half], states[0, 0, half:]])


def pvse_pair(model, image, ids):
    x = model.embedding(ids)
    a = pooled(model.image_pool, model.image_fc(image.mean(0)), image)
    b = pooled(model.text_pool, sentence_vector(model.sentence_encoder, x), x)
    return max(torch.cosine_similarity(u, v, dim=0) for u in a for v in b)


def attended(layer, x):
    share = torch.softmax(layer.second(torch.tanh(layer.first(x))), 0)
    return (share * x).sum(0)


def pcme_pair(model, image, ids):
    x = model.embedding(ids)
    a = pooled(model.image_pool, model.image_fc(image.mean(0)), image)[0]
    b = pooled(model.text_pool, sentence_vector(model.sentence_encoder, x), x)[0]
    spread_a = model.image_spread_fc(attended(model.image_spread, image))
    spread_a = spread_a + model.image_spread_global(image.mean(0))
    spread_b = model.text_spread_fc(attended(model.text_spread, x))
    spread_b = spread_b + sentence_vector(model.text_spread_sentence, x)
    total = 0.0
    for eps in model.draws[0].double():
        for other in model.draws[1].double():
            gap = a / a.norm() + spread_a.exp() * eps - b / b.norm() - spread_b.exp() * other
            t = model.b - model.a * (gap.square().sum() + 1e-6).sqrt()
            total = total + torch.exp(t) / (torch.exp(t) + torch.exp(-t))
    return total / model.n_samples**2


CASES = [("pvse", {"n_embeds": 3}), ("pvse", {"sentence": "final"})]
CASES += [("pcme", {"n_samples": 3, "sigma": 0.1}), ("pcme", {"sentence": "final", "slope": 2.0})]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("budget", [4 << 30, 1])
def test_batch_equals_one_pair_at_a_time(name, options, budget):
    torch.manual_seed(0)
    model = build(name, **SIZES, **options).double().eval()
    model.memory_budget = budget
    lengths = (3, 1, 5, 2)
    ids, images = torch.randint(1, 20, (4, 5)), torch.randn(3, 4, 6, dtype=torch.float64)
    pair = {"pvse": pvse_pair, "pcme": pcme_pair}[name]
    scores = model.similarity(model.encode_images(images), model.encode_captions(Tokens(ids, lengths)))
    rows = [[pair(model, v, t[:n]) for t, n in zip(ids, lengths, strict=True)] for v in images]
    assert_agree(model, scores, torch.stack([torch.stack(row) for row in rows]), atol=1e-11)


def test_pcme_drops_words_as_its_code_does():
    tokens = Tokens(torch.arange(10, 32).repeat(400, 1), (22,) * 400)  # twenty words between two tokens
    torch.manual_seed(0)
    found = with_words_dropped(tokens, 0.1, 3)
    assert set(found.lengths) == {20}  # two words vanish
    assert (found.ids[:, [0, 19]] == torch.tensor([10, 31])).all()
    unknown = (found.ids == 3).double()
    assert unknown.mean().item() == pytest.approx(0.1 * 18 / 20, abs=0.01)
    known = found.ids.masked_fill(found.ids == 3, 0)
    assert all(torch.equal(row[row > 0], row[row > 0].unique()) for row in known)  # in their order
    vanished = torch.bincount(found.ids.flatten(), minlength=32)[11:31] / 400
    assert vanished.min() > 0.75  # 0.9 * 0.9, whatever the place
    assert vanished.max() < 0.87
    model = build("pcme", **SIZES, caption_drop=0.5)
    few = Tokens(torch.randint(4, 9, (3, 6)), (6, 2, 1))
    assert not torch.equal(model.encode_captions(few).vectors[0], model.encode_captions(few).vectors[0])
    model.eval()
    assert torch.equal(model.encode_captions(few).vectors, model.encode_captions(few).vectors)
    short = with_words_dropped(few, 0.5, 3)
    assert short.lengths == (4, 2, 1)


def test_points_are_drawn_anew_in_training_only():
    torch.manual_seed(0)
    model = build("pcme", **SIZES, sigma=0.5)
    images = torch.randn(2, 4, 6)
    first, second = model.encode_images(images), model.encode_images(images)
    assert not torch.equal(first.members, second.members)
    model.eval()
    state = torch.get_rng_state()
    first, second = model.encode_images(images), model.encode_images(images[1:])
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(first.members[1:], second.members)
    middle, spread = first.members.mean(1) - first.vectors, first.detail.exp()
    torch.testing.assert_close(middle, spread * model.draws[0].mean(0))
    assert isinstance(model, PCME)


def test_the_logit_separates_where_probabilities_round():
    model = build("pcme", **SIZES, slope=100.0, shift=15.0)
    near, far = torch.zeros(1, 7, 8), torch.ones(1, 7, 8)
    a, b, c = (SetEncoding(x[:, 0], x, x) for x in (near, far, 2 * far))
    assert model.similarity(a, b).item() == model.similarity(a, c).item() == 0.0
    one, two = (model.similarity(a, other, logits=True).item() for other in (b, c))
    assert one == pytest.approx(2 * (15 - 100 * math.sqrt(8)), rel=1e-4)
    assert two < one


OWN_LOSSES = {
    "pvse": ("ranking", "diversity", "mmd"),
    "pcme": ("contrastive", "kl"),
    "hrem": ("ranking", "related", "penalty"),
    "sbe": ("ranking", "diversity", "mmd"),
    "vsrn": ("ranking", "caption"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", OWN_LOSSES)
def test_plain_training_minimises_the_loss_of_the_models_paper(model, tmp_path):
    few = {"n_train": 64, "n_val": 16, "n_test": 16}
    given = {"dataset": "planted", "data_options": few, "mrate": 0.0, "warmup_epochs": 0, "epochs": 3}
    options = {"relations_after": 10, "drop": 0.0} if model == "hrem" else {}
    record = nclib.run(
        "plain", model=model, loss="own", **given, model_options=options, out=tmp_path, progress=False
    )
    first, *_, last = record.curves
    assert {key for key in last if key.startswith("loss_")} >= {f"loss_{term}" for term in OWN_LOSSES[model]}
    main = f"loss_{OWN_LOSSES[model][0]}"
    assert last[main] < first[main]


def test_a_model_without_a_loss_of_its_own_is_refused(tmp_path):
    with pytest.raises(ValueError, match="VSE has no loss of its own"):
        nclib.run("plain", dataset="planted", model="vse", loss="own", out=tmp_path)


@pytest.mark.parametrize("name", ["pvse", "pcme"])
def test_word_vectors_can_be_held(name, tmp_path):
    np.save(tmp_path / "words.npy", np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32))
    options = {"word_vectors": str(tmp_path / "words.npy"), "held_words": 2, "word_dim": 4, "embed_dim": 8}
    data = {"n_train": 4, "n_val": 4, "n_test": 4}
    given = {"dataset": "planted", "model": name, "data_options": data, "batch_size": 8, "warmup_epochs": 1}
    settings = resolve("plain", **given, model_options=options)
    trainer = experiment_of("plain").load(settings, tmp_path, torch.device("cpu")).trainer
    weights = trainer.networks[0].embedding.weight
    for trainer.epoch, held in enumerate((True, True, False)):
        trainer._train_epoch(progress=False)
        assert np.array_equal(weights[:30].detach(), np.load(options["word_vectors"])) == held
    with pytest.raises(ValueError, match="held_words=2 is used with word_vectors only"):
        build(name, **SIZES, held_words=2)
