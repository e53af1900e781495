"""Executed notebooks follow code, records and their source: real kernels on tiny notebooks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import grid_plan
import nbformat
import pytest
import run_notebooks
from check_numbers import printed, unprinted
from executed import INJECTED, PARAMETERS, READS, ROOT, folder_of, is_done, runs_of, source_digest, state
from notebook_tools import executed, notebook


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A book of one notebook that reads a record."""
    for name in ("IPYTHONDIR", "JUPYTER_PREFER_ENV_PATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # put back after the test
    for folder in ("nclib", "notebooks", "book/results/grid"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "book/results/grid/a.json").write_text('{"rsum": 100}', "utf8")
    nb = notebook(
        "# The title",
        'preset: str = "paper"\nsource: str = "train"\nout: str = "runs"',
        "import json\nfrom pathlib import Path\n"
        "print(preset, source, out, json.loads(Path('book/results/grid/a.json').read_text())['rsum'])",
    )
    nb.cells[1].metadata["tags"] = [PARAMETERS]
    nbformat.write(nb, tmp_path / "notebooks" / "a.ipynb")
    contents = "parts:\n  - caption: A\n    chapters:\n      - file: notebooks/a\n"
    (tmp_path / "_toc.yml").write_text(contents, "utf8")
    return tmp_path


class Here(Executor):
    """A pool without processes, which would import everything again."""

    def __init__(self, *_: Any) -> None: ...

    def submit(self, function: Any, /, *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*given))
        return future


@pytest.fixture
def main(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """The command; it has no processes but the kernels."""
    monkeypatch.setattr(run_notebooks, "ProcessPoolExecutor", Here)
    return lambda words: run_notebooks.main(words, tree)


def shown(folder: Path) -> list[str]:
    """Return what the notebook printed."""
    cells = nbformat.read(folder / "a.ipynb", 4).cells
    return [o.text for c in cells if c.cell_type == "code" for o in c.outputs]


@pytest.mark.exhaustive
def test_a_changed_record_changes_its_page_and_nothing_else_runs_a_notebook_again(tree: Path, main) -> None:
    main([])
    first = folder_of(tree)
    assert shown(first) == ["paper recorded runs/book/a 100\n"]
    nb = nbformat.read(first / "a.ipynb", 4)
    assert [INJECTED in c.metadata.get("tags", []) for c in nb.cells] == [False] * 3
    assert "papermill" not in (first / "a.ipynb").read_text("utf8")
    run = runs_of(first)["a"]
    assert run["title"] == "The title"
    assert 0 < run["seconds"] < 120

    written = (first / "a.ipynb").stat().st_mtime_ns
    (tree / "book" / "page.md").write_text("Prose.", "utf8")
    main([])
    assert (first / "a.ipynb").stat().st_mtime_ns == written

    (tree / "book/results/grid/a.json").write_text('{"rsum": 200}', "utf8")
    assert not is_done(tree / "notebooks/a.ipynb", folder_of(tree))
    main([])
    assert shown(folder_of(tree)) == ["paper recorded runs/book/a 200\n"]
    assert not first.exists()

    source = tree / "notebooks" / "a.ipynb"
    source.write_text(source.read_text("utf8").replace("The title", "Another"), "utf8")
    main([])
    assert runs_of(folder_of(tree))["a"]["title"] == "Another"


MODULE = """'''What it is.'''

def double(x):
    \"\"\"Return twice a number.\"\"\"
    return 2 * x
"""
UNSEEN = {  # what no page shows
    "a comment": ("nclib/ot/_triton.py", MODULE, MODULE.replace("return", "# twice\n    return")),
    "a docstring": ("nclib/cli.py", MODULE, MODULE.replace("twice a", "the double of a")),
    "a docstring less": ("nclib/cli.py", MODULE, MODULE.removeprefix("'''What it is.'''")),
    "a blank line": ("book/ncbook/runs.py", MODULE, MODULE.replace("\n    return", "\n\n    return")),
    "brackets": ("book/_ext/run_notebooks.py", MODULE, MODULE.replace("2 * x", "(2 * x)")),
    "an attribution": ("nclib/data/emoji/ATTRIBUTION.md", "By", "By\n\n"),
    "a licence": ("nclib/data/emoji/licences/noto-emoji.txt", "1.0", "1.1"),
    "a cache of Python": ("nclib/__pycache__/x.pyc", "1", "2"),
    "prose": ("book/intro.md", "Before", "After"),
    "the planning of grids": ("book/_ext/grid_plan.py", "x = 1", "x = 2"),
}
SEEN = {
    "code": ("nclib/ot/_triton.py", MODULE, MODULE.replace("2", "3")),
    "a text that is no docstring": ("nclib/cli.py", "x = 'a'", "x = 'b'"),
    "a module that cannot be parsed": ("nclib/cli.py", "x = (", "x = (1"),
    "a benchmark": ("book/bench/map.py", "x = 1", "x = 2"),
    "the book's code": ("book/ncbook/runs.py", "x = 1", "x = 2"),
    "a page that is embedded": ("book/ncbook/play.html", "<p>", "<p>\n"),
    "a record": ("book/results/grid/a.json", "{}", '{"rsum": 1}'),
    "a measurement": ("book/measured/a.json", "{}", "{ }"),
    "a stored array": ("book/demo/z.npz", "1", "2"),
    "a drawing": ("book/_static/ideas/a-1.svg", "<svg/>", "<svg />"),
    "a bundled table": ("nclib/data/emoji/names.csv", "1", "2"),
    "a source": ("book/references.bib", "@book{a}", "@book{b}"),
    "the contents": ("_toc.yml", "root: a", "root: b"),
    "the book's settings": ("_config.yml", "title: a", "title: b"),
    "the lock": ("book/requirements.lock", "numpy==1", "numpy==2"),
    "the lock for CPUs": ("book/cpu.lock", "torch==1", "torch==2"),
    "the lock for GPUs": ("book/cuda.lock", "torch==1", "torch==2"),
}


@pytest.mark.parametrize("change", [*SEEN, *UNSEEN])
def test_notebooks_are_executed_again_for_what_their_pages_show(tmp_path: Path, change: str) -> None:
    place, before, after = (SEEN | UNSEEN)[change]
    states = []
    for text in (before, after):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text, "utf8")
        states.append(state(tmp_path))
    assert (states[0] != states[1]) == (change in SEEN)


