"""Sphinx extension: the notebooks as cards, and single outputs of them on other pages.

* ``{gallery}`` shows the notebooks of ``_toc.yml``: title, first sentence, minutes of reading, and a figure:
  that of the cell with the tag ``thumbnail``, else the first.
* ``{stored-output} notebook cell`` shows one output of an executed notebook: no number is typed twice.
"""

from __future__ import annotations

import base64
import html
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import nbformat
from dark_figures import both, dark
from docutils import nodes
from docutils.parsers.rst import directives
from executed import parts_of, title_of
from nb_overlay import DRAWING, SVG, executed_folder, folded, is_drawing
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)
WORDS = 200  # read in a minute
HIDDEN_CODE = {"hide-input", "remove-input", "hide-cell", "remove-cell"}  # tags of cells
HIDDEN_OUTPUT = {"hide-output", "remove-output", "hide-cell", "remove-cell"}
REFERENCE = re.compile(r"\b(19|20)\d\d\b|arXiv")
PNG = "image/png"
FOLDED = re.compile(r"^(:{3,})\{dropdown\}.*?^\1$", re.DOTALL | re.MULTILINE)  # opens with a click
CLOSED = re.compile(r"<details\b(?:(?!<details\b).)*?</details>", re.DOTALL)  # innermost of HTML
NO_TEXT = re.compile(r"<(style|script|svg)\b.*?</\1>|<[^>]*>", re.DOTALL)  # of HTML
CARD = """:::{{grid-item-card}} {title}
:link: /notebooks/{name}
:link-type: doc
:class-img-top: {look}
{image}

{sentence}

```{{card-footer}}
{time}
```
:::"""


