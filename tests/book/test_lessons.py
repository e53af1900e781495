"""Lessons: method chapters share one shape, their drawings are valid, and their solutions run at once."""

import ast
import re
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ("l2rm", "omit", "repair", "uot_rcl", "crank")
ELEVEN = ("ncr", "bicro", "mscn", "decl", "rcl", "crcl", "gsc", "sps", "cream", "pcsr", "in2r")
SECTIONS = ("The problem", "The idea in four pictures", "In plain words", "Step by step", "Where it fails")
SECTIONS += ("Exercises",)


def cells(name: str) -> list:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells


@pytest.mark.parametrize("name", LESSONS)
def test_sections_come_in_the_order_of_a_lesson(name: str) -> None:
    text = "\n".join(c.source for c in cells(name) if c.cell_type == "markdown")
    places = [text.find(f"## {section}") for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)
    assert text.count("```{literalinclude} /nclib/") >= 3
    assert "## Read next" in text


@pytest.mark.parametrize("method", ELEVEN)
def test_each_of_the_others_has_a_picture_a_step_and_its_result(method: str) -> None:
    found = {c.id: c for c in cells("others")}
    assert found[method].source.startswith(f"### {found[method].source[4:].splitlines()[0]}\n")
    assert found[f"{method}-idea"].source.startswith("ncbook.idea(")
    assert not {"hide-input", "hide-cell"} & set(found[f"{method}-step"].metadata.get("tags", []))
    assert found[f"{method}-beside"].source.startswith("beside.loc[")
    more = found[f"{method}-more"].source
    assert "```{literalinclude} /nclib/" in more
    assert "**What differs from " in more


CHANGES = [*((name, "change") for name in LESSONS)]
CHANGES += [("others", f"change-{method}") for method in ("ncr", "decl", "gsc", "cream")]


@pytest.mark.parametrize(("name", "key"), CHANGES)
def test_a_cell_changes_a_step_of_the_method(name: str, key: str) -> None:
    """A subclass of a few lines, registered where it is written, and the run beside its own."""
    (cell,) = [c for c in cells(name) if c.id == key]
    assert not cell.metadata.get("tags")  # shown, and easy to edit
    tree = ast.parse(cell.source)
    (written,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    (registered,) = written.decorator_list
    assert re.match(r"(methods|models|label_noise)\.register\(", ast.unparse(registered))
    assert sum(len(method.body) for method in written.body) <= 5
    assert "## Change it" in "\n".join(c.source for c in cells(name) if c.cell_type == "markdown")


GIVEN = ("batch", "drawing", "example")  # cells whose numbers solutions use


@pytest.mark.parametrize("name", [*LESSONS, "others"])
def test_solutions_run_in_less_than_two_seconds_each(name: str, capsys: pytest.CaptureFixture) -> None:
    solutions = [c for c in cells(name) if c.id.startswith("solution-")]
    assert len(solutions) >= 3
    known: dict = {}
    for cell in (c for c in cells(name) if c.id in ("parameters", "check", "setup", *GIVEN)):
        exec(compile(cell.source, cell.id, "exec"), known)
    for cell in solutions:
        assert "hide-cell" in cell.metadata["tags"]
        begun = time.process_time()
        exec(compile(cell.source, cell.id, "exec"), known)  # the cells of this book
        assert time.process_time() - begun < 2
        assert capsys.readouterr().out.strip()
