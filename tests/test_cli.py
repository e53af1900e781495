"""The command line says what the functions say, and refuses what they refuse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from ncbook import cli as book

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


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: nclib {name}")
    assert len(shown.splitlines()) > 3


@pytest.mark.parametrize("method", ["l2rm", "uot_rcl"])
def test_help_on_a_method_lists_its_parameters(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", method, "--help"]) == 0
    shown = capsys.readouterr().out
    known = nclib.runs.experiment_of(method).parameters()
    assert all(f"--{name} " in shown for name in known)
    assert re.search(r"learning rate; a number, above 0", shown)


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert all(f"\n  {name} " in shown for name in cli.COMMANDS)


def test_the_catalogues_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for names in (nclib.methods.available(), nclib.models.available(), nclib.label_noise.available()):
        assert all(f"\n{name} " in shown for name in names)
    assert cli.main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["methods", "label_noise", "models", "data", "categories"]
    assert found["models"]["vse"] == nclib.models.available()["vse"]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"nclib {nclib.__version__}\n"


def test_doctor_finds_what_runs_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "bundled data          as shipped" in shown
    assert all(line.startswith(("ok  ", "-   extra ")) for line in shown.splitlines())
    assert cli.main(["doctor", str(tmp_path)]) == 1
    assert "NO  papers' data" in capsys.readouterr().out


def test_doctor_names_a_package_that_is_too_old(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("nclib.doctor.requires", lambda _: ["torch>=99", "nosuchthing>=1; extra == 'book'"])
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "NO  packages              lacks torch>=99" in shown
    assert "-   extra book            lacks nosuchthing>=1" in shown


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EOFError("No data left in file"), "a file is damaged or cut off (No data left in file)"),
        (zipfile.BadZipFile("File is not a zip file"), "a file is damaged or cut off (File is not a zip"),
        (zlib.error("Error -3"), "a file is damaged or cut off (Error -3)"),
        (ImportError("files in HDF5 need the package h5py"), "nclib: files in HDF5 need the package h5py"),
    ],
)
def test_damaged_files_and_missing_packages_end_as_a_line(error: Exception, said: str, monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "list", ("", Mock(side_effect=error)))
    assert cli.main(["list"]) == 2
    assert said in capsys.readouterr().err


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
        (["--model_options.unit_fragments", "maybe"], "unit_fragments='maybe': must be True or False"),
        (["--data_options.n_train", "10.5"], "data_options: n_train=10.5: must be a whole number"),
        (["--dataset", "f30k", "--data_options.root", "2024"], "root=2024: must be a path as text, such as"),
    ],
)
def test_options_of_another_type_are_refused_before_work(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        assert cli.main(words) == 2
        assert "is the name of another module" in capsys.readouterr().err
    finally:
        METHODS.remove(name)
        sys.modules.pop(name, None)
    assert cli.main(["run", "--import", "nowhere.py", "plain"]) == 2
    assert "--import nowhere.py: must be a Python file" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------- finished runs


def tiny(out: Path, method: str, **values) -> Record:
    size = {"dataset": "planted", "model": "bow", "epochs": 1, "warmup_epochs": 1, "mrate": 0.4}
    size |= {"data_options": {"n_train": 40}, "out": out, "progress": False}
    return nclib.run(method, **{**size, **values})


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Record, Record]:
    out = tmp_path_factory.mktemp("runs")
    return tiny(out, "ncr"), tiny(out, "plain")


def test_a_run_is_shown(runs, capsys) -> None:
    record = runs[0]
    assert cli.main(["show", record.folder]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"{record}\n\nnoise     {record.noise['description']}\nepochs    2, tested: {record.best_epoch}, "
        f"selected on validation\nseconds   {record.cost['seconds']:g} of training on "
    )
    assert f"\nfolder    {record.folder}\nwarnings  none\n" in shown
    settings = dict(line.split() for line in shown.partition("settings\n")[2].splitlines())
    assert (settings["mrate"], settings["method_options.threshold"]) == ("0.4", "0.5")
    assert cli.main(["show", f"{record.folder}/record.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("folder") == record.folder
    stored = json.loads(Path(record.folder, "record.json").read_text())
    assert found == {name: value for name, value in stored.items() if name != "sha256"}


def test_warnings_of_a_run_are_shown(runs, tmp_path, capsys) -> None:
    path = replace(runs[0], warnings=["first", "second"]).save(tmp_path / "one.json")
    assert cli.main(["show", str(path)]) == 0
    assert "warnings  first\n          second\n" in capsys.readouterr().out


def test_runs_are_compared(runs, capsys) -> None:
    one, two = runs
    words = ["compare", one.folder, two.folder]
    assert cli.main(words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == [["A", one.name], ["B", two.name]]
    assert ["method", "ncr", "plain"] in rows
    assert not {"mrate", "seed", "data", "code"} & {row[0] for row in rows if row}
    a, b = (record.metrics["test"]["rsum"] for record in runs)
    assert rows[-1] == ["rsum", f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}"]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["method"] == ["ncr", "plain"]
    assert found["test"]["t2i_r1"]["values"] == [record.metrics["test"]["t2i_r1"] for record in runs]
    assert found["test"]["rsum"]["differences"] == [b - a]


def test_other_data_are_not_compared_in_silence(runs, tmp_path, capsys) -> None:
    other = tiny(tmp_path, "ncr", data_options={"n_train": 48})
    assert cli.main(["compare", runs[0].folder, other.folder]) == 0
    shown = capsys.readouterr().out
    assert ["data_options.n_train", "40", "48"] in [line.split() for line in shown.splitlines()]
    assert shown.endswith("The runs have different data; their results cannot be compared.\n")


def test_pairs_are_listed_and_written(runs, tmp_path, capsys) -> None:
    record, file = runs[0], tmp_path / "pairs.csv"
    pairs = nclib.load(record).pairs()
    assert cli.main(["pairs", record.folder, "--worst", "3"]) == 0
    head, _, names, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"200 training pairs, {(pairs['p_clean'] < 0.5).sum()} of them")
    assert names.split() == ["caption", "image", "p_clean", "text"]
    order = pairs["p_clean"].argsort(kind="stable")[:3]
    assert [int(row.split()[0]) for row in rows] == order.tolist()
    assert rows[0].endswith(pairs["text"][order[0]])
    assert cli.main(["pairs", record.folder, "--csv", str(file)]) == 0
    assert file.read_text() == pairs.to_csv(index=False)
    assert cli.main(["pairs", record.folder, "--csv", str(file), "--worst", "3"]) == 0
    assert file.read_text() == pairs.loc[order].to_csv(index=False)
    assert cli.main(["pairs", runs[1].folder]) == 2
    assert "'plain' keeps no probability" in capsys.readouterr().err


def test_pictures_are_searched(runs, capsys) -> None:
    model = nclib.load(runs[0])
    text = model.told[7]
    assert cli.main(["search", runs[0].folder, text, "--top", "2"]) == 0
    names, *rows = capsys.readouterr().out.splitlines()
    assert names.split() == ["image", "score", "caption"]
    best = model.score(model.images, text)[:, 0].argsort()[::-1][:2]
    assert [int(row.split()[0]) for row in rows] == best.tolist()
    assert [row.endswith(model.told[i]) for i, row in zip(best, rows, strict=True)] == [True, True]


def test_words_that_a_model_does_not_know_are_said(runs, capsys) -> None:
    assert cli.main(["search", runs[0].folder, "concept1a zzzqq"]) == 0
    assert capsys.readouterr().err.startswith("note: not in the model's vocabulary: 'zzzqq';")
    assert cli.main(["search", runs[0].folder, "zzzqq"]) == 2
    assert "captions, has no word of 'zzzqq'; take words" in capsys.readouterr().err


def test_every_command_of_the_book_is_known(capsys) -> None:
    with pytest.raises(SystemExit):
        book.main(["--help"])
    said = capsys.readouterr().out
    assert all(f"\n    {name} " in said for name in cli.OF_THE_BOOK)
    assert len(re.findall(r"^    \w+ ", said, re.MULTILINE)) == len(cli.OF_THE_BOOK)


@pytest.mark.parametrize("command", ["show", "pairs"])
def test_what_is_no_run_is_said(command: str, runs, tmp_path, capsys) -> None:
    folder = Path(runs[0].folder)
    assert cli.main([command, f"{folder}x"]) == 2
    assert f"there is no such run; did you mean '{folder.name}'?" in capsys.readouterr().err
    assert cli.main([command, str(tmp_path)]) == 2
    assert "record.json" in capsys.readouterr().err
    (tmp_path / "checkpoint.safetensors").touch()
    assert cli.main([command, str(tmp_path)]) == 2
    assert "the run has not finished" in capsys.readouterr().err


@pytest.mark.parametrize("n", [1, 27])
def test_a_comparison_needs_some_runs(n: int, runs, capsys) -> None:
    assert cli.main(["compare", *[runs[0].folder] * n]) == 2
    assert f"{n} runs: give 2 to 26 of them" in capsys.readouterr().err


def test_runs_of_two_tasks_are_not_compared(runs, tmp_path, capsys) -> None:
    small = {"n_train": 120, "n_val": 40, "n_test": 40}
    how = {"dataset": "planted_category", "data_options": small, "out": tmp_path, "progress": False}
    labels = nclib.run("mcca", **how)
    assert cli.main(["show", labels.folder]) == 0
    assert str(labels) in capsys.readouterr().out
    assert cli.main(["compare", runs[0].folder, labels.folder]) == 2
    assert "not all runs on pairs, or all on labels" in capsys.readouterr().err


BOW = ["--dataset", "planted", "--model", "bow", "--mrate", "0.4", "--warmup_epochs", "1"]


def test_a_dry_run_says_what_the_run_would_do(runs, tmp_path, capsys) -> None:
    words = ["run", "ncr", *BOW, "--epochs", "3", "--data_options.n_train", "80", "--dry-run"]
    assert cli.main([*words, "--out", str(tmp_path / "none")]) == 0
    shown = capsys.readouterr().out
    assert "no estimate: " in shown
    assert "steps   at most 104, in 4 epochs of 400 pairs" in shown  # 13 of each network in an epoch
    assert not (tmp_path / "none").exists()
    out = str(Path(runs[0].folder).parent)
    assert cli.main([*words, "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["pairs"], found["runs"]) == ("new", 400, 1)
    assert found["seconds"] == pytest.approx(4 * runs[0].cost["seconds"], abs=0.1)  # twice pairs and epochs
    assert found["settings"]["method_options"]["threshold"] == 0.5
    assert not Path(found["folder"]).exists()


def test_a_dry_run_knows_a_finished_one(runs, capsys) -> None:
    out = str(Path(runs[1].folder).parent)
    words = ["run", "plain", *BOW, "--epochs", "1", "--data_options.n_train", "40", "--out", out]
    assert cli.main([*words, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["folder"]) == ("done", runs[1].folder)
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == runs[1].metrics
