"""The README's tables agree with the recorded runs."""

from pathlib import Path

import matplotlib
import nbformat
import readme

ROOT = Path(__file__).resolve().parents[2]


def test_tables_agree_with_the_records() -> None:
    stored = (ROOT / "README.md").read_text("utf8")
    with matplotlib.rc_context():
        content = readme.content(readme.chapter())
    assert content.count("\n|") == len(readme.ROWS) + 5
    assert readme.text(stored, content) == stored


def test_marked_part_is_replaced_and_nothing_else() -> None:
    page = f"a\n{readme.BEGIN}\nold \\1\n{readme.END}\nb"
    assert readme.text(page, "new \\g<0>") == f"a\n{readme.BEGIN}\n\nnew \\g<0>\n\n{readme.END}\nb"


def test_the_exercises_are_counted() -> None:
    pages = [nbformat.read(path, 4) for path in (ROOT / "notebooks").glob("*.ipynb")]
    n = sum(c.id.startswith("solution-") and c.id[9:].isdigit() for page in pages for c in page.cells)
    assert f" {n} exercises with solutions" in (ROOT / "README.md").read_text("utf8")
