"""Freshness of stored outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import nbformat
import pytest
from nbstamp import (
    INJECTED,
    ROOT,
    STAMP,
    Book,
    cell_key,
    first_definitions,
    packed,
    problems,
    records_in,
    results_read,
    stamp,
)
from nclib.common.code import Module
from notebook_tools import executed, notebook

FILES = {
    "nclib/__init__.py": "",
    "nclib/used.py": "def f():\n    return 1\n\ndef g():\n    return 1\n",
    "nclib/unused.py": "g = 2\n",
    "nclib/methods/__init__.py": "METHODS = {}\ndef available(): return METHODS\n",
    "nclib/methods/one.py": "from nclib.methods import METHODS\n@METHODS.register('one')\nclass One: pass\n",
    "nclib/methods/two.py": "from nclib.methods import METHODS\n@METHODS.register('two')\nclass Two: pass\n",
    "book/ncbook/__init__.py": "from ncbook.chapter import table\nfrom ncbook.runs import recorded\n",
    "book/ncbook/runs.py": "RECORDED = 'results'\ndef recorded(**where): return RECORDED\n",
    "book/ncbook/chapter.py": "from ncbook import recorded\ndef table(): return recorded(method='l2rm')\n",
}


def record(method: str, rsum: float, **settings: object) -> str:
    settings = {"method": method, "model": "vse", **settings}
    return json.dumps({"settings": settings, "metrics": {"rsum": rsum}, "cost": {}, "environment": {}})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    results = {"one": record("l2rm", 1.0), "two": record("plain", 1.0), "bench/map": "{}"}
    every = {**FILES, **{f"book/results/{name}.json": text for name, text in results.items()}}
    for name, text in every.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf8")
    (tmp_path / "notebooks").mkdir()
    write(tmp_path, "from nclib.used import f", "f()", "method = 'one'", "import ncbook\nncbook.table()")
    return tmp_path


def write(tree: Path, *cells: str) -> None:
    """Write a notebook and its execution."""
    source = tree / "notebooks" / "a.ipynb"
    nbformat.write(notebook(*cells), source)
    nb = executed(nbformat.read(source, 4))
    nb.metadata[STAMP] = packed(stamp(source, Book(tree)))
    (tree / "book" / "executed").mkdir(exist_ok=True)
    nbformat.write(nb, tree / "book" / "executed" / "a.ipynb")


def why(tree: Path) -> list[str]:
    return problems(tree / "notebooks" / "a.ipynb", tree / "book" / "executed" / "a.ipynb", Book(tree))


def test_fresh(tree: Path) -> None:
    assert why(tree) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nclib/used.py", "def f():\n    return 2\n", ["nclib.used changed"]),
        ("nclib/used.py", '"""Words."""\ndef f():  # one\n    return (1)\n', []),
        ("nclib/used.py", "def f():\n    return 1\n\ndef g():\n    return 2\n", []),
        ("nclib/unused.py", "g = 3\n", []),
        ("nclib/methods/one.py", FILES["nclib/methods/one.py"] + "    x = 1\n", None),
        ("nclib/methods/two.py", FILES["nclib/methods/two.py"] + "    x = 1\n", []),
        ("nclib/methods/one.py", FILES["nclib/methods/one.py"] + "# a remark\n", []),
        (
            "book/ncbook/chapter.py",
            FILES["book/ncbook/chapter.py"] + "\nprint(1)\n",
            ["ncbook.chapter changed"],
        ),
        ("book/results/one.json", record("l2rm", 2.0), ["recorded('pairs', method='l2rm') changed"]),
        ("book/results/two.json", record("plain", 2.0), []),
        ("book/results/three.json", record("plain", 2.0), []),
        ("book/results/three.json", record("l2rm", 2.0), ["recorded('pairs', method='l2rm') changed"]),
        ("book/results/bench/map.json", "[]", []),
        (
            "nclib/used.py",
            "from nclib.unused import g\ndef f():\n    return g\n",
            ["nclib.used changed"],
        ),
    ],
)
def test_says_what_changed(tree: Path, name: str, text: str, expected: list[str] | None) -> None:
    if expected is None:
        text, expected = text.replace("class One: pass\n", "class One:\n"), ["nclib.methods.one changed"]
    (tree / name).write_text(text.replace("class Two: pass\n    x", "class Two:\n    x"), "utf8")
    assert why(tree) == expected


def test_a_new_method_makes_no_catalogue_stale(tree: Path) -> None:
    write(tree, "from nclib import methods", "print(methods.available())")
    assert why(tree) == []
    new = "from nclib.used import g\nfrom nclib.methods import METHODS\n"
    new += "@METHODS.register('new')\ndef new(): g()\n"
    (tree / "nclib" / "methods" / "new.py").write_text(new, "utf8")
    assert why(tree) == []
    write(tree, "from nclib import methods", "print(methods.available())")
    (tree / "nclib" / "methods" / "new.py").write_text(new.replace("g()\n", "g(1)\n"), "utf8")
    assert why(tree) == ["nclib.methods.new changed"]


def test_code_that_went_elsewhere_is_told(tree: Path) -> None:
    (tree / "nclib" / "methods" / "one.py").unlink()
    assert "nclib.methods.one is no longer reached" in why(tree)


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


def test_an_execution_without_a_stamp_is_stale(tree: Path) -> None:
    path = tree / "book" / "executed" / "a.ipynb"
    nb = nbformat.read(path, 4)
    del nb.metadata[STAMP]
    nbformat.write(nb, path)
    assert "the code cells changed" in why(tree)


def test_a_stored_failure_is_not_fresh(tree: Path) -> None:
    path = tree / "book" / "executed" / "a.ipynb"
    nb = nbformat.read(path, 4)
    nb.cells[0].execution_count = None
    nb.cells[1].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]
    nbformat.write(nb, path)
    assert why(tree) == ["not every code cell ran", "a cell failed"]


def test_injected_parameters_are_not_the_notebooks_code(tree: Path) -> None:
    path = tree / "notebooks" / "a.ipynb"
    before = stamp(path, Book(tree))
    nb = nbformat.read(path, 4)
    nb.cells.insert(1, nbformat.v4.new_code_cell("x = 1", metadata={"tags": [INJECTED]}))
    nbformat.write(nb, path)
    assert stamp(path, Book(tree)) == before


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ("ncbook.recorded(method='l2rm')", ["a"]),
        ("[recorded(method=m) for m in ('l2rm', 'plain')]", ["a", "b"]),
        ("recorded(mrate=0.6)", ["a"]),
        ("recorded(method='l2rm'), recorded()", ["a", "b"]),
        ("recorded('labels', **base)", ["c"]),
        ("ncbook.load_runs(folder)", ["a", "b", "c"]),
        ("print('l2rm', other.method())", []),
        ("show('book/results/a*.json')", ["a"]),
        ("open(RECORDED / 'bench' / 'map.json')", ["map"]),
        ("open(ncbook.RECORDED / 'bench' / 'map.json')", ["map"]),
        ("open(RECORDED / 'bench' / 'none.json')", []),
        ("open(RECORDED / 'bench' / f'{name}.json')", ["map", "rank"]),
        ("folder = RECORDED / 'bench'", ["map", "rank"]),
        ("folder = RECORDED", ["a", "b", "c", "map", "rank"]),
        ("print(1 / 2, 'bench/map.json', OTHER / 'bench' / 'map.json')", []),
    ],
)
def test_records_and_benchmarks_that_code_reads_count(tmp_path: Path, code: str, counted: list[str]) -> None:
    folder = tmp_path / "book" / "results"
    (folder / "bench").mkdir(parents=True)
    (folder / "a.json").write_text(record("l2rm", 400.0, mrate=0.6), "utf8")
    (folder / "b.json").write_text(record("plain", 100.0, mrate=0.2), "utf8")
    (folder / "c.json").write_text(record("mrl", 1.0).replace('"model": "vse"', '"noise": "x"'), "utf8")
    for name in ("bench/map", "bench/rank"):
        (folder / f"{name}.json").write_text("{}", "utf8")
    found = results_read([ast.parse(code)], Book(tmp_path))
    assert sorted({path.stem for paths in found.values() for path in paths}) == counted


@pytest.mark.parametrize("content", [b'{"settings": {"met', b"\xff"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is damaged .*; restore it, or delete it"):
        records_in(tmp_path)


def test_cell_key_keeps_magics_and_broken_code() -> None:
    assert cell_key("%matplotlib inline\nx = 1") == cell_key("%matplotlib inline\nx  =  1 # one")
    assert cell_key("%matplotlib inline\nx = 1") != cell_key("x = 1")
    assert cell_key("x = (") == "x = ("


def test_broken_code_names_the_notebook(tree: Path) -> None:
    path = tree / "notebooks" / "a.ipynb"
    nbformat.write(notebook("x = ("), path)
    with pytest.raises(ValueError, match=r"a\.ipynb: a code cell is not Python"):
        stamp(path, Book(tree))


def test_the_real_package_is_narrow() -> None:
    code = Book(ROOT).code

    def reach(cells: str, *chosen: str) -> set[str]:
        return set(code.reach(first_definitions(Module(cells), code, chosen)))

    loss_only = reach("from nclib import losses\nlosses.triplet(S, 0.2)")
    assert "nclib.losses" in loss_only
    assert not {m.split(".")[1] for m in loss_only if "." in m} - {"losses", "common"}
    plain = reach("import nclib\nnclib.run(method='plain', model='vse')", "planted")
    assert {"nclib.methods.plain", "nclib.models.vse", "nclib.data.planted"} <= plain
    assert not {"nclib.methods.l2rm", "nclib.models.sgraf", "nclib.plots"} & plain
