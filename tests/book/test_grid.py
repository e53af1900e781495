"""Declared grids: combinations, names, checks before anything runs, and the driver that makes the records."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grid
import grid_job
import grid_plan as grids
import numpy as np
import pytest
import yaml
from ncbook import LAYOUTS, PAPERS, reruns
from ncbook.nearest import nearest

import nclib
from nclib.data.vocabulary import Vocabulary
from nclib.runs import identity
from nclib.runs.record import Record
from nclib.runs.store import append, rows

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: path for path in sorted(grids.GRIDS.glob("*.yml"))}


def write(folder, *blocks):
    path = folder / "g.yml"
    path.write_text(yaml.safe_dump(list(blocks)))
    return path


def test_lists_are_combined_and_seeds_come_first(tmp_path):
    several = {"method": ["plain", "l2rm"], "mrate": 0.4, "seed": [0, 1]}
    repeated = {"method": "plain", "mrate": 0.4, "seed": 0, "about": "once more"}
    runs = [run.arguments for run in grids.plan(write(tmp_path, several, repeated))]
    assert [(r["seed"], r["method"]) for r in runs] == [(0, "plain"), (0, "l2rm"), (1, "plain"), (1, "l2rm")]
    every = grids.plan(write(tmp_path, {"method": "all", "dataset": "planted", "model": "vse"}))
    assert {run.arguments["method"] for run in every} == nclib.methods.available().keys() - {"linear"}


@pytest.mark.parametrize(
    ("own", "label"),
    [
        ({"mrate": 0.4, "loss": "infonce", "epochs": 10}, "plain-vse-m0.4-s2-epochs=10-loss=infonce"),
        ({"model": "omit", "model_options": {"matching": "cam"}}, "plain-omit-s2-matching=cam"),
        ({"noise_file": "/data/my noise.npy"}, "plain-vse-s2-noise_file=_data_my_noise.npy"),
    ],
)
def test_the_label_names_what_is_unusual(own, label):
    assert grids.label({"method": "plain", "model": "vse", "seed": 2, **own}) == label


@pytest.mark.parametrize("name", FILES)
def test_every_grid_is_valid(name):
    runs = grids.plan(FILES[name], root="/data")
    assert len({run.label for run in runs}) == len(runs)
    assert all(run.settings for run in runs)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_grid_holds_the_runs_behind_its_printed_cells_and_no_others(paper):
    def texts(calls):
        return {json.dumps({k: v for k, v in c.items() if k != "seed"}, sort_keys=True) for c in calls}

    printed = [run.arguments for p, table in LAYOUTS if p == paper for run in reruns(paper, table)[0]]
    declared = grids.plan(FILES[f"paper_{paper.lower().replace('-', '_')}"])
    assert texts(run.arguments for run in declared) == texts(printed)
    assert {run.arguments["seed"] for run in declared} == {0, 1, 2}
    assert len(declared) == 3 * len(texts(printed))


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
    ("text", "said"),
    [
        ("- {method: l2rm, mrat: 0.3}", "block 1: unknown parameter 'mrat'; did you mean 'mrate'?"),
        ("- {method: rcl}\n- {method: rcl, mrate: [0.2, 7]}", "block 2: mrate=7: must be"),
        ("- {method: uot_rcl, model: vse}", "block 1: unknown parameter 'model'"),
        ("- {method: plain, out: here}", "block 1: out is an option of the command"),
        ("- {method: plain, seed: []}", "block 1: seed is an empty list"),
        ("- {method: plain, about: 3}", "block 1: about must be"),
        ("- {method: plain, noise_file: a/b}\n- {method: plain, noise_file: a_b}", "there is no such file"),
        ("- {method: plain, mrate: 2024-01-01}", "block 1: mrate=datetime.date(2024, 1, 1): must be"),
        ("- {method: plain, data_options: {2024-01-01: 1}}", "block 1: keys must be"),
        ("- method: plain\n  mrate: 0.2\n  method: rcl\n  mrate: 0.4", "line 3: method is given twice"),
        ("- {method: plain, data_options: {n_val: 8, n_val: 9}}", "line 1: n_val is given twice"),
        (
            "- {method: plain, epochs: 1}\n- {method: plain, data_options: {}, epochs: 1}",
            "block 2 and block 1",
        ),
        ("- {method: [plain", "is not YAML"),
        ("method: plain", "must be a list of blocks"),
        (f"- {{method: rcl, noise_file: {'x' * 220}}}", "too many parameters for a file name"),
        ("- plain", "block 1: must be parameters with values"),
        ("", "must be a list of blocks"),
    ],
)
def test_a_wrong_grid_names_file_block_and_parameter(tmp_path, text, said):
    path = tmp_path / "g.yml"
    path.write_text(text)
    with pytest.raises(grids.GridError, match=rf"g\.yml.*{re.escape(said)}"):
        grids.plan(path)


FEW = {"n_train": 64, "n_val": 16, "n_test": 16}
SMALL = {"method": "plain", "dataset": "planted", "model": "vse", "epochs": 1, "warmup_epochs": 0, "seed": 0}


@pytest.fixture
def drive(tmp_path):
    """Call the driver on blocks, in a folder of its own."""

    def call(*blocks, more=()):
        words = [write(tmp_path, *blocks), "--out", tmp_path / "records", "--work", tmp_path / "runs", *more]
        return grid.main([str(word) for word in words])

    return call


def names_of(tmp_path, folder="runs"):
    return [path.stem for path in sorted((tmp_path / folder / "records" / "g").glob("*.json"))]


@pytest.mark.exhaustive
@pytest.mark.grid
def test_runs_are_made_once_and_failures_are_named(drive, tmp_path, capfd):
    bad, pair = {**SMALL, "data_options": {"n_train": -5}}, {**SMALL, "networks": 2}
    assert drive(SMALL, pair, bad, more=["--cores", 2]) == 1
    said = capfd.readouterr().out
    assert "plain-vse-planted-s0-n_train=-5-epochs=1-warmup_epochs=0: ValueError: " in said
    assert "\n  nclib run plain --data_options.n_train -5 --dataset planted " in said
    assert said.splitlines()[-1].startswith("g: 2 of 3 runs recorded in ")
    two, one = sorted(names_of(tmp_path), key=len, reverse=True)
    path = tmp_path / "runs" / "records" / "g" / f"{one}.json"
    assert Record.load(path).settings["epochs"] == 1
    recorded = {
        row.content["name"]: row.settings.get("networks", 1) for row in rows(tmp_path / "records" / "g.csv")
    }
    pair_of = Record.load(path.with_stem(two))
    assert recorded == {Record.load(path).name: 1, pair_of.name: 2}
    assert pair_of.parts[0] == Record.load(path).name  # made once, for both
    path.unlink()  # recorded in the table all the same
    assert drive(SMALL, pair) == 0
    assert not path.exists()
    assert capfd.readouterr().out.startswith("g: 2 of 2 runs recorded in ")


@pytest.fixture
def engine(monkeypatch):
    """A stand-in for Snakemake: the jobs of a plan one after the other, in this process."""

    def call(words, **_):
        folder = Path(words[words.index("--directory") + 1])
        (plan,) = (word.removeprefix("plan=") for word in words if word.startswith("plan="))
        with contextlib.chdir(folder):
            for target in json.loads(Path(plan).read_text())["runs"]:
                if not Path(target).exists():
                    grid_job.main(plan, target)

    monkeypatch.setattr(grid.subprocess, "call", call)
    return call


def features(root, seed):
    """A folder in Flickr30K's layout with random features; return it."""
    folder = root / "f30k_precomp"
    folder.mkdir(parents=True)
    for split, n in (("train", 24), ("dev", 6), ("test", 6)):
        images = np.random.default_rng(seed).normal(size=(n, 3, 4)).astype(np.float32)
        np.save(folder / f"{split}_ims.npy", images)
        (folder / f"{split}_caps.txt").write_text("".join(f"a dog {i % 7}\n" for i in range(5 * n)))
    Vocabulary.from_texts([f"a dog {i}" for i in range(7)]).to_json(folder / "f30k_precomp_vocab.json")
    return root


