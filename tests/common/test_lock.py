"""The lock of a folder."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from nclib.common.lock import sole_writer

HOLDER = """
import sys, time
from pathlib import Path
from nclib.common.lock import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


def test_a_held_folder_is_refused_and_its_holder_named(tmp_path, holder):
    with pytest.raises(RuntimeError, match=f"written by process {holder.pid} on .*; wait for it"):  # noqa: SIM117
        with sole_writer(tmp_path):
            pass


def test_the_lock_ends_with_its_process(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.part").write_text("half")
    with sole_writer(tmp_path):
        assert (tmp_path / ".lock").read_text().lstrip("\0").startswith(f"process {os.getpid()} on ")
        assert not list(tmp_path.rglob("*.part"))


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuses)
    with pytest.warns(UserWarning, match=r"\.lock lies on a file system without locks"):  # noqa: SIM117
        with sole_writer(tmp_path):
            assert (tmp_path / ".lock").exists()


def test_an_error_of_the_lock_itself_is_not_hidden(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", broken)
    with pytest.raises(OSError, match="Input/output"):  # noqa: SIM117
        with sole_writer(tmp_path):
            pass


def test_a_folder_in_which_nothing_was_written_is_removed(tmp_path):
    with sole_writer(tmp_path / "full"):
        (tmp_path / "full" / "a").write_text("a")
    with pytest.raises(OSError, match="no data"), sole_writer(tmp_path / "empty"):
        raise OSError("no data")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_lock_that_its_last_holder_removed_is_not_taken(tmp_path, monkeypatch):
    def removes(file):
        (tmp_path / ".lock").unlink()
        return True

    monkeypatch.setattr("nclib.common.lock.take", removes)
    with pytest.raises(RuntimeError, match="is being written by"), sole_writer(tmp_path):
        pass
