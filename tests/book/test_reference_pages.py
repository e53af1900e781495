"""The pages of reference name what exists: symbols are options, roles lead to objects."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
from pathlib import Path

import pytest

from nclib import label_noise, methods, models

BOOK = Path(__file__).resolve().parents[2] / "book"
PAGES = sorted(BOOK.rglob("*.md"))
SYMBOLS = (BOOK / "symbols.md").read_text("utf8")
LOCAL = {"S", "plan", "p", "q", "p_clean", "reg", "semantic_cost", "regions", "words"}
LOCAL |= {"vectors", "zv", "zt", "pv", "pt"}
OPTIONS: dict[str, set[str]] = {
    "L2RM": {f.name for f in dataclasses.fields(methods.options("l2rm"))} | {"batch_size"},
    "OMIT": {f.name for f in dataclasses.fields(models.options("omit"))} | {"margin", "plain"},
    "REPAIR": {f.name for f in dataclasses.fields(methods.options("repair"))},
    "UOT-RCL": {f.name for f in dataclasses.fields(label_noise.options("uot_rcl"))} | {"dim"},
}  # fmt: skip


def part(name: str) -> str:
    return SYMBOLS.split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("paper", OPTIONS)
def test_symbols_lead_to_options_that_exist(paper: str) -> None:
    cells = [row.split("|")[-2] for row in part(paper).splitlines() if row.startswith("| $")]
    named = {name for cell in cells for name in re.findall(r"(?<!\})`(\w+)`", cell)}
    assert len(named & OPTIONS[paper]) >= 6
    assert named <= OPTIONS[paper] | LOCAL, named - OPTIONS[paper] - LOCAL


def test_options_of_the_compared_methods_exist() -> None:
    rows = [row for row in part("The compared methods").splitlines() if "Options`" in row]
    of = {row.split("|")[1].strip().lower(): row for row in rows}
    own = {"plain", "l2rm", "repair", "gsc_plus", "crank_plus"}  # with parts of their own or of gsc, crank
    assert of.keys() == methods.available().keys() - own
    for method, row in of.items():
        named = set(re.findall(r"(?<!\})`(\w+)`", row.split("|")[-2]))
        assert named <= {f.name for f in dataclasses.fields(methods.options(method))}


def test_roles_lead_to_objects() -> None:
    role = re.compile(r"\{py:(?:func|class|mod|meth)\}`~?([^`]+)`")
    targets = {target for page in PAGES for target in role.findall(page.read_text("utf8"))}
    assert len(targets) > 20
    assert all(pkgutil.resolve_name(target) is not None for target in targets)  # raises where there is none
