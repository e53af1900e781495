"""What the loop offers to methods with several networks, several steps, or pairs known to be matched."""

import io
import re
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from nclib import data, losses
from nclib.common.options import make
from nclib.methods import Steps
from nclib.methods.plain import Plain, PlainOptions
from nclib.noise import Mismatch
from nclib.runs import pair_trainer as training
from nclib.runs import resolve
from nclib.runs.loop import LOOK_EVERY, Place, epoch_arrays
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
    small = {"data_options": {"n_train": 64}, "model_options": {"embed_dim": 16, "word_dim": 8}}
    settings = resolve("plain", dataset="planted", model="vse", epochs=2, warmup_epochs=1, **small)
    dataset = data.load("planted", **settings.data_options)
    noise = Mismatch.draw(dataset.train.image_of, 0.4, seed=0)
    return PairTrainer(
        Two(PlainOptions()),
        build_networks(settings, dataset, 2),
        NoisyPairs(dataset.train, noise),
        dataset.val,
        make(PairSchedule, {"epochs": 2, "warmup_epochs": 1, "batch_size": 32, "lr": 2e-3}),
        Place(0, torch.device("cpu"), tmp_path, {"fingerprint": "f", "noise": "n", "data": "d"}),
    )


@pytest.mark.slow
def test_networks_take_turns_and_a_step_may_have_parts(trainer):
    trainer.fit(progress=False)
    assert trainer.method.seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert trainer.method.moved  # the code after the first yield saw updated weights
    assert {"loss_triplet", "loss_held_out"} <= set(trainer.history[-1])
    weights = [torch.cat([p.flatten() for p in n.parameters()]) for n in trainer.networks]
    assert not torch.equal(*weights)


@pytest.mark.parametrize(
    ("n_images", "share", "taken"),
    [
        (10, 0.0, None),
        (10, 0.02, 2),  # 10 of 500 pairs, of 5 captions a picture
        (10, 0.021, 3),  # the last picture in part
        (10, 0.001, 1),
        (10, 0.5, 8),  # one picture in five stays
        (2, 0.5, 1),
    ],
)
def test_how_many_validation_pictures_are_set_aside(n_images, share, taken):
    kept, aside = training._set_aside(data.load("planted").val.part(0, n_images), share, 500)
    assert kept.n_images == n_images - (taken or 0)
    assert (aside if taken is None else len(aside)) == (taken and 5 * taken)
    assert not taken or aside.noise.matched.all()


def test_part_of_a_split():
    whole = data.load("planted").val
    part, d = whole.part(3, 7), whole.captions_per_image
    assert np.array_equal(part.images, whole.images[3:7])
    assert part.captions.text(0) == whole.captions.text(3 * d)
    assert np.array_equal(part.relevance(), whole.relevance()[3:7, 3 * d : 7 * d])
    with pytest.raises(ValueError, match=r"part\(5, 5\)"):
        whole.part(5, 5)


def test_rate_falls_and_rows_hold_the_means_of_the_steps(trainer, monkeypatch):
    trainer.schedule = make(PairSchedule, {"warmup_epochs": 1, "epochs": 5, "decay_every": 2, "lr": 2e-3})
    trainer.n_planned = 99
    trainer.optimizers[1].param_groups[0]["rate"] = 0.25  # as of a pretrained network
    batches = [trainer.batch(torch.arange(8))] * 3
    monkeypatch.setattr(trainer, "batches", lambda *_, **__: batches)
    added = Mock(wraps=trainer._add)
    monkeypatch.setattr(trainer, "_add", added)
    for epoch, power in enumerate([0, 0, 0, 1, 1, 2]):
        trainer.epoch = epoch
        added.reset_mock()
        row, scale = trainer._train_epoch(progress=False), 0.1**power
        assert (row["lr"], trainer.lr_scale) == pytest.approx((2e-3 * scale, scale))
        rates = [o.param_groups[0]["lr"] for o in trainer.optimizers]
        assert rates == pytest.approx([row["lr"], 0.25 * row["lr"]])
        assert (row["phase"], row["steps"]) == ("training" if epoch else "warm-up", 6)
        lost = [call.args[1] for call in added.mock_calls]
        triplet = sum(terms["triplet"].item() for terms in lost if "triplet" in terms)
        assert row["loss_triplet"] == pytest.approx(triplet / 6, rel=1e-5)


