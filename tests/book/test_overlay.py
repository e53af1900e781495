"""Stored outputs meet the current prose, on pages and in a real build."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nb_overlay import DRAWING, comparison, described, live_cells, merge, show_live, status_lines, unbroken
from nbstamp import INJECTED, PARAMETERS, STAMP, Book, packed, records_in, stamp
from notebook_tools import executed, notebook

EXT = Path(__file__).resolve().parents[2] / "book" / "_ext"
RUN: dict[str, Any] = {
    "title": "A title",
    "date": "2026-01-02",
    "seconds": 12.3,
    "device": "CPU, a processor",
    "threads": 2,
    "cores": 4,
    "python": "3.11.7",
    "versions": {"torch": "2.13.0"},
    "commit": "abc",
}


def printed(nb: Any) -> list[str]:
    return [o.text for c in nb.cells if c.cell_type == "code" for o in c.outputs]


def test_current_prose_with_stored_outputs() -> None:
    stored = executed(notebook("# Old prose", "x = 1", "x + 1"))
    current = notebook("# New prose", "x = 1  # one", "# More", "x + 1")
    merged = merge(current, stored)
    assert [c.source for c in merged.cells] == ["# New prose", "x = 1  # one", "# More", "x + 1"]
    assert printed(merged) == ["output 1\n", "output 2\n"]
    assert current.cells[1].outputs == []


def test_stale_code_is_shown_with_its_own_outputs() -> None:
    stored = executed(notebook("x = 1"))
    assert merge(notebook("x = 2"), stored) is stored


def test_injected_parameters_stand_behind_the_parameters() -> None:
    source = notebook("# Title", "mrate = 0.4", "run(mrate)")
    source.cells[1].metadata["tags"] = [PARAMETERS]
    stored = executed(source)
    injected = nbformat.v4.new_code_cell("mrate = 0.6", metadata={"tags": [INJECTED]}, execution_count=2)
    stored.cells.insert(2, injected)
    assert [c.source for c in merge(source, stored).cells][1:3] == ["mrate = 0.4", "mrate = 0.6"]


def test_a_mean_and_its_deviation_stay_on_one_line() -> None:
    assert unbroken("<td>221.7 ± 3.4 (3) ‡</td>") == "<td>221.7\xa0±\xa03.4\xa0(3) ‡</td>"
    assert unbroken("+0.4 ± 0.12, and 5 (all)") == "+0.4\xa0±\xa00.12, and 5 (all)"
    assert unbroken("<td>+0.014 [-0.2, +1.5]</td>") == "<td>+0.014 [-0.2,\xa0+1.5]</td>"
    assert unbroken("mean ± deviation, [1, 2, 3]") == "mean ± deviation, [1, 2, 3]"
    script = '<script type="application/json">{"said": "1 ± 2", "at": [0.1, 0.2]}</script>'
    assert unbroken(f"{script}1 ± 2") == f"{script}1\xa0±\xa02"


def test_drawings_without_pictures_may_be_shown_dark() -> None:
    page = executed(notebook("# Recall", "draw()", "show()", "both()"))
    svg = ["<svg><path/></svg>", "<svg><image href='x'/></svg>"]
    for cell, drawn in zip(page.cells[1:], ([0], [1], [0, 1]), strict=True):
        cell.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": svg[k]}) for k in drawn]
    images = [cell.metadata["mystnb"]["image"] for cell in described(page).cells[1:]]
    assert [image.get("classes") for image in images] == [DRAWING, None, None]
    assert {image["alt"] for image in images} == {"Figure under the heading: Recall"}


def test_live_cells_bring_no_names_a_second_time() -> None:
    nb = executed(
        notebook(
            "# Title", "x = 1", "# Words\n\n(label)=\n## A part {cite:p}`key`\n\nWords.", "x + 1", "## End"
        )
    )
    nb.cells[3].metadata["mystnb"] = {"figure": {"name": "fig-a"}, "image": {"alt": "A curve."}}
    glue = nbformat.v4.new_output("display_data", data={"application/papermill.record/text/plain": "1"})
    nb.cells[1].outputs = [glue]
    cells = live_cells(nb)
    assert [c.source for c in cells] == ["### A part key", "x + 1"]
    assert cells[1].metadata["mystnb"] == {"image": {"alt": "A curve."}}
    assert cells[1].metadata["tags"] == ["hide-input"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small book with one notebook, executed once."""
    for folder in ("nclib", "notebooks", "book/executed"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "nclib" / "__init__.py").write_text("x = 1\n", "utf8")
    source = tmp_path / "notebooks" / "a.ipynb"
    nbformat.write(notebook("# A page", "import nclib", "nclib.x"), source)
    stored = executed(nbformat.read(source, 4), "stored output")
    stored.metadata[STAMP] = packed(stamp(source, Book(tmp_path)))
    nbformat.write(stored, tmp_path / "book" / "executed" / "a.ipynb")
    (tmp_path / "book" / "executed" / "runs.json").write_text(json.dumps({"a": RUN}), "utf8")
    nbformat.write(notebook("# Your machine"), tmp_path / "book" / "your_machine.ipynb")
    (tmp_path / "book" / "status.md").write_text("# Status\n\n```{execution-status}\n```\n", "utf8")
    toc = "```{toctree}\nnotebooks/a\nbook/your_machine\nbook/status\n```"
    (tmp_path / "index.md").write_text(f"# Book\n\n{toc}\n", "utf8")
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.append({str(EXT)!r})\n"
        "extensions = ['myst_nb', 'nb_overlay']\nnb_execution_mode = 'off'\n"
        "exclude_patterns = ['book/executed', 'book/live', 'html']\n",
        "utf8",
    )
    return tmp_path


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    words = ["-q", "-W", "--keep-going", "-E", "-a", "-b", "html", ".", "html"]
    command = [sys.executable, "-m", "sphinx", *words]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120)


