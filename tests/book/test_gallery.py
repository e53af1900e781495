"""Cards, thumbnails, outputs on other pages, and links from functions to the pages that use them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from backlinks import back_links, page_of
from executed import notebooks_of
from gallery import first_sentence, thumbnail
from notebook_tools import notebook

ROOT = Path(__file__).resolve().parents[2]
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 4"><circle r="1"/></svg>'


def figure(svg: str = SVG) -> Any:
    return nbformat.v4.new_output("display_data", data={"image/svg+xml": svg, "text/plain": "<Figure>"})


def test_every_notebook_of_the_book_has_a_card_of_plain_words() -> None:
    assert {*notebooks_of(ROOT), "one_run"} == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    for name in notebooks_of(ROOT):
        cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells
        sentence = first_sentence(next(c.source for c in cells if c.cell_type == "markdown"))
        assert len(sentence) > 12, name
        assert not re.search(r"[$*`{}]|\]\(", sentence), name


def test_the_tagged_figure_else_the_first() -> None:
    nb = notebook("# T", "1", "2")
    assert thumbnail(nb) is None
    nb.cells[1].outputs, nb.cells[2].outputs = [figure("<svg>1</svg>")], [figure("<svg>2</svg>")]
    assert thumbnail(nb) == ("svg", b"<svg>1</svg>")
    nb.cells[2].metadata["tags"] = ["thumbnail"]
    assert thumbnail(nb) == ("svg", b"<svg>2</svg>")


def test_the_book_leads_from_functions_to_pages() -> None:
    links = back_links(ROOT)
    assert "notebooks/transport" in links["nclib.ot.entropic", "partial_sinkhorn"]
    assert links["nclib.methods.l2rm", "L2RM"]["notebooks/l2rm"] == "L2RM"
    assert "book/howto/record" in links["nclib.runs.frame", "table"]
    assert page_of(ROOT, "notebooks/l2rm")[0] == "L2RM"
