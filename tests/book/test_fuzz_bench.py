"""Random transport problems, the first of those that the benchmark draws."""

import json
import sys
from pathlib import Path

import pytest
from bench import ot_fuzz


@pytest.mark.exhaustive
def test_random_problems_have_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--problems", "100", "--out", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", ["ot_fuzz.py", *words])
    assert ot_fuzz.main() == 0
    found = json.loads((tmp_path / "found.json").read_text("utf8"))
    assert found["faults"] == 0
    assert found["problems"] == sum(found["counts"].values()) == 100
    assert found["counts"]["converged"] > 85
    assert found["commit"]
