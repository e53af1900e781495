"""Grids of notebook runs survive what happens: kills at any moment, damaged files, a second driver."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
import psutil
import pytest
import sweep
import sweep_run
import sweep_store
import yaml
from notebook_tools import notebook
from sweep_store import Store

import nclib
from nclib.runs.record import Record

ROOT = Path(__file__).resolve().parents[2]
BLOCK = {
    "method": ["plain", "rcl"],
    "dataset": "planted",
    "model": "vse",
    "mrate": 0.4,
    "warmup_epochs": 0,
    "epochs": 3,
    "data_options": {"n_train": 32, "n_val": 16, "n_test": 16},
    "seed": [0, 1],
}
KILLS = 3


def write_grid(path: Path, *blocks: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(list(blocks)), "utf8")
    return path


def write_notebook(path: Path) -> Path:
    """A notebook with the parameters of one_run.ipynb that only runs: no figures to wait for."""
    nb = notebook(
        "method = model = dataset = mrate = seed = options = data_options = out = None\ndevice = 'auto'",
        "import nclib\n"
        "named = {'model': model, 'dataset': dataset, 'mrate': mrate, 'seed': seed, 'device': device}\n"
        "record = nclib.run(method, data_options=data_options, out=out, **named, **options)",
        "print(f'{record.folder}/record.json')",
    )
    nb.cells[0].metadata["tags"] = ["parameters"]
    nb.cells[-1].id = sweep_run.RECORD_CELL
    nbformat.write(nb, path)
    return path


def driver(grid: Path, *more: str) -> subprocess.Popen[str]:
    """Start ``make grid`` as the Makefile does, in a session of its own."""
    words = [sys.executable, sweep.__file__, str(grid), "--out", str(grid.parent / "out"), "--cores", "2"]
    words += ["--notebook", str(grid.parent / "quick.ipynb"), *more]
    return subprocess.Popen(
        words,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def to_the_end(grid: Path, *more: str, status: int = 0) -> str:
    done = driver(grid, *more)
    said, _ = done.communicate(timeout=500)
    assert done.returncode == status, said
    return said


def journal(folder: Path, event: str) -> list[str]:
    """Names of the runs with an event, once per event."""
    lines = (folder / "journal.jsonl").read_text("utf8").splitlines()
    return sorted(line["run"] for line in map(json.loads, lines) if line["event"] == event)


def jobs_of(folder: Path) -> list[psutil.Process]:
    """Runners of the grid in this folder and their kernels, orphans among them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if any(w.endswith("sweep_run.py") for w in words) and str(folder) in words:
                found += [process, *process.children(recursive=True)]
    return found


@pytest.fixture(scope="module", autouse=True)
def _snakemake() -> None:
    """Make the environment of Snakemake outside of the tests' time limits."""
    sweep.snakemake_of(None)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str], str]]:
    """A grid whose driver and jobs were killed at random moments until it was done; its last words."""
    home = tmp_path_factory.mktemp("with space")
    write_notebook(home / "quick.ipynb")
    grid, folder = write_grid(home / "tiny.yml", BLOCK), home / "out" / "tiny"
    chance, survivors = random.Random(7), []
    for _ in range(KILLS):
        started = driver(grid, "--no-html")
        until = time.monotonic() + 60
        while not jobs_of(folder) and started.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 5))
        victims = [p for p in jobs_of(folder) if chance.random() < 0.6]
        os.kill(started.pid, signal.SIGKILL)
        for process in victims:
            with contextlib.suppress(psutil.Error):
                process.kill()
        started.wait()
        started.stdout.close()  # type: ignore[union-attr]
        survivors.append(f"{len(victims)} jobs killed, {len(jobs_of(folder))} processes live on")
    said = to_the_end(grid, "--no-html")  # at once, while orphans may still be at work
    yield grid, survivors, said
    for process in jobs_of(folder):
        process.kill()


def test_after_kills_every_run_is_done_exactly_once(killed: tuple[Path, list[str], str]) -> None:
    grid, survivors, said = killed
    folder = grid.parent / "out" / "tiny"
    store = Store(folder)
    assert len(survivors) == KILLS
    assert len(store.runs) == 4
    assert journal(folder, "finished") == sorted(store.runs), survivors
    assert journal(folder, "failed") == []
    assert {label: store.problem(label) for label in store.runs} == dict.fromkeys(store.runs, "")
    assert "tiny: 4 of 4 runs finished" in said
    assert sorted(p.stem for p in (folder / "records").glob("*.json")) == sorted(store.runs)
    page = (folder / "index.html").read_text("utf8")
    assert "4&nbsp;done" in page
    for label in store.runs:
        assert f'href="notebooks/{quote(label)}.ipynb"' in page
        assert len(list(store.work(label).glob("*/record.json"))) == 1


