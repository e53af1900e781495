"""What the loop offers to methods with several networks, several steps, or pairs known to be matched."""

import numpy as np
import pytest
import torch

import nclib
from nclib import data, losses, methods
from nclib.common.options import make
from nclib.methods import Steps
from nclib.methods.base import METHODS
from nclib.methods.plain import Plain, PlainOptions
from nclib.noise import Mismatch
from nclib.runs import pair_trainer as training
from nclib.runs import resolve
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.options import PairSchedule
from nclib.runs.pair_trainer import PairTrainer
from nclib.runs.pairs import build_networks


class Two(Plain):
    """Two networks, two optimiser steps per iteration, and some pairs known to be matched."""

    n_networks = 2
    clean_share = 0.05
    settings = {"quick": {"epochs": 2, "margin": 0.3}}  # noqa: RUF012

    def begin_epoch(self, loop):
        seen = getattr(self, "seen", [])
        self.seen = [*seen, (loop.training_epoch, loop.active)]
        return Steps(loop.batches(purpose="pairs"), len(loop.batches(purpose="pairs")))

    def step(self, loop, item):
        net = loop.networks[loop.active]
        before = [p.clone() for p in net.parameters()]
        yield self._terms(loop, item, negatives="hardest")
        self.moved = any(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
        truth = loop.held_out(torch.arange(min(8, loop.n_held_out)))
        yield {"held_out": losses.triplet(loop.similarity(truth), 0.2, "mean").sum()}


@pytest.fixture
def trainer(tmp_path):
    settings = resolve("plain", dataset="planted", model="vse", epochs=2, warmup_epochs=1)
    dataset = data.load("planted", **settings.data_options)
    noise = Mismatch.draw(dataset.train.image_of, 0.4, seed=0)
    return PairTrainer(
        Two(PlainOptions()),
        build_networks(settings, dataset, 2),
        NoisyPairs(dataset.train, noise),
        dataset.val,
        make(PairSchedule, {"epochs": 2, "warmup_epochs": 1, "batch_size": 32, "lr": 2e-3}),
        seed=0,
        device=torch.device("cpu"),
        folder=tmp_path,
        fingerprint="f",
        data_checksum=dataset.checksum,
    )


@pytest.mark.slow
def test_networks_take_turns_and_a_step_may_have_parts(trainer):
    trainer.fit(progress=False)
    assert trainer.method.seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert trainer.method.moved  # the code after the first yield saw updated weights
    assert {"loss_triplet", "loss_held_out"} <= set(trainer.history[-1])
    weights = [torch.cat([p.flatten() for p in n.parameters()]) for n in trainer.networks]
    assert not torch.equal(*weights)


def test_pairs_set_aside_no_longer_validate(trainer):
    whole = data.load("planted").val
    n = trainer.n_held_out
    assert n > 0
    assert n % whole.captions_per_image == 0
    assert trainer.val.n_images + n // whole.captions_per_image == whole.n_images
    batch = trainer.held_out(torch.arange(n))
    rows = np.arange(trainer.val.n_images, whole.n_images).repeat(whole.captions_per_image)
    assert torch.equal(batch.images, whole.features(rows))
    first = trainer.val.n_captions
    assert batch.captions.lengths == whole.captions.batch(np.arange(first, first + n)).lengths


def test_part_of_a_split():
    whole = data.load("planted").val
    part = whole.part(3, 7)
    d = whole.captions_per_image
    assert part.n_images == 4
    assert np.array_equal(part.images, whole.images[3:7])
    assert part.captions.text(0) == whole.captions.text(3 * d)
    assert np.array_equal(part.relevance(), whole.relevance()[3:7, 3 * d : 7 * d])
    with pytest.raises(ValueError, match=r"part\(5, 5\)"):
        whole.part(5, 5)


def test_evaluating_restores_the_modes(trainer):
    trainer.networks[0].train()
    trainer.networks[1].eval()
    with trainer.evaluating():
        assert not trainer.networks[0].training
        assert not torch.is_grad_enabled()
    assert [n.training for n in trainer.networks] == [True, False]
    assert torch.is_grad_enabled()


def test_each_pair_puts_values_back_in_order(trainer):
    found = trainer.each_pair(lambda batch: torch.stack([batch.index, 2 * batch.index], 1).double())
    assert torch.equal(found[:, 0], torch.arange(trainer.n_pairs).double())
    assert torch.equal(found[:, 1], 2 * found[:, 0])


def test_without_a_clean_share_nothing_is_held_out(trainer):
    trainer._held_out = None
    with pytest.raises(ValueError, match="clean_share is 0"):
        trainer.held_out(torch.arange(2))


@pytest.mark.slow
def test_new_optimisers_have_no_moments(trainer):
    trainer.fit(progress=False)
    assert trainer.optimizers[0].state
    trainer.reset_optimizers()
    assert not trainer.optimizers[0].state


def test_a_method_brings_its_own_settings():
    METHODS.register("two", summary="for this test")(Two)
    try:
        assert methods.settings("two", "quick") == {"epochs": 2, "margin": 0.3}
        settings = resolve("two", dataset="planted", model="vse")
        assert settings.schedule.epochs == 2
        assert settings.method_options.margin == 0.3
        assert resolve("two", epochs=7).schedule.epochs == 7  # what the user gives wins
    finally:
        METHODS.remove("two")


@pytest.mark.slow
def test_a_record_tells_the_ensemble_from_its_networks(tmp_path):
    METHODS.register("two", summary="for this test")(Two)
    try:
        record = nclib.run("two", dataset="planted", model="vse", out=str(tmp_path), progress=False)
    finally:
        METHODS.remove("two")
    assert set(record.metrics) == {"val", "test", "test_dsl", "single", "last", "detection"}
    assert record.metrics["single"]["rsum"] != record.metrics["test"]["rsum"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("exponential", [0, 0.0172951, 0.0480506, 0.102743, 0.2]),
        ("linear", [0, 0.05, 0.1, 0.15, 0.2]),
        ("sine", [0, 0.0292893, 0.1, 0.170711, 0.2]),
    ],
)
def test_soft_margins(kind, expected):
    y = torch.linspace(0, 1, 5, dtype=torch.float64)
    assert losses.soft_margins(y, kind=kind).tolist() == pytest.approx(expected, abs=1e-6)


