"""The chapter on CRANK: rows of the ablation hold one setting, and figures follow the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ncbook.runs
import numpy as np
import pandas as pd
import pytest
import torch
from ncbook import RECORDED, averaged, load_runs
from ncbook.chapters import crank, photographs
from ncbook.chapters.crank import OF_TWO, STABLE, VARIANTS, ablation, ablation_runs, ranked, said, scenes
from ncbook.temperature import chosen
from records_made import collect, save

from nclib.methods.crank import rank_weights
from nclib.runs.store import rows


@pytest.mark.parametrize("rows", [VARIANTS, OF_TWO])
def test_a_row_holds_each_seed_once_and_one_setting(rows: dict[str, tuple[str, dict[str, Any]]]) -> None:
    runs = ablation_runs(rows)
    assert set(runs["label"]) <= set(rows)
    table = ablation(rows)
    assert list(table.data.index) == list(rows)
    empty = table.data.index[(table.data == "not run").all(axis=1)]
    assert set(empty) == set(rows) - set(runs.loc[runs["mrate"].isin([0.0, 0.6]), "label"])
    assert not runs.duplicated(["label", "mrate", "seed"]).any()
    for name, (method, options) in rows.items():
        row = runs[runs["label"] == name]
        assert set(row["method"]) == ({method} if len(row) else set())
        for option, value in options.items():
            assert set(row[f"option.{option}"] if len(row) else ()) <= {value}


def test_what_the_count_is_for_is_said_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = {
        (crank.MIXTURE, 0.6): 176.0,
        (crank.MIXTURE, 0.0): 246.0,
        ("CRANK", 0.6): 176.5,
        ("CRANK", 0.0): 265.0,
    }
    rows = [
        {
            "label": label,
            "mrate": rate,
            "seed": seed,
            "rsum": total + seed * (label == "CRANK") * 0.5,
            "counted_share": 0.01,
        }
        for (label, rate), total in totals.items()
        for seed in (0, 1, 2)
    ]
    monkeypatch.setattr(crank, "ablation_runs", lambda: pd.DataFrame(rows))
    mixture, others = crank.divided().data.splitlines()
    assert mixture.startswith("* **A mixture divides as well.**")
    assert "-1.0 ± 1.2 (3 seeds, 95 %), not told from zero at rate 0.6, -19.5 ± 1.2" in mixture
    assert "at most 1.0% wrong, and below 2% all pairs train" in mixture
    assert others.count("not run") == 6
    monkeypatch.setattr(crank, "ablation_runs", lambda: pd.DataFrame(rows)[lambda runs: runs["seed"] == 0])
    assert crank.divided().data.startswith("* **A mixture divides too.**")


def test_the_lead_stands_beside_one_kind_of_temperature_and_an_averaged_pair() -> None:
    runs = load_runs(preset="standard")
    said = crank.lead().data
    larger, temperature, _, *pairs = said.splitlines()
    assert larger.startswith("* **A larger model.** CRANK minus L2RM with SAF")
    assert temperature.index("as published") < temperature.index("validation chooses for both")
    for dataset, line in zip(("f8k", "fashion44k"), pairs, strict=True):
        gaps = (averaged.against_averaged(runs, dataset, rate)["crank_plus"][0] for rate in averaged.RATES)
        assert all(photographs.gap_text(gap) in line for gap in gaps)


def test_the_mean_is_that_of_the_records() -> None:
    options = {"loss": "gce", "tau": 0.07}
    found = [
        one.content["metrics"]["test"]["rsum"]
        for one in rows(RECORDED / "crank.csv")
        if one.settings["method"] == "plain" and one.settings["mrate"] == 0.6
        and one.settings["preset"] == "standard" and one.settings["protocol"] == "images"
        and options.items() <= one.settings["method_options"].items()
    ]  # fmt: skip
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


def run_with(share: float, **epoch: Any) -> Any:
    """A finished run of ten pairs, four of them wrong, whose score tells them apart."""
    score = np.linspace(-1, 1, 10)
    weight = rank_weights(torch.from_numpy(score), share, 0.25).numpy()
    curve = {"epoch": 3, "phase": "training", "called_matched": 6, "division_precision": 1.0, **epoch}
    return SimpleNamespace(
        last={"score": score, "p_clean": weight, "share": np.array(share)},
        matched=score > -0.2,
        record=SimpleNamespace(curves=[curve]),
    )


def test_the_figure_shows_the_quantile_of_the_counted_share() -> None:
    figure = ranked(run_with(0.4))
    assert figure is not None
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "counted share")
    assert line.get_xdata()[0] == pytest.approx(np.quantile(np.linspace(-1, 1, 10), 0.4))
    assert ranked(run_with(0.0)) is None


def test_the_sentence_tells_truth_only_where_it_is_known() -> None:
    told = said(run_with(0.4, auc=0.93)).data
    assert "Counted: 40.0% of the pairs are wrong. Really wrong: 40.0%." in told
    assert "AUC of 0.930" in told
    assert "not known" in said(run_with(0.4)).data
