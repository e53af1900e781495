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
    figure = averaged.averaged_figure(load_runs(folder), "emoji", [0.4, 0.6])
    drawn, empty = ([text.get_text() for text in axis.texts] for axis in figure.axes)
    assert drawn == ["not run"] * (len(averaged.OF) - 1)
    assert empty == ["not run"] * len(averaged.OF)
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() in "os"]
    assert marks == [60.0, -20.0]


def test_methods_are_sorted_by_the_interval_of_their_difference(folder):
    others = ", ".join(method for method in averaged.OF if method != "ncr")
    assert averaged.standing_text(load_runs(folder), "emoji", 0.4).splitlines()[1:] == [
        f"  the averaged pair of their own loss: above: ncr; fewer than three seeds: {others}",
        f"  the averaged pair of GCE: below: ncr; fewer than three seeds: {others}",
    ]


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


def test_one_seed_is_a_hollow_mark_without_an_interval(tmp_path):
    at = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.4, "seed": 0}
    save(tmp_path, "ncr", 210, single=200, **at)
    save(tmp_path, "plain", 230, loss="gce", networks=2, single=200, **at)
    (axis,) = averaged.averaged_figure(load_runs(tmp_path), "emoji", [0.4]).axes
    mark, zero = axis.lines
    assert (list(mark.get_xdata()), mark.get_markerfacecolor()) == ([-20.0], "none")
    assert list(zero.get_xdata()) == [0, 0]


def test_the_line_to_beat_has_one_two_and_four_networks(folder):
    every = load_runs(folder)
    assert averaged.gce_line(every, "emoji", 0.4)["rsum"].to_dict() == {1: 200.0, 2: 230.0, 4: 240.0}
    figure = averaged.cost_figure(every, "emoji", [0.4, 0.6])
    drawn, empty = figure.axes
    assert [text.get_text() for text in drawn.texts] == ["1", "2", "4"]
    assert not drawn.xaxis.get_minorticklocs().size
    assert [text.get_text() for text in empty.texts] == ["not run"]
    labels = {line.get_label(): line for line in drawn.lines if not line.get_label().startswith("_")}
    assert set(labels) == {"plain (gce)", "crank", "ncr"}
    assert labels["ncr"].get_markerfacecolor() == "none"  # two networks


def test_a_row_that_is_not_ranked_is_drawn_with_its_mark(tmp_path):
    at = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.4, "seed": 0}
    save(tmp_path, "l2rm", 210, best=1, **at)
    save(tmp_path, "plain", 230, loss="gce", **at)
    (axis,) = averaged.cost_figure(load_runs(tmp_path), "emoji", [0.4]).axes
    assert {text.get_text(): text.xy for text in axis.texts}["†"] == (1.0, 210.0)


def test_pages_see_averaged_networks_only_where_they_ask(folder, monkeypatch):
    monkeypatch.setattr(runs, "RECORDED", folder)
    assert set(recorded(method="plain")["rsum"]) == {198.0, 200.0, 202.0}
    assert set(recorded(method="plain", networks=4)["rsum"]) == {238.0, 240.0, 242.0}
