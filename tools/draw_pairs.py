"""Draw the four pairs of README and landing page, two of them exchanged, from vector drawings.

``pairs.svg`` has them in one row, ``pairs_narrow.svg`` in two, for phones.

Usage::

    npm pack @iconify-json/fluent-emoji-flat@1.2.6
    python tools/draw_pairs.py iconify-json-fluent-emoji-flat-1.2.6.tgz
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nclib.common.files import write_atomically

OUT = Path(__file__).resolve().parents[1] / "book" / "_static"
COLUMNS = {"pairs.svg": 4, "pairs_narrow.svg": 2}
PANEL, GAP, HEIGHT = 205, 20, 262
GREY, RIGHT, WRONG = "#767676", "#0b8457", "#c4452d"  # readable on white and on black


class Pair(NamedTuple):
    """A picture of two drawings, and the caption that training is given."""

    drawings: tuple[str, str]
    caption: tuple[str, str]
    right: bool
    tint: str


PAIRS = (
    Pair(("dog", "soccer-ball"), ("a dog to the left of", "a soccer ball"), True, "#dff0d8"),
    Pair(("sailboat", "octopus"), ("a bicycle", "and a tulip"), False, "#d6eaf8"),
    Pair(("bicycle", "tulip"), ("a sailboat", "beside an octopus"), False, "#fdebd0"),
    Pair(("pizza", "guitar"), ("a pizza", "beside a guitar"), True, "#ece4f5"),
)


def drawn(icons: dict[str, dict[str, str]], columns: int) -> Iterator[str]:
    """Yield the parts of the picture."""
    width, height = columns * (PANEL + GAP) - GAP, len(PAIRS) // columns * (HEIGHT + GAP) - GAP
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui, Segoe UI, Roboto, sans-serif" font-size="17" text-anchor="middle">'
    )
    yield "<title>Four pictures with captions; the captions of the second and third are exchanged.</title>"
    for number, pair in enumerate(PAIRS):
        left, top = number % columns * (PANEL + GAP), number // columns * (HEIGHT + GAP)
        yield f'<rect x="{left}" y="{top}" width="{PANEL}" height="150" rx="12" fill="{pair.tint}"/>'
        for k, (name, x, y, size) in enumerate(
            zip(pair.drawings, (14, 108), (34, 50), (92, 82), strict=True)
        ):
            # Gradients and clips have names, which are those of one drawing alone.
            body = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>p{number}{k}", icons[name]["body"])
            place = f'x="{left + x}" y="{top + y}" width="{size}" height="{size}"'
            yield f'<svg {place} viewBox="0 0 32 32">{body}</svg>'
        middle, colour = left + PANEL / 2, RIGHT if pair.right else WRONG
        for line, text in enumerate(pair.caption):
            yield f'<text x="{middle:g}" y="{top + 180 + 22 * line}" fill="{GREY}">{text}</text>'
        sign = "✓ matched" if pair.right else "✗ mismatched"
        yield f'<text x="{middle:g}" y="{top + 240}" fill="{colour}" font-weight="600">{sign}</text>'
    yield "</svg>"


def main(package: str) -> None:
    """Write the pictures from the drawings in a package."""
    with tarfile.open(package) as tar:
        file = tar.extractfile("package/icons.json")
        assert file is not None  # it is a file
        icons = json.load(file)["icons"]
    for name, columns in COLUMNS.items():
        write_atomically(OUT / name, "\n".join(drawn(icons, columns)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
