"""Random cases of ``make fuzz``: some of each quick kind, and a fault that is found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fuzz
import pytest

import nclib


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["solvers", "slopes", "measures"])
def test_a_round_finds_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path))
    assert fuzz.main(["--only", f"{kind}:1"]) == 0


def test_a_fault_is_shrunk_and_printed_with_the_command_that_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = nclib.evaluation.recall

    def wrong(similarity: Any, captions: int, **how: Any) -> dict[str, float]:
        found = right(similarity, captions, **how)
        return {**found, "i2t_r1": found["i2t_r1"] + (len(similarity) > 2)}

    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path))
    monkeypatch.setattr(nclib.evaluation, "recall", wrong)
    assert fuzz.main(["--only", "measures", "--minutes", "0", "--seed", "3"]) == 1
    first = capsys.readouterr().out
    (again,) = re.findall(r"Again: make fuzz ONLY=(measures:\d+)\n", first)
    (shown,) = re.findall(r"AssertionError: i2t_r1 is .*", first.partition("FAULT")[0])
    assert "checked(\n    case={" in first
    assert re.search(r"measures: [\d,]+ cases in .*\n  FAULT in 1 rounds", first)
    assert fuzz.main(["--only", again]) == 1
    assert shown in capsys.readouterr().out


def test_a_kind_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fuzz.main(["--only", "plans"])
    assert "give one of solvers, slopes, measures, files, kills" in capsys.readouterr().err
