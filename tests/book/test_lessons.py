"""Lessons: method chapters share one shape, their drawings are valid, and their solutions run at once."""

import ast
import importlib
import re
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ("l2rm", "omit", "repair", "uot_rcl", "crank")
FAMILIES = {
    "coteaching": ("ncr", "bicro", "mscn"),
    "negatives": ("decl", "rcl", "crcl"),
    "relations": ("gsc", "sps"),
    "neighbours": ("cream", "pcsr", "in2r"),
}
SECTIONS = ("The problem", "The idea in four pictures", "In plain words", "Step by step", "Where it fails")
SECTIONS += ("Exercises",)


def cells(name: str) -> list:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells


def chapter(name: str):
    return importlib.import_module(f"ncbook.chapters.{name}")


@pytest.mark.parametrize("name", LESSONS)
def test_sections_come_in_the_order_of_a_lesson(name: str) -> None:
    text = "\n".join(c.source for c in cells(name) if c.cell_type == "markdown")
    places = [text.find(f"## {section}") for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)
    assert text.count("```{literalinclude} /nclib/") >= 3
    assert "## Read next" in text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_a_section_for_each_method(name: str) -> None:
    methods = FAMILIES[name]
    assert tuple(m for m in chapter(name).VIEWS if not m.endswith("_plus")) == methods
    text = "\n".join(c.source for c in cells(name) if c.cell_type == "markdown")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    common = ["The run", "Change it", "Side by side", "Exercises", "Read next"]
    assert [title.lower() for title in titles[2:-5]] == list(methods)
    assert titles[0] == "The problem"
    assert titles[-5:] == common
    assert len(re.findall(r"^### Where \w+ fails$", text, re.MULTILINE)) == len(methods)
    assert text.count(":::{dropdown} What differs from ") == len(methods)
    assert text.count("```{literalinclude} /nclib/") >= 2 * len(methods)


@pytest.mark.parametrize("name", [*LESSONS, *FAMILIES])
def test_a_cell_changes_a_step_of_the_method(name: str) -> None:
    """A subclass of a few lines, registered where it is written, and the run beside its own."""
    (cell,) = [c for c in cells(name) if c.id == "change"]
    assert not cell.metadata.get("tags")  # shown, and easy to edit
    tree = ast.parse(cell.source)
    (written,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    (registered,) = written.decorator_list
    assert re.match(r"(methods|models|label_noise)\.register\(", ast.unparse(registered))
    assert sum(len(method.body) for method in written.body) <= 5
    assert "## Change it" in "\n".join(c.source for c in cells(name) if c.cell_type == "markdown")


@pytest.mark.parametrize("name", [*LESSONS, *FAMILIES])
def test_solutions_run_in_less_than_two_seconds_each(name: str, capsys: pytest.CaptureFixture) -> None:
    solutions = [c for c in cells(name) if c.id.startswith("solution-")]
    assert len(solutions) >= 3
    known = {"figures": chapter(name)}
    for cell in solutions:
        assert "hide-cell" in cell.metadata["tags"]
        begun = time.process_time()
        exec(compile(cell.source, cell.id, "exec"), known)  # the cells of this book
        assert time.process_time() - begun < 2
        assert capsys.readouterr().out.strip()
