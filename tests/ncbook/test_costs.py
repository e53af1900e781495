"""The page on costs: the rule on made runs of known time, and the sizes that arithmetic gives."""

import math

import pytest
from pages import cells
from records_made import save

from nclib import Record

SAME = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.4}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for seed in (0, 1):
        for method in ("plain", "l2rm", "rcl"):
            save(folder, method, 200, seed=seed, **SAME)
        save(folder, "ncr", 200, single=150, seed=seed, **SAME)
        save(folder, "l2rm", 200, seed=seed, lam=0.5, **SAME)  # an ablation
    for path in folder.glob("*.json"):
        record = Record.load(path)
        s = record.settings
        steps = math.ceil(1000 / s["batch_size"]) * (s["warmup_epochs"] + s["epochs"])
        each = {"plain": 0.01, "rcl": 0.02, "l2rm": 0.03, "ncr": 0.05}[s["method"]]
        record.data["train_pairs"] = 1000
        record.cost |= {"seconds": steps * each * (1 + s["seed"]), "peak_memory_mb": 500.0 + s["seed"]}
        record.save(path)
    return cells("costs", "load", "steps", "hours", "memory", "pairs-table", "pairs-said", folder=str(folder))


def test_a_step_is_a_batch_of_the_training_pairs(page):
    times = page["times"]
    assert len(times) == 8  # without the ablation, a run of two networks once
    assert times.groupby("label")["ms"].max().to_dict() == pytest.approx(
        {"plain (triplet)": 20, "rcl": 40, "l2rm": 60, "ncr": 100}
    )


def test_hours_follow_from_the_median_step(page):
    shown, one = page["hours_of"]("emoji", "vse").data, page["times"].iloc[0]
    assert list(shown.index) == ["plain (triplet)", "rcl", "l2rm", "ncr"]
    row = shown.loc["plain (triplet)"]
    steps = math.ceil(1_000_000 / one["batch_size"]) * one["length"]
    assert row["hours, 1,000,000 pairs"] == pytest.approx(0.015 * steps / 3600)
    assert row[["least", "most", "memory, MB"]].to_list() == pytest.approx([10, 20, 501])


def test_sizes_are_arithmetic(page):
    size = page["size"]
    assert size.loc["36 regions of 2,048 (the papers)", "1,000,000 pictures"] == pytest.approx(294.9, abs=0.1)
    assert size.loc["one vector of 512 (CLIP embedding)", "10,000 pictures"] == pytest.approx(0.02, abs=1e-3)
    assert page["steps"]["1,000,000 pairs"] == 93756


def test_the_cost_of_a_pair_is_that_of_the_benchmark(page):
    cost = page["cost"].set_index(["method", "pairs"])["training, µs a pair"]
    first, last = min(page["ends"]), max(page["ends"])
    ratio = page["grown"]["time of a pair, largest set over smallest"]
    assert ratio["l2rm"] == pytest.approx(cost["l2rm", last] / cost["l2rm", first])


def test_the_papers_hours_are_the_printed_ones(page):
    assert (page | cells("costs", "flickr-said"))["steps"] == 45320
