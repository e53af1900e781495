"""The chapter on rematching: probability and count of partners, and the probe that scores L2RM's plans."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from ncbook.chapters import diagnosis, photographs
from ncbook.chapters.photographs import photograph_runs, rate_rows

import nclib
from nclib import losses
from nclib.methods import METHODS
from nclib.noise import Mismatch


@pytest.fixture(scope="module")
def probe():
    import rematching  # registers a method

    yield rematching
    METHODS.remove("l2rm_probe")


def test_chance_equals_enumeration():
    n, B, k = 7, 3, 2  # pair 0 and six others, of which the first k are its partners
    batches = list(itertools.combinations(range(1, n), B - 1))
    hits = sum(any(j <= k for j in batch) for batch in batches)
    assert diagnosis.chance_of_partner(n, B, k) == pytest.approx(hits / len(batches))
    assert diagnosis.chance_of_partner(n, n, k) == pytest.approx(1)
    assert diagnosis.chance_of_partner(n, B, 1) == pytest.approx((B - 1) / (n - 1))


@pytest.mark.parametrize("protocol", ["images", "captions"])
def test_count_agrees_with_chance(protocol):
    own = np.repeat(np.arange(2000), 5)
    noise = Mismatch.draw(own, 0.4, seed=0, protocol=protocol)
    found = diagnosis.count_partners(noise.image_of, own, 64, seed=0)
    rate = None if protocol == "images" else 0.4
    expected = diagnosis.chance_of_partner(found["wrong"], 64, 5, rate)
    assert found["wrong"] == noise.moved
    assert found["with_partner"] == pytest.approx(expected, abs=0.02)
    assert found["partners"] >= found["with_partner"]


def test_count_of_a_batch_by_hand():
    described = np.array([0, 1, 2, 3])
    shown = np.array([1, 2, 0, 4])  # three pictures in a cycle; nothing describes picture 4
    found = diagnosis.count_partners(shown, described, 4, seed=0)
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
    table = dict(zip(probe.COLUMNS, probe.score_rows(plan, cost, true).T.tolist(), strict=True))
    assert table["right"] == [0, 1, 0]
    assert table["partners"] == [1, 0, 0]
    assert table["moved"] == [1, 0, 0]
    assert table["found"] == [1, 0, 0]
    assert table["nearest"] == [0, 0, 0]  # the lowest cost is another caption
    assert table["on_partners"] == pytest.approx([0.75, 0, 0], abs=1e-6)
    assert table["effective"][1:] == pytest.approx([3, 2], abs=1e-4)  # without mass a row is flat
    found = probe.summary(probe.score_rows(plan, cost, true))
    assert found["rows_wrong"] == pytest.approx(2 / 3)
    assert found["there_found"] == 1
    assert found["accuracy"] == 0.5
    assert found["right_flat"] == 1


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
    epochs = diagnosis.probes("targets")
    own = epochs[(epochs["label"] == "L2RM") & (epochs["seed"] == 0)]
    runs = photograph_runs()
    run = runs[(runs["label"] == "l2rm") & (runs["mrate"] == 0.6) & (runs["seed"] == 0)]
    run = run[run["protocol"] == "images"]
    assert len(run) == 1
    assert own["test"].iloc[0] == pytest.approx(run["rsum"].item(), abs=0.01)


def test_scenes_at_their_full_size_stand_in_the_table_of_photographs() -> None:
    table = rate_rows(photograph_runs(dataset="emoji"), "images", "full-scenes")
    assert "scenes at their full size" in table.caption
    assert {"plain (infonce)", "plain (infonce_rce)", "l2rm", "l2rm, dropped"} <= set(table.data.index)


def test_parts_of_repair_and_mscn_are_compared_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pd.DataFrame(
        [
            {"label": label, "seed": seed, "rsum": value, "device": "CPU"}
            for label, values in {
                "repair": (100.0, 110.0, 105.0), "repair, hard labels": (90.0, 101.0, 95.5),
                "repair, wrong pairs dropped": (104.0, 108.0, 106.0), "mscn": (130.0,),
                "mscn, pairs not divided": (95.0,),
            }.items()
            for seed, value in enumerate(values)
        ]
    )  # fmt: skip
    monkeypatch.setattr(photographs, "part_runs", lambda rate: made)
    monkeypatch.setattr(photographs, "devices", lambda runs: "CPU")
    table = photographs.parts_table().data
    assert table.index.tolist() == [label for label in photographs.PARTS if label in set(made["label"])]
    assert table.loc["repair", "mean"] == "105.0 ± 5.0"
    assert table.loc["mscn", "seed 1"] == ""
    said = photographs.parts_said().split("\n")
    assert said[0].endswith("dropped` minus `repair`: +1.0 ± 7.5 (3 seeds, 95 %), not told from zero.")
    assert said[1] == "- `repair, hard labels` minus `repair`: -9.5 ± 1.2 (3 seeds, 95 %)."
    assert said[2] == "- `mscn, pairs not divided` minus `mscn`: -35.0 with one seed."
    assert len(said) == 3


def test_recorded_parts_are_those_runs_alone() -> None:
    runs = photographs.part_runs(0.6)
    assert set(runs["label"]) == set(photographs.PARTS)
    assert not runs.duplicated(["label", "seed"]).any()
    assert set(runs.loc[runs["label"] == "mscn, pairs not divided", "option.threshold"]) == {0}
    assert set(runs.loc[runs["label"] == "mscn", "option.threshold"]) == {0.5}


def test_what_rematching_adds_is_said_for_both_divisions_seed_by_seed():
    rows = [
        {"label": f"{name}{division}", "seed": seed, "epoch": 12, "val": value, "test": value}
        for division, base in ((", true division", 200.0), ("", 150.0))
        for seed in (0, 1, 2)
        for name, value in (("L2RM", base + 7), ("dropped", base if division else base + 7))
    ]
    said = diagnosis.rematching_said(pd.DataFrame(rows).assign(val_rsum=0.0, phase="training")).data
    first, second = said.split(" With the mixture's division")
    assert "With the true division, rematching against dropping is **ahead**: +7.0" in first
    assert "**undecided**: +0.0" in second
