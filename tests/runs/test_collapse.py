"""Runs that collapse: the warning, the flag in the record, and its place in a table."""

from pathlib import Path

import pytest
import torch
from small import QUIET

import nclib
from nclib.methods import CoTeaching
from nclib.methods.coteaching import Division
from nclib.runs.collapse import collapse, starved_networks, validation_fall
from nclib.runs.pair_trainer import PairTrainer

RUN = QUIET | {"model": "vse", "batch_size": 40, "warmup_epochs": 1, "epochs": 2}


WARM = ("warm-up", 80.0), ("warm-up", 100.0)


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ((*WARM, ("training", 75.0)), {}, ""),
        ((*WARM, ("training", 74.9)), {}, "fell from 100.0 after warm-up to 74.9 at the end"),
        ((*WARM, ("training", 10.0), ("training", 80.0)), {}, ""),  # it recovered
        (WARM, {}, ""),
        ((("training", 90.0), ("training", 9.0)), {}, ""),
        ((), {"epoch": 1}, ""),
        ((*WARM, ("training", 90.0)), {"starved": [1]}, "none in 1 of 2 epochs"),
        (WARM, {"idle": [0]}, "none in 1 of 1 epochs"),
    ],
)
def test_a_run_collapsed_when_it_fell_or_kept_one_batch(rows, more, said):
    curves = [{"phase": phase, "val_rsum": score} for phase, score in rows]
    curves += [{"phase": "training", **more}] * bool(more)
    found = collapse(curves)
    assert found.endswith(said)
    assert bool(found) == bool(said)
    assert validation_fall(curves) in found


def test_one_step_is_few_only_where_the_pairs_fill_two():
    assert starved_networks([1, 7, 0, 2], 200, 100) == [0]
    assert starved_networks([1, 1], 200, 100) == [0, 1]
    assert starved_networks([1, 1], 199, 100) == []


def test_a_division_that_calls_less_than_a_batch_matched_is_told_and_recorded(tmp_path, monkeypatch):
    def three(self, loop, network, values):
        p = torch.zeros(len(values), dtype=torch.float64)
        p[:3] = 0.9
        return Division(values, p, p > 0.5, torch.zeros(200, 3))

    monkeypatch.setattr(CoTeaching, "posterior", three)
    with pytest.warns(UserWarning, match="network 0, 1 took one step, where all pairs fill 5"):
        record = nclib.run("ncr", **RUN, out=str(tmp_path / "few"))
    said = [text[:8] for text in record.warnings if "took one step" in text]
    assert said == ["epoch 2:", "epoch 3:"]
    assert "in 2 of 2 epochs" in record.collapsed
    assert record.collapsed in str(record)
    assert nclib.Record.load(f"{record.folder}/record.json").diagnostics["collapsed"] == 1
    assert nclib.table(record.folder)["collapsed"].tolist() == [1]


def test_training_that_undoes_the_warm_up_is_told_once_and_also_after_a_resume(tmp_path, monkeypatch):
    def score(self, split):
        n, d = split.n_images, split.captions_per_image
        right = torch.eye(n).repeat_interleave(d, dim=1)
        return right if self.training_epoch < 1 else -right

    monkeypatch.setattr(PairTrainer, "score", score)
    with pytest.warns(UserWarning, match="the run collapsed: .* below 75%"):
        record = nclib.run("ncr", **RUN, out=str(tmp_path))
    (said,) = (text for text in record.warnings if "collapsed" in text)
    assert "fell from 600.0 after warm-up to" in said
    (Path(record.folder) / "record.json").unlink()
    again = nclib.run("ncr", **RUN, out=str(tmp_path))  # from its checkpoint
    assert (again.warnings, again.diagnostics) == (record.warnings, record.diagnostics)