def test_killed_runs_end_with_the_numbers_of_undisturbed_ones(
    killed: tuple[Path, list[str], str], tmp_path: Path
) -> None:
    store = Store(killed[0].parent / "out" / "tiny")
    for label, run in store.runs.items():
        found = Record.load(store.record(label))
        calm = nclib.run(**run["arguments"], out=str(tmp_path), progress=False)
        assert found.metrics == calm.metrics
        assert found.noise == calm.noise

        def numbers(record: Record) -> list[dict[str, Any]]:
            return [{k: v for k, v in row.items() if k != "seconds"} for row in record.curves]

        assert numbers(found) == numbers(calm)


def test_damaged_results_are_made_again_and_the_others_left_alone(
    killed: tuple[Path, list[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    grid = killed[0]
    store = Store(grid.parent / "out" / "tiny")
    whole, cut, other, kept = store.runs
    before = {label: store.record(label).read_text("utf8") for label in store.runs}
    dates = {p: p.stat().st_mtime_ns for p in (store.record(kept), store.notebook(kept))}
    first = next(store.work(whole).glob("*/record.json"))
    trained = first.stat().st_mtime_ns
    store.notebook(whole).write_text(store.notebook(whole).read_text("utf8") + " ", "utf8")
    store.record(cut).write_text(before[cut][:100], "utf8")
    next(store.work(cut).glob("*/record.json")).write_text("{", "utf8")
    store.record(other).unlink()
    said = to_the_end(grid, "--no-html")
    assert f"again   {whole}: the notebook is not what was written" in said
    assert f"again   {cut}: the record is not what was written" in said
    assert f"again   {other}: the record is gone" in said
    assert kept not in said
    assert {p: p.stat().st_mtime_ns for p in dates} == dates
    assert first.stat().st_mtime_ns == trained  # the notebook ran again, the training did not
    assert not any(store.problem(label) for label in store.runs)
    assert json.loads(before[cut])["metrics"] == json.loads(store.record(cut).read_text("utf8"))["metrics"]
    assert journal(store.folder, "distrusted") == sorted([whole, cut, other])
    capsys.readouterr()
    assert sweep.main([str(grid), "--out", str(grid.parent / "out")]) == 0  # nothing is left to do
    assert "tiny: 4 of 4 runs finished" in capsys.readouterr().out
    assert len(journal(store.folder, "started")) <= 4 + 2 * KILLS + 3


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    write_notebook(tmp_path / "quick.ipynb")
    bad = {**BLOCK, "method": "plain", "seed": 0, "data_options": {"n_train": -5}}
    grid = write_grid(tmp_path / "mixed.yml", bad, {**BLOCK, "method": "plain", "seed": 1, "epochs": 1})
    said = to_the_end(grid, status=1)
    store = Store(tmp_path / "out" / "mixed")
    good, wrong = sorted(store.runs, key=lambda label: "n_train=-5" in label)
    assert store.state(good).name == "done"
    failed = store.state(wrong)
    assert failed.name == "failed"
    assert failed.known["error"] in said
    assert "n_train" in failed.known["error"]
    assert journal(store.folder, "failed") == [wrong]  # an error of the notebook is not tried again
    assert "Traceback" in store.log(wrong).read_text("utf8")
    page = (store.folder / "index.html").read_text("utf8")
    assert "1&nbsp;failed" in page
    assert f'href="notebooks/{quote(good)}.html"' in page
    rendered = store.html(good).read_text("utf8")
    assert "record.json" in rendered
    assert 'src="http' not in rendered  # opens without a network
    assert "http" not in page.replace("http-equiv", "")


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    grid, folder = write_grid(tmp_path / "tiny.yml", BLOCK), tmp_path / "out" / "tiny"
    sweep.prepare(folder)
    with sweep_store.lock(folder / "state" / "driver.lock") as fd:
        sweep.take(fd, folder)
        with pytest.raises(sweep.Refused, match=rf"is at work already \(process {os.getpid()} on") as caught:
            sweep.main([str(grid), "--out", str(tmp_path / "out")])
    assert f"kill {os.getpid()}" in str(caught.value)
    assert not (folder / "plan.json").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "tiny.yml", BLOCK)
    (tmp_path / "file").write_text("", "utf8")
    with pytest.raises(sweep.Refused, match=r"OUT=.*file cannot be written .*; choose another folder"):
        sweep.main([str(grid), "--out", str(tmp_path / "file")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--match", "nothing like it"], "fits no run; the first is called plain-vse-planted"),
        (["--match", "("], "is not a regular expression"),
        (["--profile", "moon"], "PROFILE=moon: there is no such folder with a config.yaml; there are: slurm"),
        (["--notebook", "none.ipynb"], "NOTEBOOK=none.ipynb: there is no such file"),
        (["--device", "gpuu"], "device='gpuu' cannot be used here"),
        (["--root", "/nothere"], "root='/nothere': there is no such folder"),
    ],
)
def test_wrong_options_stop_before_any_work(tmp_path: Path, words: list[str], message: str) -> None:
    grid = write_grid(tmp_path / "tiny.yml", BLOCK)
    with pytest.raises(sweep.Refused, match=message):
        sweep.main([str(grid), "--out", str(tmp_path / "out"), *words])
    assert not (tmp_path / "out").exists()


def test_absent_data_stop_before_any_work(tmp_path: Path) -> None:
    paper = {"method": "plain", "model": "sgr", "dataset": "f30k", "preset": "paper"}
    grid = write_grid(tmp_path / "plan.yml", paper)
    words = [str(grid), "--out", str(tmp_path / "out"), "--root", str(tmp_path), "--snakemake", "/bin/true"]
    with pytest.raises(sweep.Refused, match=r"missing     train_ims\.npy"):
        sweep.main(words)
    assert not (tmp_path / "out").exists()


def test_the_device_of_a_cluster_is_not_looked_for_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("executor: local\n", "utf8")
    grid, words = write_grid(tmp_path / "tiny.yml", BLOCK), ["--snakemake", "/bin/true", "--device", "cuda"]
    started: list[str] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(os, "execv", lambda *call: started.append(call[0]))
    sweep.main([str(grid), "--out", str(tmp_path / "out"), *words, "--profile", str(tmp_path / "mine")])
    assert started == ["/bin/true"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full")])
def test_an_interrupted_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def stop(fd: int) -> None:
        raise error

    sweep_store.put(tmp_path / "plan.json", "old")
    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(type(error)):
        sweep_store.put(tmp_path / "plan.json", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_text("utf8") == "old"


def test_a_profile_without_its_executor_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("executor: no-such-cluster\n", "utf8")
    grid = write_grid(tmp_path / "tiny.yml", BLOCK)
    words = [str(grid), "--out", str(tmp_path / "out"), "--profile", str(tmp_path / "mine")]
    with pytest.raises(sweep.Refused, match="pip install snakemake-executor-plugin-no-such-cluster"):
        sweep.main(words)


def test_a_slurm_that_would_be_waited_for_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands))
    with pytest.raises(sweep.Refused, match="PROFILE=here: there is no sbatch here"):
        sweep.check_slurm(tmp_path / "here", "sacct")
    answers = {"sbatch": "exit 0", "squeue": "exit 0", "sacct": "echo accounting is disabled >&2; exit 1"}
    for name, does in answers.items():
        (commands / name).write_text(f"#!/bin/sh\n{does}\n", "utf8")
        (commands / name).chmod(0o755)
    with pytest.raises(sweep.Refused, match=r"accounting is disabled.*slurm-status-command: squeue"):
        sweep.check_slurm(tmp_path / "here", "sacct")
    sweep.check_slurm(tmp_path / "here", "squeue")
    (commands / "sacct").write_text("#!/bin/sh\nexit 0\n", "utf8")
    sweep.check_slurm(tmp_path / "here", "sacct")


def test_the_plan_is_shown_without_running_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = {"method": "plain", "model": "sgr", "dataset": "f30k", "preset": "paper", "about": "Table 1"}
    grid = write_grid(tmp_path / "plan.yml", {**BLOCK, "about": "small"}, paper)
    assert sweep.main([str(grid), "--out", str(tmp_path / "out"), "--list"]) == 0
    said = capsys.readouterr().out
    assert "# small\nmissing plain-vse-planted-m0.4-s0" in said
    assert "# Table 1\nmissing plain-sgr-f30k" in said
    assert "5 runs in" in said
    assert "ROOT=/data" in said
    assert not (tmp_path / "out").exists()
    with pytest.raises(sweep.Refused, match="say where they lie: ROOT=/data"):
        sweep.main([str(grid), "--out", str(tmp_path / "out")])


def test_the_notebook_takes_what_a_grid_gives() -> None:
    cells = nbformat.read(sweep.NOTEBOOK, 4).cells
    cell = next(c for c in cells if "parameters" in c.metadata.get("tags", []))
    offered = {(getattr(n, "target", None) or n.targets[0]).id for n in ast.parse(cell.source).body}  # type: ignore[attr-defined]
    run = {"method": "l2rm", "mrate": 0.2, "rho": 0.1, "epochs": 3, "model_options": {"a": 1}, "seed": 1}
    values = sweep_run.parameters(run, out="here", device="cpu")
    assert values["options"] == {"rho": 0.1, "epochs": 3}
    assert {*values, *sweep_run.PASSED, *sweep_run.MAPPINGS} <= offered
    assert sum(c.id == sweep_run.RECORD_CELL for c in cells) == 1


def test_gpus_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places on each of two GPUs: every GPU gets a run before one gets two; a fifth run waits."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sweep_store.tempfile, "gettempdir", lambda: str(tmp_path))

    def waited(seconds: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(time, "sleep", waited)
    with contextlib.ExitStack() as held:
        names = []
        for _ in range(4):
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            assert held.enter_context(sweep_store.gpu(2, 2)) is not None
            names.append(os.environ["CUDA_VISIBLE_DEVICES"])
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        assert names == ["0", "1", "0", "1"]
        with pytest.raises(TimeoutError), sweep_store.gpu(2, 2):
            pass
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,7"
        with sweep_store.gpu(1, 1):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "4"
    with sweep_store.gpu(0, 1) as nothing:
        assert nothing is None