ON_FILES = {**SMALL, "dataset": "f30k", "mrate": 0.4, "batch_size": 20}


def test_a_record_on_other_data_does_not_answer(engine, tmp_path, capsys):
    here, there = (features(tmp_path / name, seed) for seed, name in enumerate("ab"))
    words = [str(write(tmp_path, ON_FILES)), "--work", str(tmp_path / "w")]
    assert grid.main([*words, "--root", str(here), "--out", str(tmp_path / "A")]) == 0
    capsys.readouterr()
    asked = [*words, "--root", str(there), "--out", str(tmp_path / "A")]
    assert grid.main([*asked, "--list"]) == 0
    assert re.search(r"missing  plain-vse-f30k.*\(recorded on other data\)", capsys.readouterr().out)
    assert grid.main(asked) == 0
    table = nclib.table(tmp_path / "A")
    sums = [nclib.data.load("f30k", root=str(root)).checksum for root in (here, there)]
    assert sorted(table["data.checksum"]) == sorted(sums)
    assert grid.main([*words, "--root", str(here), "--out", str(tmp_path / "A"), "--list"]) == 0
    assert "1 of 1 runs recorded" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_drivers_with_the_real_engine_on_one_folder_keep_data_and_rows_apart(tmp_path):
    here, there = (features(tmp_path / name, seed) for seed, name in enumerate("ab"))
    words = [sys.executable, grid.__file__, str(write(tmp_path, {**ON_FILES, "seed": [0, 1, 2]}))]
    words += ["--work", str(tmp_path / "w"), "--cores", "1"]
    asked = [(here, []), (there, []), (here, ["--match", "s[12]"])]  # the last: rows of the first
    drivers = [
        subprocess.Popen([*words, "--root", str(root), "--out", str(root / "records"), *more])
        for root, more in asked
    ]
    assert [driver.wait() for driver in drivers] == [0, 0, 0]
    for root in (here, there):
        table = nclib.table(root / "records")
        assert set(table["data.checksum"]) == {nclib.data.load("f30k", root=str(root)).checksum}
        assert sorted(table["seed"]) == [0, 1, 2]


