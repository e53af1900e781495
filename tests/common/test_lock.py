"""The lock of a folder."""

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
    (tmp_path / "a" / ".x.part").write_text("half")
    (tmp_path / "a" / "rows.npy.part").write_text("goes on")  # of a writer that continues
    with sole_writer(tmp_path):
        assert (tmp_path / ".lock").read_text().lstrip("\0").startswith(f"process {os.getpid()} on ")
        assert [path.name for path in tmp_path.rglob("*.part")] == ["rows.npy.part"]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/run"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises((ValueError, OSError)), sole_writer(tmp_path / name):
        pass


def test_a_folder_in_which_nothing_was_written_is_removed(tmp_path):
    with sole_writer(tmp_path / "full"):
        (tmp_path / "full" / "a").write_text("a")
    with pytest.raises(OSError, match="no data"), sole_writer(tmp_path / "empty"):
        raise OSError("no data")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
