"""Executed notebooks on pages, in a real build, and the run on the reader's machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from executed import SOURCE, digest, folder_of
from nb_overlay import DRAWING, SMALL, comparison, described, live_lines, shown, status_lines, unbroken
from notebook_tools import build, executed, notebook

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


def test_a_mean_and_its_deviation_stay_on_one_line() -> None:
    assert unbroken("<td>221.7 ± 3.4 (3) ‡</td>") == "<td>221.7\xa0±\xa03.4\xa0(3) ‡</td>"
    assert unbroken("+0.4 ± 0.12, and 5 (all)") == "+0.4\xa0±\xa00.12, and 5 (all)"
    assert unbroken("<td>+0.014 [-0.2, +1.5]</td>") == "<td>+0.014 [-0.2,\xa0+1.5]</td>"
    assert unbroken("mean ± deviation, [1, 2, 3]") == "mean ± deviation, [1, 2, 3]"
    script = '<script type="application/json">{"said": "1 ± 2", "at": [0.1, 0.2]}</script>'
    assert unbroken(f"{script}1 ± 2") == f"{script}1\xa0±\xa02"


def test_drawings_without_pictures_may_be_shown_dark() -> None:
    page = executed(notebook("# Recall\n\n## What the *split* sees", "draw()", "show()", "both()"))
    page.cells[3].metadata["mystnb"] = {"image": {"alt": "Said."}}
    svg = ['<svg width="371pt"><path/></svg>', "<svg width='9pt'><image href='x'/></svg>"]
    for cell, drawn in zip(page.cells[1:], ([0], [1], [0, 1]), strict=True):
        cell.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": svg[k]}) for k in drawn]
    images = [cell.metadata["mystnb"]["image"] for cell in described(page).cells[1:]]
    assert [image.get("classes") for image in images] == [DRAWING, None, None]
    heading = "Figure under the heading: What the split sees"
    assert [image["alt"] for image in images] == [heading, heading, "Said."]
    page.cells[1].metadata.clear()
    page.cells[1].outputs[0].data["image/svg+xml"] = '<svg width="370pt"/>'
    assert described(page).cells[1].metadata["mystnb"]["image"]["classes"] == f"{DRAWING} {SMALL}"


def test_a_training_log_is_one_line_that_unfolds() -> None:
    page = executed(notebook("train()", "x"))
    log = (
        "stored run, trained in 90 s\nepoch 1/2 a<b 0.1\nepoch 2/2 a<b 0.2\nl2rm-0 [quick]: rSum 9.0  (i2t)\n"
    )
    page.cells[0].outputs[0].text = log
    kept, other = (cell.outputs[0] for cell in shown(page).cells)
    nbformat.validate(page)
    summary, lines = re.fullmatch(
        "<details.*?<summary>(.*?)</summary>(.*)</details>", kept.data["text/html"], re.S
    ).groups()
    assert summary == "Training log: stored run, trained in 90 s; l2rm-0 [quick]: rSum 9.0"
    assert lines == f"<pre>{log.strip().replace('<', '&lt;')}</pre>"
    assert other.text == "output 2\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small book with one notebook, executed once."""
    for folder in ("nclib", "notebooks", "book"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "nclib" / "__init__.py").write_text("x = 1\n", "utf8")
    contents = "parts:\n  - caption: A\n    chapters:\n      - file: book/status\n"
    contents += "        sections:\n          - file: notebooks/a\n"
    (tmp_path / "_toc.yml").write_text(contents, "utf8")
    source = tmp_path / "notebooks" / "a.ipynb"
    nbformat.write(notebook("# A page", "import nclib", "nclib.x"), source)
    done = executed(nbformat.read(source, 4), "own output")
    done.metadata[SOURCE] = digest(source)
    folder = folder_of(tmp_path)
    folder.mkdir(parents=True)
    nbformat.write(done, folder / "a.ipynb")
    (folder / "runs.json").write_text(json.dumps({"a": RUN}), "utf8")
    blocks = "\n\n".join(f"```{{{name}}}\n```" for name in ("execution-status", "live-run"))
    (tmp_path / "book" / "status.md").write_text(f"# Status\n\n{blocks}\n", "utf8")
    nbformat.write(notebook("# No page"), tmp_path / "notebooks" / "spare.ipynb")
    toc = "```{toctree}\nnotebooks/a\nbook/status\n```"
    (tmp_path / "index.md").write_text(f"# Book\n\n{toc}\n", "utf8")
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.append({str(EXT)!r})\n"
        "extensions = ['myst_nb', 'nb_overlay']\nnb_execution_mode = 'off'\n"
        "exclude_patterns = ['_build', 'book/live', 'html', 'notebooks/spare.ipynb']\n",
        "utf8",
    )
    return tmp_path


