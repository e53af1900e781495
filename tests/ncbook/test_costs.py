"""Sizes and costs: the rule on made runs of known time, and the sizes that arithmetic gives."""

import pandas as pd
import pytest
from ncbook import load_runs
from ncbook.chapters import costs
from records_made import save

from nclib import Record

SAME = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.4}


@pytest.fixture(scope="module")
def times(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for seed in (0, 1):
        for method in ("plain", "l2rm", "rcl"):
            save(folder, method, 200, seed=seed, **SAME)
        save(folder, "ncr", 200, single=150, seed=seed, **SAME)
        save(folder, "l2rm", 200, seed=seed, lam=0.5, **SAME)  # an ablation
    for path in folder.glob("*.json"):
        record = Record.load(path)
        s = record.settings
        steps = costs.steps_of(1000, s["batch_size"], s["warmup_epochs"] + s["epochs"])
        each = {"plain": 0.01, "rcl": 0.02, "l2rm": 0.03, "ncr": 0.05}[s["method"]]
        record.data["train_pairs"] = 1000
        record.cost |= {"seconds": steps * each * (1 + s["seed"]), "peak_memory_mb": 500.0 + s["seed"]}
        record.save(path)
    return costs.step_times(load_runs(folder))


def test_a_step_is_a_batch_of_the_training_pairs(times):
    assert len(times) == 8  # without the ablation, a run of two networks once
    assert times.groupby("label")["milliseconds"].max().to_dict() == pytest.approx(
        {"plain (triplet)": 20, "rcl": 40, "l2rm": 60, "ncr": 100}
    )


def test_hours_follow_from_the_median_step(times):
    shown = costs.hours_table(times, "emoji", "vse").data
    assert list(shown.index) == ["plain (triplet)", "rcl", "l2rm", "ncr"]
    batch, epochs = int(times["batch_size"].iloc[0]), int(times["all_epochs"].iloc[0])
    expected = costs.hours_text(0.015 * costs.steps_of(1_000_000, batch, epochs) / 3600)
    row = shown.loc["plain (triplet)"]
    assert row["extrapolated", "1,000,000 pairs"] == expected
    assert row["measured", "range"] == "10 to 20"
    assert row["measured", "peak memory"] == "0.5 GB"
    assert costs.hours_table(times, "f8k", "bow") is None
    said = costs.said(times)
    assert f"from `plain (triplet)` 15 ms a step of {batch} pairs" in said
    assert "to `ncr` 75 ms" in said


def test_sizes_are_arithmetic(nothing):
    memory = costs.memory_table().data
    assert memory.loc["36 regions of 2,048 (the papers)", "1,000,000 pictures"] == "295 GB"
    assert memory.loc["one vector of 512 (CLIP embedding)", "10,000 pictures"] == "0.02 GB"
    assert costs.steps_table(128, 12).data.loc["steps", "1,000,000 pairs"] == "93,756"
    assert costs.said(costs.step_times(nothing)) == "No records here."
    assert "28 to 37 h per run" in costs.printed_said()
    assert "45,320 steps" in costs.printed_said()


def test_the_cost_of_a_pair_is_told_by_size(monkeypatch):
    rows = [
        {"method": m, "pairs": n, "warmup_us": 30.0, "training_us": us * (1 + (n > 10)), "peak_mb": 100 + n}
        for n in (10, 1010)
        for m, us in zip(costs.METHODS, (30.0, 200.0, 300.0), strict=True)
    ]
    about = {"model": "bow", "model_options": {"embed_dim": 64}, "batch_size": 128}
    stored = {"rows": rows, "machine": {"cpu": "a core"}, "settings": about}
    monkeypatch.setattr(costs, "measurement", lambda name: stored)
    shown = costs.pairs_table().data
    assert shown.loc["crank"].tolist() == ["30", "30", "200", "400", "0.11", "1.11"]
    said = costs.pairs_said()
    assert "`plain` 2.00, `crank` 2.00, `l2rm` 2.00" in said
    assert "about 1,000,000 bytes per training pair" in said


def test_precisions_stand_side_by_side_with_their_hardware(monkeypatch):
    runs = [("plain", "gce", "fp32", 1.0, "CPU, x"), ("plain", "gce", "fp32", 3.0, "CPU, y"),
            ("plain", "gce", "tf32", 5.0, "H100"), ("l2rm", None, "bf16", 7.0, "H100")]  # fmt: skip
    names = ("method", "option.loss", "precision", "rsum", "device")
    made = pd.DataFrame(runs, columns=names).assign(warmup_epochs=2, best_epoch=[4, 4, 4, 1], epochs=9)
    monkeypatch.setattr(costs, "recorded", lambda **where: made[made["method"] == where["method"]])
    table = costs.precision_runs_table()
    assert table.data.loc["plain training, GCE"].tolist() == [
        "2.0 ± 1.4 (2), CPU",
        "5.0 (1), H100",
        "not run",
    ]
    assert table.data.loc["L2RM"].tolist() == ["not run", "not run", "7.0 (1)†, H100"]
    assert "† a run was tested at an epoch of its warm-up" in table.caption
