"""``ncbook view``: the output of papermill as one page, or as a notebook that Jupyter shows well."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from markdown_it import MarkdownIt
from ncbook import cli, view, viewing

ROOT = Path(__file__).resolve().parents[2]
PROSE = """# A run {cite:p}`han2024l2rm`

(start)=
See {py:class}`~nclib.methods.l2rm.L2RM`, [the start](start) and [a page](nowhere.ipynb).

```{literalinclude} /nclib/methods/l2rm.py
:language: python
:dedent:
:pyobject: L2RM.warmup_step
:caption: "nclib/methods/l2rm.py, L2RM.warmup_step"
```

:::{dropdown} More
Words.
:::
"""
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>'


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A notebook with prose of the book, one figure with a caption, and a training log."""
    figure = nbformat.v4.new_code_cell("draw()", execution_count=1, id="figure")
    figure.metadata["mystnb"] = {"figure": {"caption": "A curve."}}
    figure.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": SVG})]
    sheets = [
        f'<figure class="nc-sheet nc-{kind}" id="{kind}"><figcaption><strong>L2RM, Table 6: R@1</strong>'
        f"</figcaption></figure>"
        for kind in ("printed", "measured")
    ]
    for table in ('<table id="T_a" class="dataframe">\n<caption>rSum</caption></table>', *sheets):
        figure.outputs.append(nbformat.v4.new_output("display_data", {"text/html": table}))
    run = nbformat.v4.new_code_cell("train()", execution_count=2, id="run")
    run.outputs = [nbformat.v4.new_output("stream", text="epoch 1/1 loss 1.0\n")]
    cells = [nbformat.v4.new_markdown_cell(PROSE, id="prose"), figure, run]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "out.ipynb")
    return tmp_path / "out.ipynb"


def test_a_notebook_is_readable_in_jupyter(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["view", str(out), "--out", str(out), "--no-open"]) == 0
    assert capsys.readouterr().out == f"written: {out}\n"
    prose, figure, _ = nbformat.read(out, 4).cells
    assert "# A run (Han et al., 2024)" in prose.source
    assert "See `L2RM`, [the start](#start) and a page." in prose.source
    assert '<a id="start"></a>' in prose.source
    assert "```python\ndef warmup_step(self, loop: Loop" in prose.source
    assert "<details><summary>More</summary>\n\nWords.\n\n</details>" in prose.source
    assert not re.search(r"\{[\w:]+\}|:::", prose.source)
    assert [o.data for o in figure.outputs[4:]] == [{"text/markdown": "*Figure.* A curve."}]
    written = out.read_bytes()
    view(out, out)
    assert out.read_bytes() == written  # a second time changes nothing


def test_links_lead_to_the_pages_that_were_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "_build/html/notebooks/l2rm.html"
    page.parent.mkdir(parents=True)
    page.touch()
    monkeypatch.setattr(viewing, "ROOT", tmp_path)
    text = viewing.plain("See [the *chapter*](l2rm.ipynb#run) and [another](ncr.ipynb).")
    shown = f'See <a href="{page.as_uri()}#run">the <em>chapter</em></a> and another.'
    assert MarkdownIt().render(text) == f"<p>{shown}</p>\n"


@pytest.mark.slow
def test_a_page_holds_all_it_needs(out: Path) -> None:
    command = [sys.executable, "-m", "ncbook", "view", str(out), "--no-open"]
    done = subprocess.run(command, cwd=ROOT / "book", capture_output=True, text=True, timeout=300)
    page = out.with_suffix(".html").read_text("utf8")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"written: {out.with_suffix('.html')}\n", "")
    named = re.findall(r'(?:src|href)="((?!data:|#|https?:)[^"]*)"', page)
    assert named == []
    assert "url(../" not in page
    for words in (
        "Fig. 1 ",
        "A curve.",
        "Han et al., 2024",
        "warmup_step",
        "Training log: ",
        "<summary>More",
    ):
        assert words in page
    link = '<a class="headerlink" href="#{}" title="Link to this table">#</a>'
    number = '<span class="caption-number">Table {} </span>'
    assert f"<caption>{number.format(1)}rSum{link.format('T_a')}</caption>" in page
    assert f"<strong>{number.format(2)}L2RM, Table 6: R@1</strong>{link.format('measured')}" in page
    assert (
        "<strong>L2RM, Table 6: R@1</strong></figcaption>" in page
    )  # a printed table keeps its paper's number


@pytest.mark.parametrize(
    ("content", "out", "said"),
    [
        (None, "page.html", "a.ipynb: there is no such file"),
        ("{}", "page.html", "a.ipynb is not a notebook"),
        ("[", "page.html", "a.ipynb is not a notebook"),
        (nbformat.writes(nbformat.v4.new_notebook()), "page.html", "a.ipynb was not executed; papermill"),
        ("{}", "page.pdf", "page.pdf: must end in .html, for a page, or in .ipynb"),
    ],
)
def test_other_files_are_refused(
    content: str | None, out: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "a.ipynb").write_text(content, "utf8")
    assert cli.main(["view", str(tmp_path / "a.ipynb"), "--out", str(tmp_path / out), "--no-open"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / out).exists()
