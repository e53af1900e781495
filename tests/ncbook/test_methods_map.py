"""The map has every method once, with facts of the registry, and every name leads to a section."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from ncbook.chapters import methods_map as page

import nclib
from nclib.common.options import rules
from nclib.methods.plain import PlainOptions

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def test_every_method_and_every_plain_loss_is_on_the_map() -> None:
    losses = set(rules(PlainOptions)["loss"].choices or ()) - {"own"}
    methods = set(nclib.methods.available()) - {"plain"}
    assert set(page.IDEAS) == methods | {f"plain ({loss})" for loss in losses}


@pytest.mark.parametrize("label", page.IDEAS)
def test_a_name_leads_to_its_section(label: str) -> None:
    notebook, _, section = page.IDEAS[label].page.partition("#")
    cells = nbformat.read(NOTEBOOKS / f"{notebook}.ipynb", 4).cells
    titles = re.findall(r"^###? (.+)$", "\n".join(cell.source for cell in cells), re.MULTILINE)
    assert not section or section in [title.lower() for title in titles]


def test_facts_come_from_the_registry_and_the_records() -> None:
    table = page.facts()
    assert set(table["signal"]) == set(page.SIGNALS)
    assert set(table["fate"]) == set(page.FATES)
    row = table.loc["mscn"]
    assert (row["networks"], row["clean"], row["year"]) == (2, 0.02, "2023")
    undated = table.index[table["year"] == ""]
    assert list(undated) == ["crank", "crank_plus"]
    dated = table["year"].drop(undated).astype(int)
    assert list(dated) == sorted(dated)  # the order of publication


def test_the_grid_holds_each_name_once() -> None:
    names = re.findall(r"<b>(.*?)</b>", page.grid().to_html())
    assert sorted(names) == sorted(idea.name for idea in page.IDEAS.values())
