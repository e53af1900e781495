"""The probe on rematching: it counts partners in a batch, and scores L2RM's plans."""

import numpy as np
import pytest
import torch
from ncbook import measurement, named, recorded

import nclib
from nclib import losses
from nclib.methods import METHODS
from nclib.noise import Mismatch


@pytest.fixture(scope="module")
def probe():
    import rematching  # registers a method

    yield rematching
    METHODS.remove("l2rm_probe")


@pytest.mark.parametrize("protocol", ["images", "captions"])
def test_a_batch_holds_about_as_many_partners_as_chance_puts_there(probe, protocol):
    own = np.repeat(np.arange(2000), 5)
    noise = Mismatch.draw(own, 0.4, seed=0, protocol=protocol)
    found = probe.count_partners(noise.image_of, own, 64, seed=0)
    captions = 5 if protocol == "images" else 1 + 4 * 0.4
    assert found["wrong"] == noise.moved
    assert found["partners"] == pytest.approx(captions * 63 / found["wrong"], rel=0.15)
    assert 0 < found["with_partner"] <= found["partners"]
    shown = np.array([1, 2, 0, 4])  # three pictures in a cycle; nothing describes picture 4
    found = probe.count_partners(shown, np.arange(4), 4, seed=0)
    assert found == {"wrong": 4, "batches": 1, "with_partner": 0.75, "partners": 0.75}


def test_a_pair_is_followed_by_its_partner(probe):
    own = np.repeat(np.arange(50), 5)
    noise = Mismatch.draw(own, 0.6, seed=1)
    wrong = np.flatnonzero(~noise.matched)
    shown, described = torch.as_tensor(noise.image_of[wrong]), torch.as_tensor(own[wrong])
    order = probe.chained(shown, described, torch.Generator().manual_seed(0))
    assert sorted(order.tolist()) == list(range(len(wrong)))
    follows = shown[order][:-1] == described[order][1:]
    assert follows.float().mean() > 0.8  # a cycle that ends breaks the chain


def test_rows_of_a_plan_by_hand(probe):
    true = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    plan = torch.tensor([[0.0, 0.3, 0.1], [0.0, 0.0, 0.0], [0.05, 0.05, 0.0]])
    cost = torch.tensor([[0.0, 0.9, 0.1], [0.2, 0.0, 0.3], [0.1, 0.2, 0.0]])
    rows = probe.score_rows(plan, cost, true)
    table = dict(zip(probe.COLUMNS, rows.T.tolist(), strict=True))
    assert table["right"] == [0, 1, 0]
    assert table["partners"] == table["moved"] == table["found"] == [1, 0, 0]
    assert table["nearest"] == [0, 0, 0]  # the lowest cost is another caption
    assert table["on_partners"] == pytest.approx([0.75, 0, 0], abs=1e-6)
    assert table["effective"][1:] == pytest.approx([3, 2], abs=1e-4)  # without mass a row is flat
    found = [probe.summary(rows)[k] for k in ("rows_wrong", "there_found", "accuracy", "right_flat")]
    assert found == pytest.approx([2 / 3, 1, 0.5, 1])


def test_loss_of_rows_and_columns_is_the_rematching_loss(probe):
    g = torch.Generator().manual_seed(0)
    S, plan = torch.rand(5, 5, generator=g), torch.rand(5, 5, generator=g)
    v2t, t2v = losses.log_probabilities(S, 0.1)
    both = 0.5 * (probe.sym_kl(v2t, plan) + probe.sym_kl(t2v, plan.T))
    torch.testing.assert_close(both, losses.rematch_sym_kl(S, plan, 0.1))
    plan[2] = 0
    assert probe.sym_kl(v2t, plan)[2] == 0


@pytest.mark.slow
def test_the_probe_is_l2rm_until_a_part_is_exchanged(probe, tmp_path):
    same = {
        **{"dataset": "planted", "model": "bow", "mrate": 0.6, "warmup_epochs": 1, "epochs": 1, "seed": 0},
        **{"data_options": {"n_val": 20, "n_test": 20}, "device": "cpu", "out": tmp_path},
    }
    usual = nclib.run("l2rm", **same, progress=False).curves[-1]
    probed = nclib.run("l2rm_probe", **same, progress=False).curves[-1]
    for name in ("loss_triplet", "loss_rematch", "val_rsum", "val_i2t_meanr"):
        assert probed[name] == usual[name]
    assert probed["rematched"] > 0
    assert probed["gradient_triplet"] > 0
    given = {"target": "truth", "batches": "partners", "division": "truth"}
    other = nclib.run("l2rm_probe", **given, **same, progress=False).curves[-1]
    assert other["division_precision"] == 1
    assert other["rows_wrong"] == 1
    assert other["there_rows"] > 0.8 > probed["there_rows"]
    assert other["loss_rematch"] != usual["loss_rematch"]


def test_the_recorded_probe_repeats_the_recorded_run():
    own = [r for r in measurement("probe_targets")["rows"] if (r["label"], r["seed"]) == ("L2RM", 0)]
    where = {"dataset": "f8k", "preset": "standard", "model": "bow", "protocol": "images", "mrate": 0.6}
    runs = named(recorded(method="l2rm", seed=0, **where))
    assert len(own) == 1
    assert own[0]["test"] == pytest.approx(runs.loc[runs["label"] == "L2RM", "rsum"].item(), abs=0.01)
