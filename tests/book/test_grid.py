"""Declared grids: combinations, names, checks before anything runs, and records that are made once."""

import json
import subprocess
import sys
from pathlib import Path

import grid
import grids
import pytest
import yaml

from nclib.records import FREE, Record
from nclib.tables import LAYOUTS, PAPERS, reruns

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: path for path in sorted(grids.GRIDS.glob("*.yml"))}


def test_lists_are_combined_and_seeds_come_first():
    runs = grids.runs_of(
        [
            {"method": ["plain", "l2rm"], "mrate": 0.4, "seed": [0, 1]},
            {"method": "plain", "mrate": 0.4, "seed": 0, "about": "once more"},
        ]
    )
    assert [(r["seed"], r["method"]) for r in runs] == [(0, "plain"), (0, "l2rm"), (1, "plain"), (1, "l2rm")]


def test_the_label_names_what_is_unusual():
    run = {"method": "plain", "model": "vse", "mrate": 0.4, "seed": 2, "loss": "infonce", "epochs": 10}
    assert grids.label(run) == "plain-vse-m0.4-s2-epochs=10-loss=infonce"
    nested = {"method": "plain", "model": "omit", "seed": 0, "model_options": {"matching": "cam"}}
    assert grids.label(nested) == "plain-omit-s0-matching=cam"
    assert grids.label({"method": "rcl", "noise_file": "/data/my noise.npy"}) == (
        "rcl-noise_file=_data_my_noise.npy"
    )


@pytest.mark.parametrize("name", FILES)
def test_every_grid_is_valid(name):
    runs = grids.plan(FILES[name], root="/data")
    assert len({run.label for run in runs}) == len(runs)
    assert all(run.settings for run in runs)
    assert len(runs) == len(grids.runs_of(grids.read(FILES[name])))
    assert all(len(run.label) < 200 for run in runs)  # a file name


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_grid_holds_the_runs_behind_its_printed_cells_and_no_others(paper):
    def texts(calls):
        return {json.dumps({k: v for k, v in c.items() if k != "seed"}, sort_keys=True) for c in calls}

    printed = [run.arguments for p, table in LAYOUTS if p == paper for run in reruns(paper, table)[0]]
    declared = grids.plan(FILES[f"paper_{paper.lower().replace('-', '_')}"])
    assert texts(run.arguments for run in declared) == texts(printed)
    assert {run.arguments["seed"] for run in declared} == {0, 1, 2}
    assert len(declared) == 3 * len(texts(printed))


def test_the_quick_grid_has_every_pair_method():
    import nclib

    runs = grids.plan(FILES["quick"])
    methods = {run.arguments["method"] for run in runs}
    assert methods >= {*nclib.methods.available(), "uot_rcl", "mrl", "elrcmr", "dscmr"}
    assert {run.settings["preset"] for run in runs} == {"quick"}
    assert len(runs) >= 24