def test_the_rate_falls_by_other_factors_once_more_and_along_a_cosine():
    def shares(**given):
        schedule = make(PairSchedule, {"decay_every": 2, **given})
        return [schedule.share(epoch) for epoch in range(5)]

    assert shares(decay_factor=0.2) == pytest.approx([1, 1, 0.2, 0.2, 0.04])
    assert shares(decay_every=9, decay_again=3) == pytest.approx([1, 1, 1, 0.1, 0.1])
    assert shares(decay="cosine", decay_factor=0.5) == pytest.approx([1, 0.5, 0.5, 0.25, 0.25])
    assert shares(decay="cosine", decay_every=4) == pytest.approx([1, 0.85355, 0.5, 0.14645, 0.1], abs=1e-5)


def test_losses_are_looked_at_every_few_steps(trainer):
    totals = {}
    for _ in range(LOOK_EVERY - 1):
        trainer._add(totals, {"a": torch.tensor(float("inf"))})
    with pytest.raises(RuntimeError, match="loss_a is not finite"):
        trainer._add(totals, {"a": torch.tensor(1.0)})


def test_a_bar_is_drawn_in_a_terminal_alone(trainer, monkeypatch):
    for terminal, progress in ((True, True), (True, False), (False, True)):
        screen = io.StringIO()
        monkeypatch.setattr(screen, "isatty", lambda shown=terminal: shown, raising=False)
        monkeypatch.setattr("sys.stderr", screen)
        assert list(trainer._shown(range(3), progress)) == [0, 1, 2]
        assert ("epoch 1" in screen.getvalue()) == (terminal and progress)
        assert "\n" not in screen.getvalue()  # the bar leaves no line behind


def test_long_gradients_are_cut_and_short_ones_kept(trainer):
    net = trainer.networks[0]
    trainer.schedule = replace(trainer.schedule, grad_clip=0.5)
    for scale, length in ((100.0, 0.5), (1e-3, 2e-3)):
        weight = next(net.parameters())
        ones = torch.nn.functional.pad(torch.ones(4), (0, weight.numel() - 4)).view_as(weight)
        trainer._minimise({"a": scale * (weight * ones).sum()})  # a gradient of length 2 * scale
        norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
        assert norm.item() == pytest.approx(length, rel=1e-4)


def test_restarts_bring_new_networks_and_the_first_rate(trainer, monkeypatch):
    made, begun, batches = [], [], [trainer.batch(torch.arange(8))] * 2
    monkeypatch.setattr(trainer.method, "begin_training", lambda loop: begun.append(loop.epoch))
    trainer.restarts, trainer.renew = (0, 2), lambda number: made.append(number) or trainer.networks
    trainer.schedule = make(PairSchedule, {"warmup_epochs": 1, "epochs": 5, "decay_every": 1, "lr": 2e-3})
    monkeypatch.setattr(trainer, "batches", lambda *_, **__: batches)
    for epoch, (power, restarted) in enumerate([(0, []), (0, [1]), (1, [1]), (0, [1, 2]), (1, [1, 2])]):
        trainer.epoch = epoch
        optimizers = trainer.optimizers
        assert trainer._train_epoch(progress=False)["lr"] == pytest.approx(2e-3 * 0.1**power)
        assert (made, trainer.active) == (restarted, 0)
        assert (trainer.optimizers is optimizers) == (epoch not in (1, 3))
        assert trainer._may_be_tested() == (epoch >= 3)
    assert begun == [1]  # the first epoch after warm-up, and no other
    trainer.restarts, trainer.epoch = (0, 1, 3), 3
    assert not trainer._may_be_tested()  # the last networks are still to come


def test_epochs_are_validated_selected_printed_and_timed(trainer, monkeypatch, capsys):
    """The loop alone: the training of an epoch and its validation are given."""
    trainer.n_planned = 4
    given = {"phase": "training", "loss_a": 0.5, "auc": 0.75}
    monkeypatch.setattr(trainer, "_train_epoch", lambda progress: dict(given))
    monkeypatch.setattr(trainer, "_validate", Mock(side_effect=[{"rsum": s} for s in (5.0, 7.0, 7.0, 9.0)]))
    monkeypatch.setattr(trainer, "_may_be_tested", lambda: trainer.epoch < 3)
    for clock, times in (
        ("time.perf_counter", [10.0, 10.25, 20.0, 21.5, 30.0, 33.0, 40.0, 40.001]),
        ("time.process_time", [0.0, 0.5, 1.0, 2.0, 3.0, 3.75, 4.0, 4.001]),
    ):
        monkeypatch.setattr(clock, Mock(side_effect=times))
    names = ("epoch", "val_rsum", "seconds", "cpu_seconds")
    rows = [tuple(row[name] for name in names) for row in trainer.fit()]
    assert rows == [(1, 5, 0.25, 0.5), (2, 7, 1.5, 1.0), (3, 7, 3.0, 0.75), (4, 9, 0.001, 0.001)]
    assert (trainer.best["rsum"], trainer.best["epoch"]) == (7, 2)  # the first of equals; the last was barred
    assert [period["from_epoch"] for period in trainer.computed_on] == [1]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "epoch  2/4 training a 0.500  val rSum 7.0  AUC 0.750  1.5 s"


