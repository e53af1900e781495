"""Random transport problems, the first of those that the benchmark draws."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "book" / "bench"


@pytest.mark.exhaustive
def test_random_problems_have_no_fault(tmp_path: Path) -> None:
    words = ["--problems", "100", "--out", str(tmp_path / "found.json")]
    subprocess.run([sys.executable, BENCH / "ot_fuzz.py", *words], check=True)
    found = json.loads((tmp_path / "found.json").read_text("utf8"))
    assert found["faults"] == 0
    assert found["problems"] == sum(found["counts"].values()) == 100
    assert found["counts"]["converged"] > 85
    assert found["commit"]
