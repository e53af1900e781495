"""The command ``ncbook`` says what the functions say, and refuses what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ncbook import cli, printed

import nclib


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table", "L2RM", "99"], "no table '99' of 'L2RM'"),
        (["rerun", "L2RM", "6", "--rate", "0.5"], "'0.2', '0.4', '0.6', '0.8'"),
        (["rerun", "L2RM", "6", "--seeds", "-2"], "seeds=-2: must be an integer, at least 1"),
        (["claims", "--folder", "/nothere"], "'/nothere' is no folder of records, no table, and no record"),
        (["claims", "--folder", __file__], "test_commands.py is not a record"),
        (["table", "L2RM", "6", "--folder", "/nothere"], "'/nothere' is no folder"),
    ],
)
def test_wrong_calls_say_what_is_wrong(words, said, capsys):
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("words", [[], ["nonsense"], ["claims", "--nonsense"], ["table", "L2RM"]])
def test_unknown_words_end_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage: ncbook" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["table", "claims", "rerun"])
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: ncbook {name}")


def test_a_table_shows_its_values(tmp_path, capsys):
    assert cli.main(["table", "UOT-RCL", "IV", "--csv", str(tmp_path / "table.csv")]) == 0
    shown = capsys.readouterr().out
    values = printed("category_map", paper="UOT-RCL", table="IV")
    assert all(value in shown for value in values["map"])
    assert len((tmp_path / "table.csv").read_text().splitlines()) == len(values) + 1
    assert cli.main(["table", "UOT-RCL", "IV", "--bundled", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "no record" in shown.out
    assert f"no record of a run below {tmp_path}" in shown.err
    assert cli.main(["table", "REPAIR", "VI", "--bundled"]) == 1
    assert "REPAIR, Table VI has no counterpart on the bundled data" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "goes_on"), [(["rerun", "L2RM", "6", "--run"], True), (["claims"], False)])
def test_only_runs_go_on_after_ctrl_c(words, goes_on, monkeypatch, capsys):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nclib, "run", stop, raising=False)
    monkeypatch.setattr("ncbook.load_runs", stop)
    assert cli.main(words) == cli.INTERRUPTED
    said = capsys.readouterr().err
    assert said.startswith("stopped")
    assert ("continues from the last finished epoch" in said) == goes_on


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_quietly(tmp_path: Path):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "ncbook", "rerun", "L2RM", "6"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (cli.UNREAD, b"")
