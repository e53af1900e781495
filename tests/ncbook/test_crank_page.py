"""The ablation of CRANK: each row holds runs of one setting, one per seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ncbook.chapters.crank import VARIANTS, ablation_runs, scenes

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


def test_scenes_show_only_methods_recorded_at_every_rate() -> None:
    table = scenes()
    assert table is not None
    assert "crank" in table.data.index
    assert not table.data.isna().any().any()
