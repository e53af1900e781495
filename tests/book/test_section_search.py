"""The search by sections: what is written for the script, and that the script replaces the theme's search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from notebook_tools import build

ROOT = Path(__file__).resolve().parents[2]
EXT = ROOT / "book" / "_ext"


@pytest.mark.slow
def test_the_search_page_alone_loads_every_section_with_its_own_text(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text(
        "# Book\n\nOf </script> pairs.\n\n## The *noise* rate\n\nA share $x^2$ of pairs.\n\n- one\n- two\n\n"
        "### Below\n\nDeeper.\n\n```{eval-rst}\n.. py:function:: nclib.run(method)\n\n   Train.\n```\n",
        "utf8",
    )
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path[:0] = [{str(EXT)!r}]\nextensions = ['myst_parser', 'section_search']\n"
        f"myst_enable_extensions = ['dollarmath']\nhtml_static_path = [{str(ROOT / 'book' / '_static')!r}]\n",
        "utf8",
    )
    done = build(tmp_path, "-W")
    assert done.returncode == 0, done.stderr
    built = tmp_path / "html"
    text = (built / "_static" / "search_sections.js").read_text("utf8")
    assert "</script>" not in text
    (page,) = json.loads(text.removeprefix("window.nclibSections = ").removesuffix(";\n"))["pages"]
    assert (page["page"], page["uri"]) == ("Book", "index.html")
    assert page["sections"] == [
        ["Book", "book", "Of </script> pairs."],
        ["The noise rate", "the-noise-rate", "A share of pairs. one two"],
        ["Below", "below", "Deeper."],
        ["nclib.run", "nclib.run", "Train."],
    ]
    search, index = ((built / name).read_text("utf8") for name in ("search.html", "index.html"))
    loaded = [line for line in search.splitlines() if "<script" in line and "search" in line]
    ours = [line for line in loaded if "search_sections.js" in line or "/search.js" in line]
    assert [("sections" in line, "defer" in line) for line in ours] == [(True, True), (False, True)]
    assert not any("defer" in line for line in loaded if "searchtools.js" in line)  # so it comes first
    assert "search_sections.js" not in index
