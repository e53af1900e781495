"""CRCL against a nested loop; its schedules, its bank, and resume."""

import math
from functools import partial

import numpy as np
import pytest
import tiny
import torch
from tiny import SCORES as S

from nclib import methods
from nclib.methods import Batch
from nclib.methods.crcl import active_complementary, refined
from nclib.methods.parts.detector import predictions
from nclib.runs import epoch_arrays
from nclib.runs.pair_trainer import PairTrainer

run = partial(tiny.run, "crcl", warmup_epochs=0, epochs=5, lr=5e-3)
trainer_of = partial(tiny.trainer_of, "crcl", warmup_epochs=0, epochs=5, lr=5e-3)


def test_every_pair_against_nested_loops():
    g = torch.Generator().manual_seed(0)
    scores, y = torch.rand(6, 6, generator=g, dtype=torch.float64), torch.rand(6, generator=g).double()
    active, complementary = active_complementary(scores, y, 0.07)
    own = predictions(scores, 0.07)
    for i in range(6):
        pull = push = match = 0.0
        for row in (scores[i].tolist(), scores[:, i].tolist()):
            total = sum(math.exp(s / 0.07) for s in row)
            p = [math.exp(s / 0.07) / total for s in row]
            match += p[i] / 2
            pull -= math.log(p[i])
            over = sum(math.tan(v) for v in p) ** (1 - float(y[i]))
            push += sum(math.tan(v) for j, v in enumerate(p) if j != i) / over
        assert own[i].item() == pytest.approx(match, rel=1e-9)
        assert active[i].item() == pytest.approx(pull, rel=1e-9)
        assert complementary[i].item() == pytest.approx(push, rel=1e-9)


# --------------------------------------------------------------------------------------- of the two losses


def test_the_complementary_loss_is_bounded_by_what_y_says():
    wrong = 1 - torch.eye(5, dtype=torch.float64)  # the given pair is never the nearest
    wrong[:, 1] = wrong[1] = 0.9  # every query is sure of one negative or two
    for y, bound in ((0.0, 2.0), (1.0, 2 * math.tan(1))):
        value = active_complementary(wrong, torch.full((5,), y).double(), 0.001)[1]
        assert (value <= bound + 1e-9).all()
        assert value.max() > 0.9 * bound / 2
    single = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    of_first = [active_complementary(single, torch.full((2,), y).double(), 0.001)[1][0] for y in (0.0, 1.0)]
    assert of_first[0].item() == pytest.approx(1 + 0.5, abs=1e-6)  # sure in one direction, even in the other
    assert of_first[1].item() == pytest.approx(math.tan(1) + math.tan(0.5), abs=1e-6)


def test_gradients_also_where_probabilities_saturate():
    y = torch.tensor([1.0, 0.3, 0.0, 0.05], dtype=torch.float64)
    scores = S.clone().requires_grad_()

    def value(s):
        active, complementary = active_complementary(s, y, 0.2)
        return (y * active + 5 * complementary).sum()

    assert torch.autograd.gradcheck(value, scores)
    extreme = torch.tensor([[0.0, 1.0], [0.0, 1.0]], requires_grad=True)
    sum(part.sum() for part in active_complementary(extreme, torch.tensor([0.0, 1.0]), 0.001)).backward()
    assert extreme.grad.isfinite().all()
    alone = torch.ones(1, 1, requires_grad=True)
    sum(part.sum() for part in active_complementary(alone, torch.zeros(1))).backward()
    assert alone.grad.isfinite().all()


# ------------------------------------------------------------------------------------- the bank in a schedule


class Reader:
    """A loop of one batch per epoch that serves what a method needs."""

    device, n_pairs, n_epochs = torch.device("cpu"), 6, 9

    def batches(self, subset=None, *, purpose, drop_last=False):
        return [Batch(torch.tensor([5, 0, 2, 3]), None, None)]

    def similarity(self, batch):
        return S.float().clone().requires_grad_()


def test_bank_over_three_schedules():
    """Schedules of 3, 3 and 3 epochs, freeze 2; the expected bank is updated by hand."""
    method, loop = methods.build("crcl", schedules=3, schedule_epochs=3), Reader()
    method.begin_training(loop)
    p, bank = predictions(S.float(), 0.05), torch.ones(4)
    assert p[1] > 0.1
    for loop.training_epoch in range(9):
        (batch,) = method.begin_epoch(loop)
        if loop.training_epoch == 4:
            method.bank[0] = bank[1] = 0.05  # below the floor
        age = loop.training_epoch % 3
        used = bank if age < 2 else 0.8 * bank + 0.2 * p
        used = torch.where(used < 0.1, torch.zeros(4), used)
        terms = method.step(loop, batch)
        active, complementary = active_complementary(S.float(), used)
        assert terms["active"].item() == pytest.approx((used * active).mean().item(), rel=1e-5)
        assert terms["complementary"].item() == pytest.approx(5 * complementary.mean().item(), rel=1e-5)
        bank = p if loop.training_epoch == 1 else used
        assert torch.allclose(method.bank[batch.index], bank)
        assert method.bank[[1, 4]].tolist() == [1.0, 1.0]  # never visited
    assert method.bank[0] == 0


