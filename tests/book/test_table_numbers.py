"""Numbers of tables: by page, in the order of the contents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from notebook_tools import build

EXT = Path(__file__).resolve().parents[2] / "book" / "_ext"
CONF = f"""
import sys
from docutils import nodes
from docutils.parsers.rst import Directive

sys.path[:0] = [{str(EXT)!r}]
extensions, numfig = ["table_numbers"], True


class Output(Directive):
    required_arguments = 1

    def run(self):
        html = f'<table id="{{self.arguments[0]}}"><caption>Words</caption></table>'
        return [nodes.raw("", html, format="html", classes=["text_html"])]


def setup(app):
    app.add_directive("output", Output)
"""


@pytest.mark.slow
def test_tables_are_numbered_by_page_in_the_order_of_the_contents(tmp_path: Path) -> None:
    pages = {"index": ["a"], "first": ["b", "c"], "below": ["d"], "last": ["e", "f"]}
    contents = {"index": ["first", "last"], "first": ["below"]}
    for page, tables in pages.items():
        outputs = [f".. output:: {name}\n\n" for name in tables]
        entries = [".. toctree::\n\n", *(f"   {below}\n" for below in contents.get(page, []))]
        text = "".join([f"{page}\n======\n\n", *outputs, *(entries if page in contents else [])])
        (tmp_path / f"{page}.rst").write_text(text, "utf8")
    (tmp_path / "conf.py").write_text(CONF, "utf8")
    done = build(tmp_path, "-W")
    assert done.returncode == 0, done.stderr
    found = {}
    for page in pages:
        text = (tmp_path / "html" / f"{page}.html").read_text("utf8")
        found |= dict(re.findall(r'<table id="(\w)".*?caption-number">Table ([\d.]+) ', text))
    numbers = ["1", "1.1", "1.2", "2.1", "3.1", "3.2"]
    assert found == dict(zip("abcdef", numbers, strict=True))
