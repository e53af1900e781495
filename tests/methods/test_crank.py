"""CRANK against literal loops and its limits: no wrong pair, many, tiny batches; exact resume."""

import math

import pytest
import tiny
import torch

from nclib import losses
from nclib.common.tokens import Tokens
from nclib.methods import Batch
from nclib.methods.coteaching import divide
from nclib.methods.crank import LEAST_COUNT, counted_share, pair_scores, rank_weights
from nclib.methods.parts.views import partial_view
from nclib.models.vse import VSE
from nclib.noise import GaussianMixture1d


def batch_of(lengths, n_regions=5):
    """Regions and tokens whose values tell where they come from."""
    B, width = len(lengths), max(lengths)
    images = torch.arange(B * n_regions).float().reshape(B, n_regions, 1)
    at = torch.arange(width)
    ids = torch.where(at < torch.tensor(lengths)[:, None], 100 * torch.arange(1, B + 1)[:, None] + at, 0)
    return Batch(torch.arange(B), images, Tokens(ids, tuple(lengths)))


# ---------------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize("drop", [0.0, 0.2, 0.5, 0.9])
def test_a_view_keeps_order_ends_and_the_stated_number(drop):
    lengths = (12, 2, 7, 1, 3)
    batch = batch_of(lengths)
    view = partial_view(batch, drop, torch.Generator().manual_seed(0))
    assert view.images.shape == (5, 5 - int(drop * 5), 1)
    for i, n in enumerate(lengths):
        kept = view.captions.lengths[i]
        assert kept == n - int(drop * max(n - 2, 0))
        words = view.captions.ids[i, :kept].tolist()
        given = batch.captions.ids[i, :n].tolist()
        assert words == sorted(set(words))
        assert set(words) <= set(given)
        assert (words[0], words[-1]) == (given[0], given[-1])
        assert not view.captions.ids[i, kept:].any()
        regions = view.images[i, :, 0].tolist()
        assert regions == sorted(set(regions))
        assert set(regions) <= set(batch.images[i, :, 0].tolist())


def test_every_word_and_region_is_left_out_equally_often():
    batch, g = batch_of((6,) * 400, n_regions=4), torch.Generator().manual_seed(1)
    view = partial_view(batch, 0.5, g)
    words = (view.captions.ids % 100).flatten().bincount(minlength=6)  # 0: the first word, no padding
    assert words.tolist()[0] == words.tolist()[5] == 400
    assert all(150 < n < 250 for n in words.tolist()[1:5])
    assert all(150 < n < 250 for n in (view.images % 4).long().flatten().bincount(minlength=4).tolist())


def test_regions_stay_where_a_model_needs_all():
    batch = batch_of((4, 4))
    view = partial_view(batch, 0.5, torch.Generator().manual_seed(0), regions=False)
    assert view.images is batch.images


# --------------------------------------------------------------------------------------------- count, rank