def test_a_file_that_moves_executes_notebooks_again(tree: Path) -> None:
    before = state(tree)
    (tree / "book/results/grid/a.json").rename(tree / "book/results/grid/c.json")
    assert state(tree) != before


def test_a_notebook_that_reads_others_follows_them(tree: Path) -> None:
    other, nb = tree / "notebooks/a.ipynb", notebook("1")
    nbformat.write(nb, tree / "notebooks/index.ipynb")
    nb.metadata[READS] = ["*.ipynb"]
    nbformat.write(nb, tree / "notebooks/reader.ipynb")
    before, after = {}, {}
    for found in (before, after):
        found |= {path.stem: source_digest(path) for path in (tree / "notebooks").iterdir()}
        other.write_text(other.read_text("utf8").replace("The title", "Another"), "utf8")
    assert {name for name in before if before[name] != after[name]} == {"a", "reader"}
    assert nbformat.read(ROOT / "notebooks/claims.ipynb", 4).metadata[READS] == ["*.ipynb"]


def test_a_kernel_has_imported_what_chapters_need_and_ends_with_its_notebook(tree: Path, main: Any) -> None:
    cell = "import os, sys\nprint('ncbook.training' in sys.modules, os.getpid(), os.getcwd())"
    nbformat.write(notebook(cell, "1 / 0"), tree / "notebooks" / "b.ipynb")
    with pytest.raises(RuntimeError):
        main(["b"])
    nb = nbformat.read(folder_of(tree) / "b.part.ipynb", 4)
    (text,) = (out.text for c in nb.cells for out in c.get("outputs", []) if out.output_type == "stream")
    imported, process, folder = text.split()
    assert (imported, folder) == ("True", str(tree))
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


