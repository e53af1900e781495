"""Sphinx extension: a search by sections with excerpts, which works on pages opened from disk.

The theme's search fetches each page for its excerpt, which browsers refuse on ``file://``. Here the sections
of all pages are written into one script that the search page loads; ``_static/search.js`` ranks them.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

DATA = "search_sections.js"  # beside the other static files
SYNONYMS: list[list[str]] = yaml.safe_load(pathlib.Path(__file__).with_name("synonyms.yml").read_text("utf8"))
"""Words with one meaning: a query with one of them finds the others."""


def text_of(node: nodes.Element, holder: type[nodes.Element] | tuple[type[nodes.Element], ...]) -> str:
    """Return the paragraphs of a section or description, without formulas and the parts inside it."""
    found = []
    for part in node.findall(nodes.paragraph):
        above: Any = part.parent
        while above is not node and not isinstance(above, holder):
            above = above.parent
        if above is node:
            words = part.findall(nodes.Text)
            found.append("".join(w for w in words if not isinstance(w.parent, nodes.math)))
    return re.sub(r"\s+", " ", " ".join(found)).strip()


def sections_of(doctree: nodes.document) -> Iterator[tuple[str, str, str]]:
    """Yield heading, anchor and text of every section and every documented name of a page."""
    parts = (nodes.section, addnodes.desc)
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title)
        if title is not None and section["ids"]:
            yield title.astext(), section["ids"][0], text_of(section, parts)
    for described in doctree.findall(addnodes.desc):
        signature = described.next_node(addnodes.desc_signature)
        if signature is not None and signature["ids"]:
            yield signature["ids"][0], signature["ids"][0], text_of(described, parts)


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the sections of all pages; an event handler of ``build-finished``."""
    if exception is not None or app.builder.format != "html":
        return
    pages = []
    for name in sorted(app.env.found_docs & app.env.titles.keys()):
        found = list(sections_of(app.env.get_doctree(name)))
        uri = app.builder.get_target_uri(name)
        pages.append({"page": app.env.titles[name].astext(), "uri": uri, "sections": found})
    content = json.dumps({"pages": pages, "synonyms": SYNONYMS}, ensure_ascii=False, separators=(",", ":"))
    content = content.replace("</", "<\\/")
    target = pathlib.Path(app.outdir, "_static", DATA)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"window.nclibSections = {content};\n", "utf8")


def load(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Load the sections on the search page only; an event handler of ``html-page-context``."""
    if pagename == "search":
        app.add_js_file(DATA, loading_method="defer")
        app.add_js_file("search.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
