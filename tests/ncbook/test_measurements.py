"""A stored speed knows the code that it timed: digests of syntax trees, and what pages say of them."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from bench import limits
from ncbook import cli, measurements
from ncbook.measurements import ROOT, changed, code_digest, made, sources

BENCH = sorted(path for path in (ROOT / "book" / "bench").glob("*.py") if "TIMES = (" in path.read_text())
CODE = '''"""Say."""
X: int = 1  # one
"""What X is."""

def f(a, *, b=None):
    """Do."""
    return [a, "text", None, f"{b:<{a}.1f}"]
'''


def written(folder: Path, text: str) -> str:
    (folder / "code.py").write_text(text)
    return code_digest(folder / "code.py")


LAID_OUT = CODE.replace("def f(a, *, b=None):", "def f(\n    a,\n    *,\n    b=None,\n):")


@pytest.mark.parametrize(
    "text",
    [
        *(CODE.replace("# one", "# another"), CODE.replace("Do.", "Do something else."), LAID_OUT),
        *(CODE.replace('"""Say."""', ""), CODE.replace("What X is.", "It.")),
    ],
)
def test_comments_docstrings_and_layout_leave_the_digest(tmp_path, text):
    assert text != CODE
    assert written(tmp_path, text) == written(tmp_path, CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("X: int = 1", "X: int = 2"), ('"text"', '"other"'), ("None,", "0,"), (".1f", ".2f"), ("b=None", "b=0")],
)
def test_code_moves_the_digest(tmp_path, old, new):
    assert old in CODE
    assert written(tmp_path, CODE.replace(old, new)) != written(tmp_path, CODE)


def test_the_digest_is_the_same_in_every_python(tmp_path):
    # of 3.11; newer versions add fields to the tree and leave empty ones out
    assert written(tmp_path, CODE) == "ddaace42bed1"


def test_a_measurement_names_the_files_that_changed_or_went(tmp_path):
    (part := tmp_path / "part").mkdir()
    for name in ("a", "b", "c"):
        (part / f"{name}.py").write_text(f"{name} = 1\n")
    found = {"when": "2026-01-02T03:04:05", "commit": "abc", "timed": sources(["part"], tmp_path)}
    assert list(found["timed"]) == ["part/a.py", "part/b.py", "part/c.py"]
    assert changed(found, tmp_path) == []
    (part / "a.py").write_text("a = 2\n")
    (part / "b.py").unlink()
    (part / "c.py").write_text("c = 1  # said\n")
    assert changed(found, tmp_path) == ["part/a.py", "part/b.py"]
    assert "‡" in made({"when": "2026-01-02"})  # one that does not say is not trusted
    with pytest.raises(ValueError, match="nothere"):
        sources(["part", "nothere"], tmp_path)


def test_the_mark_and_the_list(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measurements, "MEASURED", tmp_path)
    now = sources(["book/ncbook/measurements.py"])
    for name, stated in (("bench_new", now), ("bench_old", dict.fromkeys(now, "0" * 12))):
        content = {"when": "2026-01-02T03:04:05", "commit": "abc", "timed": stated}
        measurements.write(tmp_path / f"{name}.json", content)
        assert ("‡" in made(content)) == (name == "bench_old")
    assert cli.main(["measured"]) == 0
    new, old = capsys.readouterr().out.splitlines()
    assert new == "bench_new: 2026-01-02, commit abc"
    assert old.startswith(new.replace("new", "old") + " ‡")
    assert "book/ncbook/measurements.py" in old


def test_a_stored_table_comes_back_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(measurements, "MEASURED", tmp_path)
    rows = [{"a": 1, "b": None}, {"a": 0.1, "c": [{"d": 1}, {"e": {}}]}, {}]
    content = {"rows": rows, "one": rows[:1], "dash": [{"a": "-"}, {}], "list": [1, [2], "x"], "none": []}
    measurements.write(tmp_path / "some.json", content)
    assert measurements.measurement("some") == content
    text = (tmp_path / "some.json").read_text()
    assert text.count('"a"') == 3  # of each table once, of the other list as it is
    assert json.loads(text)["rows"]["table"][0] == [1, None, "-"]


@pytest.mark.parametrize("path", BENCH, ids=lambda path: path.stem)
def test_what_a_benchmark_times_is_there(path):
    assert path.relative_to(ROOT).as_posix() in sources(import_module(path.stem).TIMES)


@pytest.mark.exhaustive
def test_the_benchmark_at_small_sizes(tmp_path, monkeypatch):
    out = tmp_path / "limits.json"
    monkeypatch.setattr(sys, "argv", ["limits.py", "--small", "--turns", "1", "--out", str(out)])
    limits.main()
    found = json.loads(out.read_text())
    assert set(found["peaks"]) == {"flops", "bytes", "cached", "fresh", "exps"}
    assert all(0 < row["limit_ms"] < row["ms"] for row in found["rows"])
