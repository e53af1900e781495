"""How near the limit: the benchmark at small sizes."""

import json
import sys

import pytest
from bench import limits as benchmark


@pytest.mark.exhaustive
def test_the_benchmark_at_small_sizes(tmp_path, monkeypatch):
    out = tmp_path / "limits.json"
    monkeypatch.setattr(sys, "argv", ["limits.py", "--small", "--turns", "1", "--out", str(out)])
    benchmark.main()
    found = json.loads(out.read_text())
    assert set(found["peaks"]) == {"flops", "bytes", "cached", "fresh", "exps"}
    assert all(0 < row["limit_ms"] < row["ms"] for row in found["rows"])
