"""The dry run of the papers' grids: made records that tell the run behind every printed cell."""

import dry_run
import grid_plan as grids
import pytest
from ncbook.runs import load_runs

from nclib.runs.record import Record


def test_a_made_record_has_the_metrics_of_its_run(tmp_path):
    path = tmp_path / "g.yml"
    path.write_text(
        "- {method: [plain, ncr], dataset: coco, preset: paper, model: [sgr, saf+sgr], mrate: 0.0}\n"
        "- {method: mrl, dataset: wikipedia, preset: paper, noise_rate: 0.2}\n"
    )
    runs = grids.plan(path, root=".")
    for number, run in enumerate(runs, 1):
        dry_run.made(run, number).save(tmp_path / "made" / f"{run.label}.json")
    groups = {
        (r.settings["method"], r.settings.get("model")): set(r.metrics)
        for r in (Record.load(p) for p in (tmp_path / "made").glob("*.json"))
    }
    one = {"val", "test", "test_dsl", "folds"}
    assert groups["plain", "sgr"] == one
    assert groups["plain", "saf+sgr"] == groups["ncr", "sgr"] == one | {"single"}
    assert groups["mrl", None] == {"val", "test"}
    table = load_runs(tmp_path / "made").retrieval.set_index(["method", "model"])
    assert table.loc[("plain", "sgr"), "folds.i2t_r1"] == pytest.approx(dry_run.APART["folds"] + 1e-3)
    assert set(table["variant"]) == {""}
    assert set(table["test_images"]) == {5000}


@pytest.mark.exhaustive
def test_every_declared_run_fills_what_its_paper_prints(capsys):
    assert dry_run.main([]) == 0
    assert "3355 of  3641 cells" in capsys.readouterr().out


def test_runs_without_their_data_are_left_out_and_named(tmp_path, capsys):
    import grid

    path = tmp_path / "g.yml"
    path.write_text("- {method: plain, dataset: [f30k, coco], preset: paper, model: vse, mrate: 0.0}\n")
    words = [str(path), "--root", str(tmp_path), "--out", str(tmp_path / "out"), "--there"]
    assert grid.main(words) == 0
    said = capsys.readouterr().out
    assert said.count("1 runs left out: ") == 2
    assert "f30k" in said
    assert "0 of 0 runs recorded" in said
