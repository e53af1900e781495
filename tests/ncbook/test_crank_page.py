"""The ablation of CRANK: each row holds runs of one setting, one per seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ncbook.chapters import photographs
from ncbook.chapters.crank import STABLE, VARIANTS, ablation_runs, scenes

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results"


def test_a_row_holds_each_seed_once_and_one_setting() -> None:
    runs = ablation_runs()
    assert set(runs["label"]) == set(VARIANTS)
    assert not runs.duplicated(["label", "mrate", "seed"]).any()
    for name, (method, options) in VARIANTS.items():
        row = runs[runs["label"] == name]
        assert set(row["method"]) == {method}
        for option, value in options.items():
            assert set(row[f"method_{option}"]) == {value}


def test_the_mean_is_that_of_the_records() -> None:
    found = [
        json.loads(path.read_text("utf8"))["metrics"]["test"]["rsum"]
        for path in sorted((RESULTS / "crank").glob("plain-bow-f8k-m0.6-images-s?-loss=gce-*-tau=0.07.json"))
    ]
    runs = ablation_runs()
    row = runs[
        (runs["label"] == "plain generalised cross entropy, temperature 0.07") & (runs["mrate"] == 0.6)
    ]
    assert len(found) == len(row) > 1
    assert sorted(row["rsum"]) == pytest.approx(sorted(found))


def test_scenes_show_methods_recorded_up_to_a_rate_and_variants_apart() -> None:
    table = scenes()
    assert table is not None
    assert "crank" in table.data.index
    assert not table.data.isna().any().any()
    for name, (method, _) in STABLE.items():
        assert table.data.loc[name].tolist() != table.data.loc[method].tolist()


def test_a_model_without_records_leaves_the_tables_out() -> None:
    runs = photographs.photograph_runs("scan")
    assert runs.empty
    assert photographs.difference_rows(runs, compared=photographs.OURS) is None
    assert photographs.rate_rows(runs, "images", "none", "one_network") is None


def test_comparisons_of_our_methods_are_paired_by_seed() -> None:
    runs = photographs.photograph_runs()
    found = photographs.differences(runs, compared=photographs.OURS).set_index(["comparison", "mrate"])
    mine = runs[(runs["protocol"] == "images") & (runs["mrate"] == 0.6)].set_index("seed")
    both = [mine.loc[mine["label"] == label, "rsum"] for label in ("crank_plus", "sps")]
    row = found.loc[("CRANK+ against SPS, two networks each", 0.6)]
    assert row["n"] == 3
    assert row["mean"] == pytest.approx((both[0] - both[1]).mean())
