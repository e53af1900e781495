"""Checks of the printed numbers, on counts known from reading the papers."""

import ncbook
import pytest
from ncbook.errata import WEIGHT
from pages import cells
from records_made import lines


@pytest.fixture(scope="module")
def page():
    return {k: v for k, v in cells("claims", "sums").items() if k in ("wide", "table", "sums")}


def test_printed_sums_are_the_sums_of_their_recalls(page):
    found = page["sums"]
    assert found.loc["L2RM"].tolist() == [256, 256, 0, 0]
    assert found.loc["OMIT"].tolist() == [111, 82, 29, 0]
    assert found.loc["REPAIR"].tolist() == [70, 70, 0, 0]


def test_two_printed_recalls_are_impossible(page):
    found = cells("claims", "order", **page)["figure"]
    counts = [axis.get_legend_handles_labels()[1][1] for axis in found.axes]
    assert counts == ["impossible (2)", "impossible (0)"]
    for axis in found.axes:
        wrong = axis.lines[1]
        assert (wrong.get_ydata() < wrong.get_xdata()).all()


def test_methods_of_two_papers_at_the_same_nominal_rates(page):
    found = cells("claims", "noise", **page)["figure"]
    assert [axis.get_title("left") or axis.get_title() for axis in found.axes] == ["BiCro", "NCR", "SGR"]
    for axis in found.axes:
        assert [len(line.get_xdata()) for line in axis.lines] == [3, 3]


def test_findings_are_sorted_by_weight_and_explained_once():
    table = ncbook.errata_table("REPAIR")
    kinds = [row["kind"] for row in lines(table)]
    assert kinds == sorted(kinds, key=WEIGHT.index)
    why = [cells[2].text for _, cells in table.rows if "permutes all captions" in cells[2].text]
    assert len(why) == 1
    folded = [cells[1].folded for _, cells in table.rows if cells[1].folded]
    assert all(line.startswith("A") for lines in folded for line in lines)