# ----------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("options", "epochs", "restarts"),
    [
        ({}, 53, [7, 14, 21]),
        ({"schedules": 3, "schedule_epochs": 3}, 12, [3, 6]),
        ({"schedules": 3, "schedule_epochs": 3}, 7, [3, 6]),
        ({"schedules": 1}, 1, []),
    ],
)
def test_where_schedules_begin(options, epochs, restarts):
    assert methods.build("crcl", **options).restarts(epochs) == restarts


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run of schedules of 2 and 3 epochs, with the weights and the optimiser before each epoch's steps."""
    seen, validate = [], PairTrainer._validate
    batches = PairTrainer.batches

    def noted(self, subset=None, *, purpose, drop_last=False):
        if purpose == "pairs":
            weights = [p.detach().clone() for p in self.networks[0].parameters()]
            seen.append((weights, len(self.optimizers[0].state), self.lr, self.method.bank.clone()))
        return batches(self, subset, purpose=purpose, drop_last=drop_last)

    def falling(self):
        return validate(self) | {"rsum": 500.0 - self.epoch}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairTrainer, "batches", noted)
        patch.setattr(PairTrainer, "_validate", falling)
        record = run(tmp_path_factory.mktemp("watched"))
    return record, seen


def test_a_schedule_begins_with_another_network_and_the_same_bank(watched):
    record, seen = watched
    first, second = seen[0], seen[2]
    assert [steps for _, steps, _, _ in seen] == [0, seen[1][1], 0, seen[1][1], seen[1][1]]  # optimisers anew
    assert seen[1][1] > 0
    # Drawn apart, as random as the first ones: of the same size, but other numbers.
    drawn = [(a, b) for a, b in zip(first[0], second[0], strict=True) if a.std() > 0]
    assert drawn
    for a, b in drawn:
        assert not torch.equal(a, b)
        assert a.norm().item() == pytest.approx(b.norm().item(), rel=0.5)
    kept = epoch_arrays(record.folder)
    assert np.array_equal(seen[2][3].numpy(), kept[2]["p_clean"])
    assert (seen[1][3] == 1).all()
    assert (seen[2][3] != 1).any()


def test_the_rate_decays_within_a_schedule_and_the_last_one_alone_is_tested(watched):
    record, _ = watched
    assert [row["lr"] for row in record.curves] == pytest.approx([5e-3] * 4 + [5e-4])
    assert record.best_epoch == 3  # validation falls from epoch to epoch
    assert record.metrics["last"] != record.metrics["test"]


def test_new_networks_come_from_the_seed_of_the_run_and_leave_other_draws_alone(tmp_path):
    trainer = trainer_of(tmp_path)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    trainer._restart(1)
    assert torch.equal(torch.rand(3), expected)
    (again,), (other,) = trainer.renew(1), trainer.renew(2)
    for mine, same, p in zip(
        trainer.networks[0].parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(mine, same)
        assert not p.numel() > 20 or not torch.equal(mine, p) or p.std() == 0


# ---------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("phase", ["warmup_step", "step"])
def test_without_freeze_the_bank_moves_from_the_first_step_and_warm_up_takes_all_as_matched(phase):
    method, loop = methods.build("crcl", schedules=1, freeze=0, floor=0.0), Reader()
    method.begin_training(loop)
    loop.training_epoch = 0
    (batch,) = method.begin_epoch(loop)
    terms = getattr(method, phase)(loop, batch)
    y = torch.ones(4) if phase == "warmup_step" else refined(torch.ones(4), predictions(S.float(), 0.05))
    active, complementary = active_complementary(S.float(), y)
    assert terms["active"].item() == pytest.approx((y * active).mean().item(), rel=1e-5)
    assert terms["complementary"].item() == pytest.approx(5 * complementary.mean().item(), rel=1e-5)
    assert torch.allclose(method.bank[batch.index], y)


def test_refined_values_are_between_and_never_leave_their_range():
    assert refined(torch.tensor([0.3, 1.0]), torch.tensor([0.9, 0.5]), 0.75).tolist() == [
        pytest.approx(0.45), pytest.approx(0.875)
    ]  # fmt: skip
    for alpha in (0.0, 0.1, 0.7, 0.8, 1.0):
        for ends in (torch.ones(3), torch.zeros(3), torch.ones(3).double()):
            assert torch.equal(refined(ends, ends, alpha), ends)


@pytest.mark.parametrize("y", [torch.rand(3), torch.rand(4, 4)])
def test_labels_are_one_number_a_pair(y):
    with pytest.raises(ValueError, match="y must be"):
        active_complementary(torch.rand(4, 4), y)