def test_the_folder_of_the_data_is_given_once(tmp_path):
    path = tmp_path / "g.yml"
    path.write_text("- {method: plain, model: sgr, dataset: [f30k, emoji], preset: paper}\n")
    known, unknown = grids.plan(path, root="/data"), grids.plan(path)
    assert [run.label for run in known] == [run.label for run in unknown]
    options = {run.settings["dataset"]: run.settings["data_options"] for run in known}
    assert options["f30k"]["root"] == "/data"
    assert "root" not in options["emoji"]
    assert [bool(run.settings) for run in unknown] == [run.arguments["dataset"] == "emoji" for run in unknown]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {method: l2rm, mrat: 0.3}", "g.yml, block 1: unknown parameter 'mrat'; did you mean 'mrate'?"),
        ("- {method: rcl}\n- {method: rcl, mrate: [0.2, 7]}", "g.yml, block 2: mrate=7: must be a number"),
        ("- {method: l2rmm}", "did you mean 'l2rm'?"),
        ("- {method: uot_rcl, model: vse}", "g.yml, block 1: unknown parameter 'model'"),
        ("- {method: plain, model: omit, model_options: {matchin: ot}}", "did you mean 'matching'?"),
        ("- {method: plain, data_options: {roots: x}}", "'emoji' has no option 'roots'"),
        ("- {method: plain, out: here}", "g.yml, block 1: out is decided by the program"),
        ("- {method: plain, seed: []}", "g.yml, block 1: seed is an empty list"),
        ("- {method: plain, about: 3}", "g.yml, block 1: about must be text"),
        ("- {method: plain, noise_file: a/b}\n- {method: plain, noise_file: a_b}", "there is no such file"),
        ("- {method: [plain", "g.yml is not YAML"),
        ("method: plain", "g.yml: must be a list of blocks"),
        ("- plain", "g.yml, block 1: must be parameters with values"),
        ("", "g.yml: must be a list of blocks"),
    ],
)
def test_a_wrong_grid_names_file_block_and_parameter(tmp_path, text, message):
    path = tmp_path / "g.yml"
    path.write_text(text)
    with pytest.raises(grids.GridError) as caught:
        grids.plan(path)
    assert message in str(caught.value)


def test_runs_with_one_name_are_refused(tmp_path):
    path = tmp_path / "g.yml"
    path.write_text("- {method: plain, epochs: 1}\n- {method: plain, data_options: {}, epochs: 1}\n")
    with pytest.raises(grids.GridError, match="block 2 and block 1: two runs would be called plain-epochs=1"):
        grids.plan(path)


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
    bad = {**block, "data_options": {"n_train": -5}}
    (tmp_path / "tiny.yml").write_text(yaml.safe_dump([block, bad]))
    monkeypatch.setattr(sys, "argv", ["grid.py", "tiny", "--work", str(tmp_path / "runs"), "--workers", "1"])
    with pytest.raises(SystemExit) as stop:
        grid.main()
    assert stop.value.code == 1
    told = capsys.readouterr().out
    assert "done    plain-vse-planted-s0-epochs=1-warmup_epochs=0: rSum" in told
    assert "failed  plain-vse-planted-s0-n_train=-5" in told
    (record,) = (tmp_path / "results" / "tiny").glob("*.json")
    assert json.loads(record.read_text())["settings"]["epochs"] == 1
    stamp = record.stat().st_mtime_ns
    with pytest.raises(SystemExit):
        grid.main()
    assert record.stat().st_mtime_ns == stamp
    assert "1 of 2 runs recorded" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["grid.py", "sweep.py"])
def test_an_unknown_grid_is_refused(program):
    done = subprocess.run(
        [sys.executable, str(ROOT / "book" / "_ext" / program), "robst", "--list"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("there is no grid 'robst'; did you mean 'robust'? there are: category")


RECORDED = [p for p in sorted((ROOT / "book" / "results").iterdir()) if p.is_dir() and p.name != "bench"]


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_every_record_of_the_book_is_a_run_of_its_grid(folder):
    """So each of them can be made again."""
    planned = {run.label: run.settings for run in grids.plan(grids.file_of(folder.name))}
    for path in sorted(folder.glob("*.json")):
        if path.stem == "bench":
            continue
        settings = Record.load(path).settings
        wanted = {k: v for k, v in planned[path.stem].items() if k not in FREE}
        assert {k: settings.get(k) for k in wanted} == wanted, path.stem


def test_no_run_is_recorded_twice():
    """Two records of one run would count as two seeds."""
    seen = {}
    for path in sorted((ROOT / "book" / "results").glob("*/*.json")):
        try:
            settings = Record.load(path).settings
        except ValueError:
            continue  # a benchmark
        key = json.dumps({k: v for k, v in settings.items() if k not in FREE}, sort_keys=True)
        assert key not in seen, f"{path} repeats {seen[key]}"
        seen[key] = path
    assert len(seen) > 500
