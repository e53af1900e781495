"""The benchmark of the similarity runs, agrees with the loop, and writes a complete record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "book" / "bench" / "similarity.py"
MODELS = ["saf", "scan", "vse"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_record_of_a_tiny_run(tmp_path):
    out = tmp_path / "similarity.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--sizes", "tiny", "--models", *MODELS, "--out", str(out)],
        check=True,
        capture_output=True,
        text=True,
    )
    record = json.loads(out.read_text())
    assert [(row["model"], row["size"]) for row in record["rows"]] == [(name, "tiny") for name in MODELS]
    *compared, alone = record["rows"]
    assert all(row["score_difference"] < 5e-6 for row in compared)
    assert "loop" not in alone
    assert alone["nclib"]["step"] > 0
    assert record["machine"]["threads"] == 1
    assert {"torch", "numpy"} <= set(record["machine"]["versions"])
    assert "memory_ratio" in done.stdout
    assert list(tmp_path.iterdir()) == [out]
