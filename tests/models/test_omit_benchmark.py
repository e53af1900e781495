"""The benchmark of OMIT's matching types runs and writes a complete record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "book" / "bench" / "omit.py"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_record_of_a_tiny_run(tmp_path):
    out = tmp_path / "omit.json"
    command = [sys.executable, str(SCRIPT), "--sizes", "tiny", "--out", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    record = json.loads(out.read_text())
    rows = {row["candidate"]: row for row in record["rows"]}
    assert {"vse", "cam", "partial_ot", "scan"} <= set(rows)
    assert all(row["scoring_s"] > 0 and row["step_s"] > 0 for row in rows.values())
    assert rows["cam"]["scoring_to_cam"] == rows["vse"]["step_to_vse"] == 1
    assert record["machine"]["threads"] == 1
    assert record["commit"]
    assert record["sizes"]["tiny"]["test"] == [5, 10]
    assert "partial_ot" in done.stdout
