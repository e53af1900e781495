"""Sphinx extension: the notebooks as cards with a picture each, and single stored outputs on other pages.

* ``{gallery}`` shows the notebooks in the order of ``_toc.yml``: title, first sentence, seconds, and a figure
  out of the stored outputs.
* ``{stored-output} notebook cell`` shows one stored output of a notebook: a number on another page is never
  typed, and needs no torch to be shown.
"""

from __future__ import annotations

import base64
import html
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nbformat
import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from live_page import runs_of
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

log = logging.getLogger(__name__)
THUMBNAILS = "_static/thumbnails"
REFERENCE = re.compile(r"\b(19|20)\d\d\b|arXiv")
SVG, PNG = "image/svg+xml", "image/png"
# The cell whose figure says most about a page; the first figure of every other page.
CHOSEN = {
    "bicro": "anchors",
    "category_baselines": "slopes",
    "claims": "summary",
    "decl": "picture",
    "l2rm": "examples",
    "models": "maps",
    "ncr": "rectified",
    "noisy_correspondence": "side",
    "omit": "fig4",
    "one_run": "diagnostics",
    "rcl": "family",
    "repair": "examples",
    "transport": "partial",
    "uot_rcl": "fig7",
    "which_noise": "ranking",
}


@dataclass(frozen=True)
class Card:
    """What the gallery shows of one notebook."""

    name: str
    part: str
    title: str
    sentence: str
    seconds: float | None


