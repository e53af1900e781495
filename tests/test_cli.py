"""The command line says what the functions say, and refuses what they refuse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from unittest.mock import Mock

import pytest

import nclib
from nclib import cli
from nclib.methods.base import METHODS
from nclib.runs.record import Record

SHORT = ["--dataset", "planted", "--model", "vse", "--warmup_epochs", "1", "--epochs", "1"]


def test_a_run_leaves_the_record_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "plain", *SHORT, "--mrate", "0.4", "--out", str(tmp_path), "--data_options.n_train", "64"]
    assert cli.main([*words, "--quiet"]) == 0
    record = Record.load(capsys.readouterr().out.strip())
    assert record.settings["mrate"] == 0.4
    assert record.settings["data_options"] == {"n_train": 64}
    assert cli.main(words) == 0
    done, result, path = capsys.readouterr().out.splitlines()
    assert done.startswith("already done on ")
    assert result == str(record)
    assert Path(path) == Path(record.folder) / "record.json"


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_every_command_explains_itself(name, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: nclib {name}".rstrip())
    assert len(shown.splitlines()) > 3
    assert name or all(f"\n  {command} " in shown for command in cli.COMMANDS)


@pytest.mark.parametrize("method", ["l2rm", "uot_rcl"])
def test_help_on_a_method_lists_its_parameters(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", method, "--help"]) == 0
    shown = capsys.readouterr().out
    known = nclib.runs.experiment_of(method).parameters()
    assert all(f"--{name} " in shown for name in known)
    assert re.search(r"learning rate; a number, above 0", shown)


def test_the_catalogues_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for names in (nclib.methods.available(), nclib.models.available(), nclib.label_noise.available()):
        assert all(f"\n{name} " in shown for name in names)
    assert cli.main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["methods", "label_noise", "models", "data", "categories"]
    assert found["models"]["vse"] == nclib.models.available()["vse"]


def test_the_version_is_printed_and_a_command_is_needed(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"nclib {nclib.__version__}\n"
    assert cli.main([]) == 2
    assert "audit" in capsys.readouterr().err


def test_doctor_finds_what_runs_need(capsys, monkeypatch) -> None:
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "bundled data          as shipped" in shown
    assert all(line.startswith(("ok  ", "-   extra ")) for line in shown.splitlines())
    monkeypatch.setattr("nclib.doctor.requires", lambda _: ["torch>=99", "nosuchthing>=1; extra == 'book'"])
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert re.search("NO  packages .*torch>=99[\\s\\S]*-   extra book .*nosuchthing>=1", shown)


@pytest.mark.parametrize("error", [EOFError, zipfile.BadZipFile, zlib.error, ImportError])
def test_damaged_files_and_missing_packages_end_as_a_line(error, monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "list", Mock(side_effect=error("what is wrong")))
    assert cli.main(["list"]) == 2
    said = capsys.readouterr().err
    assert "what is wrong" in said
    assert ("a file is damaged or cut off" in said) == (error is not ImportError)


@pytest.mark.slow
@pytest.mark.parametrize("buffered", [True, False])  # written when the command ends, or line by line
def test_a_reader_that_goes_away_ends_a_command_quietly(buffered: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, *([] if buffered else ["-u"]), "-m", "nclib", "list"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (cli.UNREAD, b"")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model_options.finetune", "maybe"], "finetune='maybe': must be True or False"),
        (["--data_options.n_train", "10.5"], "data_options: n_train=10.5: must be a whole number"),
        (["--dataset", "f30k", "--data_options.root", "2024"], "root=2024: must be a path as text, such as"),
    ],
)
def test_options_of_another_type_are_refused_before_work(words, said, tmp_path, capsys) -> None:
    assert cli.main(["run", "plain", *SHORT, *words, "--out", str(tmp_path / "runs")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


OWN = """
from nclib.methods import Method, register
from nclib.methods.plain import Plain, PlainOptions

@register("{name}", summary="plain training under another name")
class Own(Plain):
    Options = PlainOptions
"""


def test_a_file_of_ones_own_is_imported_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    name = "plain_of_mine"
    (tmp_path / f"{name}.py").write_text(OWN.format(name=name))
    file, out = str(tmp_path / f"{name}.py"), str(tmp_path / "runs")
    words = ["run", "--import", file, name, "--out", out, "--quiet"]
    try:
        assert cli.main([*words, *SHORT]) == 0
        assert json.loads(Path(capsys.readouterr().out.strip()).read_text())["settings"]["method"] == name
        assert cli.main([*words, *SHORT]) == 0  # the same file again
        other = tmp_path / "other" / f"{name}.py"
        other.parent.mkdir()
        other.write_text("")
        assert cli.main(["run", "--import", str(other), name]) == 2
        assert f"{name!r} is the name of another module" in capsys.readouterr().err
    finally:
        METHODS.remove(name)
        sys.modules.pop(name, None)
    assert cli.main(["run", "--import", "nowhere.py", "plain"]) == 2
    assert "import nowhere.py: must be a Python file" in capsys.readouterr().err


def test_a_dry_run_says_what_the_run_would_do_and_knows_a_finished_one(tmp_path, capsys) -> None:
    size = ["--dataset", "planted", "--model", "bow", "--mrate", "0.4", "--warmup_epochs", "1"]
    words, out = ["run", "ncr", *size, "--epochs", "3", "--data_options.n_train", "80"], tmp_path / "runs"
    assert cli.main([*words, "--dry-run", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"steps +at most 104, in 4 epochs of 400 pairs", shown)  # 13 of each network in an epoch
    assert cli.main([*words, "--dry-run", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["pairs"], found["steps"]) == ("new", 400, 104)
    assert found["settings"]["method_options"]["threshold"] == 0.5
    assert not out.exists()
    given = {"dataset": "planted", "model": "bow", "mrate": 0.4, "warmup_epochs": 1, "epochs": 1}
    record = nclib.run("plain", **given, data_options={"n_train": 40}, out=out, progress=False)
    words = ["run", "plain", *size, "--epochs", "1", "--data_options.n_train", "40", "--out", str(out)]
    assert cli.main([*words, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["folder"]) == ("done", record.folder)
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == record.metrics
