"""The environment is made once."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tempfile
from pathlib import Path

import make_env
import pytest


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands in place of running them; an environment leaves its files, torch is for CPUs."""
    seen: list[list[str]] = []

    def call(command: list[str], **how: int) -> int:
        seen.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.write_text("", "utf8")
            (Path(command[-1]) / "pyvenv.cfg").write_text("", "utf8")
        return int(command[-1] in (make_env.HAS_TORCH, make_env.NEEDS_CUDA))

    monkeypatch.setattr(subprocess, "call", call)
    return seen


def test_the_second_call_installs_nothing(tmp_path: Path, calls: list[list[str]]) -> None:
    venv = tmp_path / "with space" / ".venv"
    make_env.make(venv)
    done = ["".join(word for word in ("venv", "install", "check") if word in c) for c in calls]
    assert done == ["venv", "", "install", "install", "", "install", "install", "check"]
    locks = [call[-1] for call in calls if "--require-hashes" in call]
    assert locks == [str(make_env.CPU), str(make_env.LOCK)]
    assert [call[-1] for call in calls[5:7]] == [str(project) for project in make_env.PROJECTS]
    assert all("--no-deps" in call for call in calls[5:7])
    make_env.make(venv)
    assert len(calls) == 8


@pytest.mark.parametrize("there", [False, True])
def test_torch_for_gpus_gets_its_libraries_by_digest_and_stays_where_it_is_there(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []

    def call(command: list[str], **how: int) -> int:
        seen.append(command)
        return int(command[-1] in (str(make_env.CPU), make_env.HAS_TORCH) and not there)

    monkeypatch.setattr(subprocess, "call", call)
    make_env.install("python")
    locks = [command[-1] for command in seen if "--require-hashes" in command]
    assert locks == [*([] if there else [str(make_env.CPU)]), str(make_env.LOCK), str(make_env.CUDA)]
    assert ("taking that of the index" in capsys.readouterr().out) == (not there)


def test_a_new_lock_installs_again_and_a_moved_environment_is_made_again(
    tmp_path: Path, calls: list[list[str]]
) -> None:
    make_env.make(tmp_path / "a")
    note = tmp_path / "a" / make_env.NOTE
    note.write_text(json.dumps({**json.loads(note.read_text("utf8")), "key": "older"}), "utf8")
    make_env.make(tmp_path / "a")
    assert [sum(word in call for call in calls) for word in ("venv", "install")] == [1, 8]
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(FileExistsError):  # the stand-in for venv makes the folder again
        make_env.make(tmp_path / "b")
    assert calls[-1][-2:] == ["--clear", str(tmp_path / "b")]


@pytest.mark.parametrize("theirs", [None, *make_env.PROJECTS])
def test_a_folder_that_is_not_ours_is_named_and_left_alone(
    theirs: Path | None, tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights are refused by a stand-in: for root, every folder can be written."""
    place = theirs or tmp_path / ".venv"

    def refuse(dir: Path) -> io.BytesIO:
        if dir == place:
            raise PermissionError(13, "Permission denied", str(dir))
        return io.BytesIO()

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(SystemExit, match=re.escape(str(place))):
        make_env.make(tmp_path / ".venv")
    (tmp_path / "notes.txt").write_text("mine", "utf8")
    with pytest.raises(SystemExit, match=f"{tmp_path} is not"):
        make_env.make(tmp_path)
    assert calls == []
