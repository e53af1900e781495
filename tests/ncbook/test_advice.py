"""Advice: each sentence and table against made runs whose ranks are known."""

import pytest
from ncbook import board, load_runs
from ncbook.chapters import advice
from records_made import save, save_category

SAME = {"preset": "standard", "model": "bow", "data_options": {"root": "/data"}}
VALUES = {  # method, options: rSum on photographs, on the set for judging
    ("plain", "gce"): (190, 320),
    ("plain", "infonce"): (100, 250),
    ("crank", ""): (200, 290),
    ("l2rm", ""): (150, 300),
}


def fill(folder):
    for (method, loss), values in VALUES.items():
        options = {"loss": loss} if loss else {}
        for dataset, value in zip(("f8k", "fashion44k"), values, strict=True):
            for rate in (0.0, 0.4, 0.6):
                for seed in range(2 if dataset == "f8k" else 1):
                    at = {**SAME, "dataset": dataset, "mrate": rate, "seed": seed, **options}
                    save(folder, method, value - 10 * rate + seed, **at)
                    if dataset == "f8k" and rate == 0.4:
                        gain = 40 if method == "plain" else -5
                        save(folder, method, value - 4 + seed + gain, protocol="captions", **at)
        save(folder, method, 5, **SAME, dataset="f8k", mrate=0.2, seed=0, **options)
    for seed in range(2):
        for protocol in ("images", "captions"):  # tested in its warm-up
            at = {**SAME, "dataset": "f8k", "mrate": 0.4, "seed": seed, "protocol": protocol}
            save(folder, "decl", 300 if protocol == "captions" else 100, best=1, **at)
    for rate in (0.0, 0.4, 0.6):
        at = {**SAME, "mrate": rate, "seed": 0}
        save(folder, "ncr", 250, single=200, dataset="f8k", **at)
        save(folder, "mscn", 300, single=200, best=1, dataset="f8k", **at)  # tested in its warm-up
        for dataset in ("f8k", "fashion44k"):
            save(folder, "rcl", 500, dataset=dataset, **at)  # one seed, where the others have two
        for seed in range(2):
            save(folder, "gsc", 400, dataset="f8k", **{**at, "seed": seed})  # on one set alone
    root = {"data_options": {"root": "/data"}}
    for number, method in enumerate(("deep_sm", "mrl", "uot_rcl")):
        for rate in (0.0, 0.4, 0.6):
            at = {**root, "dataset": "wikipedia", "preset": "standard", "noise_rate": rate, "seed": 0}
            save_category(folder, method, 0.5 - number / 10, **at)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    fill(folder)
    return board.scored(load_runs(folder))


def test_scores_and_ranks_of_every_set(table):
    found = advice.across(table)
    assert list(found.index) == ["plain (gce)", "l2rm", "plain (infonce)", "rcl", "gsc", "crank"]
    assert found["", "worst rank"].dropna().to_list() == [2, 3, 4, 3]
    assert found["f8k", "score"]["crank"] == pytest.approx(200.5 - 10 / 3)
    assert found["f8k", "seeds"]["crank"] == 2
    assert found["", "time"].to_list() == [1] * 6


def test_ranks_on_both_sets_are_out_of_the_same_methods(table):
    ranks = advice.across(table).xs("rank", axis=1, level=1).dropna(how="all")
    assert ranks.to_dict("index") == {
        "plain (gce)": {"f8k": 2, "fashion44k": 1},
        "l2rm": {"f8k": 3, "fashion44k": 2},
        "plain (infonce)": {"f8k": 4, "fashion44k": 4},
        "crank": {"f8k": 1, "fashion44k": 3},
    }


def test_a_leader_of_one_set_is_said_to_be_one(table):
    one, two = advice.short(table).splitlines()
    assert "of 4 ranked on both sets, none leads on both: `plain (gce)` on product photographs" in one
    assert "(rank 2 on Flickr8K), `crank` on Flickr8K (rank 3 on product photographs; developed on" in one
    assert one.endswith("; `plain (gce)` has the smallest worst rank, 2.")
    assert two == (
        "- **Two networks, rates 0, 0.4, 0.6**: `ncr` has rank 1 of 1 on Flickr8K, the only set on record."
    )


def test_a_method_of_this_book_is_the_safest_only_if_it_leads_on_both(table):
    here, crank = table["dataset"] == "f8k", table["label"] == "crank"
    moved = table["value"] + 25 * (crank & ~here) - 60 * ((table["label"] == "plain (gce)") & here)
    said = advice.short(table.assign(value=moved)).splitlines()[0]  # ranks of crank 1, 2; of l2rm 2, 3
    assert (
        "apart from methods of this book, `plain (gce)` has the smallest worst rank, 3 (so has `l2rm`)"
        in said
    )
    said = advice.short(table.assign(value=table["value"] + 50 * crank)).splitlines()[0]
    assert "`crank` leads on both; `crank` has the smallest worst rank, 1, and trains 1 times as" in said
    assert "`plain (gce)` has rank 2 of 4 on Flickr8K" in advice.short(
        table[here & (table["label"] != "gsc")]
    )


def test_one_rate_is_answered_alone(table):
    assert advice.across(table, rates=(0.6,))["f8k", "score"]["crank"] == pytest.approx(194.5)
    assert advice.short(table, rates=(0.7,)) == advice.NOTHING
    assert "rate 0.2**: `l2rm` has rank 1 of 4" in advice.short(table, rates=(0.2,))  # on one set only


def test_the_table_holds_both_kinds_and_what_they_need(table):
    shown = advice.choice_table(table)
    rows = shown.data
    own = rows.loc[("One network", "crank (developed on Flickr8K)")]
    assert own.to_list() == ["197.2", "1", "286.7", "3", "3", "1.0", "none"]
    assert rows.loc[("Two networks", "ncr")].to_list()[:3] == ["250.0", "1", "not run"]
    assert rows.loc[("Two networks", "mscn")].to_list()[:2] == ["300.0 †", board.DASH]
    assert "† a run was tested at an epoch of its warm-up" in shown.caption
    assert "(1 to 2 on Flickr8K, 1 on product photographs, at the rate with the fewest)" in shown.caption
    labels = advice.choice_table(table, "labels").data
    assert list(labels.index) == ["deep_sm", "mrl", "uot_rcl"]
    assert labels["Wikipedia", "rank"].to_list() == ["1", "2", board.DASH]
    assert labels["Wikipedia", "mAP"].to_list() == ["0.500", "0.400", "0.300 †"]


def test_captions_against_images(table):
    assert advice.kinds_of_noise(table) == (
        "- **Rate 0.4**: 2 of 4 methods reach more when captions move one by one, by -5.0 (`crank`) to +40.0 "
        "(`plain (gce)`)."
    )


def test_without_records_every_sentence_says_so(nothing):
    empty = board.scored(nothing)
    assert advice.short(empty) == advice.kinds_of_noise(empty) == advice.NOTHING
    assert advice.choice_table(empty) is None