def test_what_all_pages_share_is_said_once() -> None:
    row = ["a", "fresh", "2026-01-02", "3", "CPU", "1 of 2", "3.11", "`0`"]
    rows = [row, [*row[:3], "4", *row[4:7], "`1`"]]
    rows[1][0] = "b"
    shared = "state: fresh; ran on: 2026-01-02; device: CPU; threads: 1 of 2; Python, torch, NumPy: 3.11"
    table = ["| page | seconds | commit |", "| --- | ---: | --- |", "| a | 3 | `0` |", "| b | 4 | `1` |"]
    assert status_lines(rows) == [f"All pages: {shared}.", "", *table]
    assert status_lines(rows[:1])[-1] == f"| {' | '.join(row)} |"


@pytest.mark.slow
def test_a_build_shows_stored_outputs_and_a_live_run_and_refuses_stale_ones(tree: Path) -> None:
    done = build(tree)
    assert (done.returncode, done.stderr) == (0, "")
    assert "stored output 2" in (tree / "html/notebooks/a.html").read_text("utf8")
    assert "without a live run" in (tree / "html/book/your_machine.html").read_text("utf8")
    status = (tree / "html/book/status.html").read_text("utf8")
    assert "2026-01-02" in status
    assert "fresh" in status

    ran = executed(nbformat.read(tree / "notebooks/a.ipynb", 4), "live output")
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>'
    for cell in ran.cells[1:]:
        cell.outputs.append(nbformat.v4.new_output("display_data", data={"image/svg+xml": svg}))
        svg = svg.replace("4", "5")
    ran.cells[1].metadata["mystnb"] = {"image": {"alt": "A curve."}}
    live = tree / "book" / "live"
    live.mkdir()
    nbformat.write(ran, live / "a.ipynb")
    (live / "runs.json").write_text(json.dumps({"a": RUN}), "utf8")
    (tree / "nclib" / "__init__.py").write_text("x = 2\n", "utf8")
    done = build(tree)
    assert done.returncode != 0
    warned = [s for s in done.stderr.splitlines() if "WARNING" in s and "toctree" not in s]
    assert len(warned) == 1  # the pictures have words
    assert "stored outputs: nclib changed" in warned[0]
    assert "stale" in (tree / "html/book/status.html").read_text("utf8")
    page = (tree / "html/book/your_machine.html").read_text("utf8")
    words = re.findall(r'<img alt="([^"]*)"', page)
    assert words == ["A curve.", f"Figure under the heading: {RUN['title']}"]


def test_the_live_run_stands_beside_the_stored_one(tree: Path) -> None:
    live = tree / "book" / "live"
    live.mkdir()
    nbformat.write(executed(nbformat.read(tree / "notebooks/a.ipynb", 4), "live output"), live / "a.ipynb")
    (live / "runs.json").write_text(json.dumps({"a": {**RUN, "seconds": 99.9}}), "utf8")
    page = show_live(tree, notebook("# Your machine"))
    text = "\n".join(c.source for c in page.cells if c.cell_type == "markdown")
    assert "**100 seconds**" in text
    assert "**12 seconds**" in text
    assert printed(page) == ["live output 1\n", "live output 2\n"]


def a_record(seed: int, rsum: float, **settings: Any) -> dict[str, Any]:
    test = {"i2t_r1": 10.0, "i2t_r10": 50.0, "t2i_r1": 9.0, "t2i_r10": 40.0, "rsum": rsum}
    return {
        "settings": {"method": "plain", "mrate": 0.6, "seed": seed, "method_options": {"loss": "triplet"}}
        | settings,
        "metrics": {"test": test},
        "cost": {"seconds": 20.0},
        "environment": {"device": "CPU, a processor", "threads": 2},
    }


def test_recorded_runs_of_the_same_settings_stand_under_the_live_one(tmp_path: Path) -> None:
    for seed, rsum, mrate in ((0, 200.0, 0.6), (1, 204.0, 0.6), (0, 400.0, 0.0)):
        path = tmp_path / f"{seed}-{mrate}.json"
        path.write_text(json.dumps(a_record(seed, rsum, mrate=mrate)), "utf8")
    (tmp_path / "bench.json").write_text("[1, 2]", "utf8")
    recorded = records_in(tmp_path)
    assert len(recorded) == 3
    table = comparison([a_record(0, 201.5)], recorded)
    assert len(table) == 4
    assert table[2] == (
        "| plain (triplet) | 0.6 | your machine: CPU, a processor, 2 threads "
        "| 10.0 (1) | 50.0 (1) | 9.0 (1) | 40.0 (1) | 201.5 (1) | 20 |"
    )
    assert "| recorded | " in table[3]
    assert "| 202.0 ± 2.8 (2) |" in table[3]
    assert comparison([], recorded) == []
