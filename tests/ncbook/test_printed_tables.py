"""Every printed value of the four papers stands in a table of its own layout, once, as printed."""

import base64
import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import ncbook
import pytest
from ncbook import papers, printed
from ncbook.layouts import layout_of
from ncbook.page import Cell, Table
from ncbook.papers import MISSING, PRINTED, anomaly_text, values_of
from ncbook.runs import RECALLS

KEYS = list(ncbook.LAYOUTS)


class Shown(HTMLParser):
    """Texts of the rows of a table, the links of its page, and its identifiers."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.links, self.ids, self._value, self._part = [], [], [], False, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        self.ids += [a["id"]] if "id" in a else []
        self.links += [a["href"]] if "href" in a else []
        if tag in ("thead", "tbody"):
            self._part = tag
        if tag == "tr":
            self.rows.append([])
        if tag == "span" and a.get("class") == "nc-v":
            self._value = True
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag == "span":
            self._value = False

    def handle_data(self, data):
        if self._value and self.rows:
            self.rows[-1][-1] += data

    @property
    def body(self):
        return [row for row in self.rows if row]


def file_of(sheet):
    return list(csv.DictReader(io.StringIO(sheet.file)))


def test_every_line_of_the_files_stands_in_one_table():
    wanted = {"retrieval": 3145, "category_map": 488, "resources": 8}
    counted = dict.fromkeys(wanted, 0)
    for paper, table in KEYS:
        counted[layout_of(paper, table).file] += len(values_of(paper, table))
    assert counted == wanted
    for name in ("retrieval", "category_map"):
        frame = printed(name)
        assert counted[name] == len(frame)
        assert set(zip(frame["paper"], frame["table"], strict=True)) <= set(KEYS)
    # OMIT's matching times are in two files; REPAIR's Table VI is in one.
    assert len(printed("resources", paper="REPAIR")) == counted["resources"]


@pytest.mark.parametrize(("paper", "table"), KEYS)
def test_a_table_has_every_value_in_a_place_of_its_own(paper, table):
    frame, found = ncbook.paper_table(paper, table), values_of(paper, table)
    assert len({(c.row, c.column) for c in found}) == len(found)
    assert int((frame != MISSING).sum().sum()) == len(found)
    for c in found:
        assert frame.at[c.row, c.column] == c.value
    assert frame.index.is_unique
    assert frame.columns.is_unique


@pytest.mark.parametrize(("paper", "table"), KEYS)
def test_page_and_file_agree(paper, table, nothing):
    sheet = ncbook.printed_table(paper, table, nothing)
    layout, page = layout_of(paper, table), Shown(sheet._repr_html_())
    width = len(layout.rows)
    on_page = {
        (tuple(row[:width]), column): value
        for row in page.body
        for column, value in zip(sheet.columns, row[width:], strict=True)
        if value != MISSING
    }
    in_file = {
        (tuple(line[k] for k in layout.rows), tuple(line[k] for k in layout.columns)): line["printed"]
        for line in file_of(sheet)
    }
    assert on_page == in_file
    link = next(href for href in page.links if href.startswith("data:text/csv"))
    assert base64.b64decode(link.partition("base64,")[2]).decode() == sheet.file


def test_known_places():
    six = ncbook.paper_table("L2RM", "6")
    assert six.shape == (56, 14)
    assert six.at[("0.8", "L2RM-SGRAF"), ("MS-COCO 1K", "", "rSum")] == "482.6"
    assert six.at[("0.6", "NCR"), ("MS-COCO 1K", "", "rSum")] == "2.4"
    assert list(six.columns[:7]) == [
        ("Flickr30K", "image → text", "R@1"),
        ("Flickr30K", "image → text", "R@5"),
        ("Flickr30K", "image → text", "R@10"),
        ("Flickr30K", "text → image", "R@1"),
        ("Flickr30K", "text → image", "R@5"),
        ("Flickr30K", "text → image", "R@10"),
        ("Flickr30K", "", "rSum"),
    ]
    four = ncbook.paper_table("REPAIR", "VI")
    assert four.at[("SGR", "4096"), ("training time",)] == "28.1 h"
    one = ncbook.paper_table("OMIT", "1")
    assert one.at[("ResNet-152 + BiGRU", "PEM", "PCME"), ("MS-COCO 5K", "", "rSum")] == MISSING
    assert ("CLIP ViT-B/32", "OMIT", "OMIT †") in one.index
    assert ("BUTD + BiGRU", "CAM", "SGRAF ★") in one.index
    assert ncbook.paper_table("UOT-RCL", "II").at[("PLS",), ("image → text", "0.6")] == "0.337"


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


def test_every_oddity_of_a_value_is_marked_somewhere():
    frame = printed("anomalies")
    wanted = set(frame[frame["kind"].isin(papers.MARKED)]["id"]) - {"A062"}  # a name, in no column
    marked = {m for key in KEYS for c in values_of(*key) for m in (*c.marks, *c.row_marks)}
    assert wanted <= marked
    against = {m for key in KEYS for m in papers.said_against(*key)}
    assert len(against) == 19  # of 22: three sentences concern no single table
    assert "R@5" in anomaly_text("A002")


def test_notes_are_linked_and_every_link_has_its_note(nothing):
    sheet = ncbook.printed_table("L2RM", "6", nothing)
    page = Shown(sheet._repr_html_())
    targets = {href[1:] for href in page.links if href.startswith("#")}
    assert targets
    assert targets <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_identifiers_differ_between_tables(nothing):
    slugs = [ncbook.printed_table(*key, nothing).slug for key in KEYS]
    assert len(set(slugs)) == len(slugs)


def test_text_cannot_break_the_page():
    sheet = Table(
        "s", "<b>&", "printed", ["a<b"], ("x",), [("<i>",)], [([Cell('"<')], [Cell("1<2", own="<u>")])]
    )
    page = sheet._repr_html_()
    for bad in ("<b>", "<i>", "<u>", '"<"'):
        assert bad not in page
    assert "1&lt;2" in page


@pytest.mark.parametrize("key", [("L2RM", "5"), ("NCR", "1"), ("REPAIR", "3")])
def test_unknown_tables_are_refused_with_those_that_exist(key):
    with pytest.raises(ValueError, match=r"no table .*there are L2RM: 1, 2"):
        ncbook.paper_table(*key)


def test_script_and_style_know_the_classes_of_the_page_and_load_nothing(nothing):
    page = ncbook.printed_table("L2RM", "6", nothing)._repr_html_()
    static = Path(__file__).resolve().parents[2] / "book" / "_static"
    script, style = ((static / f"tables.{kind}").read_text("utf8") for kind in ("js", "css"))
    for name in ("nc-sheet", "nc-table", "nc-scroll", "nc-notes", "nc-v"):
        assert f".{name}" in script
        assert name in page
    verdicts = [f"nc-{word.replace(' ', '-')}" for word in ncbook.VERDICTS]
    for name in ("nc-kind", "nc-csv", "nc-scroll", "nc-own", "nc-sort", "nc-tools", "nc-lines", *verdicts):
        assert f".{name}" in style
    for text in (script, style):
        assert not re.search(r"https?:|url\(|@import|fetch\(|innerHTML", text)
    # a box that scrolls can be reached by keyboard and has a name
    assert 'tabindex="0" role="region" aria-labelledby="l2rm-table-6-name"' in page


def test_printed_numbers():
    table = printed("retrieval", paper="L2RM", table="6", method="L2RM-SGR", dataset="Flickr30K")
    assert set(table["noise_rate"]) >= {"0.2", "0.4", "0.6", "0.8"}
    for name in PRINTED:
        assert len(printed(name)) > 10
    for (dataset, rate), part in table.groupby(["dataset", "noise_rate"]):
        values = part.set_index("metric")["value"].astype(float)
        assert values[list(RECALLS[:-1])].sum() == pytest.approx(values["rsum"], abs=0.11), (dataset, rate)


def test_printed_refuses_unknown_names():
    with pytest.raises(ValueError, match="unknown table"):
        printed("tables")
    with pytest.raises(ValueError, match="has no column 'rate'"):
        printed("retrieval", rate="0.2")