def test_a_record_of_older_numerics_is_missing_and_is_made_again(
    engine, drive, monkeypatch, tmp_path, capsys
):
    assert drive(SMALL, {**SMALL, "seed": 1}) == 0
    (old,) = (tmp_path / "runs").glob("plain-vse-planted-*-s0-*/record.json")
    was = Record.load(old).name
    monkeypatch.setattr(identity, "MOVED", {"method plain": identity.NUMERICS})
    (tmp_path / "records" / "g.csv").unlink()
    (tmp_path / "records" / "SHA256SUMS").unlink()
    for path in (tmp_path / "runs").glob("plain-*/record.json"):
        record = Record.load(path)
        record.environment["numerics"] = identity.NUMERICS - record.settings["seed"] % 2
        append(tmp_path / "records" / "g.csv", [record])
    capsys.readouterr()
    assert drive(SMALL, {**SMALL, "seed": 1}, more=["--list"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"recorded plain-vse-planted-s0", said)
    n = identity.NUMERICS
    assert re.search(rf"missing  plain-vse-planted-s1.*\(numerics {n - 1}, its numbers moved at {n}\)", said)
    assert drive(SMALL, {**SMALL, "seed": 1}) == 0
    table = nclib.table(tmp_path / "records").set_index("seed")
    assert list(table["environment.numerics"]) == [n, n]
    assert table.loc[0, "name"] == was


def test_the_driver_reads_back_what_it_says_is_recorded(engine, drive, monkeypatch, capsys):
    monkeypatch.setattr("nclib.runs.append", lambda *_: 1)
    assert drive(SMALL) == 1
    assert "g: 0 of 1 runs recorded" in capsys.readouterr().out


LONG = {**SMALL, "epochs": 30, "mrate": 0.2, "data_options": FEW}


def wait_for(condition):
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def job_of(folder, pid):
    """Return the process below ``pid`` that makes the run in a folder, stopped in its first epochs."""
    wait_for(lambda: list(folder.glob("plain-*/checkpoint.safetensors")))
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(path.name)] = parent, (path / "cmdline").read_text()
    below = {pid}
    for _ in range(9):
        below |= {child for child, (parent, _) in found.items() if parent in below}
    (job,) = (p for p in below if "grid_job.py" in found[p][1] and "/bin/bash" not in found[p][1])
    os.kill(job, signal.SIGSTOP)
    return job


