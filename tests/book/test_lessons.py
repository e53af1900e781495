"""Lessons: the solutions of exercises run at once."""

import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ("l2rm", "omit", "repair", "uot_rcl", "crank")


GIVEN = ("batch", "drawing", "example")  # cells whose numbers solutions use


@pytest.mark.parametrize("name", [*LESSONS, "others"])
def test_solutions_run_in_less_than_two_seconds_each(name: str, capsys: pytest.CaptureFixture) -> None:
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells
    solutions = [c for c in cells if c.id.startswith("solution-")]
    assert len(solutions) >= 3
    known: dict = {}
    for cell in (c for c in cells if c.id in ("parameters", "check", "setup", "imports", *GIVEN)):
        exec(compile(cell.source, cell.id, "exec"), known)
    for cell in solutions:
        assert "hide-cell" in cell.metadata["tags"]
        begun = time.process_time()
        exec(compile(cell.source, cell.id, "exec"), known)  # the cells of this book
        assert time.process_time() - begun < 2
        assert capsys.readouterr().out.strip()
