"""The audit's pages: what is known of the bundled titles, and comparisons in the benchmark."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pages import cells


@pytest.fixture(scope="module")
def titles() -> dict[str, Any]:
    return cells("audit", "vectors", "audit", "suspects", "tell", "judged", "keep")


def test_the_bundled_titles_are_whole(titles: dict[str, Any]) -> None:
    table = titles["titles"]
    assert len(table) == 3376 == table["image"].nunique()
    assert (table["title"].str.strip() != "").all()
    assert set(table["mark"]) == {"", "right", "wrong", "series"}
    assert (table["drawn"] == "yes").sum() == 120
    assert (table.loc[(table["drawn"] == "yes") | (table["tile"] != ""), "mark"] != "").all()
    assert sorted(table["tile"].loc[lambda t: t != ""].astype(int)) == list(range(30))
    assert titles["tiles"].shape[:2] == (5 * 84, 6 * 84)


def test_peoples_own_wrong_titles_are_found(titles: dict[str, Any]) -> None:
    p = titles["audit"].table.set_index("id")["p_wrong"]
    for name in ("food/fruit/strawberry", "plants/mushroom", "recreation/dice"):  # pear, bee, piggybank
        assert p[f"{name}.png"] > 0.9
    seen = titles["seen"]
    assert seen.loc["right", "below 0.1"] > 0.9 * seen.loc["right"].sum()
    doubted = seen.loc[["series", "wrong"]].sum()
    assert doubted["below 0.1"] < 0.2 * doubted.sum()


def test_marks_bring_the_share_into_their_own_interval(titles: dict[str, Any]) -> None:
    share = titles["told"].share
    assert titles["alone"] - titles["half"] < share.value < titles["alone"] + titles["half"]
    assert len(titles["titles"]) > titles["told"].kept.sum() > 2500


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return cells("audit_benchmark", "load", "chosen", "standing", "people", "published")


def rows(name: str, **values: list[float]) -> pd.DataFrame:
    """Return rows of a benchmark: a measure of each score by seed, on one data set."""
    same = {"data": "d", "noise": "random", "rate": 0.2, "pairs": 50}
    return pd.DataFrame(
        {**same, "seed": seed, "score": score, name: value}
        for score, column in values.items()
        for seed, value in enumerate(column)
    )


@pytest.mark.parametrize(
    ("auto", "level"),
    [([0.95, 0.95], True), ([0.89, 0.91], True), ([0.85, 0.85], False), ([0.8, 0.96], True)],
)
def test_auto_is_level_within_the_spread_or_behind(
    benchmark: dict[str, Any], monkeypatch: pytest.MonkeyPatch, auto: list[float], level: bool
) -> None:
    made = rows("auroc", auto=auto, cosine=[0.89, 0.93], neighbours=[0.5, 0.6])
    monkeypatch.setitem(benchmark["standing"].__globals__, "rows", made)
    assert benchmark["standing"]("auroc")["level"].tolist() == [level]


def test_lower_is_better_for_errors(benchmark: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows("ece", auto=[0.2, 0.2], cosine=[0.01, 0.01])
    monkeypatch.setitem(benchmark["standing"].__globals__, "rows", made)
    (found,) = benchmark["standing"]("ece").to_dict("records")
    assert (found["best"], found["level"]) == ("cosine", False)
    assert found["auto behind by"] == pytest.approx(0.19)


def test_what_readme_says_of_the_published_pairs_is_measured(benchmark: dict[str, Any]) -> None:
    real, first = benchmark["real"], benchmark["first"]
    said = (benchmark["ncbook"].measurements.ROOT / "README.md").read_text("utf8")
    assert f"rejects {first['rejected'] / first['judged']:.1%}".replace("%", " %") in said
    assert {f"it says {100 * share:.1f} %" in said for share in real["share"]} == {True}
