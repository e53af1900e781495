"""The notebook runner: real kernels on tiny notebooks, and what it keeps of their outputs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
import run_notebooks
from grid_plan import GridError
from nbstamp import INJECTED, PARAMETERS, STAMP, Book, problems
from notebook_tools import executed, notebook


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("IPYTHONDIR", "JUPYTER_PREFER_ENV_PATH"):
        monkeypatch.setenv(name, "")  # put back after the test
    (tmp_path / "nclib").mkdir()
    (tmp_path / "nclib" / "__init__.py").write_text("", "utf8")
    (tmp_path / "notebooks").mkdir()
    nb = notebook(
        "# The title",
        'preset: str = "paper"\nout: str = "runs"',
        "import sys\nfrom pathlib import Path\nPath(out).mkdir(parents=True)\n"
        "print(preset, file=sys.stderr)\nprint(preset, out)",
    )
    nb.cells[1].metadata["tags"] = [PARAMETERS]
    nbformat.write(nb, tmp_path / "notebooks" / "a.ipynb")
    return tmp_path


def test_stale_notebooks_run_once(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = tree / "book" / "executed" / "a.ipynb"
    assert run_notebooks.main(["--check"], tree) == 1
    assert "a.ipynb: stale: never executed" in capsys.readouterr().out
    assert run_notebooks.main([], tree) == 0
    first = stored.read_bytes()
    assert problems(tree / "notebooks" / "a.ipynb", stored, Book(tree)) == []
    nb = nbformat.reads(first.decode(), 4)
    assert [INJECTED in c.metadata.get("tags", []) for c in nb.cells] == [False] * 3
    assert [o.text for o in nb.cells[2].outputs] == ["paper runs/book/a\n"]
    assert "papermill" not in first.decode()
    run = json.loads((stored.parent / "runs.json").read_text("utf8"))["a"]
    assert run["title"] == "The title"
    assert 0 < run["seconds"] < 120

    assert run_notebooks.main(["--check"], tree) == 0
    assert run_notebooks.main([], tree) == 0
    assert stored.read_bytes() == first
    # the folder of the last run is emptied first, else the notebook's mkdir would fail
    assert run_notebooks.main(["--all"], tree) == 0
    assert stored.read_bytes() == first


def test_a_failure_is_loud_and_keeps_the_last_good_outputs(tree: Path) -> None:
    folder = tree / "book" / "executed"
    folder.mkdir(parents=True)
    (folder / "a.ipynb").write_text("old", "utf8")
    source = tree / "notebooks" / "a.ipynb"
    nbformat.write(notebook("1 / 0"), source)
    with pytest.raises(RuntimeError, match=r"(?s)a\.ipynb failed.*ZeroDivisionError"):
        run_notebooks.execute(source, folder, "runs/a", {}, Book(tree))
    assert (folder / "a.ipynb").read_text("utf8") == "old"
    assert (folder / "a.part.ipynb").exists()


def test_the_live_run_is_quick_and_is_reused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_notebooks.main(["--live", "a"], tree)
    path = tree / "book" / "live" / "a.ipynb"
    outputs = [o for c in nbformat.read(path, 4).cells if c.cell_type == "code" for o in c.outputs]
    assert [o.text for o in outputs] == ["quick book/live/a\n"]
    written = path.stat().st_mtime_ns
    run_notebooks.main(["--live", "a"], tree)
    assert path.stat().st_mtime_ns == written


@pytest.mark.slow
def test_on_the_papers_data_a_chapter_gets_their_parameters(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = 'dataset: str = "emoji"\npreset: str = "quick"\ndata_options = None\nout: str = "runs"'
    nb = notebook("# Trains", cell, "print(dataset, preset, data_options)")
    nb.cells[1].metadata["tags"] = [PARAMETERS]
    nbformat.write(nb, tree / "notebooks" / "b.ipynb")
    data = tree / "data"
    with pytest.raises(SystemExit, match="there is no such folder"):
        run_notebooks.main(["--paper", str(data)], tree)
    data.mkdir()
    with pytest.raises(GridError, match=r"f30k: .*\n +missing[\s\S]*coco: "):
        run_notebooks.on_papers_data(tree / "notebooks" / "b.ipynb", data)
    monkeypatch.setattr(run_notebooks, "lacking_files", lambda name, options: f"{name}: none")
    assert run_notebooks.main(["b", "--paper", str(data)], tree) == 0
    assert "b.ipynb: left out: f30k: none\ncoco: none" in capsys.readouterr().out
    monkeypatch.setattr(run_notebooks, "lacking_files", lambda name, options: "" if name == "coco" else name)
    assert run_notebooks.main(["--paper", str(data)], tree) == 0
    stored = nbformat.read(tree / "book" / "executed" / "b.ipynb", 4)
    assert [o.text for o in stored.cells[-1].outputs] == [f"coco paper {{'root': '{data}'}}\n"]
    assert INJECTED in stored.cells[2].metadata["tags"]  # the page shows them
    other = nbformat.read(tree / "book" / "executed" / "a.ipynb", 4)
    assert [INJECTED in c.metadata.get("tags", []) for c in other.cells] == [False] * 3


def test_two_runners_keep_one_anothers_entries(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: run_notebooks.enter(path, f"chapter {n}", n), range(64)))
    assert json.loads(path.read_text("utf8")) == {f"chapter {n}": n for n in range(64)}


def test_what_the_runs_of_a_notebook_used_counts(tree: Path) -> None:
    method = tree / "nclib" / "methods" / "mine.py"
    method.parent.mkdir()
    method.write_text(
        "from nclib.methods import METHODS\n@METHODS.register('mine')\nclass Mine: pass\n", "utf8"
    )
    (method.parent / "__init__.py").write_text("METHODS = {}\n", "utf8")
    record = {"settings": {"method": "mine"}, "metrics": {}, "cost": {}, "environment": {}}
    nb = notebook(
        'out: str = "runs"',
        f"from pathlib import Path\nPath(out).mkdir(parents=True)\n"
        f"Path(out, 'record.json').write_text({json.dumps(json.dumps(record))})",
    )
    nb.cells[0].metadata["tags"] = [PARAMETERS]
    nbformat.write(nb, tree / "notebooks" / "a.ipynb")
    assert run_notebooks.main([], tree) == 0
    stored = nbformat.read(tree / "book" / "executed" / "a.ipynb", 4)
    assert stored.metadata[STAMP]["chosen"] == ["mine"]
    assert run_notebooks.main(["--check"], tree) == 0
    method.write_text(method.read_text("utf8").replace("pass", "x = 1"), "utf8")
    assert run_notebooks.main(["--check"], tree) == 1


def test_unknown_names_are_refused(tree: Path) -> None:
    with pytest.raises(SystemExit, match="no notebook 'b'; there are: a"):
        run_notebooks.main(["b"], tree)


def test_tidy_removes_what_differs_between_equal_runs() -> None:
    nb = executed(notebook("table"))
    cell = nb.cells[0]
    cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    cell.metadata["papermill"] = {"duration": 1.0}
    nb.metadata["papermill"] = {"input_path": "somewhere"}
    style = {"text/html": "<table></table>", "text/plain": "<Styler at 0x7f00>"}
    cell.outputs += [
        nbformat.v4.new_output("stream", name="stderr", text="50%"),
        nbformat.v4.new_output("display_data", data=style),
    ]
    tidied = nbformat.writes(run_notebooks.tidy(nb))
    for word in ("papermill", "iopub", "50%", "0x7f00"):
        assert word not in tidied
    assert "output 1" in tidied
