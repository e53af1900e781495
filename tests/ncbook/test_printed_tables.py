"""Every printed value of the four papers stands in a table of its own layout, once, as printed."""

import base64
import re
from pathlib import Path

import ncbook
import pytest
from ncbook import printed
from ncbook.layouts import layout_of
from ncbook.page import Cell, Table
from ncbook.papers import MISSING, PRINTED, values_of
from ncbook.runs import RECALLS
from pages import cells
from records_made import lines

KEYS = list(ncbook.LAYOUTS)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("paper", "table"), KEYS)
def test_page_and_file_agree(paper, table, nothing):
    sheet = ncbook.printed_table(paper, table, nothing)
    layout, page = layout_of(paper, table), sheet._repr_html_()
    cells = [(heads, *pair) for heads, row in sheet.rows for pair in zip(sheet.columns, row, strict=True)]
    shown = {(*(h.text for h in heads), *at): cell.text for heads, at, cell in cells if cell.text != MISSING}
    assert shown == {
        tuple(line[k] for k in (*layout.rows, *layout.columns)): line["printed"] for line in lines(sheet)
    }
    on_page = re.findall(r"<td [^>]*><span class=\"nc-v\">([^<]*)</span>", page)
    assert on_page == [cell.text for *_, cell in cells]
    (link,) = re.findall('base64,([^"]*)', page)
    assert base64.b64decode(link).decode() == sheet.file


@pytest.mark.parametrize(
    ("key", "row", "column", "mark"),
    [
        (("L2RM", "6"), ("0.8", "IMRAM"), ("Flickr30K", "image → text", "R@10"), "A003"),
        (("L2RM", "1"), ("0.8", "IMRAM"), ("Flickr30K", "image → text", "R@10"), "A002"),
        (("REPAIR", "II"), ("VSE∞",), ("text → image", "R@1"), "A044"),
        (("UOT-RCL", "I"), ("MvDA",), ("NUS-WIDE", "image → text", "0.6"), "A056"),
        (("UOT-RCL", "II"), ("PLS",), ("image → text", "0.8"), "A059"),
    ],
)
def test_odd_values_are_marked_in_their_cell(key, row, column, mark):
    marked = {(c.row, c.column) for c in values_of(*key) if mark in c.marks}
    assert (row, column) in marked
    other = (row, tuple("R@1" if part == "R@10" else part for part in column))
    assert other == (row, column) or other not in marked


def test_text_cannot_break_the_page():
    sheet = Table(
        "s", "<b>&", "printed", ["a<b"], ("x",), [("<i>",)], [([Cell('"<')], [Cell("1<2", own="<u>")])]
    )
    page = sheet._repr_html_()
    for bad in ("<b>", "<i>", "<u>", '"<"'):
        assert bad not in page
    assert "1&lt;2" in page


def test_printed_numbers():
    table = printed("retrieval", paper="L2RM", table="6", method="L2RM-SGR", dataset="Flickr30K")
    assert set(table["noise_rate"]) >= {"0.2", "0.4", "0.6", "0.8"}
    for name in PRINTED:
        assert len(printed(name)) > 10
    for (dataset, rate), part in table.groupby(["dataset", "noise_rate"]):
        values = part.set_index("metric")["value"].astype(float)
        assert values[list(RECALLS[:-1])].sum() == pytest.approx(values["rsum"], abs=0.11), (dataset, rate)


def test_the_index_leads_to_every_table_and_to_the_figures_that_captions_name():
    index = cells("claims", "index")["index"].reset_index()
    linked = set(index["target"])
    for (paper, table), layout in ncbook.LAYOUTS.items():
        page = f"results_{paper.lower().replace('-', '_')}"
        assert f"{page}.html#{layout.slug}" in linked
        assert f'\\"{table}\\"' in (ROOT / "notebooks" / f"{page}.ipynb").read_text("utf8")
    figures = set(index[["paper", "number", "target"]].itertuples(index=False, name=None))
    assert ("L2RM", "Fig. 5", "l2rm.html") in figures
    assert ("OMIT", "Fig. 6", "omit.html") in figures  # of a caption that names two
