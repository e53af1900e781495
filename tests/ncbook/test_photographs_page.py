"""Rows and comparisons of recorded runs on photographs."""

from __future__ import annotations

from pathlib import Path

import ncbook.runs
import pytest
from ncbook import load_runs
from ncbook.chapters import photographs
from ncbook.temperature import chosen
from records_made import collect, save


def test_comparisons_of_our_methods_are_paired_by_seed() -> None:
    runs = photographs.photograph_runs()
    found = photographs.differences(runs, compared=photographs.OURS).set_index(["comparison", "mrate"])
    mine = runs[(runs["protocol"] == "images") & (runs["mrate"] == 0.6)].set_index("seed")
    both = [mine.loc[mine["label"] == label, "rsum"] for label in ("crank_plus", "sps")]
    row = found.loc[("CRANK+ against SPS, two networks each", 0.6)]
    assert row["n"] == 3
    assert row["mean"] == pytest.approx((both[0] - both[1]).mean())


def test_a_difference_with_a_run_tested_in_its_warm_up_decides_nothing() -> None:
    runs = photographs.photograph_runs()
    compared = [("l2rm", "plain (infonce)", "L2RM against InfoNCE")]
    found = photographs.differences(runs, compared=compared).set_index("mrate")
    assert found.loc[[0.2, 0.6], "mark"].tolist() == ["", "†"]
    assert found.loc[0.6, "mean"] > found.loc[0.6, "half"]
    table = photographs.difference_rows(runs, compared=compared)
    assert table is not None
    assert table.data["0.6"].item().startswith("(+")
    assert table.data["0.6"].item().endswith(" †")
    assert "a run was tested at an epoch of its warm-up" in table.caption


def test_plain_losses_at_one_temperature_stand_apart() -> None:
    runs = photographs.photograph_runs()
    for label, (_, options) in photographs.WARM.items():
        assert set(runs.loc[runs["label"] == label, "option.tau"]) == {0.07}
        assert set(runs.loc[runs["label"] == f"plain ({options['loss']})", "option.tau"]) == {0.05}
    short = photographs.in_short(runs, photographs.photograph_runs("saf")).splitlines()
    assert short[0].startswith("- **Model bow, rate 0.6**: rSum InfoNCE ")
    assert short[1].startswith("- **Model saf, rate 0.6**")
    assert short[2].count("(5)") == 2
    with pytest.raises(ValueError, match="model='scan': the recorded runs on f8k have bow, saf"):
        photographs.photograph_runs("scan")


def test_averaged_networks_and_chosen_temperatures_are_rows_where_asked() -> None:
    usual, runs = photographs.photograph_runs(), photographs.photograph_runs(fair=True)
    assert not set(usual["label"]) & set(photographs.FAIR)
    assert set(usual["label"]) == set(runs["label"]) - set(photographs.FAIR)
    found = chosen(load_runs())
    for label, own in runs.groupby("label"):
        assert set(own["networks"]) == {2 if label.endswith(", averaged") else 1}
        method, chosen_here, _ = label.partition(", temperature chosen")
        assert not chosen_here or set(own["option.tau"]) == {found[method]}
    table = photographs.rate_rows(runs, "images", "fair", order=photographs.FAIR, declared=photographs.FAIR)
    assert list(table.data.index) == photographs.FAIR
    assert "averaged: two networks trained apart" in table.caption
    assert "temperature chosen: not the published one" in table.caption
    assert (table.data.loc["pcsr, temperature chosen"] == "not run").all() == ("pcsr" not in found)
    pair = "plain (gce), averaged"
    assert pair in photographs.rate_rows(runs, "images", "selected").data.index
    assert pair not in photographs.rate_rows(runs, "images", "last", "last.rsum").data.index  # untested


def test_rows_of_a_model_that_no_one_ran_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = {"dataset": "f8k", "preset": "standard", "data_options": {"root": "."}, "mrate": 0.6}
    save(tmp_path, "l2rm", 150, **at, model="sgr", best=1)
    save(tmp_path, "plain", 140, **at, model="bow", loss="gce")
    collect(tmp_path)
    monkeypatch.setattr(ncbook.runs, "RECORDED", tmp_path)
    assert photographs.of_sgr() == (
        "The model `SGR`, images exchanged at rate 0.6, rSum: `plain (gce)` not run; "
        "`l2rm, dropped` not run; `l2rm` 150.0 (1) †."
    )
