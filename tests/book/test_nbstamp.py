"""Freshness of stored outputs."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbstamp import INJECTED, STAMP, cell_key, named_results, problems, records_in, stamp
from notebook_tools import executed, notebook


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "nclib/__init__.py": "",
        "nclib/used.py": "def f():\n    return 1\n",
        "nclib/unused.py": "g = 2\n",
        "book/results/one.json": "{}",
        "book/results/two.json": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf8")
    nb = notebook("from nclib.used import f", "f()", "show('book/results/one*.json')")
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nb, tmp_path / "notebooks" / "a.ipynb")
    store(tmp_path)
    return tmp_path


def store(tree: Path) -> None:
    source = tree / "notebooks" / "a.ipynb"
    nb = executed(nbformat.read(source, 4))
    nb.metadata[STAMP] = stamp(source, tree)
    (tree / "book" / "executed").mkdir(exist_ok=True)
    nbformat.write(nb, tree / "book" / "executed" / "a.ipynb")


def why(tree: Path) -> list[str]:
    return problems(tree / "notebooks" / "a.ipynb", tree / "book" / "executed" / "a.ipynb", tree)


def test_fresh(tree: Path) -> None:
    assert why(tree) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nclib/used.py", "def f():\n    return 2\n", ["nclib.used changed"]),
        ("nclib/used.py", "def f():  # one\n    return (1)\n", []),
        ("nclib/unused.py", "g = 3\n", []),
        ("book/results/one.json", "[]", ["book/results/one.json changed"]),
        ("book/results/two.json", "[]", []),
        ("book/results/one_more.json", "[]", ["book/results/one_more.json is a new dependency"]),
        (
            "nclib/used.py",
            "from nclib.unused import g\ndef f():\n    return 1\n",
            ["nclib.used changed", "nclib.unused is a new dependency"],
        ),
    ],
)
def test_says_what_changed(tree: Path, name: str, text: str, expected: list[str]) -> None:
    (tree / name).write_text(text, "utf8")
    assert why(tree) == expected


def test_code_cells_count_and_prose_does_not(tree: Path) -> None:
    path = tree / "notebooks" / "a.ipynb"
    nb = nbformat.read(path, 4)
    nb.cells.insert(0, nbformat.v4.new_markdown_cell("More prose."))
    nb.cells[2].source = "f()   # the same"
    nbformat.write(nb, path)
    assert why(tree) == []
    nb.cells[2].source = "f() + 1"
    nbformat.write(nb, path)
    assert why(tree) == ["the code cells changed"]


def test_never_executed(tree: Path) -> None:
    (tree / "book" / "executed" / "a.ipynb").unlink()
    assert why(tree) == ["never executed"]


def test_a_stored_failure_is_not_fresh(tree: Path) -> None:
    path = tree / "book" / "executed" / "a.ipynb"
    nb = nbformat.read(path, 4)
    nb.cells[0].execution_count = None
    nb.cells[1].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]
    nbformat.write(nb, path)
    assert why(tree) == ["not every code cell ran", "a cell failed"]


def test_injected_parameters_are_not_the_notebooks_code(tree: Path) -> None:
    path = tree / "notebooks" / "a.ipynb"
    before = stamp(path, tree)
    nb = nbformat.read(path, 4)
    nb.cells.insert(1, nbformat.v4.new_code_cell("x = 1", metadata={"tags": [INJECTED]}))
    nbformat.write(nb, path)
    assert stamp(path, tree) == before


def record(method: str, rsum: float) -> str:
    return json.dumps(
        {"settings": {"method": method}, "metrics": {"rsum": rsum}, "cost": {}, "environment": {}}
    )


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ("ncbook.recorded(method='l2rm')", ["a"]),
        ("[recorded(method=m) for m in ('l2rm', 'plain')]", ["a", "b"]),
        ("recorded(mrate=0.6)", ["a", "b"]),
        ("recorded(method='l2rm'), recorded()", ["a", "b"]),
        ("recorded(method='l2rm'), map(recorded, x)", ["a", "b"]),
        ("ncbook.load_runs()", ["a", "b"]),
        ("print('l2rm')", []),
    ],
)
def test_recorded_runs_that_the_code_reads_count(tmp_path: Path, code: str, counted: list[str]) -> None:
    folder = tmp_path / "book" / "results"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(record("l2rm", 400.0), "utf8")
    (folder / "b.json").write_text(record("plain", 100.0), "utf8")
    (folder / "bench.json").write_text("{}", "utf8")
    assert sorted(p.stem for p in named_results(code, tmp_path)) == counted


@pytest.mark.parametrize("content", [b'{"settings": {"met', b"\xff"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is damaged .*; restore it, or delete it"):
        records_in(tmp_path)


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ("open(RECORDED / 'bench' / 'map.json')", ["map"]),
        ("open(records.RECORDED / 'bench' / 'map.json')", ["map"]),
        ("open(RECORDED / 'bench' / 'none.json')", []),
        ("open(RECORDED / 'bench' / f'{name}.json')", ["map", "rank"]),
        ("folder = RECORDED / 'bench'", ["map", "rank"]),
        ("folder = RECORDED", ["a", "map", "rank"]),
        ("print(1 / 2, 'bench/map.json', OTHER / 'bench' / 'map.json')", []),
    ],
)
def test_stored_benchmarks_that_the_code_opens_count(tmp_path: Path, code: str, counted: list[str]) -> None:
    folder = tmp_path / "book" / "results"
    (folder / "bench").mkdir(parents=True)
    for name in ("bench/map", "bench/rank", "a"):
        (folder / f"{name}.json").write_text("{}", "utf8")
    assert sorted(p.stem for p in named_results(code, tmp_path)) == counted


def test_cell_key_keeps_magics_and_broken_code() -> None:
    assert cell_key("%matplotlib inline\nx = 1") == cell_key("%matplotlib inline\nx  =  1 # one")
    assert cell_key("%matplotlib inline\nx = 1") != cell_key("x = 1")
    assert cell_key("x = (") == "x = ("


def test_broken_code_names_the_notebook(tree: Path) -> None:
    path = tree / "notebooks" / "a.ipynb"
    nbformat.write(notebook("x = ("), path)
    with pytest.raises(ValueError, match=r"a\.ipynb: a code cell is not Python"):
        stamp(path, tree)
