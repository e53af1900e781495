"""Pairs that teach each other beside averaged pairs, against records known beforehand."""

import pytest
from ncbook import averaged, load_runs, recorded, runs
from records_made import collect, save

from nclib.methods.base import METHODS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for seed, noise in enumerate((-2.0, 0.0, 2.0)):
        at = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.4, "seed": seed}
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
    others = [method for method in averaged.OF if method != "ncr"]
    of_own, of_gce = (averaged.standing(load_runs(folder), "emoji", 0.4, gce=gce) for gce in (False, True))
    assert (of_own["above"], of_own["fewer than three seeds"]) == (["ncr"], others)
    assert (of_gce["below"], of_gce["fewer than three seeds"]) == (["ncr"], others)


@pytest.mark.parametrize(
    ("seeds", "sign"), [(1, "fewer than three seeds"), (2, "fewer than three seeds"), (3, "above")]
)
def test_a_method_is_sorted_from_three_seeds_on(tmp_path, seeds, sign):
    for seed in range(seeds):
        at = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.4, "seed": seed}
        save(tmp_path, "ncr", 260 + seed / 8, single=200, **at)
        save(tmp_path, "plain", 230, loss="gce", networks=2, single=200, **at)
    found = averaged.standing(load_runs(tmp_path), "emoji", 0.4)
    assert [name for name, methods in found.items() if "ncr" in methods] == [sign]


def test_pages_see_averaged_networks_only_where_they_ask(folder, monkeypatch):
    monkeypatch.setattr(runs, "RECORDED", folder)
    assert set(recorded(method="plain")["rsum"]) == {198.0, 200.0, 202.0}
    assert set(recorded(method="plain", networks=4)["rsum"]) == {238.0, 240.0, 242.0}