def parts_of(contents: pathlib.Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of the book with their notebooks, in order; parts without one are left out."""
    for part in yaml.safe_load(contents.read_text("utf8"))["parts"]:
        files = [chapter["file"] for chapter in part["chapters"]]
        names = [file.removeprefix("notebooks/") for file in files if file.startswith("notebooks/")]
        if names:
            yield part.get("caption", ""), names


def plain(text: str) -> str:
    """Return Markdown as words: roles, links, citations and marks go."""
    text = re.sub(r"\s*\{cite:\w+\}`[^`]*`", "", text)
    text = re.sub(r"\{[\w:]+\}`([^`<]+?)(?:\s*<[^>]*>)?`", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\s*\$[^$]+\$", "", text)  # a card says it without symbols
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", text)).strip()


def first_sentence(source: str) -> str:
    """Return the first sentence of the prose under a page's title that is not a reference."""
    blocks = re.split(r"\n\s*\n", source.strip())
    prose = " ".join(plain(b) for b in blocks if not b.startswith(("#", "|", "(", ":::", "```", "-", ">")))
    sentences = re.findall(r"\S.*?[.?!](?=\s|$)", prose)
    return next((s for s in sentences if not REFERENCE.search(s)), sentences[0] if sentences else prose)


def card(path: pathlib.Path, part: str, runs: dict[str, dict[str, Any]]) -> Card:
    """Read title and first sentence of a notebook."""
    text = next((c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown"), "")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    seconds = runs.get(path.stem, {}).get("seconds")
    return Card(path.stem, part, plain(title[1]) if title else path.stem, first_sentence(text), seconds)


def figures(nb: Any) -> Iterator[tuple[str, str, bytes]]:
    """Yield cell id, kind and content of every figure among a notebook's outputs."""
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if SVG in data:
                yield cell.get("id", ""), "svg", "".join(data[SVG]).encode()
            elif PNG in data:
                yield cell.get("id", ""), "png", base64.b64decode("".join(data[PNG]))


def thumbnail(stored: pathlib.Path) -> tuple[str, bytes] | None:
    """Return kind and content of the figure that stands for a notebook: the chosen one, else the first."""
    if not stored.exists():
        return None
    found = list(figures(nbformat.read(stored, 4)))
    chosen = [f for f in found if f[0] == CHOSEN.get(stored.stem)] or found
    return chosen[0][1:] if chosen else None


def time_of(seconds: float | None) -> str:
    """Say how long a stored run took."""
    if seconds is None:
        return "not run yet"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Gallery(SphinxDirective):
    """Cards of all notebooks, part by part."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        root = pathlib.Path(self.env.srcdir)
        runs = runs_of(root / "book" / "executed")
        pictures: dict[str, tuple[str, bytes]] = self.env.app.nclib_thumbnails  # type: ignore[attr-defined]
        text = ['<div class="nc-gallery">']
        for part, names in parts_of(root / "_toc.yml"):
            text.append(f'<h3 class="nc-part">{html.escape(part)}</h3><ul>')
            for name in names:
                path = root / "notebooks" / f"{name}.ipynb"
                stored = root / "book" / "executed" / path.name
                for file in (path, stored):
                    self.env.note_dependency(str(file))
                picture = thumbnail(stored)
                if picture:
                    pictures[name] = picture
                text.append(self._item(card(path, part, runs), picture))
            text.append("</ul>")
        return [nodes.raw("", "\n".join([*text, "</div>"]), format="html")]

    def _item(self, one: Card, picture: tuple[str, bytes] | None) -> str:
        def url(target: str) -> str:
            return html.escape(relative_uri(f"{self.env.docname}.html", target))

        image = ""
        if picture:
            source = url(f"{THUMBNAILS}/{one.name}.{picture[0]}")
            # no words: the title beside it has them; "dark-light" keeps the theme from dimming it
            image = f'<img src="{source}" alt="" class="dark-light" loading="lazy">'
        title, _, rest = one.title.partition(": ")
        small = f" <small>{html.escape(rest)}</small>" if rest else ""
        return (
            f'<li><a href="{url(f"notebooks/{one.name}.html")}"><span class="nc-thumb">{image}</span>'
            f'<span class="nc-title">{html.escape(title)}{small}</span></a>'
            f"<p>{html.escape(one.sentence)}</p>"
            f'<p class="nc-time">{html.escape(time_of(one.seconds))}</p></li>'
        )


class StoredOutput(SphinxDirective):
    """One output of a stored notebook, by the id of its cell."""

    required_arguments = 2
    option_spec = {"alt": directives.unchanged}  # noqa: RUF012  as docutils declares it

    def run(self) -> list[nodes.Node]:
        name, wanted = self.arguments
        stored = pathlib.Path(self.env.srcdir) / "book" / "executed" / f"{name}.ipynb"
        self.env.note_dependency(str(stored))
        cells = nbformat.read(stored, 4).cells if stored.exists() else []
        cell = next((c for c in cells if c.get("id") == wanted), None)
        data = next((o["data"] for o in (cell or {}).get("outputs", []) if o.get("data")), None)
        if data is None:
            log.warning("no stored output of %s in %s", wanted, name, location=self.get_location())
            return []
        if SVG in data:
            encoded = base64.b64encode("".join(data[SVG]).encode()).decode()
            alt = html.escape(self.options.get("alt") or alt_of(cell), quote=True)
            source = f"data:{SVG};base64,{encoded}"
            return [nodes.raw("", f'<figure><img src="{source}" alt="{alt}"></figure>', format="html")]
        if "text/html" in data:
            return [nodes.raw("", "".join(data["text/html"]), format="html")]
        text = "".join(data.get("text/plain", ""))
        return [nodes.literal_block(text, text, language="text")]


def alt_of(cell: Any) -> str:
    """Alternative text of a cell's figure, as its metadata give it."""
    return str(cell.get("metadata", {}).get("mystnb", {}).get("image", {}).get("alt", ""))


def start(app: Sphinx) -> None:
    """Forget the pictures of an earlier build."""
    app.nclib_thumbnails = {}  # type: ignore[attr-defined]


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the thumbnails beside the pages."""
    pictures: dict[str, tuple[str, bytes]] = app.nclib_thumbnails  # type: ignore[attr-defined]
    if error or not pictures or app.builder.format != "html":
        return
    folder = pathlib.Path(app.outdir) / THUMBNAILS
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kind, content) in pictures.items():
        (folder / f"{name}.{kind}").write_bytes(content)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", start)
    app.connect("build-finished", write)
    app.add_directive("gallery", Gallery)
    app.add_directive("stored-output", StoredOutput)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