def test_soft_margin_triplet_takes_the_margin_of_the_positive_pair():
    S = torch.tensor(
        [
            [0.82, 0.31, 0.12, 0.25],
            [0.28, 0.35, 0.47, 0.09],
            [0.15, 0.22, 0.76, 0.33],
            [0.05, 0.41, 0.18, 0.54],
        ]
    )
    margins = torch.tensor([0.2, 0.0986739, 0.2, 0.193385])
    assert losses.soft_margin_triplet(S, margins).sum().item() == pytest.approx(0.440732, abs=1e-6)
    assert torch.equal(losses.soft_margin_triplet(S, torch.full((4,), 0.2)), losses.triplet(S, 0.2))
    ignore = torch.zeros(4, 4, dtype=torch.bool)
    ignore[1, 2] = True
    assert losses.soft_margin_triplet(S, margins, ignore)[1] < losses.soft_margin_triplet(S, margins)[1]
    with pytest.raises(ValueError, match="margins must be"):
        losses.soft_margin_triplet(S, margins[:2])
    with pytest.raises(ValueError, match="base must be above 1"):
        losses.soft_margins(margins, base=1)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"out=.*cannot be written"):
        nclib.run("plain", dataset="planted", model="vse", out=str(tmp_path / "file"), progress=False)


@pytest.mark.slow
def test_an_ensemble_has_global_vectors(tmp_path):
    record = nclib.run(
        "l2rm",
        model="sgraf",
        dataset="planted",
        mrate=0.3,
        cost="cosine",
        epochs=1,
        warmup_epochs=1,
        out=str(tmp_path),
        progress=False,
    )
    assert record.metrics["test"]["rsum"] > 0


def test_one_validation_picture_cannot_be_shared():
    val = data.load("planted").val.part(0, 1)
    with pytest.raises(ValueError, match="has 1 picture; it needs at least 2"):
        training._set_aside(val, 0.02, 500)
