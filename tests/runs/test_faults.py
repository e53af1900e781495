"""What happens to a run when processes die, disks fill and files are damaged: done here for real."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small import fact

import nclib
from nclib.common.lock import sole_writer
from nclib.runs import checkpoint, epoch_arrays
from nclib.runs.pair_trainer import PairTrainer
from nclib.runs.record import Record

RUN = {
    "dataset": "planted",
    "model": "vse",
    "mrate": 0.4,
    "warmup_epochs": 2,
    "epochs": 2,
    "data_options": {"n_train": 64, "n_val": 16, "n_test": 16},
    "model_options": {"embed_dim": 16, "word_dim": 8},
    "progress": False,
}


def numbers(record: Record) -> object:
    """Everything in a record that does not depend on the clock."""
    rows = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in record.curves]
    return record.metrics, rows, record.diagnostics, record.best_epoch


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The run as it should be."""
    return nclib.run("l2rm", out=str(tmp_path_factory.mktemp("undisturbed")), **RUN)


def python(script: str, *words: str, run: dict[str, Any] = RUN) -> tuple[int, str]:
    """Run a script in a process of its own; return its status and what it printed."""
    head = f"import os, resource, signal, sys, time, nclib\nRUN = {run!r}\n"
    command = [sys.executable, "-c", head + script, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


KILLED = """
import threading
from tqdm import tqdm

out, method, *moments = sys.argv[1:]
nclib.run(method, out=out + "/first", **RUN)  # imports what a run needs
begun = time.monotonic()
nclib.run(method, out=out + "/alone", **RUN)
whole = time.monotonic() - begun
killed = 0
for moment in map(float, moments):
    child = os.fork()
    if child == 0:
        tqdm.set_lock(threading.RLock())  # the lock that forks share stays taken if its holder is killed
        nclib.run(method, out=out + "/killed", **RUN)
        os._exit(0)
    time.sleep(moment * whole)
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
nclib.run(method, out=out + "/killed", **RUN)
print(killed)
"""
SHORT = {"epochs": 3, "batch_size": 16, "progress": False}
PAIRS = {**SHORT, "dataset": "planted", "model": "vse", "mrate": 0.4, "data_options": {"n_train": 48}}
EQUAL = {"n_train": 400, "image_dim": 100, "text_dim": 100}  # of one width, as the zero-shot row asks
LABELS = {**SHORT, "dataset": "planted_category", "noise_rate": 0.4, "data_options": EQUAL}


def left(out: Path) -> object:
    """All numbers of the run in a folder but its times: record, checkpoint, arrays of epochs."""
    (path,) = out.glob("*/record.json")
    saved = checkpoint.load(path.with_name("checkpoint.safetensors"))
    assert not list(out.rglob("*.part"))
    record, arrays = Record.load(path), epoch_arrays(path.parent)
    return fact([record.metrics, record.curves, record.diagnostics, record.best_epoch, saved, arrays])


@pytest.mark.exhaustive
@pytest.mark.slow
@settings(max_examples=max(1, settings.default.max_examples // 50), phases=[Phase.generate])
@given(st.integers(0, 2**32 - 1))
def test_a_killed_run_of_any_method_ends_as_if_nothing_had_been(seed: int) -> None:
    draw = random.Random(seed)
    pairs = list(nclib.methods.available())
    method = draw.choice([*pairs, *nclib.label_noise.available()])
    own = {"warmup_epochs": int(method not in ("rcl", "crcl", "gsc", "gsc_plus"))}
    how = (PAIRS if method in pairs else LABELS) | (own if method in (*pairs, "uot_rcl") else {})
    moments = [f"{draw.uniform(0, 0.7)}" for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        assert python(KILLED, folder, method, *moments, run=how)[0] == 0
        assert left(Path(folder, "killed")) == left(Path(folder, "alone"))


KILLED_WRITING = """
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
nclib.run("l2rm", out=sys.argv[1], **RUN)
"""


@pytest.mark.slow
def test_what_a_killed_writer_left_goes_with_the_next_run(tmp_path: Path, undisturbed: Record) -> None:
    assert python(KILLED_WRITING, str(tmp_path)) == (-signal.SIGKILL, "")
    assert len(list(tmp_path.rglob("*.part"))) == 1
    assert numbers(nclib.run("l2rm", out=str(tmp_path), **RUN)) == numbers(undisturbed)
    assert not list(tmp_path.rglob("*.part"))


def flip(path: Path, where: float) -> None:
    """Turn one bit of a file round."""
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 4
    path.write_bytes(data)


def cut(path: Path, where: float) -> None:
    """Keep the first part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(where * len(data))])


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "where"), [(flip, 0.02), (flip, 0.5), (cut, 0.9)])
def test_a_damaged_checkpoint_is_set_aside(damage, where: float, tmp_path: Path, undisturbed: Record) -> None:
    folder = Path(nclib.run("l2rm", out=str(tmp_path), **RUN).folder)
    (folder / "record.json").unlink()
    damage(folder / "checkpoint.safetensors", where)
    with pytest.warns(UserWarning, match=r"checkpoint\.safetensors is not a readable checkpoint .*renamed"):
        again = nclib.run("l2rm", out=str(tmp_path), **RUN)
    assert numbers(again) == numbers(undisturbed)
    assert (folder / "checkpoint.safetensors.damaged").exists()


@pytest.mark.parametrize(
    "content",
    ["{", '{"schema": 0}', {"environment": {}}, {"metrics": {}}],
    ids=["cut", "schema", "device", "metrics"],
)
def test_a_damaged_record_is_made_again(content, tmp_path: Path, undisturbed: Record) -> None:
    path = Path(nclib.run("l2rm", out=str(tmp_path), **RUN).folder) / "record.json"
    if isinstance(content, dict):  # parts that were changed
        content = json.dumps(json.loads(path.read_text()) | content)
    path.write_text(content)
    with pytest.warns(UserWarning, match=r"record\.json (is not a record|was changed).*renamed"):
        again = nclib.run("l2rm", out=str(tmp_path), **RUN)
    assert numbers(again) == numbers(undisturbed)
    assert numbers(Record.load(path)) == numbers(undisturbed)


def test_a_second_process_is_kept_out_of_a_run(tmp_path: Path, undisturbed: Record) -> None:
    said = r"is being written by process \d+ on .*choose another out"
    with sole_writer(tmp_path / undisturbed.name), pytest.raises(RuntimeError, match=said):
        nclib.run("l2rm", out=str(tmp_path), **RUN)


FULL = """
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    nclib.run("l2rm", out=sys.argv[1], **RUN)
except OSError as error:
    print(error)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 30_000])
def test_a_full_disk_says_so_and_loses_nothing(room: int, tmp_path: Path, undisturbed: Record) -> None:
    """A limit on the size of files makes every larger write fail as a full disk does."""
    status, said = python(FULL, str(tmp_path), str(room))
    assert status == 0
    assert "what was there before is kept. Make room or choose another place" in said
    assert not list(tmp_path.rglob("*.part"))
    assert numbers(nclib.run("l2rm", out=str(tmp_path), **RUN)) == numbers(undisturbed)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"out: .*file.* cannot be written \(.*Not a directory.*\); choose"):
        nclib.run("l2rm", out=str(tmp_path / "file"), **RUN)


@pytest.mark.parametrize(
    ("method", "wrong", "error", "said"),
    [
        ("l2rm", {"dataset": "f30k", "data_options": {"root": "nothere"}}, OSError, "nothere"),
        ("l2rm", {"batch_size": 4096}, ValueError, "batch_size=4096"),
        ("mrl", {"dataset": "wikipedia", "data_options": {"root": "nothere"}}, OSError, "nothere"),
        ("plain", RUN | {"margin": 3e38}, RuntimeError, "epoch 1, within 20 steps: loss_triplet.*lower lr"),
    ],
)
def test_a_start_or_a_first_epoch_that_fails_leaves_no_folder(method, wrong, error, said, tmp_path: Path):
    given = {"dataset": "planted", "progress": False, **wrong}
    with pytest.raises(error, match=said):
        nclib.run(method, out=str(tmp_path / "out"), **given)
    assert not list(tmp_path.iterdir())


def test_a_tilde_in_out_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    record = nclib.run("plain", out="~/runs", **RUN)
    assert Path(record.folder).parent == tmp_path / "runs"


def test_out_of_memory_names_the_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(PairTrainer, "similarity", fail)
    with pytest.raises(RuntimeError, match=r"out of memory in epoch 1 with batch_size=.*; take"):
        nclib.run("plain", out=str(tmp_path), **RUN)
