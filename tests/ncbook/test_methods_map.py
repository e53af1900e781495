"""The map has every method once, in places that exist, and every name leads to a section."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
import yaml

import nclib
from nclib.common.options import rules
from nclib.methods.plain import PlainOptions

ROOT = Path(__file__).resolve().parents[2]
KNOWN = yaml.safe_load((ROOT / "book" / "ncbook" / "methods.yml").read_text("utf8"))


def test_every_method_and_every_plain_loss_is_on_the_map_where_it_can_be() -> None:
    losses = set(rules(PlainOptions)["loss"].choices or ()) - {"own"}
    methods = set(nclib.methods.available()) - {"plain"}
    assert set(KNOWN["ideas"]) == methods | {f"plain ({loss})" for loss in losses}
    assert {idea[1] for idea in KNOWN["ideas"].values()} == set(KNOWN["signals"])
    assert {idea[2] for idea in KNOWN["ideas"].values()} == set(KNOWN["fates"])


@pytest.mark.parametrize("label", KNOWN["ideas"])
def test_a_name_leads_to_its_section(label: str) -> None:
    notebook, _, section = KNOWN["ideas"][label][4].partition("#")
    cells = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4).cells
    titles = re.findall(r"^###? (.+)$", "\n".join(cell.source for cell in cells), re.MULTILINE)
    assert not section or section in [title.lower() for title in titles]
