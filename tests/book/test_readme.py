"""The README's tables agree with the recorded runs."""

import re
from pathlib import Path

import matplotlib
import readme

ROOT = Path(__file__).resolve().parents[2]


def test_tables_agree_with_the_records() -> None:
    stored = (ROOT / "README.md").read_text("utf8")
    with matplotlib.rc_context():
        content = readme.content(readme.chapter())
    assert content.count("\n|") == len(readme.ROWS) + 4
    assert readme.text(stored, content) == stored


def test_marked_part_is_replaced_and_nothing_else() -> None:
    page = f"a\n{readme.BEGIN}\nold \\1\n{readme.END}\nb"
    assert readme.text(page, "new \\g<0>") == f"a\n{readme.BEGIN}\n\nnew \\g<0>\n\n{readme.END}\nb"


def test_a_first_screen_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf8").splitlines()) <= 90


def test_the_picture_of_pairs_can_be_read_on_a_phone() -> None:
    """A page of 390 px leaves 340 to a picture; README and landing page take the narrow one there."""
    wide, svg = ((ROOT / f"book/_static/{n}.svg").read_text("utf8") for n in ("pairs", "pairs_narrow"))
    width, size = re.findall(r'viewBox="0 0 (\d+) .*?font-size="(\d+)"', svg)[0]
    assert int(size) * 340 / int(width) >= 9
    assert svg.count("<text") == wide.count("<text")
    for page in ("README.md", "book/intro.md"):
        assert "_static/pairs_narrow.svg" in (ROOT / page).read_text("utf8")
