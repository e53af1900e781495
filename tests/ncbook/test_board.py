"""The leaderboard: who is ranked, what counts as level, and the page against records known beforehand."""

import numpy as np
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


def standings(table, networks):
    """The standing of every condition by task, protocol and rate."""
    parts = table[table["networks"] == networks].groupby(["task", "protocol", "rate"])
    return {key: board.standing(part) for key, part in parts}


def test_the_best_has_more_than_one_seed_and_the_level_ones_are_near(table):
    found = standings(table, board.ONE)
    at = found["pairs", "images", 0.4]
    assert (at.best, at.level, at.single) == ("plain (gce)", ["l2rm"], ("plain (infonce)",))
    assert list(at.means) == ["plain (gce)", "l2rm", "rcl"]
    assert at.behind["rcl"].mean == pytest.approx(50)
    assert found["pairs", "captions", 0.4].best == "decl"
    assert found["labels", "symmetric", 0.4].best == "mrl"
    ensembles = {s.best: s.level for s in standings(table, board.TWO).values()}
    assert ensembles == {"plain (gce), averaged": []}
    assert board.standing(table.iloc[:0]) is None


def test_one_seed_is_ranked_only_where_most_have_one(table):
    alone = board.standing(table[table["label"] == "plain (infonce)"])
    assert (alone.best, alone.behind, alone.single) == ("plain (infonce)", {}, ())
    at = table[(table["networks"] == board.ONE) & (table["rate"] == 0.4) & (table["protocol"] == "images")]
    most = board.standing(at[(at["seed"] == 0) | (at["label"] == "l2rm")])
    assert (list(most.means)[:2], most.single) == (["plain (infonce)", "l2rm"], ())
    half = board.standing(at[(at["seed"] == 0) | at["label"].isin(["l2rm", "rcl"])])
    assert (list(half.means), half.single) == (["l2rm", "rcl"], ("plain (gce)", "plain (infonce)"))


def test_the_table_keeps_data_and_noise_apart_and_starts_at_a_rate(table):
    shown = board.board_table(table)
    assert (shown.filters["rate"], shown.filters["model"]) == ("0.4", "vse")
    page = shown._repr_html_()
    assert '<th scope="col" data-sort data-filter="0.4">rate</th>' in page
    assert page.count("data-apart") == 2
    rows = {(heads[1].text, cells[0].text, cells[3].text): cells for heads, cells in shown.rows}
    assert rows["plain (gce)", "0.4", "one"][2].text == "best of one network"
    assert rows["l2rm", "0.4", "one"][2].text == "-1.0"
    assert rows["ncr", "0.4", "two"][2].text == "-10.0"
    assert rows["plain (gce), averaged", "0.4", "two"][2].text == "best of two networks"
    assert ("plain (gce), averaged", "0.4", "one of two") not in rows
    assert rows["ncr", "0.4", "one of two"][2].text == "-10.0"  # from the best of one
    assert rows["plain (infonce)", "0.4", "one"][2].text == "+302.0, one seed"
    assert rows["ncr", "0.4", "one of two"][1].text == "190.0 ± 2.0"
    assert not any(cell.links for cells in rows.values() for cell in cells)  # records of another folder
    labels = board.board_table(table, "labels")
    assert labels.rows[0][1][1].text == "0.500 ± 0.000"
    assert board.board_table(table.iloc[:0]) is None


def test_the_figure_holds_every_mean(table):
    (axis,) = board.overview_figure(table, [("emoji", "quick", "vse")]).axes
    assert {t.get_text() for t in axis.texts} == {"200", "199", "150", "500", "260", "270"}
    bold = {t.get_text() for t in axis.texts if t.get_weight() == "bold"}
    assert bold == {"200", "270"}
    assert board.overview_figure(table) is None
    shade = np.array(axis.images[0].get_array())
    assert shade.shape == (8, 2)  # with two headings
    assert np.nanmax(shade[:, 0]) == 1  # of the best without noise


def test_a_method_with_a_run_tested_in_its_warm_up_is_not_ranked(tmp_path):
    same = {"dataset": "emoji", "preset": "quick", "model": "vse", "mrate": 0.6}
    for seed, noise in enumerate((-2.0, 0.0, 2.0)):
        save(tmp_path, "l2rm", 300 + noise, best=int(seed > 0), **same, seed=seed)
        for method in ("rcl", "decl"):
            save(tmp_path, method, 200 + noise, **same, seed=seed)
        save(tmp_path, "plain", 100 + noise, loss="gce", **same, seed=seed)
        save_category(tmp_path, "uot_rcl", 0.4, noise_rate=0.6, seed=seed)  # tested at its first epoch
        save_category(tmp_path, "mrl", 0.3, noise_rate=0.6, seed=seed)
    every = board.scored(load_runs(tmp_path))
    assert set(every.loc[board.is_marked(every), "label"]) == {"l2rm", "uot_rcl"}
    table = every[every["task"] == "pairs"]
    assert list(board.standing(table).means) == ["decl", "rcl", "plain (gce)"]
    shown = board.board_table(table)
    assert {heads[1].text: cells[2].text for heads, cells in shown.rows}["decl"] == "best of one network"
    labels = {
        heads[1].text: (heads[0].text, cells) for heads, cells in board.board_table(every, "labels").rows
    }
    assert {label: rank for label, (rank, _) in labels.items()} == {"uot_rcl": board.DASH, "mrl": "1"}
    assert labels["uot_rcl"][1][1].marks == ("†",)


def test_rank_year_and_paper(table):
    shown = board.board_table(table)
    rows = {(h[1].text, c[0].text, c[3].text): (h[0].text, c[-2]) for h, c in shown.rows}
    ranks = {name: rows[name, "0.4", "one"][0] for name in ("plain (gce)", "l2rm", "rcl", "plain (infonce)")}
    assert ranks == {"plain (gce)": "1", "l2rm": "2 =", "rcl": "3", "plain (infonce)": "–"}
    assert [rows["ncr", "0.4", kind][0] for kind in ("two", "one of two")] == ["2", "–"]
    year = rows["l2rm", "0.4", "one"][1]
    assert (year.text, year.link) == ("2024", "https://arxiv.org/abs/2403.05105")
    assert rows["rcl", "0.4", "one"][1].link == "../book/symbols.html#bibliography"
    labels = {h[1].text: c[-2] for h, c in board.board_table(table, "labels").rows}
    assert labels["mrl"].text == "2021"
