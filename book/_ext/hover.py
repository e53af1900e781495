"""Sphinx extension: terms of the glossary are explained on hover, where a section first uses them.

The explanations are those of ``{glossary}`` in ``book/symbols.md``; the link of a term leads there.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from gallery import plain
from sphinx.application import Sphinx

PAGE = "book/symbols"
LEFT_OUT = (PAGE, "book/api", "book/changelog")
EVERYDAY = {"anchor", "cost", "division", "fragment", "mask", "mining", "plan", "preset", "quick", "record"}
"""Terms that are also words of everyday use: they are explained on their page alone."""
BLOCK = re.compile(r"^```\{glossary\}\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_IN = (
    *(nodes.title, nodes.reference, nodes.literal, nodes.math, nodes.FixedTextElement, nodes.table),
    *(nodes.caption, nodes.term, nodes.raw, nodes.rubric),
)


class Explained(nodes.reference):
    """A term with its explanation."""


def glossary(text: str) -> dict[str, str]:
    """Return the terms of a page's glossary and their explanations as plain words."""
    block = BLOCK.search(text)
    entries = re.split(r"\n\s*\n(?=\S)", block[1].strip()) if block else []
    return {head: plain(body) for head, _, body in (entry.partition("\n") for entry in entries)}


def pattern(terms: dict[str, str]) -> re.Pattern[str]:
    """Return a pattern of all terms, also in the plural; names with capitals keep their case."""
    words = sorted(terms.keys() - EVERYDAY, key=len, reverse=True)
    each = [
        re.escape(w).replace("R@K", r"R@(?:K|\d+)") if w != w.lower() else f"(?i:{re.escape(w)})s?"
        for w in words
    ]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(each)})(?![\w-])")


def named(found: str, terms: dict[str, str]) -> str:
    """Return the term that a piece of text names."""
    if found.startswith("R@"):
        return "R@K"
    return next(t for t in (found, found.lower(), found.lower().removesuffix("s")) if t in terms)


def pieces(
    text: str, words: re.Pattern[str], terms: dict[str, str], seen: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield a text piece by piece with the term that each names, which is empty but for first uses."""
    end = 0
    for found in words.finditer(text):
        term = named(found[0], terms)
        if term not in seen:
            seen.add(term)
            yield text[end : found.start()], ""
            yield found[0], term
            end = found.end()
    yield text[end:], ""


def explain(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the explanations into a page; an event handler of ``doctree-resolved``."""
    if docname.startswith(LEFT_OUT) or app.builder.format != "html":
        return
    terms: dict[str, str] = app.nclib_terms  # type: ignore[attr-defined]
    words, objects = pattern(terms), app.env.domains["std"].data["objects"]
    page = app.builder.get_relative_uri(docname, PAGE)
    seen: set[str] = set()
    for node in list(doctree.findall(lambda n: isinstance(n, (nodes.section, nodes.Text)))):
        if isinstance(node, nodes.section):
            seen = set()
        elif not any(isinstance(parent, NOT_IN) for parent in above(node)):
            new: list[nodes.Node] = []
            for text, term in pieces(node.astext(), words, terms, seen):
                link = f"{page}#{objects[('term', term)][1]}" if ("term", term) in objects else page
                new.append(Explained("", text, refuri=link, tip=terms[term]) if term else nodes.Text(text))
            if len(new) > 1:
                node.parent.replace(node, new)


def above(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield the parents of a node."""
    while (node := node.parent) is not None:
        yield node


def begin(self: Any, node: Explained) -> None:
    self.body.append(
        self.starttag(node, "a", "", CLASS="nc-term", href=node["refuri"], **{"data-tip": node["tip"]})
    )


def read(app: Sphinx) -> None:
    """Read the glossary once per build."""
    text = pathlib.Path(app.srcdir, f"{PAGE}.md").read_text("utf8")
    app.nclib_terms = glossary(text)  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(Explained, html=(begin, lambda self, node: self.body.append("</a>")))
    app.connect("builder-inited", read)
    app.connect("doctree-resolved", explain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
