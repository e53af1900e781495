"""Sphinx extension: tables among the outputs of notebooks have numbers, as figures do, and a link to them.

A table with a caption or a title is numbered; a printed table has the number of its paper already. Numbers of
tables, figures and listings begin with that of their page: "Table 8.2" is the second of the eighth page of
the contents, whatever other pages hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.writers.html5 import HTML5Translator

STYLED = r'<table id="(?P<id>[^"]+)"[^>]*>\s*<caption>'
SHEET = (
    r'<figure class="nc-sheet nc-(?P<kind>\w+)" id="(?P<sheet>[^"]+)"><figcaption.*?<strong>(?P<title>[^<]*)'
)
HEAD = re.compile(f"{STYLED}|{SHEET}", re.DOTALL)


class NumberedTable(nodes.raw):
    """HTML of a table, whose number is known when its page is written."""


def identifier(html: str) -> str:
    """Return the anchor of the table in some HTML; empty where it gets no number.

    >>> identifier('<table id="T_rates" class="dataframe">\\n <caption>rSum</caption>')
    'T_rates'
    """
    found = HEAD.search(html)
    if not found or (found["kind"] == "printed" and ", Table " in found["title"]):
        return ""
    return found["id"] or found["sheet"]


def mark(app: Sphinx, doctree: nodes.document) -> None:
    """Make numbered nodes of the tables on a page; an event handler of ``doctree-read``."""
    for node in list(doctree.findall(nodes.raw)):
        if "text_html" in node["classes"] and (anchor := identifier(node.astext())):
            attributes = {**node.attributes, "ids": [anchor]}
            node.replace_self(NumberedTable(node.rawsource, node.astext(), **attributes))


def by_page(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Put the place of a page in the contents before its numbers; an event handler of ``env-get-updated``.

    Numbers of the first page of all stay as they are, so that a page without a book has "Table 1".
    """

    def with_those_below(page: str) -> Iterator[str]:
        yield page
        for below in env.toctree_includes.get(page, []):
            yield from with_those_below(below)

    for chapter, page in enumerate(with_those_below(env.config.root_doc)):
        for numbers in env.toc_fignumbers.get(page, {}).values() if chapter else ():
            numbers.update({anchor: (chapter, n) for n, anchor in enumerate(numbers, 1)})
    return []


def visit(self: HTML5Translator, node: NumberedTable) -> None:
    """Write a table with its number and a link to it."""
    begin, (anchor,) = len(self.body), node["ids"]
    self.add_fignumber(node)
    number = "".join(self.body[begin:])
    del self.body[begin:]
    html, title = node.astext(), "Link to this table"
    head = HEAD.search(html)
    assert head is not None  # it was marked
    at = head.start("title") if head["title"] else head.end()
    link = f'<a class="headerlink" href="#{anchor}" title="{title}">#</a>'
    text = f"{html[:at]}{number}{html[at:]}"
    end = re.compile("</caption>|</figcaption>").search(text, at)
    assert end is not None
    text = f"{text[: end.start()]}{link}{text[end.start() :]}"
    self.visit_raw(nodes.raw("", text, format="html", classes=node["classes"]))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_enumerable_node(NumberedTable, "table", lambda node: node["ids"][0], html=(visit, None))
    app.connect("doctree-read", mark)
    app.connect("env-get-updated", by_page, priority=900)  # after Sphinx has counted
    return {"parallel_read_safe": True, "parallel_write_safe": True}