def test_a_failure_stops_the_build_with_cell_and_message(tree: Path) -> None:
    nb = notebook("1 + 1", "1 / 0", "2")
    nbformat.write(nb, tree / "notebooks" / "b.ipynb")
    with pytest.raises(RuntimeError, match=r"b\.ipynb, cell 'cell-1': ZeroDivisionError: division by zero"):
        run_notebooks.main(["a", "b"], tree)
    assert not (folder_of(tree) / "b.ipynb").exists()
    assert (folder_of(tree) / "b.part.ipynb").exists()
    run_notebooks.main([], tree)  # what was executed beside it is kept
    assert is_done(tree / "notebooks" / "a.ipynb", folder_of(tree))


@pytest.mark.exhaustive
def test_the_live_run_is_quick_and_is_repeated_when_code_changes(tree: Path, main) -> None:
    main(["--live", "a"])
    live = tree / "book" / "live"
    assert shown(live) == ["quick train book/live/a 100\n"]
    written = (live / "a.ipynb").stat().st_mtime_ns
    (tree / "book/results/grid/a.json").write_text('{"rsum": 200}', "utf8")
    main(["--live", "a"])
    assert (live / "a.ipynb").stat().st_mtime_ns == written
    (tree / "nclib" / "x.py").write_text("x = 1", "utf8")
    main(["--live", "a"])
    assert shown(live) == ["quick train book/live/a 200\n"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_on_the_papers_data_a_chapter_trains_with_their_parameters(
    tree: Path, main, monkeypatch, capsys
) -> None:
    cell = 'dataset: str = "emoji"\npreset: str = "quick"\ndata_options = None\nsource: str = "train"\n'
    nb = notebook("# Trains", cell, "print(dataset, preset, source, data_options)")
    nb.cells[1].metadata["tags"] = [PARAMETERS]
    nbformat.write(nb, tree / "notebooks" / "b.ipynb")
    data, done = tree / "data", folder_of(tree) / "b.ipynb"
    with pytest.raises(SystemExit, match="there is no such folder"):
        main(["--paper", str(data)])
    data.mkdir()
    assert run_notebooks.on_papers_data(tree / "notebooks" / "b.ipynb", data) == {}
    assert re.search(r"stored runs:\nf30k: .*\n +missing[\s\S]*coco: ", capsys.readouterr().out)

    def printed_with(missing: set[str]) -> str:
        monkeypatch.setattr(grid_plan, "lacking_files", lambda name, _: name if name in missing else "")
        assert main(["a", "b", "--paper", str(data)]) == 0
        return str(nbformat.read(done, 4).cells[-1].outputs[0].text)

    assert printed_with({"f30k", "coco"}) == "emoji quick recorded None\n"  # stored runs
    shown = printed_with({"f30k"})
    assert shown == f"coco paper train {{'root': '{data}'}}\n"
    assert INJECTED in nbformat.read(done, 4).cells[2].metadata["tags"]  # the page shows them
    main([])  # the pages of this run stay
    assert nbformat.read(done, 4).cells[-1].outputs[0].text == shown


def test_unknown_names_are_refused(tree: Path) -> None:
    with pytest.raises(SystemExit, match="no notebook 'b'; there are: a"):
        run_notebooks.main(["b"], tree)


def test_tidy_removes_what_differs_between_equal_runs() -> None:
    nb = executed(notebook("table"))
    nb.cells[0].metadata |= {"execution": {"iopub": "2026-01-01"}, "papermill": {"duration": 1.0}}
    nb.metadata["papermill"] = {"input_path": "somewhere"}
    style = {"text/html": "<table></table>", "text/plain": "<Styler at 0x7f00>"}
    nb.cells[0].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="50%"))
    nb.cells[0].outputs.append(nbformat.v4.new_output("display_data", data=style))
    tidied = nbformat.writes(run_notebooks.tidy(nb))
    assert re.findall("papermill|iopub|50%|0x7f00|output 1", tidied) == ["output 1"]


def test_means_of_the_prose_are_compared_with_what_notebooks_print(tmp_path: Path) -> None:
    nb = executed(notebook("mean"))
    nb.cells[0].outputs = [
        nbformat.v4.new_output("display_data", data={"text/html": "<td>4.5 &plusmn; 1.2</td>"})
    ]
    nbformat.write(nb, tmp_path / "a.ipynb")
    assert printed(tmp_path) == {"4.5 ± 1.2"}
    assert unprinted([("x.md", "4.5 ± 1.2, not 4.5 ± 1.3")], printed(tmp_path)) == ["x.md: 4.5 ± 1.3"]
