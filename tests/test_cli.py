"""The command line says what the functions say, and refuses what they refuse."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nclib
from nclib import cli
from nclib._words import options_of, words_of
from nclib.records import Record

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
    rules = nclib.experiment.parameters("l2rm")
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
        (["run", "plain", "mrate=0.4"], "'mrate=0.4' is no option; they are written --name value"),
        (["run", "plain", "--mrate"], "--mrate needs a value: --mrate VALUE"),
        (["run", "plain", "--data_options", "1", "--data_options.n", "2"], "take one"),
        (["run", "plain", "--data_options.n", "2"], "has no option 'n'"),
        (
            ["run", "plain", "--model_options.dropou", "0"],
            "'saf' has no option 'dropou'; did you mean 'dropout'?",
        ),
        (["run", "uot_rcl", "--mrate", "0.4"], "unknown parameter 'mrate'"),
        (["table", "L2RM", "99"], "no table '99' of 'L2RM'"),
        (["rerun", "L2RM", "6", "--rate", "0.5"], "'0.2', '0.4', '0.6', '0.8'"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    "words", [["nonsense"], ["run", "nonsense"], ["data", "nonsense"], ["claims", "--nonsense"]]
)
def test_unknown_words_end_with_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage: nclib" in capsys.readouterr().err


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
    known = (nclib.category if method == "uot_rcl" else nclib.experiment).parameters(method)
    assert all(f"--{name} " in shown for name in known)


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert all(f"\n  {name} " in shown for name in cli.COMMANDS)


def test_a_table_shows_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", "UOT-RCL", "IV", "--csv", str(tmp_path / "table.csv")]) == 0
    shown = capsys.readouterr().out
    printed = nclib.records.printed("category_map", paper="UOT-RCL", table="IV")
    assert all(value in shown for value in printed["map"])
    assert len((tmp_path / "table.csv").read_text().splitlines()) == len(printed) + 1
    assert cli.main(["table", "UOT-RCL", "IV", "--bundled", "--folder", str(tmp_path)]) == 0
    assert "no record" in capsys.readouterr().out
    assert cli.main(["table", "REPAIR", "VI", "--bundled"]) == 1
    assert "REPAIR, Table VI has no counterpart on the bundled data" in capsys.readouterr().out


def test_the_catalogues_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for names in (nclib.methods.available(), nclib.models.available(), nclib.category.available()):
        assert all(f"\n{name} " in shown for name in names)


def test_doctor_finds_what_runs_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "bundled data          as shipped" in shown
    assert all(line.startswith("ok  ") for line in shown.splitlines())
    assert cli.main(["doctor", str(tmp_path)]) == 1
    assert "NO  papers' data" in capsys.readouterr().out


def test_doctor_names_a_package_that_is_too_old(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("nclib._doctor.requires", lambda _: ["torch>=99", "nosuchthing>=1; extra == 'book'"])
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "NO  packages              lacks torch>=99" in shown
    assert "ok  extra book            lacks nosuchthing>=1" in shown


def test_it_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "nclib", "list"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "l2rm" in done.stdout
