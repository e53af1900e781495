"""The benchmark of the similarity runs, agrees with the loop, and writes a complete record."""

import json
import sys

import pytest
from bench import similarity

MODELS = ["scan", "vse"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_record_of_a_tiny_run(tmp_path, monkeypatch, capsys):
    out = tmp_path / "similarity.json"
    words = ["--sizes", "tiny", "--models", *MODELS, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["similarity.py", *words])
    similarity.main()
    record = json.loads(out.read_text())
    assert [(row["model"], row["size"]) for row in record["rows"]] == [(name, "tiny") for name in MODELS]
    compared, alone = record["rows"]
    assert compared["score_difference"] < 5e-6
    assert "loop" not in alone
    assert alone["nclib"]["step"] > 0
    assert record["machine"]["threads"] == 1
    assert {"torch", "numpy"} <= set(record["machine"]["versions"])
    assert "memory_ratio" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]
