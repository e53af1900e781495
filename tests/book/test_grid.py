"""Declared grids: combinations, names, checks before anything runs, and records that are made once."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import grid
import grids
import numpy as np
import pytest
import yaml
from ncbook import LAYOUTS, PAPERS, reruns

from nclib.data.vocabulary import Vocabulary
from nclib.runs.record import FREE, Record

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


def test_the_quick_grid_has_every_method_with_a_chapter():
    import nclib

    runs = grids.plan(FILES["quick"])
    methods = {run.arguments["method"] for run in runs}
    chapters = {name for name in nclib.methods.available() if (ROOT / "notebooks" / f"{name}.ipynb").exists()}
    assert len(chapters) >= 7
    assert methods >= chapters | {"plain", "uot_rcl", "mrl", "elrcmr", "dscmr"}
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
        (
            "- {method: plain, model: vse, model_options: {unit_fragments: maybe}}",
            "unit_fragments='maybe': must be",
        ),
        (
            "- {method: plain, data_options: {n_train: [32, 64]}}",
            "n_train=[32, 64]: must be None or a whole number",
        ),
        (
            "- {method: plain, data_options: {n_train: abc}}",
            "g.yml, block 1: data_options: n_train='abc': must be",
        ),
        (
            "- {method: plain, mrate: 2024-01-01}",
            "g.yml, block 1: mrate=datetime.date(2024, 1, 1): must be a number",
        ),
        (
            "- {method: plain, data_options: {n_val: 2024-01-01}}",
            "g.yml, block 1: data_options: n_val=datetime.date",
        ),
        ("- {method: plain, data_options: {2024-01-01: 1}}", "g.yml, block 1: keys must be"),
        (
            "- method: plain\n  mrate: 0.2\n  method: rcl\n  mrate: 0.4",
            "g.yml, line 3: method is given twice",
        ),
        ("- {method: plain, data_options: {n_val: 8, n_val: 9}}", "g.yml, line 1: n_val is given twice"),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--match", "nosuchrun"], "match='nosuchrun' fits no run; the first is called plain-planted"),
        (["--match", "["], "is not a regular expression"),
        (["--workers", "0"], "'0': must be a whole number, at least 1"),
        (["--root", "/nothere"], "root='/nothere': there is no such folder"),
    ],
)
def test_wrong_options_are_refused_by_the_maker_of_records(tmp_path, words, message):
    (tmp_path / "g.yml").write_text("- {method: plain, dataset: planted, preset: quick}\n")
    done = subprocess.run(
        [sys.executable, grid.__file__, str(tmp_path / "g.yml"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "runs recorded" not in done.stdout


def test_a_record_that_cannot_be_copied_is_a_failed_run(tmp_path, monkeypatch):
    source = next((ROOT / "book" / "results").glob("robust/*.json"))
    (tmp_path / "record.json").write_bytes(source.read_bytes())
    monkeypatch.setattr("nclib.run", lambda **_: SimpleNamespace(folder=str(tmp_path)))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    said = grid.make({}, tmp_path / "results" / "a.json", tmp_path)
    assert said.startswith("failed  a: OSError: ")
    assert "No space left on device" in said
    assert list((tmp_path / "results").iterdir()) == []


def planned(*options, dataset="f30k"):
    return [grids.Planned("a", "", {}, {"dataset": dataset, "data_options": dict(o)}) for o in options]


@pytest.fixture
def f30k(tmp_path):
    """Flickr30K's files, small."""
    folder = tmp_path / "f30k_precomp"
    folder.mkdir()
    for split, n in (("train", 6), ("dev", 4), ("test", 3)):
        images = np.random.default_rng(n).normal(size=(n, 3, 4)).astype(np.float32)
        np.save(folder / f"{split}_ims.npy", images)
        (folder / f"{split}_caps.txt").write_text("a dog\n" * 5 * n)
    Vocabulary.from_texts(["a dog"]).to_json(folder / "f30k_precomp_vocab.json")
    return tmp_path


def test_the_papers_data_are_looked_at_before_their_runs_start(f30k, capsys):
    def refused(*runs):
        with pytest.raises(grids.Refused) as caught:
            grids.check_place(planned(*runs), str(f30k))
        return str(caught.value)

    folder, root = f30k / "f30k_precomp", {"root": str(f30k)}
    grids.check_place(planned(root), str(f30k))  # other sizes than published do not stop a run
    assert "other size  train_ims.npy" in capsys.readouterr().out
    assert "missing     train_ims.f16.npy" in refused(root, {**root, "half": True})
    np.save(folder / "test_ims.f16.npy", np.zeros((2, 3, 4), np.float16))
    grids.check_place(planned(root), str(f30k))  # a bad copy does not stop runs that do not read it
    (folder / "f30k_precomp_vocab.json").unlink()
    assert "missing     f30k_precomp_vocab.json" in refused(root)
    grids.check_place(planned({**root, "build_vocabulary": True}), str(f30k))
    (folder / "dev_caps.txt").write_text("one line\n")
    said = refused({**root, "build_vocabulary": True})
    assert "wrong       dev_ims.npy" in said
    assert "dev_caps.txt" not in said  # it is ok
    assert "nclib data check ROOT" in said
    assert "there is no such file or folder" in refused({"root": str(f30k / "gone")})
    grids.check_place([], "/nothere")  # nothing is to be done


def test_data_with_categories_are_looked_at_too(tmp_path):
    for dataset in ("wikipedia", "nuswide", "xmedianet"):
        with pytest.raises(grids.Refused, match=f"{dataset}: {tmp_path}\n  missing "):
            grids.check_place(planned({"root": str(tmp_path)}, dataset=dataset), str(tmp_path))


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
