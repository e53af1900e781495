"""The search by sections: what is written for the script, and that the script replaces the theme's search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from notebook_tools import build

ROOT = Path(__file__).resolve().parents[2]
EXT = ROOT / "book" / "_ext"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("book")
    (tree / "index.md").write_text(
        "# Book\n\nOf </script> pairs.\n\n## The *noise* rate\n\nA share $x^2$ of pairs.\n\n- one\n- two\n\n"
        "### Below\n\nDeeper.\n\n```{eval-rst}\n.. py:function:: nclib.run(method)\n\n   Train.\n```\n",
        "utf8",
    )
    (tree / "conf.py").write_text(
        f"import sys\nsys.path[:0] = [{str(EXT)!r}]\nextensions = ['myst_parser', 'section_search']\n"
        f"myst_enable_extensions = ['dollarmath']\nhtml_static_path = [{str(ROOT / 'book' / '_static')!r}]\n",
        "utf8",
    )
    done = build(tree, "-W")
    assert done.returncode == 0, done.stderr
    return tree / "html"


def content(built: Path) -> Any:
    text = (built / "_static" / "search_sections.js").read_text("utf8")
    assert "</script>" not in text
    return json.loads(text.removeprefix("window.nclibSections = ").removesuffix(";\n"))


@pytest.mark.slow
def test_every_section_is_written_with_its_own_text(built: Path) -> None:
    (page,) = content(built)["pages"]
    assert (page["page"], page["uri"]) == ("Book", "index.html")
    assert page["sections"] == [
        ["Book", "book", "Of </script> pairs."],
        ["The noise rate", "the-noise-rate", "A share  of pairs. one two".replace("  ", " ")],
        ["Below", "below", "Deeper."],
        ["nclib.run", "nclib.run", "Train."],
    ]


@pytest.mark.slow
def test_only_the_search_page_loads_the_sections(built: Path) -> None:
    search, index = ((built / name).read_text("utf8") for name in ("search.html", "index.html"))
    loaded = [line for line in search.splitlines() if "<script" in line and "search" in line]
    ours = [line for line in loaded if "search_sections.js" in line or "/search.js" in line]
    assert [("sections" in line, "defer" in line) for line in ours] == [(True, True), (False, True)]
    assert not any("defer" in line for line in loaded if "searchtools.js" in line)  # so it comes first
    assert "search_sections.js" not in index
    script = (ROOT / "book" / "_static" / "search.js").read_text("utf8")
    assert "Search.performSearch = perform" in script
    assert "fetch(" not in script
