"""The grid of recorded runs: combinations, names, and runs that are made once."""

import json
import subprocess
import sys
from pathlib import Path

import grid
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_lists_are_combined_and_seeds_come_first():
    runs = grid.runs_of(
        [
            {"method": ["plain", "l2rm"], "mrate": 0.4, "seed": [0, 1]},
            {"method": "plain", "mrate": 0.4, "seed": 0},
        ]
    )
    assert [(r["seed"], r["method"]) for r in runs] == [(0, "plain"), (0, "l2rm"), (1, "plain"), (1, "l2rm")]


def test_the_label_names_what_is_unusual():
    run = {"method": "plain", "model": "vse", "mrate": 0.4, "seed": 2, "loss": "infonce", "epochs": 10}
    assert grid.label(run) == "plain-vse-m0.4-s2-epochs=10-loss=infonce"
    nested = {"method": "plain", "model": "omit", "seed": 0, "model_options": {"matching": "cam"}}
    assert grid.label(nested) == "plain-omit-s0-matching=cam"


@pytest.mark.parametrize("path", sorted((ROOT / "book" / "grids").glob("*.yml")), ids=lambda p: p.stem)
def test_every_grid_is_valid(path):
    import nclib

    runs = grid.runs_of(yaml.safe_load(path.read_text("utf8")))
    assert len({grid.label(run) for run in runs}) == len(runs)
    for run in runs:
        if run["method"] in nclib.methods.available():
            nclib.experiment.resolve(**run)
        else:
            nclib.category.resolve(**run)


def test_runs_are_made_once_and_failures_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grid, "GRIDS", tmp_path)
    monkeypatch.setattr(grid, "RESULTS", tmp_path / "results")
    block = {
        "method": "plain",
        "dataset": "planted",
        "model": "vse",
        "epochs": 1,
        "warmup_epochs": 0,
        "seed": 0,
    }
    (tmp_path / "tiny.yml").write_text(yaml.safe_dump([block, {**block, "mrate": 7}]))
    monkeypatch.setattr(sys, "argv", ["grid.py", "tiny", "--work", str(tmp_path / "runs"), "--workers", "1"])
    with pytest.raises(SystemExit) as stop:
        grid.main()
    assert stop.value.code == 1
    told = capsys.readouterr().out
    assert "done    plain-vse-planted-s0-epochs=1-warmup_epochs=0: rSum" in told
    assert "failed" in told
    assert "mrate=7" in told
    (record,) = (tmp_path / "results" / "tiny").glob("*.json")
    assert json.loads(record.read_text())["settings"]["epochs"] == 1
    stamp = record.stat().st_mtime_ns
    with pytest.raises(SystemExit):
        grid.main()
    assert record.stat().st_mtime_ns == stamp
    assert "1 of 2 runs recorded" in capsys.readouterr().out


def test_an_unknown_grid_is_refused():
    done = subprocess.run(
        [sys.executable, str(ROOT / "book" / "_ext" / "grid.py"), "no such grid"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
