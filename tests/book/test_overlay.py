"""Executed notebooks on pages, in a real build, and the run on the reader's machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from check_html import problems
from executed import SOURCE, folder_of, source_digest
from nb_overlay import COLUMNS, comparison
from notebook_tools import build, executed, notebook

EXT = Path(__file__).resolve().parents[2] / "book" / "_ext"
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 4"><circle r="1"/></svg>'
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


PAGES = [{"file": "notebooks/a"}, {"file": "book/how", "sections": [{"file": "book/api"}]}]
MARKDOWN = {
    "book/how": "# How\n\n```{code-block} python\n:name: x\n\nfrom nclib import run\n\nrun('l2rm')\n```\n\n"
    "```{execution-status}\n```\n\n```{live-run}\n```\n",
    "book/api": "# Interfaces\n\n```{eval-rst}\n.. autofunction:: nclib.ot.sinkhorn\n"
    ".. autofunction:: nclib.run\n.. autoclass:: nclib.methods.l2rm.L2RM\n```\n",
    "index": "# Book\n\n```{toctree}\nnotebooks/a\nbook/how\nbook/api\n```\n\n## All\n\n```{gallery}\n```\n\n"
    + "".join(f"```{{stored-output}} a cell-{k}\n:alt: A circle\n```\n\n" for k in (1, 2)),
}
CONF = f"""
import sys
sys.path[:0] = [{str(EXT.parents[1])!r}, {str(EXT)!r}]
extensions = ['myst_nb', 'sphinx_design', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
extensions += ['nb_overlay', 'gallery', 'backlinks', 'table_numbers']
numfig, myst_enable_extensions, nb_execution_mode = True, ['colon_fence'], 'off'
exclude_patterns = ['_build', 'book/live', 'html', 'notebooks/spare.ipynb']
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A book of one executed notebook, a how-to page, the interfaces, and a notebook that is no page."""
    for folder in ("nclib", "notebooks", "book"):
        (tmp_path / folder).mkdir()
    nb = notebook("# Page one: its rest\n\nIt says this. And that.", "import nclib\nnclib.ot.sinkhorn", "1")
    source = tmp_path / "notebooks" / "a.ipynb"
    nbformat.write(nb, source)
    nbformat.write(notebook("# No page"), tmp_path / "notebooks" / "spare.ipynb")
    done = executed(nb, "own output")
    done.cells[1].outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": PICTURE})]
    html = '<table id="T_n"><caption>N</caption><tr><td>42</td></tr></table>'
    table = {"text/html": html, "text/plain": "42"}
    done.cells[2].outputs.insert(0, nbformat.v4.new_output("display_data", table))
    done.metadata[SOURCE] = source_digest(source)
    for page, text in MARKDOWN.items():
        (tmp_path / f"{page}.md").write_text(text, "utf8")
    contents = {"parts": [{"caption": "Part", "chapters": PAGES}]}
    (tmp_path / "_toc.yml").write_text(json.dumps(contents), "utf8")
    (tmp_path / "conf.py").write_text(CONF, "utf8")
    folder = folder_of(tmp_path)  # of this table of contents
    folder.mkdir(parents=True)
    nbformat.write(done, folder / "a.ipynb")
    (folder / "runs.json").write_text(json.dumps({"a": RUN}), "utf8")
    return tmp_path


@pytest.mark.slow
def test_a_build_shows_executed_notebooks_cards_and_links_and_refuses_others(tree: Path) -> None:
    words = ("-W", "--keep-going", "-E", "-a")
    done = build(tree, *words)
    assert (done.returncode, done.stderr) == (0, "")
    index, page, how, api = (
        (tree / "html" / f"{name}.html").read_text("utf8")
        for name in ("index", "notebooks/a", "book/how", "book/api")
    )
    assert "own output 2" in page
    assert "without a live run" in how
    assert "2026-01-02" in how
    assert "spare" not in how
    for said in ('href="notebooks/a.html"', "Page one: its rest", "It says this.", "1 min, 1 figure"):
        assert said in index
    assert "<td>42</td>" in index
    assert "Table 1.1 " in page  # the first of the first page of the contents
    assert 'alt="A circle"' in index
    assert (tree / "html" / "_images" / "a.svg").read_text("utf8") == PICTURE
    assert not list(problems(tree / "html"))
    links = [part.split("</div>")[0] for part in api.split("nc-used-in")[1:]]
    assert ["how.html" in one for one in links] == [False, True, True]
    assert "a.html" in links[0]

    live = tree / "book" / "live"
    live.mkdir()
    (live / "runs.json").write_text(json.dumps({"a": RUN}), "utf8")
    (tree / "nclib" / "a.txt").write_text("changed", "utf8")
    done = build(tree, *words)
    assert done.returncode != 0
    warned = [line for line in done.stderr.splitlines() if "WARNING" in line and "toctree" not in line]
    said = ("no output of cell-1 in a", "no output of cell-2 in a", "not executed with the present code")
    assert [any(words in line for line in warned) for words in said] == [True] * 3
    how = (tree / "html/book/how.html").read_text("utf8")
    assert "never" in how
    assert "<strong>A title</strong>, 2026-01-02: <strong>12 seconds</strong>" in how


def test_recorded_runs_of_the_same_settings_stand_under_the_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"method": "plain", "model": "vse", "dataset": "emoji", "preset": "quick", "mrate": 0.6}
    settings |= {"protocol": "images", "method_options": {"loss": "triplet"}}
    settings |= {"warmup_epochs": 2, "epochs": 3}
    mine: dict[str, Any] = {"settings": settings, "environment": {"device": "CPU", "threads": 2}}
    mine |= {"metrics": {"test": dict.fromkeys(COLUMNS, 10.0)}, "cost": {"seconds": 20}, "best_epoch": 2}
    runs = pd.DataFrame({key: [200.0, 204.0, 90.0] for key in (*COLUMNS, "seconds")})
    runs["option.loss"] = ["triplet", "triplet", "gce"]  # another loss does not count
    asked: dict[str, Any] = {}
    monkeypatch.setattr("ncbook.recorded", lambda **where: asked.update(where) or runs)
    monkeypatch.setattr("ncbook.runs.as_preset", lambda runs: runs)
    *_, live, recorded = comparison(mine)
    assert asked == {name: settings[name] for name in asked} | {"mrate": 0.6}
    assert re.findall(r"CPU, 2 threads \| 10\.0 \(1\) .* 20 \|$", live)
    assert recorded.count("202.0 ± 2.8 (2)") == len(COLUMNS)
    early = comparison({**mine, "settings": {**settings, "method": "l2rm", "method_options": {}}})
    assert "2 threads † |" in early[2]  # tested in its warm-up
    assert early[-1].startswith("† ")
