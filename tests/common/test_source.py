"""Code of the user's counts by its source text: what changes its digest, and what does not."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from nclib.common.source import own_code

METHOD = """
import math
import own_helpers
from own_tables import TABLE
from nclib.noise import unit_interval
SCALE, SHIFT = 2.0, 3.0
def loss(x):
    return x * SCALE + SHIFT
class Base:
    def prepare(self): return own_helpers.scale(1)
class Mine(Base):
    def step(self, x, by=1.0):
        from nclib import losses
        return [loss(unit_interval(y)) * TABLE['f'] + math.pi for y in x]
"""
HELPERS = "def scale(x): return 2 * x\n"
TABLES = "TABLE = {'f': 2}\n"

Code = Callable[..., str]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Code:
    """Write the files and return the digest of the class, imported anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def digest(method: str = METHOD, own_helpers: str = HELPERS, own_tables: str = TABLES) -> str:
        for name, text in (("own_helpers", own_helpers), ("own_tables", own_tables), ("own_method", method)):
            (tmp_path / f"{name}.py").write_text(text, "utf8")
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return own_code([importlib.import_module("own_method").Mine])

    return digest


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("return x * SCALE + SHIFT", "# words\n    return (x * SCALE\n            + SHIFT)", True),
        ("SCALE, SHIFT", "record = print('a call')\nSCALE, SHIFT", True),
        ("SCALE, SHIFT", "unused = 1\nSCALE, SHIFT", True),
        ("noise import unit_interval", "noise import GaussianMixture1d, unit_interval", True),
        ("SCALE, SHIFT = 2.0", "SCALE, SHIFT = 2.5", False),
        ("SHIFT = 2.0, 3.0", "SHIFT = 2.0, 3.0\nSCALE += 1", False),
        ("x * SCALE", "x / SCALE", False),
        ("scale(1)", "scale(2)", False),
        ("by=1.0", "by=2.0", False),
        ("noise import unit_interval", "noise import GaussianMixture1d as unit_interval", False),
        ("math.pi", "math.e", False),
    ],
)
def test_what_a_class_uses_counts_and_nothing_else(code: Code, old: str, new: str, same: bool) -> None:
    assert old in METHOD
    changed = METHOD.replace(old, new)
    assert (code(changed) == code()) == same


def test_files_beside_it_count(code: Code) -> None:
    first = code()
    assert code(own_helpers=HELPERS + "# words") == first
    assert len({first, code(own_helpers=HELPERS.replace("2", "0")), code(own_tables="TABLE = {'f': 3}")}) == 3


def test_what_counts_is_what_was_imported(code: Code, tmp_path: Path) -> None:
    first = code()
    (tmp_path / "own_method.py").write_text(METHOD.replace("2.0", "4.0"), "utf8")
    module = sys.modules["own_method"]
    assert own_code([module.Mine]) == first
    assert own_code([importlib.reload(module).Mine]) != first


def test_a_version_takes_the_place_of_the_source(code: Code) -> None:
    one, other, second = (
        METHOD.replace("class Mine(Base):", f"class Mine(Base):\n    version = {n}").replace("math.pi", more)
        for n, more in ((1, "1"), (1, "2"), (2, "1"))
    )
    assert code(one) == code(other) != code(second)


def test_a_class_that_a_function_makes_counts_with_its_calls(code: Code) -> None:
    made = METHOD.replace("class Mine", "class Plain") + (
        "def made(rate):\n    class Own(Plain):\n        factor = rate\n    return Own\nMine = made(0.1)\n"
    )
    by_type = METHOD.replace("class Mine", "class Plain") + "Mine = type('Own', (Plain,), {'factor': 1})\n"
    for text, old, new in ((made, "0.1", "0.2"), (by_type, "1}", "2}")):
        assert code(text) == code(text) != code(text.replace(old, new))


CELLS = (
    "%matplotlib inline",
    "def loss(x):\n    return 2 * x",
    "class Mine:\n    def step(self, x):\n        return loss(x)",
)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Code:
    """Execute cells in a module such as that of a kernel, and return the digest of its class."""

    def digest(*cells: str) -> str:
        module = types.ModuleType("own_notebook")
        monkeypatch.setitem(sys.modules, "own_notebook", module)
        vars(module)["In"] = ["", *cells]
        for cell in cells:
            if not cell.startswith("%"):
                exec(cell, vars(module))
        return own_code([vars(module)["Mine"]])

    return digest


def test_cells_of_a_notebook_count_as_they_ran_last(notebook: Code) -> None:
    first = notebook(*CELLS)
    other = "def loss(x):\n    return 3 * x"
    assert notebook(*CELLS, "print('a figure')", CELLS[2]) == first
    assert notebook(CELLS[1], CELLS[2], other) == notebook(other, CELLS[2]) != first
    assert notebook(*CELLS, other, CELLS[1]) == first


def test_what_was_typed_is_new_code_in_every_process_unless_it_has_a_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = types.ModuleType("own_typed")
    monkeypatch.setitem(sys.modules, "own_typed", typed)
    exec("class Mine: pass\nFirst = Mine\nclass Mine: pass", vars(typed))
    exec("class Second:\n    version = 2\nThird = Second\nclass Second:\n    version = 2", vars(typed))
    first, mine, second, third = (own_code([vars(typed)[k]]) for k in ("First", "Mine", "Second", "Third"))
    assert own_code([typed.Mine]) == mine != first != "" != second == third
