"""The chapter on the audit: comparisons in the benchmark, judgements, and the planted example."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ncbook.chapters import audit as chapter
from ncbook.chapters import audit_example

from nclib import data

ABOUT = {"environment": {"device": "CPU", "commit": "0123456789"}, "when": "2026-01-01"}


def rows(**values: list[float]) -> pd.DataFrame:
    """Return rows of a benchmark: AUROC of each score by seed, on one data set."""
    same = {"data": "d", "noise": "random", "rate": 0.2, "pairs": 50}
    found = [
        {**same, "seed": seed, "score": score, "auroc": value}
        for score, column in values.items()
        for seed, value in enumerate(column)
    ]
    return pd.DataFrame(found)


@pytest.mark.parametrize(
    ("auto", "within"),
    [([0.95, 0.95], True), ([0.89, 0.91], True), ([0.85, 0.85], False), ([0.8, 0.96], True)],
)
def test_auto_is_within_the_spread_or_behind(auto: list[float], within: bool) -> None:
    table = rows(auto=auto, cosine=[0.89, 0.93], rank=[0.5, 0.6])
    assert chapter.standing(table, ["auroc"])["within"].tolist() == [within]
    assert chapter.behind(table).data.empty == within


def test_lower_is_better_for_errors() -> None:
    table = rows(auto=[0.2, 0.2], cosine=[0.01, 0.01]).rename(columns={"auroc": "ece"})
    (found,) = chapter.standing(table, ["ece"]).to_dict("records")
    assert found["by"] == "cosine"
    assert found["gap"] == pytest.approx(0.19)
    assert not found["within"]


def test_the_best_of_a_column_is_bold() -> None:
    table = rows(cosine=[0.9], auto=[0.8], LEMoN=[0.7])
    html = chapter.benchmark(table, ABOUT, "d", "auroc").to_html()
    assert "commit 0123456," in html
    assert html.index(">auto<") < html.index(">cosine<") < html.index(">LEMoN<")
    assert "#T_d-auroc_row1_col0 {" in html
    assert "font-weight: bold" in html


def test_sentences_count_what_is_within() -> None:
    other = rows(auto=[0.5, 0.5], rank=[0.8, 0.8]).assign(data="e")
    table = pd.concat([rows(auto=[0.9, 0.9], cosine=[0.8, 0.8]), other])
    said = chapter.standing_sentence(table)
    assert "in 1 of 2 columns (AUROC 1 of 2)" in said
    assert "0.300, to rank on e, random exchange" in said
    said = chapter.calibration_sentence(table.assign(ece=np.where(table["data"] == "d", 0.2, 0.01)))
    assert "d at 0.2: 0.200, e at 0.2: 0.010" in said
    assert "reached in 1 of 2" in said


def test_published_pairs_against_the_crowd() -> None:
    base = {
        "of": "published", "pairs": 1000, "judged": 700, "rejected": 35, "share": 0.1, "share_low": 0.05,
        "share_high": 0.2, "called_wrong": 40, "first_judged": 50,
    }  # fmt: skip
    found = pd.DataFrame(
        [
            {**base, "seed": 0, "first_rejected": 10, "found_ids": ["b", "a"]},
            {**base, "seed": 1, "first_rejected": 5, "found_ids": ["a", "c"]},
        ]
    )
    said = chapter.published(found)
    assert "rejected 35 (5.0%)" in said
    assert "50 were judged, and of these 10 rejected (20.0%)" in said
    assert "over the seeds: 15.0%; among all judged: 5.0%" in said
    assert chapter.found_ids(found) == ["a"]


def test_half_of_the_mistakes_become_related() -> None:
    split = data.load("planted", n_train=8, n_val=4, n_test=60).test
    claimed = split.image_of.copy()
    claimed[::4] = (claimed[::4] + 1) % split.n_images
    found = audit_example.Example(split, np.zeros((60, 2)), np.zeros((300, 2)), claimed)
    moved = audit_example.related(found, 0)
    assert (moved.wrong == found.wrong).all()
    changed = np.flatnonzero(moved.image_of != found.image_of)
    assert 0 < len(changed) <= found.wrong.sum() // 2
    fits = [split.relevance([moved.image_of[row]], [row])[0, 0] for row in changed]
    assert min(fits) >= audit_example.NEAR
    assert max(fits) < 1


def test_answers_are_the_truth() -> None:
    split = data.load("planted", n_train=8, n_val=4, n_test=20).test
    claimed = split.image_of.copy()
    claimed[3] = 5
    found = audit_example.Example(split, np.zeros((20, 2)), np.zeros((100, 2)), claimed)
    labels = audit_example.answers(pd.DataFrame({"id": ["3", "4"]}), found)
    assert labels["label"].tolist() == ["wrong", "right"]


def test_tables_by_noise_by_share_and_of_what_is_stated() -> None:
    made = rows(auto=[0.9, 0.92], rank=[0.7, 0.72])
    made = pd.concat([made, made.assign(rate=0.05, auroc=made["auroc"] - 0.1)])
    made["ece"] = np.where(made["score"] == "auto", 0.01, np.nan)
    assert list(chapter.benchmark(made, ABOUT, "d", "auroc").data.columns) == ["random exchange"]
    by_share = chapter.rates(made, ABOUT, "d", "auroc").data
    assert by_share.loc["auto"].to_dict() == {"5 %": "0.810 ± 0.014", "20 %": "0.910 ± 0.014"}
    assert list(chapter.by_measure(made, ABOUT, "d", "random").data.columns) == ["AUROC"]
    stated = chapter.by_measure(made, ABOUT, "d", "random", stated=True).data
    assert stated.to_dict() == {"auto": {"calibration error": "0.010 ± 0.000"}}


def test_what_an_audit_costs_is_told_by_size() -> None:
    spent = {"total": 120.0, "find_neighbours": 90.0}
    made = {"pairs": 100000, "seconds": spent, "product": 60.0, "ratio": 2.0, "peak_mb": 1500.0}
    made |= {"recall": 0.9, "auroc": 0.99}
    row = chapter.scale(pd.DataFrame([made]), ABOUT).data.loc["100,000"].to_dict()
    assert row["minutes"] == "2.0"
    assert row["of these neighbours"] == "75%"
    assert (row["bare product"], row["ratio"], row["memory"]) == ("1.0", "2.00", "1.5 GB")
