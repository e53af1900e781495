"""The board: which rows a run has, and which of them are marked."""

import pytest
from ncbook import board, load_runs
from records_made import save, save_category


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    same = {"dataset": "emoji", "preset": "quick", "model": "vse"}
    for seed, noise in enumerate((-2.0, 0.0, 2.0)):
        for rate in (0.0, 0.4):
            at = {**same, "mrate": rate, "seed": seed}
            save(folder, "plain", 200 + noise, loss="gce", **at)
            save(folder, "l2rm", 199 - noise, **at)
            save(folder, "rcl", 150 + noise, **at)
            save(folder, "ncr", 260 + noise, single=190 + noise, **at)
            save(folder, "l2rm", 400, lam=0.5, **at)  # an ablation
            save(folder, "plain", 270 + noise, loss="gce", networks=2, single=200 + noise, **at)
            save(folder, "plain", 290 + noise, loss="gce", networks=4, single=200 + noise, **at)
            save(folder, "ncr", 280 + noise, networks=2, single=260 + noise, **at)  # four networks
        save(folder, "decl", 100 + noise, protocol="captions", **{**same, "mrate": 0.4, "seed": seed})
        save_category(folder, "mrl", 0.5, noise_rate=0.4, seed=seed)
    save(folder, "plain", 500, loss="infonce", **same, mrate=0.4, seed=0)
    return board.scored(load_runs(folder))


def test_a_row_for_each_number_of_networks_without_ablations(table):
    at = table[(table["rate"] == 0.4) & (table["protocol"] == "images")]
    means = at.groupby(["label", "networks"])["value"].mean().to_dict()
    assert means == {
        ("plain (gce)", board.ONE): 200,
        ("l2rm", board.ONE): 199,
        ("rcl", board.ONE): 150,
        ("plain (infonce)", board.ONE): 500,
        ("ncr", board.TWO): 260,
        ("ncr", board.ALONE): 190,
        ("plain (gce), averaged", board.TWO): 270,
    }
    assert set(table["task"]) == {"pairs", "labels"}
    assert table.loc[table["label"] == "mrl", "value"].tolist() == [0.5] * 3


def test_a_method_with_a_run_tested_in_its_warm_up_is_marked_at_every_seed(tmp_path):
    same = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.6}
    for seed in range(3):
        save(tmp_path, "l2rm", 300, best=int(seed > 0), **same, seed=seed)
        save(tmp_path, "rcl", 200, **same, seed=seed)
        save_category(tmp_path, "uot_rcl", 0.4, noise_rate=0.6, seed=seed)  # tested at its first epoch
        save_category(tmp_path, "mrl", 0.3, noise_rate=0.6, seed=seed)
    every = board.scored(load_runs(tmp_path))
    marked = every[board.is_marked(every)]
    assert marked.groupby("label").size().to_dict() == {"l2rm": 3, "uot_rcl": 3}
