"""A result is never another run's: files by content, records compared with what was asked, session state."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import nclib
from nclib.common import files
from nclib.methods.base import Steps
from nclib.methods.plain import Plain
from nclib.runs import Record, experiment_of, machine, table
from nclib.runs import record as records

TINY = {
    "dataset": "planted",
    "model": "bow",
    "epochs": 1,
    "warmup_epochs": 0,
    "progress": False,
    "data_options": {"n_train": 12, "n_val": 4, "n_test": 4},
}
TINY_LABELS = {
    "dataset": "planted_category",
    "epochs": 1,
    "hidden": 8,
    "dim": 16,
    "progress": False,
    "data_options": {"n_train": 60, "n_val": 20, "n_test": 20},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Record:
    return nclib.run("plain", **TINY, out=tmp_path_factory.mktemp("made"))


@pytest.fixture
def mine(made: Record, tmp_path: Path) -> Record:
    """Return a record in a folder of its own."""
    folder = tmp_path / Path(made.folder).name
    shutil.copytree(made.folder, folder)
    return Record.load(folder / "record.json")


def change(record: Record, kept: tuple[str, ...] = (), **parts) -> None:
    """Change a stored record, and its digest with it unless that is kept."""
    path = Path(record.folder) / "record.json"
    content = json.loads(path.read_text())
    stated = content.pop("sha256")
    for name, values in parts.items():
        content[name] |= values
    content["sha256"] = stated if "sha256" in kept else records.own_sum(content)
    path.write_text(json.dumps(content))


# -- files that decide numbers --------------------------------------------------------------------------


def test_other_word_vectors_under_one_path_are_another_run(tmp_path):
    path = tmp_path / "wv.npy"

    def resolved(seed: int, path: Path = path):
        np.save(path, np.random.default_rng(seed).normal(size=(10, 64)).astype(np.float32))
        options = {"word_vectors": str(path)}
        return nclib.resolve("plain", dataset="planted", model="omit", model_options=options)

    name = experiment_of("plain").name
    one, other = resolved(1), resolved(2)
    assert name(one) != name(other)
    assert name(resolved(1, tmp_path / "moved.npy")) == name(one)
    assert one.files_sha256 == {
        "model_options": {"word_vectors": files.digest(path.parent / "moved.npy")[:16]}
    }


def test_weights_in_a_folder_count_by_name_and_content(tmp_path):
    (tmp_path / "a" / ".cache").mkdir(parents=True)
    (tmp_path / "a" / "model").write_text("1")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / ".cache" / "x").write_text("hidden")
    assert files.content_digest(tmp_path / "a") == files.content_digest(tmp_path / "b")
    (tmp_path / "b" / "model").rename(tmp_path / "b" / "other")
    assert files.content_digest(tmp_path / "a") != files.content_digest(tmp_path / "b")
    (tmp_path / "a" / "model").rename(tmp_path / "a" / "other")
    assert files.content_digest(tmp_path / "a") == files.content_digest(tmp_path / "b")


def test_the_digest_of_a_large_file_is_made_once_and_again_after_a_change(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SMALL", 4)
    monkeypatch.setattr(files, "SETTLED", -1.0)
    path, made = tmp_path / "large", []
    path.write_bytes(b"12345678")
    whole = files.digest
    monkeypatch.setattr(
        files, "digest", lambda x: (made.append(x) if isinstance(x, Path) else None) or whole(x)
    )
    assert files.content_digest(path) == files.content_digest(path) == whole(b"12345678")
    assert made == [path]
    os.utime(path, ns=(1, path.stat().st_mtime_ns))  # looked at, not changed
    time = path.stat().st_mtime_ns
    path.write_bytes(b"87654321")  # of the same size, and of the same time
    os.utime(path, ns=(time, time))
    assert files.content_digest(path) == whole(b"87654321")
    (kept,) = (tmp_path / "cache" / "digests").iterdir()
    true = kept.read_text()
    other = path.with_name("other")
    other.write_bytes(b"abcdefgh")
    files.content_digest(other)
    (stranger,) = {*kept.parent.iterdir()} - {kept}
    flipped = ("1" if true[0] == "0" else "0") + true[1:]
    for damage in ("damaged", flipped, true.split()[0], stranger.read_text()):
        kept.write_text(damage)
        assert files.content_digest(path) == whole(b"87654321")
        assert kept.read_text() == true


def test_a_file_that_has_just_changed_is_read_every_time(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SMALL", 4)
    (tmp_path / "large").write_bytes(b"12345678")
    files.content_digest(tmp_path / "large")
    assert not (tmp_path / "cache").exists()


def test_a_record_holds_no_place_and_its_run_opens_all_the_same(tmp_path):
    vectors = tmp_path / "wv.npy"
    size = nclib.data.load("planted", **TINY["data_options"]).vocabulary.size
    np.save(vectors, np.zeros((size, 64), np.float32))
    given = {**TINY, "model": "omit", "model_options": {"word_vectors": str(vectors)}}
    record = nclib.run("plain", **given, out=tmp_path / "out")
    stored = (Path(record.folder) / "record.json").read_text()
    assert str(tmp_path) not in stored
    assert json.loads(stored)["settings"]["model_options"]["word_vectors"] == "wv.npy"
    again = Record.load(Path(record.folder) / "record.json")
    assert again.settings["model_options"]["word_vectors"] == str(vectors)
    assert nclib.open_run(again).dataset.checksum == record.data["checksum"]
    copied = shutil.copy(Path(record.folder) / "record.json", tmp_path / "copy.json")
    assert Record.load(copied).settings["files_sha256"] == again.settings["files_sha256"]


def test_a_run_opens_from_another_folder_and_after_its_files_moved(tmp_path, monkeypatch):
    size = nclib.data.load("planted", **TINY["data_options"]).vocabulary.size
    monkeypatch.chdir(tmp_path)
    np.save("wv.npy", np.zeros((size, 64), np.float32))

    def run(path: str) -> Record:
        given = {**TINY, "model": "omit", "model_options": {"word_vectors": path}}
        return nclib.run("plain", **given, out=tmp_path / "out")

    folder = Path(run("wv.npy").folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert nclib.open_run(Record.load(folder / "record.json")).trainer.networks
    shutil.move(tmp_path / "wv.npy", "moved.npy")
    moved = run("moved.npy")  # the same run, whose files are elsewhere now
    assert Path(moved.folder) == folder
    for record in (moved, Record.load(folder / "record.json")):
        assert nclib.open_run(record).trainer.networks


# -- a finished record is compared with what was asked --------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"settings": {"seed": 1}}, "record of another run, .*differs in seed"),
        ({"data": {"checksum": "0"}}, "differs in data"),
        (
            {"environment": {"commit": "0"}, "kept": ("sha256",)},
            "was changed: its content does not match",
        ),
    ],
)
def test_another_record_is_set_aside_and_made_again(mine, parts, said):
    change(mine, **parts)
    with pytest.warns(UserWarning, match=f"{said}.*renamed to record.json.damaged"):
        again = nclib.run("plain", **TINY, out=Path(mine.folder).parent)
    assert again.metrics == mine.metrics
    assert (Path(mine.folder) / "record.json.damaged").exists()


def test_a_record_in_the_folder_of_another_run_is_set_aside(mine):
    asked = {**TINY, "seed": 1, "out": Path(mine.folder).parent}
    other = nclib.run("plain", **asked)
    shutil.copy(Path(mine.folder) / "record.json", other.folder)
    with pytest.warns(UserWarning, match="is the record of another run.*seed, name"):
        assert nclib.run("plain", **asked).metrics == other.metrics


def test_a_finished_run_is_read_where_nothing_can_be_written(mine, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    folder = Path(mine.folder)
    monkeypatch.setattr(Path, "mkdir", fail)
    assert nclib.run("plain", **TINY, out=folder.parent).metrics == mine.metrics
    with pytest.raises(ValueError, match=f"out='{folder.parent}': .*Permission denied"):
        nclib.run("plain", **TINY, seed=1, out=folder.parent)


# -- a printed n is a number of different runs ----------------------------------------------------------


def test_copies_count_once_and_hidden_ones_are_not_seen(mine, tmp_path):
    folder, stored = tmp_path / "r", Path(mine.folder) / "record.json"
    (folder / ".ipynb_checkpoints").mkdir(parents=True)
    shutil.copy(stored, folder / "a.json")
    shutil.copy(stored, folder / ".ipynb_checkpoints" / "a-checkpoint.json")
    shutil.copy(stored, folder / ".a.json")
    assert len(table(folder)) == 1
    shutil.copy(stored, folder / "b.json")
    with pytest.warns(UserWarning, match=r"b\.json is a run that .*a\.json holds as well"):
        assert [Path(p).name for p in table(folder)["path"]] == ["a.json"]


def test_odd_entries_stop_no_table(mine, tmp_path):
    folder = tmp_path / "r"
    (folder / "x.json").mkdir(parents=True)
    (folder / "y.json").symlink_to("/nowhere")
    (folder / "z.json").write_text("[" * 200_000)
    shutil.copy(Path(mine.folder) / "record.json", folder / "a.json")
    with pytest.warns(UserWarning, match=r"z\.json"):
        assert len(table(folder)) == 1


# -- what changes numbers -------------------------------------------------------------------------------


def test_the_state_of_the_session_changes_no_number_and_comes_back(made, tmp_path):
    matmul = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode(), torch.autocast("cpu"):
            record = nclib.run("plain", **TINY, out=tmp_path)
            assert torch.is_inference_mode_enabled()
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.matmul.fp32_precision = matmul
    assert (record.name, record.metrics) == (made.name, made.metrics)
    assert record.environment["numbers"] == {
        "matmul_precision": "highest",
        "matmul_tf32": False,
        "cudnn_tf32": True,
        "default_dtype": "float32",
    }


def test_a_default_device_of_the_session_is_not_the_runs(made, tmp_path):
    torch.set_default_device("meta")
    try:
        record = nclib.run("plain", **TINY, out=tmp_path)
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)
    assert record.metrics == made.metrics


def test_state_comes_back_after_an_error():
    def fail():
        with machine.numbers_fixed(1):
            torch.set_default_dtype(torch.float64)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_default_dtype() == torch.float32


# -- a run did what its name says -----------------------------------------------------------------------


def test_a_run_of_warm_up_alone_is_refused_on_labels():
    with pytest.raises(ValueError, match=r"epochs=6: all of them would be warm-up \(warmup_epochs=6\)"):
        nclib.resolve("uot_rcl", dataset="planted_category", epochs=6)
    assert nclib.resolve("uot_rcl", dataset="planted_category", epochs=7).schedule.epochs == 7


def test_a_run_of_warm_up_alone_says_so(made, tmp_path):
    record = nclib.run("ncr", **{**TINY, "epochs": 0, "warmup_epochs": 1}, out=tmp_path)
    assert record.remarks == ["warm-up only"]
    assert "; warm-up only: rSum" in str(record)
    assert table(tmp_path)["remarks"].tolist() == ["warm-up only"]
    assert made.remarks == []


def test_a_network_that_never_trained_is_refused(tmp_path):
    tiny = {"n_train": 1, "n_val": 2, "n_test": 2}
    given = {**TINY, "model": "vse", "warmup_epochs": 1, "batch_size": 5, "data_options": tiny}
    with (
        pytest.warns(UserWarning, match="does not train in this epoch"),
        pytest.raises(ValueError, match="no steps for network 0 in all 1 epochs after warm-up"),
    ):
        nclib.run("mscn", **given, out=tmp_path)


def test_the_warnings_of_a_run_are_in_its_record(tmp_path, monkeypatch):
    begin = Plain.begin_epoch

    def warned(self, loop):
        warnings.warn(f"epoch {loop.epoch}: see {tmp_path}/file.txt", stacklevel=2)
        return Steps((), 0) if loop.epoch == 1 else begin(self, loop)

    monkeypatch.setattr(Plain, "begin_epoch", warned)
    with pytest.warns(UserWarning, match="see|no step"):
        record = nclib.run("plain", **{**TINY, "epochs": 2}, out=tmp_path)
    path = Path(record.folder) / "record.json"
    assert record.warnings[:2] == ["epoch 0: see file.txt", "epoch 1: see file.txt"]
    assert "no step was taken in epoch 2" in record.warnings[2]
    assert record.remarks == ["network 0 took no step in 1 of 2 epochs"]
    path.unlink()  # the checkpoint knows them too
    assert nclib.run("plain", **{**TINY, "epochs": 2}, out=tmp_path).warnings == record.warnings
    assert records.Record.load(path).warnings == record.warnings