def numbers(path):
    record = Record.load(path)
    curves = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in record.curves]
    return record.metrics, curves, record.name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The numbers of a run that nothing disturbs."""
    made = nclib.run(**LONG, out=tmp_path_factory.mktemp("whole"), progress=False)
    return numbers(Path(made.folder) / "record.json")


@pytest.mark.exhaustive
@pytest.mark.grid
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_killed_worker_changes_no_number(drive, whole, tmp_path):
    def kill():
        os.kill(job_of(tmp_path / "runs", os.getpid()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert drive(LONG, more=["--cores", 1]) == 0
    killer.join()
    (path,) = (tmp_path / "runs" / "records" / "g").glob("*.json")
    assert numbers(path) == whole


@pytest.mark.exhaustive
@pytest.mark.grid
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_killed_driver_changes_no_number(drive, whole, tmp_path):
    """Its engine is killed too and the run lives on: the next command, for a cluster, waits for it."""
    runs = tmp_path / "runs"
    words = [write(tmp_path, LONG), "--out", tmp_path / "records", "--work", runs, "--cores", "1"]
    driver = subprocess.Popen([sys.executable, grid.__file__, *map(str, words)])
    job = job_of(runs, driver.pid)
    engine = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()[0]
    for pid in (driver.pid, int(engine)):
        os.kill(pid, signal.SIGKILL)
    driver.wait()
    (log,) = (runs / "records" / "g").glob("*.log")
    log.unlink()

    def go_on():
        wait_for(lambda: log.exists() and "waiting: " in log.read_text())
        os.kill(job, signal.SIGCONT)

    going = threading.Thread(target=go_on, daemon=True)
    going.start()
    assert drive(LONG, more=["--profile", "submit"]) == 0
    going.join()
    assert "\nrSum " in log.read_text()  # the waiting job made the record as well
    (path,) = (runs / "records" / "g").glob("*.json")
    assert numbers(path) == whole


def test_what_stands_at_a_target_is_compared_with_the_plan(tmp_path):
    settings = {**SMALL, "out": str(tmp_path / "made")}
    right, other = (nclib.run(**settings, **more, progress=False) for more in ({}, {"mrate": 0.5}))
    (job,) = grid.in_order([write(tmp_path, SMALL)], tmp_path / "none", "")
    path = tmp_path / "runs" / job.target

    def said(record=None):
        if record:
            record.save(path)
        return "\n".join(grid.strangers({job.target: job}, tmp_path / "runs"))

    assert (said(), said(right)) == ("", "")
    assert f"{path} is the record of another run, {other.name}: it differs in mrate" in said(other)
    right.data["checksum"] = "another"
    assert said(right).endswith("it differs in data.checksum")
    path.write_text(path.read_text()[:200])
    assert "is not a record" in said()
    with pytest.raises(grids.GridError, match="Move these files away"):
        grid.make([job], grid.options(["quick", "--work", str(tmp_path / "runs")]))


def test_a_gpu_is_held_by_as_many_runs_as_may_share_it(tmp_path):
    with grid_job.slot(["4", "7"], tmp_path) as first, grid_job.slot(["4", "7"], tmp_path) as second:
        assert (first, second) == ("4", "7")
        waiting = threading.Thread(
            target=lambda: grid_job.slot(["4", "7"], tmp_path).__enter__(), daemon=True
        )
        waiting.start()
        waiting.join(2 * grid_job.PAUSE)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("words", "expected"), [("--cores 3", ""), ("--gpus 2", "01"), ("--gpus 2 --runs-per-gpu 2", "0101")]
)
def test_gpus_are_shared(monkeypatch, words, expected):
    given = grid.options(["quick", *words.split()])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert grid.gpus(given) == [*expected]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert grid.gpus(given) == [*expected.replace("0", "4").replace("1", "7")]


def test_parts_share_the_runs_out(tmp_path):
    runs = grids.plan(write(tmp_path, {**SMALL, "seed": list(range(7))}))
    parts = [grids.chosen(runs, "", (k, 3)) for k in (1, 2, 3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    assert sorted((run for part in parts for run in part), key=runs.index) == runs


def test_the_plan_is_shown_and_nothing_runs(drive, tmp_path, capsys):
    paper = {"method": "plain", "model": "sgr", "dataset": "f30k", "preset": "paper", "about": "Table 1"}
    blocks = {**SMALL, "about": "small"}, paper
    assert drive(*blocks, more=["--list"]) == 0
    said = capsys.readouterr().out
    shown = re.findall(r"# (.*)\nmissing  (plain-\w+-\w+)", said)
    assert shown == [("small", "plain-vse-planted"), ("Table 1", "plain-sgr-f30k")]
    assert "0 of 2 runs recorded" in said
    assert [path.name for path in tmp_path.iterdir()] == ["g.yml"]
    with pytest.raises(grids.GridError, match="give their folder: ROOT=/data"):
        drive(*blocks)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--match", "nosuchrun"], "match='nosuchrun' fits no run"),
        (["--match", "["], "is not a regular expression"),
        (["--root", "/nothere"], "root='/nothere': there is no such folder"),
        (["--device", "cuda:99"], "device='cuda:99'"),
        (["--cores", "0"], "'0': must be a whole number, at least 1"),
        (["--part", "3/2"], "'3/2': must be k/n with 1 <= k <= n"),
        (["--part", "2"], "'2': must be k/n"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(drive, tmp_path, capsys, words, said):
    with pytest.raises((grids.GridError, SystemExit)) as caught:
        drive(SMALL, more=words)
    assert said in f"{caught.value}{capsys.readouterr().err}"
    assert [path.name for path in tmp_path.iterdir()] == ["g.yml"]


def planned(*options, dataset="f30k"):
    return [grids.Planned("a", "", {}, {"dataset": dataset, "data_options": dict(o)}) for o in options]


def test_the_papers_data_are_looked_at_before_their_runs_start(tmp_path, capsys):
    root = str(features(tmp_path, 0))
    folder = tmp_path / "f30k_precomp"

    def refused(**options):
        with pytest.raises(grids.GridError) as caught:
            grids.check_place(planned({"root": root, **options}), root)
        return str(caught.value)

    np.save(folder / "test_ims.f16.npy", np.zeros((2, 3, 4), np.float16))
    np.save(folder / "dev_boxes.npy", np.zeros((6, 2, 4), np.float32))
    grids.check_place(planned({"root": root}), root)  # not stopped by other sizes, nor by what is not read
    assert "other size  train_ims.npy" in capsys.readouterr().out
    assert "missing     train_ims.f16.npy" in refused(half=True)
    boxes = refused(boxes=True)
    assert ("missing     train_boxes.npy" in boxes, "wrong       dev_boxes.npy" in boxes) == (True, True)
    (folder / "f30k_precomp_vocab.json").unlink()
    assert "missing     f30k_precomp_vocab.json" in refused()
    grids.check_place(planned({"root": root, "build_vocabulary": True}), root)
    (folder / "dev_caps.txt").write_text("one line\n")
    said = refused(build_vocabulary=True)
    assert ("wrong       dev_ims.npy" in said, "dev_caps.txt" in said) == (True, False)  # captions are ok
    assert "there is no such file or folder" in refused(root=f"{root}/gone")
    grids.check_place([], "/nothere")  # nothing is to be done


def test_weights_lie_below_the_folder_of_the_data(tmp_path, capsys):
    block = {"method": "plain", "dataset": "f30k", "model": "vse_inf", "preset": "paper", "mrate": 0.0}
    weights, root = "weights/bert-base-uncased", str(features(tmp_path, 0))
    read = {"data_options": {"pieces": weights}, "model_options": {"text": "bert", "text_folder": weights}}
    read["import"] = "book/baselines/omit"
    pixels = {"import": "book/baselines/omit", "data_options": {"pixels": "square224"}}
    runs = grids.plan(write(tmp_path, {**block}, {**block, **read}, {**block, **pixels}), root=root)
    plain, words, pictures = (run.label for run in runs)
    assert runs[1].settings["data_options"]["pieces"] == f"{root}/{weights}"
    lacking = grids.lacking_data(runs)
    assert plain not in lacking
    assert lacking[words].startswith(f"{root}/{weights}: missing: google-bert/bert-base-uncased")
    assert "picture_rows.py f30k --pixels square224" in lacking[pictures]
    where = ["--root", root, "--out", str(tmp_path / "out"), "--there", "--match", "text=|pixels="]
    assert grid.main([str(tmp_path / "g.yml"), *where]) == 0
    assert capsys.readouterr().out.count("1 runs left out: ") == 2
    (tmp_path / "f30k_precomp" / "f30k_precomp_vocab.json").unlink()
    assert lacking[words] == grids.lacking_data(runs)[words]  # pieces need no vocabulary
    assert "f30k_precomp_vocab.json" in grids.lacking_data(runs)[plain]


def test_data_with_categories_are_looked_at_too(tmp_path):
    for dataset in ("wikipedia", "nuswide", "xmedianet"):
        with pytest.raises(grids.GridError, match=f"{dataset}: {tmp_path}\n  missing "):
            grids.check_place(planned({"root": str(tmp_path)}, dataset=dataset), str(tmp_path))


def test_a_precision_that_the_device_lacks_is_refused_before_anything_runs():
    runs = grids.plan(FILES["precision"], root="/data")
    with pytest.raises(grids.GridError, match="'tf32': cpu has no TF32"):
        grids.check_place(runs, "", "cpu")


def test_an_unknown_grid_or_profile_is_refused():
    with pytest.raises(grids.GridError, match="profile='slrm': must be one of slurm"):
        grid.profile("slrm")
    with pytest.raises(grids.GridError, match=r"'robst'; did you mean 'robust'\? there are: averaged"):
        grid.main(["robst", "--list"])


TABLES = sorted((ROOT / "book" / "results").glob("*.csv"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_every_record_of_the_book_is_a_run_of_its_grid(table):
    """So each of them can be made again."""
    jobs = grid.in_order([grids.file_of(table.stem)], table.parent, "unknown")
    found = nearest(table, [job.request for job in jobs])
    answers = [one for one, unlike in found if not unlike or unlike[0].startswith("numerics")]
    named = {one.path.name for one in answers if one}
    assert {one.path.name for one in rows(table)} == named


def test_what_is_recorded_is_told_by_settings(drive, tmp_path, capsys):
    """Whatever a table calls a run; a run with other settings counts as missing."""
    made = nclib.run(**SMALL, out=tmp_path / "runs", progress=False)
    append(tmp_path / "records" / "of_any_name.csv", [made])
    assert drive(SMALL) == 0  # nothing is to be done, and nothing is started
    assert capsys.readouterr().out.startswith("g: 1 of 1 runs recorded in ")
    assert drive({**SMALL, "epochs": 2}, more=["--list"]) == 0
    said = capsys.readouterr().out
    assert "missing  plain-vse-planted-s0-epochs=2" in said
    assert "g: 0 of 1 runs recorded" in said
    table = tmp_path / "records" / "of_any_name.csv"
    table.write_text(table.read_text().replace(",0,", ",1,", 1))
    with pytest.raises(grids.GridError, match=r"of_any_name\.csv was changed: "):
        drive(SMALL, more=["--list"])


def test_no_run_is_recorded_twice():
    """Two records of one run would count as two seeds."""
    every = [one.key for table in TABLES for one in rows(table)]
    assert len(set(every)) == len(every) >= 2240
