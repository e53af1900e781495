"""The README's table is what the recorded runs say."""

from pathlib import Path

import readme

ROOT = Path(__file__).resolve().parents[2]


def test_table_agrees_with_the_records() -> None:
    stored = (ROOT / "README.md").read_text("utf8")
    runs = readme.recorded_runs()
    assert len(runs) >= 6
    content = readme.table(runs) + readme.method_table(readme.every_method())
    assert readme.text(stored, content) == stored


def test_marked_part_is_replaced_and_nothing_else() -> None:
    page = f"a\n{readme.BEGIN}\nold \\1\n{readme.END}\nb"
    assert readme.text(page, "new \\g<0>") == f"a\n{readme.BEGIN}\nnew \\g<0>\n{readme.END}\nb"
