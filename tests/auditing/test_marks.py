"""Labels: those that agree narrow the share, those that contradict it move it, mistaken ones are found."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from test_mistakes import audited, right

from nclib.auditing.labels import by_sample
from nclib.auditing.result import asking_chance


@cache
def exchanged(seed=0):
    """Audit pairs of which a fifth is exchanged at random; return it and which pairs are wrong."""
    images, captions, true, texts, rng = right(seed)
    of = true.copy()
    rows = rng.permutation(len(of))[: len(of) // 5]
    of[rows] = true[np.roll(rows, 1)]
    return audited(images, captions, of, texts, seed=seed), of != true


def marks(ids, wrong, mistaken=0.0):
    said = wrong[np.array(ids, int)].copy()
    flipped = np.random.default_rng(0).permutation(len(said))[: round(mistaken * len(said))]
    said[flipped] = ~said[flipped]
    return {name: "wrong" if bad else "right" for name, bad in zip(ids, said, strict=True)}


def first(audit, n):
    return audit.table.sort_values("rank")["id"].head(n)


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("way", "n"), [("first", 5), ("first", 200), ("ask", 5), ("ask", 60)])
def test_right_labels_do_not_widen_the_interval(way, n, seeds):
    wider, worse, held = [], [], []
    for seed in range(seeds):
        audit, wrong = exchanged(seed)
        told = audit.tell(marks(audit.ask(n)["id"] if way == "ask" else first(audit, n), wrong))
        held.append(told.share.low <= wrong.mean() <= told.share.high)
        wider.append(np.diff(told.share[1:])[0] - np.diff(audit.share[1:])[0])
        worse.append(told.check(wrong)["calibration_error"] - audit.check(wrong)["calibration_error"])
    assert np.mean(held) >= 0.9
    assert np.median(wider) <= 1e-6
    assert np.median(worse) <= 1e-3


@pytest.mark.parametrize("way", ["first", "ask"])
def test_one_mistaken_label_in_ten_moves_the_share_little(way):
    audit, wrong = exchanged()
    ids = audit.ask(200)["id"] if way == "ask" else first(audit, 200)
    told = audit.tell(marks(ids, wrong, 0.1))
    assert abs(told.share.value - audit.share.value) < 0.05
    assert told.settings["mistaken_labels"] > 0.05
    assert any(one.startswith("Marks that are probably mistaken") for one in told.findings)
    assert told.share.low <= wrong.mean() <= told.share.high


def test_where_a_sample_and_the_scores_disagree_the_interval_holds_both():
    """Six of sixty marks call a right pair of a clean file wrong: hidden mistakes would look the same."""
    images, captions, true, texts, _ = right()
    audit = audited(images, captions, true, texts)
    ids = audit.ask(60)["id"].tolist()
    told = audit.tell(dict.fromkeys(ids[:6], "wrong") | dict.fromkeys(ids[6:], "right"))
    assert told.share.low == 0
    assert told.share.high > 0.1
    assert told.share == told.belief.asked
    agreed = audit.tell(dict.fromkeys(ids, "right")).share
    assert agreed.low == 0
    assert agreed.high < 0.01


def test_labels_that_contradict_the_interval_move_and_widen_it():
    """Captions that are exchanged with one of a similar picture look right."""
    images, captions, true, texts, rng = right()
    units = images / np.linalg.norm(images, axis=1, keepdims=True)
    like = units @ units.T - 2 * np.eye(len(true))
    of, free = true.copy(), np.ones(len(true), bool)
    for row in rng.permutation(len(true))[: len(true) // 8]:
        other = int(np.argmax(np.where(free, like[row], -2)))
        if free[row] and other != row:
            of[[row, other]], free[[row, other]] = of[[other, row]], False
    wrong = of != true
    audit = audited(images, captions, of, texts)
    assert audit.share.high < wrong.mean() < 0.3
    told = audit.tell(marks(audit.ask(60)["id"], wrong))
    assert told.share.low <= wrong.mean() <= told.share.high
    assert np.diff(told.share[1:])[0] > np.diff(audit.share[1:])[0]
    assert told.warnings[0].startswith("Marks contradict the scores: ")
    assert told.ask_first
    assert told.check(wrong)["calibration_error"] < audit.check(wrong)["calibration_error"]


def test_marks_that_contradict_each_other_are_named_and_do_not_count():
    audit, _ = exchanged()
    ids = first(audit, 3).tolist()
    frame = pd.DataFrame({"id": [*ids, ids[0]], "label": ["wrong", "wrong", "right", "right"]})
    told = audit.tell(frame)
    assert told.labels == {ids[0]: "unsure", ids[1]: "wrong", ids[2]: "right"}
    assert f'both wrong and right, and do not count: "{ids[0]}".' in told.findings[0]
    again = told.tell({ids[1]: "right"})  # a later mark replaces an earlier one
    assert again.labels[ids[1]] == "right"
    assert not [one for one in again.findings if "both wrong and right" in one]


def test_marks_that_differ_between_copies_are_named():
    images, captions, image_of, texts, _ = right(n=200)
    texts[1], captions[1], images[1] = texts[0], captions[0], images[0]
    audit = audited(images, captions, image_of, texts)
    told = audit.tell({"0": "right", "1": "wrong"})
    assert 'Marks that differ between copies of a pair: "0", "1".' in told.findings


def test_few_pairs_have_probabilities_by_labels_alone():
    images, captions, image_of, texts, _ = right(n=15)
    audit = audited(images, captions, image_of, texts)
    assert np.isnan(audit.share.value)
    told = audit.tell({str(i): "right" for i in range(6)} | {"6": "wrong"})
    assert 0 < told.share.low < told.share.value < told.share.high < 1
    assert told.table["p_wrong"][7:].between(0.01, 0.9).all()


def test_the_first_asked_are_a_sample_too():
    """Who marks ten of sixty pairs marks no more suspicious ones than who marks all."""
    audit, _ = exchanged()
    asked = audit.ask(60)["p_wrong"].to_numpy()
    assert len(np.unique(audit.ask(60)["id"])) == 60
    assert abs(asked[:30].mean() - asked[30:].mean()) < 0.2


def test_the_difference_estimator_holds_whatever_the_model_says():
    """Labels of a sample with known chances correct probabilities that are far too low."""
    rng, held = np.random.default_rng(0), []
    for _ in range(100):
        wrong = rng.random(2000) < 0.2
        p = np.where(wrong, rng.uniform(0, 0.5, 2000), rng.uniform(0, 0.2, 2000))
        chance = asking_chance(p)
        at = rng.choice(2000, 80, replace=False, p=chance / chance.sum())
        share = by_sample(p, at, chance[at], wrong[at])
        held.append(share.low <= wrong.mean() <= share.high)
        assert share.low <= share.value <= share.high
    assert np.mean(held) > 0.9


def test_a_share_by_marks_of_a_careless_person_allows_for_mistaken_ones():
    """All pairs are right, and look it; six of sixty marks are mistaken."""
    p, at, marked = np.full(1000, 0.01), np.arange(60), np.arange(60) < 6
    careful, careless = (by_sample(p, at, np.ones(60), marked, rate) for rate in (0.0, 0.08))
    assert careful.low > 0.01
    assert careless.low == 0
    assert (careless.value < careful.value, careless.high) == (True, careful.high)
