"""Sphinx extension: figures with pictures get a second file for dark pages, with light text on a dark ground.

Drawings of lines and text alone are turned dark by custom.css. That would turn the colours of pictures
too, so here the colours of everything else are replaced in the SVG file, by the rule of the style sheet.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

from sphinx.application import Sphinx

IMAGE = re.compile(
    r'<image\b[^>]*?transform="scale\(1 -1\) translate\(0 (?P<shift>\S+)\)" x="(?P<x>\S+)" y="(?P<y>\S+)" '
    r'width="(?P<width>\S+)" height="(?P<height>\S+)"'
)
PARTS = re.compile(
    r"(?P<data>base64,[^\"]*)"  # pictures, which keep their colours
    r'|(?P<text><g id="text_\d+">\s*|<!--(?:(?!-->).)*-->\s*)<g (?:style="fill: (?P<fill>[^";]+)" )?'
    r'(?P<rest>transform="translate\((?P<x>\S+) (?P<y>\S+?)\))'
    r"|(?P<colour>(?<=: )#[0-9a-f]{6}\b)",
    re.DOTALL,
)
SHOWN = re.compile(r'<img\b[^>]*?\bsrc="(?P<path>(?:\.\./)*_images/(?P<name>[^"/]+)\.svg)"[^>]*>')
INVERT = 0.91  # of `filter: invert(0.91) hue-rotate(180deg)` in custom.css
HUE = ((-0.574, 1.430, 0.144), (0.426, 0.430, 0.144), (0.426, 1.430, -0.856))  # a rotation by 180 degrees


def turned(colour: str) -> str:
    """Return ``#rrggbb`` as the filter of the style sheet shows it: lightness turned round, hue kept."""
    channels = [INVERT + (1 - 2 * INVERT) * int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    mixed = [sum(w * c for w, c in zip(row, channels, strict=True)) for row in HUE]
    return "#" + "".join(f"{round(255 * min(1, max(0, c))):02x}" for c in mixed)


def dark(svg: str) -> str:
    """Return a figure of matplotlib for dark pages; pictures, and text on them, keep their colours."""
    pictures = []
    for found in IMAGE.finditer(svg):
        shift, x, y, width, height = (float(found[k]) for k in ("shift", "x", "y", "width", "height"))
        pictures.append((x, -shift - y - height, x + width, -shift - y))

    def changed(part: re.Match[str]) -> str:
        if part["data"]:
            return part["data"]
        if part["colour"]:
            return turned(part["colour"])
        x, y, fill = float(part["x"]), float(part["y"]), part["fill"] or "#000000"
        inside = any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in pictures)
        fill = fill if inside or not fill.startswith("#") else turned(fill)
        return f'{part["text"]}<g style="fill: {fill}" {part["rest"]}'

    return PARTS.sub(changed, svg)


def both(tag: str, path: str, dark_path: str) -> str:
    """Return an ``<img>`` tag twice: for light pages, and with the other file for dark ones."""

    def classed(tag: str, name: str) -> str:
        added = re.sub(r'\bclass="', f'class="{name} ', tag)
        return added if added != tag else tag.replace("<img", f'<img class="{name}"', 1)

    return classed(tag, "only-light") + classed(tag.replace(path, dark_path), "only-dark dark-light")


def show_dark(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Write the dark files of a page's figures and show them; an event handler of ``html-page-context``."""
    if "body" not in context or app.builder.format != "html":
        return
    sources = {name: pathlib.Path(app.srcdir, path) for path, name in app.builder.images.items()}
    folder = pathlib.Path(app.outdir, "_images")

    def shown(found: re.Match[str]) -> str:
        source = sources.get(f"{found['name']}.svg")
        svg = source.read_text("utf8") if source else ""
        if "<image" not in svg:
            return found[0]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{found['name']}-dark.svg").write_text(dark(svg), "utf8")
        return both(found[0], found["path"], found["path"].removesuffix(".svg") + "-dark.svg")

    context["body"] = SHOWN.sub(shown, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", show_dark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
