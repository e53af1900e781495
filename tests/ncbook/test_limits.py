"""How fast, and how near the limit: the page on made results, and the benchmark at small sizes."""

import json
import sys

import numpy as np
import pytest
from bench import limits as benchmark
from ncbook.chapters import limits

PEAKS = {"flops": 1e11, "bytes": 1e10, "cached": 1e11, "fresh": 2e9, "exps": 5e9}
NONE = dict.fromkeys(PEAKS, 0.0)


def row(name, ms, other, work, bound, least=None):
    limit = 1e3 * work[bound] / PEAKS[bound]
    return {
        "operation": name, "size": "one", "ms": ms, "other": "loop", "other_ms": other, "least_ms": least,
        "work": {**NONE, **work}, "bound": bound, "limit_ms": limit,
    }  # fmt: skip


@pytest.fixture
def file(tmp_path):
    rows = [
        row("product", 1.25, 5.0, {"flops": 1e8, "bytes": 1e5}, "flops"),
        row("plan", 10.0, 5.0, {"cached": 1e6, "exps": 1e4}, "cached", least=8.0),
        row("sum", 4.0, 40.0, {"bytes": 1e7, "exps": 1e3}, "bytes", least=0.1),
    ]
    machine = {"cpu": "Some CPU", "versions": {"torch": "2.13.0"}}
    path = tmp_path / "limits.json"
    about = {"benchmark": "limits", "when": "2026-11-24T00:00", "machine": machine, "peaks": PEAKS}
    path.write_text(json.dumps({**about, "rows": rows}))
    return path


def test_shares_and_what_rules(file):
    rows, about = limits.measured(str(file))
    np.testing.assert_allclose(rows["share"], [0.8, 0.001, 0.25])
    np.testing.assert_allclose(rows["faster"], [4.0, 0.5, 10.0])
    shown = limits.table(rows, about).data
    assert shown["rest"].tolist() == ["products", "fixed cost of a call", "steps between"]
    assert shown["share"].tolist() == ["80.0%", "0.1%", "25.0%"]
    assert shown["limit"].tolist() == ["1\xa0ms", "10\xa0µs", "1\xa0ms"]
    said = limits.said(rows)
    assert "product (A), 80%" in said
    assert "plan, one (B), 0.1%" in said
    assert "0.5 to 10 times as fast; slower in B" in said
    assert "- B: checks" in said
    assert "1.0" not in limits.said(rows[rows["faster"] > 1])
    assert "never slower" in limits.said(rows[rows["faster"] > 1])


def test_points_of_the_roofline(file):
    rows, about = limits.measured(str(file))
    (axis,) = limits.roofline(rows, about).axes
    points = [line for line in axis.lines if line.get_marker() in ("o", "s")]
    found = [(line.get_marker(), *(float(v[0]) for v in line.get_data())) for line in points]
    assert found[0] == ("o", 1000.0, pytest.approx(80.0))  # a thousandth of a second on 1e8 flops, at 80 %
    assert found[1] == ("s", pytest.approx(0.2), pytest.approx(0.02))  # an exponential counts as 20 flops
    assert [text.get_text() for text in axis.texts] == ["A", "B", "C"]


def test_the_stored_results_say_what_was_aimed_at():
    shown = limits.goals().data
    for _, line in shown.iterrows():
        aim, found = (float(line[name].removesuffix("×")) for name in ("aim", "measured"))
        assert line["reached"] == ("yes" if found >= aim else "no") or abs(found - aim) < 0.06


@pytest.mark.exhaustive
def test_the_benchmark_at_small_sizes(tmp_path, monkeypatch):
    out = tmp_path / "limits.json"
    monkeypatch.setattr(sys, "argv", ["limits.py", "--small", "--turns", "1", "--out", str(out)])
    benchmark.main()
    rows, about = limits.measured(str(out))
    assert set(about["peaks"]) == set(limits.BOUNDS)
    assert (rows["limit_ms"] < rows["ms"]).all()
    assert limits.roofline(rows, about) is not None
