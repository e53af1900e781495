"""Cards, thumbnails, outputs on other pages, and links from functions to the pages that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from backlinks import back_links, names_in, page_of
from check_html import problems
from executed import SOURCE, digest, folder_of, notebooks_of
from gallery import first_sentence, plain, reading, thumbnail
from notebook_tools import build, notebook

ROOT = Path(__file__).resolve().parents[2]
EXT = ROOT / "book" / "_ext"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 4"><circle r="1"/></svg>'


def figure(svg: str = SVG) -> Any:
    return nbformat.v4.new_output("display_data", data={"image/svg+xml": svg, "text/plain": "<Figure>"})


def test_prose_becomes_words() -> None:
    assert plain("A [link](x.md) to {py:func}`nclib.run`, $x^2$ **bold**") == "A link to nclib.run, bold"
    assert first_sentence("# T\n\n| a |\n\n(label)=\n\nOne thing. Another.") == "One thing."
    assert first_sentence("# T\n\nHe, 2021. Two *networks* {cite:p}`x` agree. More.") == "Two networks agree."
    assert first_sentence("# T") == ""


def test_every_notebook_of_the_book_has_a_card_in_its_order() -> None:
    listed = notebooks_of(ROOT)
    assert {*listed, "one_run"} == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    for name in listed:
        cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells
        sentence = first_sentence(next(c.source for c in cells if c.cell_type == "markdown"))
        assert len(sentence) > 12, name
        assert "$" not in sentence
        assert sum("thumbnail" in c.metadata.get("tags", []) for c in cells) <= 1, name


def test_the_tagged_figure_else_the_first() -> None:
    nb = notebook("# T", "1", "2")
    assert thumbnail(nb) is None
    nb.cells[1].outputs, nb.cells[2].outputs = [figure("<svg>1</svg>")], [figure("<svg>2</svg>")]
    assert thumbnail(nb) == ("svg", b"<svg>1</svg>")
    nb.cells[2].metadata["tags"] = ["thumbnail"]
    assert thumbnail(nb) == ("svg", b"<svg>2</svg>")


def test_reading_time_counts_prose_and_figures() -> None:
    nb = notebook("# T\n\n" + "word " * 690, "code = 'that is not read'")
    assert reading(nb) == "3 min"
    nb.cells[1].outputs = [figure()]
    assert reading(nb) == "3 min, 1 figure"
    nb.cells[0].source = "# T"
    nb.cells[1].outputs *= 2
    assert reading(nb) == "1 min, 2 figures"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A book of one notebook, one how-to page, the interfaces, and a gallery."""
    for folder in ("notebooks", "book"):
        (tmp_path / folder).mkdir()
    nb = notebook("# Page one: its rest\n\nIt says this. And that.", "import nclib\nnclib.ot.sinkhorn", "1")
    nb.cells[2].id = "numbers"
    nbformat.write(nb, tmp_path / "notebooks" / "a.ipynb")
    nb.cells[1].outputs = [figure()]
    table = {"text/html": "<table><tr><th>n</th></tr><tr><td>42</td></tr></table>", "text/plain": "42"}
    nb.cells[2].outputs = [nbformat.v4.new_output("display_data", data=table)]
    block = "```{code-block} python\n:name: x\n\nfrom nclib import run\n\nrun('l2rm')\n```\n"
    (tmp_path / "book" / "how.md").write_text(f"# How\n\n{block}", "utf8")
    named = (
        "autofunction:: nclib.ot.sinkhorn",
        "autofunction:: nclib.run",
        "autoclass:: nclib.methods.l2rm.L2RM",
    )
    auto = "```{eval-rst}\n" + "\n".join(f".. {one}\n" for one in named) + "```\n"
    (tmp_path / "book" / "api.md").write_text(f"# Interfaces\n\n{auto}", "utf8")
    outputs = "```{stored-output} a numbers\n```\n\n```{stored-output} a cell-1\n:alt: A circle\n```\n\n"
    outputs += "```{stored-output} a nothing\n```\n"
    toc = "```{toctree}\nnotebooks/a\nbook/how\nbook/api\n```\n"
    (tmp_path / "index.md").write_text(f"# Book\n\n{toc}\n## All\n\n```{{gallery}}\n```\n\n{outputs}", "utf8")
    chapters = "".join(f"      - file: {page}\n" for page in ("notebooks/a", "book/how", "book/api"))
    contents = f"parts:\n  - caption: Part\n    chapters:\n{chapters}"
    (tmp_path / "_toc.yml").write_text(contents, "utf8")
    nb.metadata[SOURCE] = digest(tmp_path / "notebooks" / "a.ipynb")
    folder_of(tmp_path).mkdir(parents=True)
    nbformat.write(nb, folder_of(tmp_path) / "a.ipynb")
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(EXT)!r}]\n"
        "extensions = ['myst_nb', 'sphinx_design', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']\n"
        "extensions += ['nb_overlay', 'gallery', 'backlinks']\n"
        "myst_enable_extensions = ['colon_fence']\n"
        "nb_execution_mode = 'off'\nexclude_patterns = ['_build', 'html']\n",
        "utf8",
    )
    return tmp_path


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_build_shows_cards_outputs_and_links(tree: Path) -> None:
    (warning,) = build(tree, "-E", "-a").stderr.splitlines()
    assert "WARNING: no output of nothing in a" in warning
    page = (tree / "html" / "index.html").read_text("utf8")
    assert 'href="notebooks/a.html"' in page
    assert "Page one: its rest" in page
    assert "It says this." in page
    assert "1 min, 1 figure" in page
    assert "<td>42</td>" in page
    assert 'alt="A circle"' in page
    assert (tree / "html" / "_images" / "a.svg").read_text("utf8") == SVG
    assert not list(problems(tree / "html"))
    text = (tree / "html" / "book" / "api.html").read_text("utf8")
    assert text.count("nc-used-in") == 3
    used, spare, chosen = text.split("nc-used-in")[1:]
    assert "../notebooks/a.html" in used.split("</div>")[0]
    assert "how.html" in spare.split("</div>")[0]
    assert "how.html" in chosen.split("</div>")[0]


def test_names_are_followed_through_imports() -> None:
    code = "import a.b as c\nimport d\nfrom e import f as g\nc.x(g.y)\nd.z['l2rm'].w\nother.v"
    assert {*names_in(code)} >= {"a.b.x", "a.b", "e.f.y", "d.z", "l2rm"}
    assert not [name for name in names_in(code) if name.startswith("other")]


def test_the_book_leads_from_functions_to_pages() -> None:
    links = back_links(ROOT)
    assert "notebooks/transport" in links["nclib.ot.entropic", "partial_sinkhorn"]
    assert links["nclib.methods.l2rm", "L2RM"]["notebooks/l2rm"] == "L2RM"
    assert "book/howto/record" in links["nclib.runs.frame", "table"]
    assert page_of(ROOT, "notebooks/l2rm")[0] == "L2RM"


def test_outputs_shown_on_other_pages_are_cells_of_their_notebooks() -> None:
    shown = [
        tuple(line.split()[1:])
        for page in sorted((ROOT / "book").glob("**/*.md"))
        for line in page.read_text("utf8").splitlines()
        if line.startswith("```{stored-output}")
    ]
    assert shown
    for name, cell in shown:
        nb = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
        assert cell in {c.id for c in nb.cells}, f"{name} has no cell {cell}"