@pytest.fixture
def counting(trainer, monkeypatch):
    """A trainer whose epochs keep their number and do nothing else."""

    def train(progress):
        trainer.keep(x=[trainer.epoch])
        return {"phase": "training"}

    monkeypatch.setattr(trainer, "_train_epoch", train)
    monkeypatch.setattr(trainer, "_validate", lambda: {"rsum": 1.0})
    return trainer


def kept(trainer):
    return [arrays["x"].tolist() for arrays in epoch_arrays(trainer.folder).values()]


def test_a_stopped_run_continues_with_its_arrays_and_warnings_and_refuses_other_runs(counting, monkeypatch):
    counting.n_planned, counting.warnings = 4, ["told"]
    scores = [{"rsum": 1.0}] * 2
    monkeypatch.setattr(counting, "_validate", Mock(side_effect=[*scores, KeyboardInterrupt, *scores]))
    with pytest.raises(KeyboardInterrupt):
        counting.fit(progress=False)
    counting.warnings = ["new", "told"]
    assert [row["epoch"] for row in counting.fit(progress=False)] == [1, 2, 3, 4]
    assert counting.warnings == ["new", "told"]
    assert kept(counting) == [[0], [1], [2], [3]]
    right = counting.identity
    for key in ("noise", "data", "fingerprint"):
        counting.identity = right | {key: "other"}
        with pytest.raises(ValueError, match=r"a run with other (noise|data|settings or code);"):
            counting.fit(progress=False)


def test_arrays_of_epochs_are_bound_to_their_checkpoint(counting):
    counting.n_planned, folder = 2, counting.folder
    counting.fit(progress=False)
    first, second = sorted((folder / "epochs").iterdir())
    data = first.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    assert kept(counting) == [[0], [1]]
    for content in (flipped, data[:middle], b"junk", second.read_bytes()):
        first.write_bytes(content)
        with pytest.raises(ValueError, match=f"{re.escape(str(first))} was changed, or belongs to another"):
            kept(counting)
    first.unlink()
    with pytest.raises(FileNotFoundError, match=r"001\.npz"):
        kept(counting)
    first.write_bytes(data)
    (folder / "epochs" / "003.npz").write_bytes(data)  # of no epoch of the run
    assert kept(counting) == [[0], [1]]
    (folder / "checkpoint.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        kept(counting)


def test_a_published_model_is_validated_alone(trainer):
    trainer.n_planned = 0
    (row,) = trainer.fit(progress=False)
    own = {"epoch": 0, "phase": "as published", "lr": 0.0, "steps": 0, "seconds": 0.0, "cpu_seconds": 0.0}
    assert {k: v for k, v in row.items() if not k.startswith("val_")} == own
    assert row["val_rsum"] == trainer.best["rsum"] > 0
    assert (trainer.best["epoch"], trainer._file.exists()) == (0, True)


def test_a_last_batch_of_two_is_kept_and_one_of_one_is_not(trainer):
    assert [len(b) for b in trainer.batches_of(torch.arange(34))] == [32, 2]
    assert [len(b) for b in trainer.batches_of(torch.arange(33))] == [32]
    subset = torch.arange(100, 140)
    whole = trainer.batches(subset, purpose="a")
    assert [len(b) for b in whole] == [32, 8]
    assert torch.equal(torch.cat([b.index for b in whole]).sort().values, subset)
    assert [len(b) for b in trainer.batches(subset, purpose="a", drop_last=True)] == [32]


def test_similarities_are_cosines_in_full_precision(trainer):
    batch = trainer.batch(torch.arange(16))
    with trainer.evaluating():
        for network, other in ((None, 0), (1, 1)):
            v, t = (encoding.vectors for encoding in trainer.encode(batch, network))
            cosine = (v / v.norm(dim=1, keepdim=True)) @ (t / t.norm(dim=1, keepdim=True)).T
            torch.testing.assert_close(trainer.similarity(batch, other), cosine, rtol=1e-5, atol=1e-6)
        one = trainer.similarity(batch, 0)
        assert not torch.allclose(one, trainer.similarity(batch, 1))
        trainer.schedule = make(PairSchedule, {"precision": "bf16"})
        assert not torch.equal(trainer.similarity(batch, 0), one)