def plain(text: str) -> str:
    """Return Markdown as words, without roles, links, citations, formulas and marks."""
    text = re.sub(r"\s*\{cite:\w+\}`[^`]*`", "", text)
    text = re.sub(r"\{[\w:]+\}`([^`<]+?)(?:\s*<[^>]*>)?`", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\s*\$[^$]+\$", "", text)
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", text)).strip()


def first_sentence(source: str) -> str:
    """Return the first sentence of the prose under a page's title that is not a reference."""
    blocks = re.split(r"\n\s*\n", source.strip())
    prose = " ".join(plain(b) for b in blocks if not b.startswith(("#", "|", "(", ":::", "```", "-", ">")))
    sentences = re.findall(r"\S.*?[.?!](?=\s|$)", prose)
    return next((s for s in sentences if not REFERENCE.search(s)), sentences[0] if sentences else prose)


def figures(nb: Any) -> Iterator[tuple[str, str, bytes]]:
    """Yield cell id, file suffix and content of every figure among a notebook's outputs."""
    for cell in nb.cells:
        for data in (output.get("data", {}) for output in cell.get("outputs", [])):
            if SVG in data:
                yield cell.id, "svg", data[SVG].encode()
            elif PNG in data:
                yield cell.id, "png", base64.b64decode(data[PNG])


def thumbnail(nb: Any) -> tuple[str, bytes] | None:
    """Return suffix and content of the figure on a notebook's card, if it was executed and has one."""
    found = list(figures(nb))
    tagged = {cell.get("id") for cell in nb.cells if "thumbnail" in cell.metadata.get("tags", [])}
    chosen = [figure for figure in found if figure[0] in tagged] or found
    return chosen[0][1:] if chosen else None


def words(nb: Any) -> int:
    """Return the number of words that a page shows: prose, code in view, text and tables below cells."""
    every = (word for cell in nb.cells for text in texts(cell) for word in text.split())
    return sum(any(map(str.isalnum, word)) for word in every)


def texts(cell: Any) -> Iterator[str]:
    """Yield the texts of a cell that a reader sees without a click."""
    if cell.cell_type == "markdown":
        yield plain(FOLDED.sub("", cell.source))
        return
    hidden = set(cell.metadata.get("tags", []))
    if not hidden & HIDDEN_CODE:
        yield cell.source
    if hidden & HIDDEN_OUTPUT:
        return
    for output in map(folded, cell.get("outputs", [])):
        data = output.get("data", {})
        if output.output_type == "stream":
            yield output.text
        elif "text/html" in data:
            text = data["text/html"]
            while CLOSED.search(text):  # a closed part may hold others
                text = CLOSED.sub(" ", text)
            yield html.unescape(NO_TEXT.sub(" ", text))
        elif not any(kind.startswith("image/") for kind in data):
            yield plain(data.get("text/markdown", data.get("text/plain", "")))


def reading(nb: Any) -> str:
    """Return how long a page takes to read, at 200 words a minute, and its number of figures."""
    minutes, drawn = max(1, round(words(nb) / WORDS)), len(list(figures(nb)))
    return f"{minutes} min" + (f", {drawn} figure{'s' * (drawn != 1)}" if drawn else "")


class Gallery(SphinxDirective):
    """Cards of all notebooks, part by part."""

    def run(self) -> list[nodes.Node]:
        root = pathlib.Path(self.env.srcdir)
        lines: list[str] = []
        for part, pages in parts_of(root).items():
            names = [page.removeprefix("notebooks/") for page in pages if page.startswith("notebooks/")]
            if not names:
                continue
            cards = [self.card(name, root) for name in names]
            grid = ["::::{grid} 1 2 2 3", ":gutter: 3", ":class-container: nc-gallery", "", *cards, "::::"]
            lines += [f":::{{rubric}} {part}", ":::", "", *grid, ""]
        return [nodes.container("", *self.parse_text_to_nodes("\n".join(lines)))]

    def card(self, name: str, root: pathlib.Path) -> str:
        """Return the card of a notebook in Markdown; its thumbnail is written beside the doctrees."""
        path, stored = root / "notebooks" / f"{name}.ipynb", executed_folder(self.env.app) / f"{name}.ipynb"
        for file in (path, stored):
            self.env.note_dependency(str(file))
        nb = nbformat.read(stored if stored.exists() else path, 4)
        text = next((cell.source for cell in nb.cells if cell.cell_type == "markdown"), "")
        image, look = "", "nc-thumb dark-light"
        if picture := thumbnail(nb):
            file = pathlib.Path(self.env.app.doctreedir) / "thumbnails" / f"{name}.{picture[0]}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture[1])
            image = f":img-top: /{os.path.relpath(file, root)}"
            if picture[0] == "svg" and is_drawing({SVG: picture[1].decode()}):
                look = f"nc-thumb {DRAWING}"
        title, sentence = plain(title_of(nb, name)), first_sentence(text)
        return CARD.format(
            title=title, name=name, image=image, look=look, sentence=sentence, time=reading(nb)
        )


def data_uri(svg: str) -> str:
    """Return an SVG image as an address that holds it."""
    return f"data:{SVG};base64,{base64.b64encode(svg.encode()).decode()}"


class StoredOutput(SphinxDirective):
    """One output of an executed notebook, by the id of its cell."""

    required_arguments = 2
    option_spec = {"alt": directives.unchanged}  # noqa: RUF012  as docutils declares it

    def run(self) -> list[nodes.Node]:
        name, wanted = self.arguments
        stored = executed_folder(self.env.app) / f"{name}.ipynb"
        self.env.note_dependency(str(stored))
        cells = nbformat.read(stored, 4).cells if stored.exists() else []
        cell = next((c for c in cells if c.get("id") == wanted), {})
        data = next((o["data"] for o in cell.get("outputs", []) if o.get("data")), None)
        if data is None:
            log.warning("no output of %s in %s", wanted, name, location=self.get_location())
            return []
        if SVG in data:
            alt = self.options.get("alt") or cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            source = data_uri(data[SVG])
            look = f' class="{DRAWING}"' if is_drawing(data) else ""
            image = f'<img src="{source}" alt="{html.escape(alt)}"{look}>'
            image = image if look else both(image, source, data_uri(dark(data[SVG])))
            return [nodes.raw("", f"<figure>{image}</figure>", format="html")]
        if "text/html" in data:
            scrolling = f'<div class="output text_html">{data["text/html"]}</div>'
            return [nodes.raw("", scrolling, format="html")]
        if "text/markdown" in data:
            return [nodes.container("", *self.parse_text_to_nodes(data["text/markdown"]))]
        shown = data.get("text/plain", "")
        return [nodes.literal_block(shown, shown, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("gallery", Gallery)
    app.add_directive("stored-output", StoredOutput)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
