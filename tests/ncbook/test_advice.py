"""Advice: each sentence against made runs whose best method is known."""

import re

import pytest
from ncbook import board, load_runs
from ncbook.chapters import advice
from records_made import save, save_category

SAME = {"dataset": "emoji", "preset": "quick", "model": "vse"}
VALUES = {  # method, options: rSum at rate 0 and 0.4
    ("plain", "triplet"): (300, 100),
    ("plain", "infonce"): (290, 120),
    ("plain", "gce"): (280, 200),
    ("l2rm", ""): (298, 150),
    ("rcl", ""): (200, 180),
}


def fill(folder):
    for seed, noise in enumerate((-3.0, 0.0, 3.0)):
        for (method, loss), values in VALUES.items():
            options = {"loss": loss} if loss else {}
            for rate, value in zip((0.0, 0.4), values, strict=True):
                sign = -1 if method == "l2rm" else 1
                at = {**SAME, "mrate": rate, "seed": seed, **options}
                save(folder, method, value + sign * noise, **at)
                if rate:
                    save(folder, method, value + 10 + sign * noise, protocol="captions", **at)
        for rate, value in ((0.0, 310), (0.4, 150)):
            at = {**SAME, "mrate": rate, "seed": seed}
            save(folder, "mscn", value + 2 * noise, single=value - 50, **at)
            save(folder, "ncr", value - 5 - noise, single=value - 60, **at)
        longer = {**SAME, "mrate": 0.4, "seed": seed, "epochs": 10, "decay_every": 6}
        save(folder, "l2rm", 250, **longer)
        save(folder, "plain", 130, loss="infonce", **longer)
        for number, method in enumerate(("mrl", "elrcmr", "dscmr", "uot_rcl")):
            save_category(folder, method, 0.5 - number / 10 + noise / 100, noise_rate=0.4, seed=seed)
    for method in ("mrl", "elrcmr", "dscmr", "uot_rcl"):
        save_category(folder, method, 0.1, noise_rate=0.8, seed=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    fill(folder)
    return load_runs(folder)


@pytest.fixture(scope="module")
def table(runs):
    return board.scored(runs)


def test_the_best_and_what_is_level_with_it_are_named(table):
    said = advice.brief(table).splitlines()
    assert said[0].startswith("- **drawn scenes, model vse, images exchanged, one network**: ")
    assert "at 0 `plain (triplet)` is best in mean (300.0 ± 3.0); " in said[0]
    assert "level with it: `l2rm` at 0" in said[0]
    assert "at 0.4 `plain (gce)` is best in mean (200.0 ± 3.0); nothing is level with it" in said[0]
    assert said[1].endswith("`mscn` +10.0 at 0 (ahead), `mscn` -50.0 at 0.4 (behind).")
    assert "captions exchanged" in said[2]


def test_one_rate_is_answered_alone(table):
    (first, second) = advice.at_rate(table, 0.4).splitlines()
    assert "rate 0.4**: `plain (gce)`, rSum 200.0 ± 3.0 (3); nothing is level with it. " in first
    assert "`mscn` -50.0 at 0.4 (behind)" in first
    assert "`plain (gce)`, rSum 210.0" in second
    assert advice.at_rate(table, 0.7) == "No records at rate 0.7 here."


def test_the_safest_choice_falls_least_behind(table):
    assert advice.unknown_rate(table) == (
        "- **drawn scenes, model vse, rates 0, 0.4**: of 5 methods, `plain (gce)` is at most 20.0 behind "
        "the best (at rate 0); next is `l2rm`, which is at most 50.0 behind the best (at rate 0.4)."
    )
    shown = advice.regret_table(table).data
    assert shown.loc["mscn (two networks)"].to_list() == ["50.0 at 0.4", "20.0"]
    assert shown.index[0] == "plain (gce)"


def test_the_table_of_choices(table):
    rows = advice.choice_table(table).data.astype(str).agg(" | ".join, axis=1).to_list()
    assert (
        rows[0]
        == "drawn scenes, model vse | images | 0 | plain (triplet) | 300.0 ± 3.0 | l2rm | mscn | +10.0"
    )
    assert len(rows) == 3


def test_budget_and_clean_pairs(table):
    said = advice.clean_subset(table)
    assert said.startswith("- `mscn` needs known clean pairs, 2% of the training pairs, and 2 networks.")
    assert "ahead in 0, level in 2 and behind in 0 of 2 recorded conditions" in said
    cost = advice.cost_table(table).data
    assert cost.loc["mscn", "networks"] == "2"
    assert cost.loc["mscn", "known clean pairs"] == "2%"
    assert set(cost["drawn scenes, model vse"]) == {1.0}


def test_two_networks_are_counted_against_one_of_them(table):
    assert advice.two_networks(table) == (
        "- The mean of two networks is ahead of one of them in 4 of 4 recorded conditions.\n"
        "- One of two networks alone is ahead of the best single network in 0 of 4.\n"
        "- Training two networks took 1.0 to 1.0 times as long as plain training (median 1.0; 2 methods by "
        "data and model). The records were made beside other work, so that a single ratio is uncertain."
    )


def test_kinds_of_noise_sizes_and_labels(table):
    said = advice.kinds_of_noise(table)
    assert "rate 0.4**: 5 of 5 methods reach more when captions move one by one" in said
    assert "`plain (gce)` is best under both" in said
    assert advice.sizes(table) == "- **drawn scenes, model vse**: unknown training pairs."
    labels = advice.labels_brief(table)
    assert "at 0.4 `mrl` is best in mean (0.500 ± 0.030); nothing is level with it" in labels
    assert "at 0.8 there is one seed of each, which ranks nothing." in labels


def test_l2rm_against_infonce_and_longer_training(runs):
    said = advice.l2rm_and_infonce(runs)
    assert "L2RM is ahead at 0.4 (+30.0); level at 0 (+8.0)." in said
    assert re.search(
        r"rate 0\.4\*\*: L2RM minus InfoNCE is \+30\.0 after \d+ epochs \(3 seeds\) and \+120\.0", said
    )


def test_without_records_every_sentence_says_so(nothing):
    empty = board.scored(nothing)
    for text in (advice.brief, advice.unknown_rate, advice.sizes, advice.labels_brief, advice.kinds_of_noise):
        assert text(empty).startswith("No records")
    for shown in (advice.regret_table, advice.choice_table, advice.cost_table):
        assert shown(empty) is None
    assert advice.l2rm_and_infonce(nothing) == "No records here."