@pytest.mark.parametrize("B", [3, 4, 7])
def test_scores_against_a_loop(B):
    S, tau = torch.rand(B, B, generator=torch.Generator().manual_seed(B), dtype=torch.float64), 0.07
    found = pair_scores(S, tau)
    for i in range(B):
        wrong = (i + B // 2) % B
        for column, which in ((i, 0), (wrong, 1)):
            row = [math.exp(S[i, j] / tau) for j in range(B) if j not in (i, wrong)]
            asked = (column, (column - B // 2) % B)  # images asked about this caption
            col = [math.exp(S[k, column] / tau) for k in range(B) if k not in asked]
            expected = S[i, column] / tau - 0.5 * (math.log(sum(row)) + math.log(sum(col)))
            assert float(found[i, which]) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.9, 1.0])
def test_the_count_is_unbiased_when_right_pairs_score_high(share):
    g = torch.Generator().manual_seed(3)
    n = 20_000
    wrong = torch.randn(n, generator=g)
    given = torch.randn(n, generator=g) + 6 * (torch.rand(n, generator=g) >= share)
    assert counted_share(given, wrong) == pytest.approx(share, abs=0.02)


def test_weights_step_at_the_share_and_are_ones_without_wrong_pairs():
    score = torch.linspace(-1, 1, 1001)
    w = rank_weights(score, 0.6, 0.05)
    assert (w < 0.5).float().mean() == pytest.approx(0.6, abs=0.002)
    assert bool((w.diff() >= 0).all())
    assert rank_weights(score, LEAST_COUNT / 2, 0.05).eq(1).all()
    assert not rank_weights(torch.ones(5), 0.5, 0.1).isnan().any()


@pytest.mark.filterwarnings("ignore:.*do not fill a batch", "ignore:crank counted")
@pytest.mark.parametrize("method", ["sps", "gsc", "gsc_plus", "cream", "crank"])
def test_views_are_what_training_steps_see_and_nothing_else(method, tmp_path, monkeypatch):
    seen = {True: set(), False: set()}
    images, captions = VSE.encode_images, VSE.encode_captions

    def image_seen(self, x):
        seen[torch.is_grad_enabled()].add(("regions", x.shape[1]))
        return images(self, x)

    def caption_seen(self, tokens):
        seen[torch.is_grad_enabled()] |= {("tokens", n) for n in tokens.lengths}
        return captions(self, tokens)

    monkeypatch.setattr(VSE, "encode_images", image_seen)
    monkeypatch.setattr(VSE, "encode_captions", caption_seen)
    few = {"n_train": 24, "n_val": 8, "n_test": 8}
    tiny.run(method, tmp_path, epochs=1, data_options=few, drop=0.5)
    whole = seen[False]
    assert seen[True] == {(kind, n - int(0.5 * (n if kind == "regions" else n - 2))) for kind, n in whole}


# ----------------------------------------------------------------------------------------------- whole runs


def test_two_networks_rank_by_their_mean_score_and_train_with_the_same_weights(tmp_path):
    trainer = tiny.trainer_of("crank_plus", tmp_path, warmup_epochs=2)
    method, trainer.epoch = trainer.method, 2
    single = [trainer.per_pair(lambda S: pair_scores(S, 0.07), network=k) for k in (0, 1)]
    score = trainer.each_pair(lambda batch: method._mean(trainer, batch, pair_scores))
    assert not torch.allclose(*single)
    assert torch.allclose(score, (single[0] + single[1]) / 2, atol=1e-6)
    method.share = 0.4
    seen = []
    for trainer.active in (0, 1):
        batches = [b.index for b in method.begin_epoch(trainer)]
        seen.append((method.weight, torch.cat(batches)))
        for p in trainer.networks[0].parameters():  # what the first one learns is not looked at again
            p.data.mul_(-1)
    assert seen[0][0] is seen[1][0]
    assert torch.equal(seen[0][0], rank_weights(score[:, 0], 0.4, 0.25))
    assert not torch.equal(seen[0][1], seen[1][1])
    assert set(seen[0][1].tolist()) == set(seen[1][1].tolist())


def test_held_out_pairs_are_counted_against_wrong_pairs_of_their_own(tmp_path):
    trainer = tiny.trainer_of("crank", tmp_path, kappa=0.4)
    method = trainer.method
    held = (~method._trained(trainer)).nonzero()[:, 0]
    seen = []
    mean = method._mean

    def watched(loop, batch, measure):
        seen.append((batch.index, mean(loop, batch, measure)))
        return seen[-1][1]

    method._mean = watched
    method._count(trainer)
    index, found = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert set(index.tolist()) <= set(held.tolist())
    assert len(index) == len(set(index.tolist())) >= len(held) - 1  # all but one alone in the last batch
    assert method.share == counted_share(*found.unbind(1), 0.4)


@pytest.mark.parametrize("method", ["crank", "crank_plus"])
def test_a_mixture_of_the_losses_stands_in_place_of_count_and_rank(method, tmp_path):
    trainer = tiny.trainer_of(method, tmp_path, warmup_epochs=0, select="mixture")
    trainer.method.begin_training(trainer)
    batches = trainer.method.begin_epoch(trainer)
    networks = range(len(trainer.networks))
    every = [trainer.per_pair(lambda S: losses.info_nce(S, 0.07), network=k) for k in networks]
    expected = divide(torch.stack(every).mean(0), GaussianMixture1d.published()).p_clean
    assert torch.allclose(trainer.method.weight.double(), expected, atol=1e-5)
    assert 0 < sum(len(batch) for batch in batches) < trainer.n_pairs
    record = tiny.run(method, tmp_path / "run", epochs=1, select="mixture")
    assert record.curves[-1]["loss_infonce_rce"] > 0


@pytest.mark.filterwarnings("ignore:.*warm-up goes on")
def test_held_out_pairs_do_not_train_in_warm_up(tmp_path):
    runs = [
        tiny.run("crank", tmp_path / str(i), batch_size=200, epochs=1, **held)
        for i, held in enumerate(({}, {"held": 0.5}))
    ]
    first = [r.curves[0]["loss_gce"] for r in runs]
    assert first[0] != first[1]


def test_warm_up_goes_on_while_all_pairs_are_counted_as_wrong(tmp_path, monkeypatch):
    counted = iter([1.0, 0.97, 0.3])
    monkeypatch.setattr("nclib.methods.crank.counted_share", lambda *scores: next(counted))
    with pytest.warns(UserWarning, match="as wrong after epoch"):
        record = tiny.run("crank", tmp_path, epochs=3)
    trained = [[key for key in epoch if key.startswith("loss_")] for epoch in record.curves]
    assert trained == [["loss_gce"]] * 3 + [["loss_infonce_rce", "loss_stable"]]
    assert record.diagnostics["counted_share"] == 0.3
    assert [text.split(" of")[0] for text in record.warnings] == ["crank counted 100%", "crank counted 97%"]


def test_the_stable_terms_are_those_of_sps_on_the_view(tmp_path):
    trainer = tiny.trainer_of("crank", tmp_path, stable=2.0, drop=0.0)
    method, batch = trainer.method, next(iter(trainer.batches(purpose="test")))
    method.weight = torch.ones(trainer.n_pairs)
    terms = method.step(trainer, batch)
    network = trainer.networks[0].eval()
    with torch.no_grad():
        v, t = network.encode_images(batch.images).vectors, network.encode_captions(batch.captions).vectors
    S, C = v @ t.T, v @ v.T - t @ t.T  # of a dual encoder with unit vectors
    expected = 2 * (S - S.T).square().mean() + 2 * C.square().mean()
    assert terms["stable"].detach() == pytest.approx(float(expected), rel=1e-5)
    assert set(terms) == {"infonce_rce", "stable"}
