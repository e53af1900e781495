"""MSCN: its look-ahead against a plain finite difference; its corner cases."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch
from refusals import refused
from registered import REGISTERED
from scipy import stats

import nclib
from nclib import losses, models
from nclib.methods import Batch
from nclib.methods.mscn import clip_inside, purify, score_margins
from nclib.methods.parts.meta import MetaMatcher, MetaPairs, join_batches, look_ahead_gradient
from nclib.noise import beta_moments
from nclib.runs import epoch_arrays

# -- the gradient through the step ------------------------------------------------------------------------


def small_network(name, dtype=torch.float64, budget=None):
    torch.manual_seed(1)
    split = nclib.data.load("planted", n_train=12).train
    images, tokens = split.features(np.arange(6)), split.captions.batch(np.arange(0, 30, 5))
    sizes = {"embed_dim": 6, "sim_dim": 5, "word_dim": 4}
    shape = {"feature_dim": images.shape[2], "vocab_size": 500, "n_regions": images.shape[1]}
    network = MetaMatcher(models.build(name, **shape, **sizes)).to(dtype)
    if budget:  # what a comparison keeps is computed again in the backward pass
        network.model.memory_budget = budget
    return network, images.to(dtype), tokens


def problem(network, images, tokens):
    label = torch.tensor([1.0, 0, 1, 0, 1, 1], dtype=images.dtype)
    batch, flipped = (Batch(torch.arange(6), x, tokens) for x in (images, images.roll(1, 0)))

    def train_loss(logits):
        scores = torch.sigmoid(logits)
        return losses.soft_margin_triplet(scores, score_margins(scores.diagonal(), 0.4)).sum()

    def meta_loss(logits):
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, label)

    return network, batch, train_loss, flipped, meta_loss


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 1])
@pytest.mark.parametrize("name", REGISTERED)
def test_exact_gradient_equals_a_finite_difference_of_the_whole_look_ahead(name, budget):
    """So is every comparison differentiated twice, padded captions among them."""
    network, images, tokens = small_network(name, budget=budget)
    steps = problem(network, images, tokens)
    network.train()
    lr = 0.5  # large, so that the term through the step matters
    found, loss = look_ahead_gradient(*steps, lr=lr, seed=7)
    first = network.meta.layers[0].weight

    def value(shift):
        with torch.no_grad():
            first.add_(shift)
        result = look_ahead_gradient(*steps, lr=lr, seed=7)[1].item()
        with torch.no_grad():
            first.sub_(shift)
        return result

    assert value(torch.zeros_like(first)) == pytest.approx(loss.item(), abs=1e-14)
    flat = found[0].abs().flatten()
    for k in flat.topk(3).indices.tolist():
        shift = torch.zeros_like(first)
        shift.view(-1)[k] = 1e-6
        slope = (value(shift) - value(-shift)) / 2e-6
        assert found[0].flatten()[k].item() == pytest.approx(slope, rel=1e-4, abs=1e-9)
    still, _ = look_ahead_gradient(*steps, lr=1e-12, seed=7)
    assert not torch.allclose(still[0], found[0], rtol=1e-3)  # the step is felt


@pytest.mark.parametrize("name", REGISTERED)
def test_the_look_ahead_leaves_no_trace(name):
    network, images, tokens = small_network(name)
    network.train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    drawn = torch.get_rng_state()
    steps = problem(network, images, tokens)
    found, _ = look_ahead_gradient(*steps, lr=0.5, seed=3)
    assert all(g.isfinite().all() and g.any() for g in found)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(p.grad is None for p in network.parameters())


# -- the wrapped model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGISTERED)
def test_the_wrapped_model_is_a_model(name):
    network, images, tokens = small_network(name, torch.float32)
    network.eval()
    assert network.pair_dim == network.model.pair_dim
    assert network.needs_regions == network.model.needs_regions
    assert network.score_range == (0, 1)
    i, c = network.encode_images(images), network.encode_captions(tokens)
    scores = network(images, tokens)
    assert scores.shape == (6, 6)
    assert torch.allclose(scores, torch.sigmoid(network(images, tokens, logits=True)))
    assert torch.allclose(scores.diagonal(), network.paired_similarity(i, c), atol=1e-6)
    assert torch.allclose(scores.diagonal(), network(images, tokens, paired=True), atol=1e-6)
    network.model.memory_budget = 1
    with torch.no_grad():
        assert network._chunk(6) == 1
        assert torch.allclose(scores, network.similarity(i, c), atol=1e-6)
    other, *_ = small_network(name, torch.float32)
    torch.nn.init.zeros_(other.meta.layers[0].weight)
    other.load_state_dict(network.state_dict())
    assert torch.allclose(other.eval()(images, tokens), network(images, tokens), atol=1e-6)


# -- runs -------------------------------------------------------------------------------------------------

run = partial(tiny.run, "mscn")
trainer_of = partial(tiny.trainer_of, "mscn")


@pytest.fixture
def trainer(tmp_path):
    trainer = trainer_of(tmp_path, lookahead_every=1)
    trainer.epoch = 1
    trainer.method.begin_training(trainer)
    return trainer


def test_meta_pairs_are_known_matches_and_mismatches(trainer):
    pairs = MetaPairs(trainer)
    assert pairs.n == trainer.n_held_out == 5
    assert len(pairs.caption_of.unique()) == 5
    pairs.image_of[2] = pairs.caption_of[2]  # a draw that hits the caption's own picture
    batch, label, weight = pairs.load(torch.tensor([7, 1, 8, 9, 0]))
    assert label.tolist() == [1, 1, 0, 0, 0]
    assert weight.tolist() == [1, 1, 0, 1, 1]
    assert torch.equal(batch.images[:2], trainer.held_out(torch.tensor([1, 0])).images)
    wrong = trainer.batch(pairs.image_of[torch.tensor([2, 3, 4])])
    assert torch.equal(batch.images[2:], wrong.images)
    own = trainer.batch(pairs.caption_of[torch.tensor([2, 3, 4])])
    assert batch.captions.lengths[2:] == own.captions.lengths
    matched, mismatched = pairs.scores(trainer.networks[0])
    assert (len(matched), len(mismatched)) == (5, 4)
    batches = pairs.batches(4)
    sizes = [len(next(batches)[0]) for _ in range(6)]
    assert sizes == [4, 4, 2, 4, 4, 2]  # without end
    again = MetaPairs(trainer)
    trainer.epoch = 2
    assert not torch.equal(MetaPairs(trainer).caption_of, again.caption_of)


def test_joined_batches_are_padded_to_the_longer(trainer):
    a, b = trainer.batch(torch.tensor([0, 1])), trainer.batch(torch.tensor([2]))
    both = join_batches(a, b)
    assert both.captions.lengths == (*a.captions.lengths, *b.captions.lengths)
    assert len(both) == 3
    width = max(a.captions.ids.shape[1], b.captions.ids.shape[1])
    assert both.captions.ids.shape == (3, width)
    network = trainer.networks[0].eval()
    alone = network(b.images, b.captions, paired=True)
    assert torch.allclose(network(both.images, both.captions, paired=True)[2], alone[0], atol=1e-6)


def test_meta_step_moves_the_meta_network_and_the_main_step_the_model(trainer):
    method, network = trainer.method, trainer.networks[0]
    network.meta.requires_grad_(False)
    batch, pairs = trainer.batch(torch.arange(8)), MetaPairs(trainer)
    old = {k: v.clone() for k, v in network.state_dict().items()}
    method.meta_step(trainer, batch, *next(pairs.batches(8)))
    moved = {k for k, v in network.state_dict().items() if not torch.equal(v, old[k])}
    assert moved == {k for k in old if k.startswith("meta.")}
    old = {k: v.clone() for k, v in network.state_dict().items()}
    trainer._minimise(method.step(trainer, (1, batch, iter([next(pairs.batches(8))]))))
    moved = {k for k, v in network.state_dict().items() if not torch.equal(v, old[k])}
    assert any(k.startswith("meta.") for k in moved)  # every step looks ahead
    assert any(k.startswith("model.") for k in moved)
    method.options = type(method.options)(lookahead_every=2)
    trainer._minimise(method.step(trainer, (1, batch, iter([]))))  # an odd step does not
    S = trainer.similarity(batch)
    expected = losses.soft_margin_triplet(S, score_margins(S.diagonal())).sum()
    assert method._loss(S).item() == pytest.approx(expected.item())


def test_training_batches_are_half_of_those_in_warm_up(trainer):
    sizes = []
    trainer.method.divide_pairs = lambda loop: _Kept(torch.arange(21))
    for _, batch, _ in trainer.method.begin_epoch(trainer):
        sizes.append(len(batch))
    assert sizes == [8, 8, 5]


class _Kept:
    def __init__(self, clean):
        self.clean = clean


@pytest.mark.filterwarnings("ignore:.*do not fill a batch")
def test_record_says_what_the_detector_sees(tmp_path):
    record = run(tmp_path, epochs=1, threshold=0.0)
    assert 0 <= record.curves[-1]["auc"] <= 1
    kept = epoch_arrays(record.folder)[2]
    assert kept["loss"].shape == kept["p_clean_b"].shape == (200,)
    assert kept["density"].shape == (200, 3)


def test_too_little_validation_is_told_before_training(trainer, tmp_path):
    single = {
        **tiny.SMALLER,
        "captions_per_image": 1,
        "n_val": 2,
    }  # two pairs, one to validate
    refused(ValueError, lambda: trainer_of(tmp_path / "few", data_options=single), "known to be matched", "3")
    trainer.n_held_out = 2  # the validation split could not give the 4 that clean_share asks for
    with pytest.warns(UserWarning, match=r"from 2 pairs.* 4 .*2%"):
        trainer.method.begin_training(trainer)


def test_scores_at_the_ends_stay_inside_and_nothing_is_scaled():
    assert clip_inside(torch.tensor([0.0, 0.25, 1.0, -0.1, 1.1])).tolist() == [
        0.001, 0.25, 0.999, 0.001, 0.999
    ]  # fmt: skip
    _, p = purify(torch.full((9,), 0.5), torch.full((3,), 0.5), torch.full((3,), 0.5))
    assert np.isfinite(p).all()  # a collapsed network


@pytest.mark.parametrize("crossed", [False, True])
def test_the_mixture_starts_at_the_meta_set_and_its_components_keep_their_places(crossed):
    rng = np.random.default_rng(0)
    low, high = rng.beta(2, 9, 90), rng.beta(9, 2, 60)
    known = [torch.from_numpy(part[:20]) for part in ((high, low) if crossed else (low, high))]
    mixture, p = purify(torch.from_numpy(np.r_[low, high]), *known)
    (first, second), weights = (stats.beta(*beta_moments(x.numpy())) for x in known), [0.5, 0.5]
    x, path = np.r_[low, high], []
    for _ in range(11):  # literal EM
        parts = np.stack([w * c.pdf(x) for w, c in zip(weights, (first, second), strict=True)])
        path.append(np.log(parts.sum(0)).sum())
        if len(path) > 1 and path[-1] - path[-2] <= 1e-2:
            break
        r = parts / parts.sum(0)
        first, second = (stats.beta(*beta_moments(x, part)) for part in r)
        weights = r.mean(1)
    assert mixture.log_likelihood_ == pytest.approx(path, rel=1e-6)
    np.testing.assert_allclose(p, (parts / parts.sum(0))[1], atol=1e-6)
    assert (p[:90].mean() > 0.9) == (p[90:].mean() < 0.1) == crossed


def test_margins_are_the_formula_and_carry_no_gradient():
    s = torch.linspace(0, 1, 11, dtype=torch.float64, requires_grad=True)
    found = score_margins(s, 0.3)
    assert found.tolist() == pytest.approx([0.3 * x**2 / (x**2 + (1 - x) ** 2) for x in s.tolist()])
    assert not found.requires_grad
