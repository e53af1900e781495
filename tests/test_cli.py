"""The command line says what the functions say, and refuses what they refuse."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nclib
from nclib import cli
from nclib.methods.base import METHODS
from nclib.runs.record import Record
from nclib.runs.words import options_of, words_of

SHORT = ["--dataset", "planted", "--model", "vse", "--warmup_epochs", "1", "--epochs", "1"]
TEXT = st.text(min_size=1).filter(lambda s: not s.startswith("--"))
PLAIN = st.one_of(st.booleans(), st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))


@given(
    st.dictionaries(st.sampled_from(["mrate", "lam", "mask"]), PLAIN),
    st.dictionaries(st.sampled_from(["root", "half", "n_train"]), st.one_of(PLAIN, TEXT), min_size=1),
)
def test_words_and_values_are_each_others_inverse(values: dict, options: dict) -> None:
    values = {**values, "data_options": options}
    assert options_of(shlex.split(" ".join(words_of(values))), {}) == values


def test_forms_of_an_option() -> None:
    rules = nclib.runs.experiment_of("l2rm").parameters()
    words = [
        "--mrate",
        ".5",
        "--batch-size=8",
        "--noise_file",
        "1",
        "--data_options.root",
        "/x",
        "--mask",
        "false",
    ]
    assert options_of(words, rules) == {
        "mrate": 0.5,
        "batch_size": 8,
        "noise_file": "1",
        "data_options": {"root": "/x"},
        "mask": False,
    }


def test_a_run_leaves_the_record_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "plain", *SHORT, "--mrate", "0.4", "--out", str(tmp_path), "--data_options.n_train", "64"]
    assert cli.main([*words, "--quiet"]) == 0
    record = Record.load(capsys.readouterr().out.strip())
    assert record.settings["mrate"] == 0.4
    assert record.settings["data_options"] == {"n_train": 64}
    assert cli.main(words) == 0
    assert "already done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "plain", "--mrat", "0.4"], "unknown parameter 'mrat'; did you mean 'mrate'?"),
        (["run", "plain", "--mrate", "2"], "mrate=2: must be a number, at least 0 and at most 1"),
        (["run", "plain", "--mrate", "much"], "mrate='much': must be a number"),
        (["run", "plain", "mrate=0.4"], "'mrate=0.4' is not an option; options are written --name value"),
        (["run", "plain", "--mrate"], "--mrate needs a value: --mrate VALUE"),
        (["run", "plain", "--data_options", "1", "--data_options.n", "2"], "give one"),
        (["run", "plain", "--data_options.n", "2"], "has no option 'n'"),
        (
            ["run", "plain", "--model_options.dropou", "0"],
            "'saf' has no option 'dropou'; did you mean 'dropout'?",
        ),
        (["run", "uot_rcl", "--mrate", "0.4"], "unknown parameter 'mrate'"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("words", [["nonsense"], ["run", "nonsense"], ["data", "nonsense"]])
def test_unknown_words_end_with_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage: nclib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "l2rn"], "argument METHOD: 'l2rn': must be one of bicro, "),
        (["run", "zzzz"], "; import the file that registers it first (nclib run --import FILE)"),
        (["run", "l2rn"], "; did you mean 'l2rm'?"),
        (["rum"], "must be one of run, combine, audit, data, records, list, doctor; did you mean 'run'?"),
        (["run", "plain", "--model", "sgrr"], "; did you mean 'sgr'?"),
        (["run", "plain", "--dataset", "emojy"], "; did you mean 'emoji'?"),
        (["run", "plain", "--dataset", "nothing-like-it"], "; import the file that registers another one"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert said in " ".join(capsys.readouterr().err.split())


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
    assert "learning rate of Adam; a number, above 0" in shown


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert all(f"\n  {name} " in shown for name in cli.COMMANDS)


def test_the_catalogues_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for names in (nclib.methods.available(), nclib.models.available(), nclib.label_noise.available()):
        assert all(f"\n{name} " in shown for name in names)


def test_doctor_finds_what_runs_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "bundled data          as shipped" in shown
    assert all(line.startswith("ok  ") for line in shown.splitlines())
    assert cli.main(["doctor", str(tmp_path)]) == 1
    assert "NO  papers' data" in capsys.readouterr().out


def test_doctor_names_a_package_that_is_too_old(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("nclib.doctor.requires", lambda _: ["torch>=99", "nosuchthing>=1; extra == 'book'"])
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "NO  packages              lacks torch>=99" in shown
    assert "ok  extra book            lacks nosuchthing>=1" in shown


@pytest.mark.slow
def test_it_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "nclib", "list"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "l2rm" in done.stdout


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
    monkeypatch.setitem(cli.COMMANDS, "list", cli.Command("", Mock(side_effect=error)))
    assert cli.main(["list"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("words", "goes_on"), [(["run"], True), (["list"], False)])
def test_only_runs_go_on_after_ctrl_c(words: list[str], goes_on: bool, monkeypatch, capsys) -> None:
    monkeypatch.setitem(cli.COMMANDS, words[0], cli.Command("", Mock(side_effect=KeyboardInterrupt)))
    assert cli.main(words) == cli.INTERRUPTED
    said = capsys.readouterr().err
    assert said.startswith("stopped")
    assert ("continues from the last finished epoch" in said) == goes_on


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


@pytest.mark.parametrize("text", ["False", "false", "FALSE", "no", "No"])
def test_false_is_false_wherever_it_stands(text: str) -> None:
    rules = nclib.runs.experiment_of("l2rm").parameters()
    words = ["--mask", text, "--model_options.unit_fragments", text, "--data_options.half=" + text]
    expected = {"mask": False, "model_options": {"unit_fragments": False}, "data_options": {"half": False}}
    assert options_of(words, rules) == expected


def test_true_is_true_and_text_stays_text() -> None:
    rules = nclib.runs.experiment_of("l2rm").parameters()
    words = [
        "--mask",
        "Yes",
        "--data_options.half",
        "True",
        "--data_options.root",
        "not",
        "--noise_file",
        "no",
    ]
    expected = {"mask": True, "data_options": {"half": True, "root": "not"}, "noise_file": "no"}
    assert options_of(words, rules) == expected
    assert options_of(["--model_options.mask_ratio", "None"], rules) == {
        "model_options": {"mask_ratio": None}
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model_options.unit_fragments", "maybe"], "unit_fragments='maybe': must be True or False"),
        (["--model_options.embed_dim", "wide"], "model_options: embed_dim='wide': must be a whole number"),
        (["--data_options.n_train", "abc"], "data_options: n_train='abc': must be a whole number"),
        (["--data_options.n_train", "10.5"], "data_options: n_train=10.5: must be a whole number"),
        (["--dataset", "f30k", "--data_options.half", "maybe"], "half='maybe': must be True or False"),
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
    words = [
        "run",
        "--import",
        str(tmp_path / f"{name}.py"),
        name,
        "--out",
        str(tmp_path / "runs"),
        "--quiet",
    ]
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
