"""Averaged pairs, and the board: rows of a run, and their marks, from records known beforehand."""

import pytest
from ncbook import averaged, board, load_runs, recorded, runs
from records_made import collect, save, save_category
from verdicts import standing

from nclib.methods.base import METHODS

AT = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for seed, noise in enumerate((-2.0, 0.0, 2.0)):
        at = {**AT, "seed": seed}
        for n, value in ((1, 200), (2, 230), (4, 240)):
            save(folder, "plain", value + noise, loss="gce", networks=n, single=None if n == 1 else 200, **at)
        save(folder, "plain", 150 + noise, loss="triplet", networks=2, single=100, **at)
        save(folder, "ncr", 210 + 2 * noise, single=160, **at)
        save(folder, "crank", 205 + noise, **at)
    collect(folder)
    return folder


def test_every_method_with_two_networks_has_a_loss_to_be_compared_with():
    assert set(averaged.OF) == {name for name in METHODS if METHODS[name].factory.n_networks > 1}


def test_a_pair_that_teaches_itself_is_compared_with_averaged_pairs(folder):
    found = averaged.against_averaged(load_runs(folder), "emoji", 0.4)
    assert found["ncr"][0].values == (58.0, 60.0, 62.0)
    assert found["ncr"][1].values == (-22.0, -20.0, -18.0)
    assert [d.n for d in found["crank_plus"]] == [0, 0]


def test_methods_are_sorted_by_the_interval_of_their_difference(folder):
    of_own, of_gce = (standing(load_runs(folder), "emoji", 0.4, gce=gce) for gce in (False, True))
    assert of_own["above"] == of_gce["below"] == ["ncr"]


@pytest.mark.parametrize(
    ("seeds", "sign"), [(1, "fewer than three seeds"), (2, "fewer than three seeds"), (3, "above")]
)
def test_a_method_is_sorted_from_three_seeds_on(tmp_path, seeds, sign):
    for seed in range(seeds):
        save(tmp_path, "ncr", 260 + seed / 8, single=200, **AT, seed=seed)
        save(tmp_path, "plain", 230, loss="gce", networks=2, single=200, **AT, seed=seed)
    found = standing(load_runs(tmp_path), "emoji", 0.4, gce=True)
    assert [name for name, methods in found.items() if "ncr" in methods] == [sign]


def test_pages_see_averaged_networks_only_where_they_ask(folder, monkeypatch):
    monkeypatch.setattr(runs, "RECORDED", folder)
    assert set(recorded(method="plain")["rsum"]) == {198.0, 200.0, 202.0}
    assert set(recorded(method="plain", networks=4)["rsum"]) == {238.0, 240.0, 242.0}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for seed, noise in enumerate((-2.0, 0.0, 2.0)):
        for rate in (0.0, 0.4):
            at = {**AT, "mrate": rate, "seed": seed}
            for method, value in (("l2rm", 199 - noise), ("rcl", 150 + noise)):
                save(folder, method, value, **at)
            save(folder, "l2rm", 400, lam=0.5, **at)  # an ablation
            for n, value, single in ((1, 200, None), (2, 270, 200 + noise), (4, 290, 200 + noise)):
                save(folder, "plain", value + noise, loss="gce", networks=n, single=single, **at)
            for n, value, single in ((1, 260, 190 + noise), (2, 280, 260 + noise)):  # two pairs
                save(folder, "ncr", value + noise, networks=n, single=single, **at)
        save(folder, "decl", 100 + noise, protocol="captions", **{**AT, "seed": seed})
        save_category(folder, "mrl", 0.5, noise_rate=0.4, seed=seed)
    save(folder, "plain", 500, loss="infonce", **AT, seed=0)
    return board.scored(load_runs(folder))


def test_a_row_for_each_number_of_networks_without_ablations(table):
    at = table[(table["rate"] == 0.4) & (table["protocol"] == "images")]
    means = at.groupby(["networks", "label"])["value"].mean().to_dict()
    assert means == {
        **{(board.ONE, "plain (gce)"): 200, (board.ONE, "l2rm"): 199, (board.ONE, "rcl"): 150},
        **{(board.ONE, "plain (infonce)"): 500, (board.ALONE, "ncr"): 190},
        **{(board.TWO, "ncr"): 260, (board.TWO, "plain (gce), averaged"): 270},
    }
    assert set(table["task"]) == {"pairs", "labels"}
    assert table.loc[table["label"] == "mrl", "value"].tolist() == [0.5] * 3


def test_a_method_with_a_run_tested_in_its_warm_up_is_marked_at_every_seed(tmp_path):
    for seed in range(3):
        save(tmp_path, "l2rm", 300, best=int(seed > 0), **AT, seed=seed)
        save(tmp_path, "rcl", 200, **AT, seed=seed)
        save_category(tmp_path, "uot_rcl", 0.4, noise_rate=0.6, seed=seed)  # tested at its first epoch
        save_category(tmp_path, "mrl", 0.3, noise_rate=0.6, seed=seed)
    every = board.scored(load_runs(tmp_path))
    marked = every[board.is_marked(every)]
    assert marked.groupby("label").size().to_dict() == {"l2rm": 3, "uot_rcl": 3}