def test_what_all_pages_share_is_said_once() -> None:
    row = ["a", "2026-01-02", "3", "CPU", "1 of 2", "3.11", "`0`"]
    rows = [row, [*row[:2], "4", *row[3:6], "`1`"]]
    rows[1][0] = "b"
    shared = "ran on: 2026-01-02; device: CPU; threads: 1 of 2; Python, torch, NumPy: 3.11"
    table = ["| page | seconds | commit |", "| --- | ---: | --- |", "| a | 3 | `0` |", "| b | 4 | `1` |"]
    assert status_lines(rows) == [f"All pages: {shared}.", "", *table]
    assert status_lines(rows[:1])[-1] == f"| {' | '.join(row)} |"


@pytest.mark.slow
def test_a_build_shows_executed_notebooks_and_a_live_run_and_refuses_others(tree: Path) -> None:
    done = build(tree, "-W", "--keep-going", "-E", "-a")
    assert (done.returncode, done.stderr) == (0, "")
    assert "own output 2" in (tree / "html/notebooks/a.html").read_text("utf8")
    status = (tree / "html/book/status.html").read_text("utf8")
    assert "without a live run" in status
    assert "2026-01-02" in status
    assert "spare" not in status

    live = tree / "book" / "live"
    live.mkdir()
    (live / "runs.json").write_text(json.dumps({"a": RUN}), "utf8")
    (tree / "nclib" / "__init__.py").write_text("x = 2\n", "utf8")
    done = build(tree, "-W", "--keep-going", "-E", "-a")
    assert done.returncode != 0
    (warned,) = (s for s in done.stderr.splitlines() if "WARNING" in s and "toctree" not in s)
    assert "not executed with the present code and data" in warned
    status = (tree / "html/book/status.html").read_text("utf8")
    assert "never" in status
    assert "<strong>A title</strong>, 2026-01-02: <strong>12 seconds</strong>" in status


def a_record(folder: Path, seconds: float) -> dict[str, Any]:
    """Write the record of a run into a folder, and return it."""
    settings = {"method": "plain", "model": "vse", "dataset": "emoji", "preset": "quick"}
    settings |= {"protocol": "images", "mrate": 0.6, "method_options": {"loss": "triplet"}}
    test = {"i2t_r1": 10.0, "i2t_r10": 50.0, "t2i_r1": 9.0, "t2i_r10": 40.0, "rsum": 201.5}
    environment = {"device": "CPU, a processor", "threads": 2}
    record = {"settings": settings, "metrics": {"test": test}, "cost": {"seconds": seconds}}
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({**record, "environment": environment}), "utf8")
    return {**record, "environment": environment}


def test_recorded_runs_of_the_same_settings_stand_under_the_live_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = a_record(tmp_path / "book/live/a/plain-x", 20)
    (tmp_path / "book/live/runs.json").write_text(json.dumps({"a": {**RUN, "seconds": 99.9}}), "utf8")
    means = {"i2t_r1": 10.0, "i2t_r10": 50.0, "t2i_r1": 9.0, "t2i_r10": 40.0, "seconds": 30.0}
    runs = pd.DataFrame([{**means, "rsum": 200.0}, {**means, "rsum": 204.0}])
    asked: dict[str, Any] = {}
    monkeypatch.setattr("ncbook.recorded", lambda **where: asked.update(where) or runs)
    monkeypatch.setattr("ncbook.chapters.as_preset", lambda runs: runs)
    table = comparison(mine)
    assert asked["mrate"] == 0.6
    assert len(table) == 4
    assert table[2] == (
        "| plain (triplet) | 0.6 | your machine: CPU, a processor, 2 threads "
        "| 10.0 (1) | 50.0 (1) | 9.0 (1) | 40.0 (1) | 201.5 (1) | 20 |"
    )
    assert "| recorded | " in table[3]
    assert "| 202.0 ± 2.8 (2) | 30 |" in table[3]
    said = live_lines(tmp_path)
    assert "**100 seconds**" in said[0]
    assert said[2:-1] == table
