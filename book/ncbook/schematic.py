"""Drawn ideas of methods: numbered panels of boxes, arrows and small matrices, as SVG inside the page.

The drawing is part of the page and takes its colours from the page's theme, so it is readable in light and
dark; outside the book each colour has a fixed value. Panels stand beside each other on a wide screen and
below each other on a phone. Blue and solid is what matches, orange and hatched what does not: no meaning
rests on colour alone.
"""

from __future__ import annotations

import html
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Name -> colour of the book's theme, and the one that a notebook outside the book shows.
COLOURS = {
    "match": "var(--nc-match, #0072b2)",
    "mismatch": "var(--nc-mismatch, #b4530b)",
    "ink": "var(--nc-ink, currentColor)",
    "soft": "var(--nc-soft, #6b6b6b)",
    "line": "var(--nc-line, #9a9a9a)",
    "paper": "var(--nc-paper, #ffffff)",
}
HATCH = (
    '<pattern id="{}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<path d="M0 0V5" style="stroke:{COLOURS["mismatch"]};stroke-width:2"/></pattern>'
)


def numbered(n: int) -> dict[str, Any]:
    """Return names of the rows and columns of a matrix of ``n`` pictures and captions."""
    return {"rows": [f"picture {i + 1}" for i in range(n)], "columns": [f"c{j + 1}" for j in range(n)]}


@dataclass
class Sketch:
    """One drawing of ``width`` x ``height`` units; a unit is about a pixel on the page.

    Every method adds to the drawing and returns nothing. Colours are the names in :data:`COLOURS`.
    """

    alt: str  # what the drawing shows, for those who cannot see it
    width: float = 290
    height: float = 200
    parts: list[str] = field(default_factory=list)

    @property
    def hatch(self) -> str:
        """Name of the hatching in the page, equal between executions."""
        return f"nc-hatch-{zlib.crc32(self.alt.encode()):08x}"

    def text(
        self, x: float, y: float, words: str, *, colour: str = "ink", size: float = 13, anchor: str = "middle"
    ) -> None:
        """Write words whose anchor (start, middle or end) is at ``x``, and their base line at ``y``."""
        style = f"fill:{COLOURS[colour]};font-size:{size:g}px"
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" style="{style}">{html.escape(words)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, *, words: str = "", colour: str = "ink",
        opacity: float = 0.0, hatched: bool = False, dashed: bool = False, size: float = 13,
    ) -> None:  # fmt: skip
        """Draw a rectangle filled with its colour at an ``opacity``, with words in its middle."""
        frame = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"'
        dash = ";stroke-dasharray:4 3" if dashed else ""
        stroke = f"stroke:{COLOURS[colour]};stroke-width:1.3{dash}"
        self.parts.append(
            f'<rect {frame} style="fill:{COLOURS[colour]};fill-opacity:{opacity:.3g};{stroke}"/>'
        )
        if hatched:
            self.parts.append(f'<rect {frame} fill="url(#{self.hatch})" fill-opacity="0.55"/>')
        lines = words.split("\n") if words else []
        for i, line in enumerate(lines):
            at = y + height / 2 + size * (0.35 + 1.15 * (i - (len(lines) - 1) / 2))
            self.text(x + width / 2, at, line, size=size)

    def line(
        self, points: Sequence[tuple[float, float]], *, colour: str = "soft", arrow: bool = True,
        dashed: bool = False, weight: float = 1.6,
    ) -> None:  # fmt: skip
        """Draw a line through points, with a head at its end; three points make a curve."""
        (x0, y0), *rest = points
        if len(rest) == 2:
            (xc, yc), (x1, y1) = rest
            way, back = f"M{x0:g} {y0:g}Q{xc:g} {yc:g} {x1:g} {y1:g}", (xc, yc)
        else:
            way = f"M{x0:g} {y0:g}" + "".join(f"L{x:g} {y:g}" for x, y in rest)
            (x1, y1), back = rest[-1], (points[-2])
        dash = ";stroke-dasharray:4 3" if dashed else ""
        style = f"fill:none;stroke:{COLOURS[colour]};stroke-width:{weight:g}{dash}"
        self.parts.append(f'<path d="{way}" style="{style}"/>')
        if arrow:
            along = np.array([x1 - back[0], y1 - back[1]], float)
            along /= max(float(np.hypot(*along)), 1e-9)
            across = np.array([-along[1], along[0]])
            tip = np.array([x1, y1])
            corners = (tip, tip - 8 * along + 4 * across, tip - 8 * along - 4 * across)
            shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            self.parts.append(f'<polygon points="{shape}" style="fill:{COLOURS[colour]}"/>')

    def dot(
        self, x: float, y: float, *, colour: str = "match", radius: float = 5, hollow: bool = False
    ) -> None:
        """Draw a point, filled or as a ring."""
        fill = COLOURS["paper" if hollow else colour]
        style = f"fill:{fill};stroke:{COLOURS[colour]};stroke-width:1.8"
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" style="{style}"/>')

    def bars(
        self, x: float, y: float, values: Sequence[float], *, colours: Sequence[str] = ("match",),
        height: float = 60, width: float = 22, gap: float = 6, names: Sequence[str] = (), top: float = 0,
    ) -> None:  # fmt: skip
        """Draw bars that stand on ``y``; ``top`` is the value of the full height, by default the largest."""
        top = top or max(*values, 1e-9)
        for k, value in enumerate(values):
            colour, left, tall = colours[k % len(colours)], x + k * (width + gap), height * value / top
            self.box(left, y - tall, width, tall, colour=colour, opacity=0.35, hatched=colour == "mismatch")
            if names:
                self.text(left + width / 2, y + 14, names[k], size=11, colour="soft")

    def matrix(
        self, x: float, y: float, values: Any, *, cell: float = 30, colour: str = "match", digits: int = 2,
        top: float = 0, crossed: Any = None, framed: Any = None, signed: bool = False, size: float = 10.5,
        rows: Sequence[str] = (), columns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Draw a small matrix: the larger a value, the stronger its cell; ``digits`` below 0 writes none.

        Parameters
        ----------
        x, y : float
            Upper left corner of the cells.
        values : array, (rows, columns)
        cell : float
            Side of a cell.
        colour : str
            Of positive values; negative ones, with ``signed``, are orange and hatched.
        digits : int
        top : float
            Value of the full colour; the largest by default.
        crossed, framed : array of bool, (rows, columns), optional
            Cells that are struck out, and cells with a thick orange frame.
        signed : bool
        size : float
            Of the numbers.
        rows, columns : sequence of str
            Names at the left and above.
        """
        values = np.asarray(values, float)
        top = top or float(np.abs(values).max()) or 1.0
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                left, up, struck = x + j * cell, y + i * cell, crossed is not None and crossed[i][j]
                negative = signed and value < 0
                shade = 0.0 if struck else 0.62 * min(abs(value) / top, 1.0)
                style = f"fill:{COLOURS['mismatch' if negative else colour]};fill-opacity:{shade:.2g}"
                style += f";stroke:{COLOURS['line']};stroke-width:0.8"
                place = f'x="{left:g}" y="{up:g}" width="{cell:g}" height="{cell:g}"'
                self.parts.append(f'<rect {place} style="{style}"/>')
                if struck:
                    self.parts.append(f'<rect {place} fill="url(#{self.hatch})" fill-opacity="0.8"/>')
                elif digits >= 0:
                    words = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
                    self.text(
                        left + cell / 2, up + cell / 2 + size * 0.36, words.replace("-", "−"), size=size
                    )
        for i, j in np.argwhere(framed) if framed is not None else ():
            left, up, side = x + j * cell + 1, y + i * cell + 1, cell - 2
            place = f'x="{left:g}" y="{up:g}" width="{side:g}" height="{side:g}"'
            style = f"fill:none;stroke:{COLOURS['mismatch']};stroke-width:2.4"
            self.parts.append(f'<rect {place} style="{style}"/>')
        for i, name in enumerate(rows):
            self.text(x - 5, y + (i + 0.5) * cell + 4, name, size=11, anchor="end", colour="soft")
        for j, name in enumerate(columns):
            self.text(x + (j + 0.5) * cell, y - 5, name, size=11, colour="soft")

    def svg(self) -> str:
        """Return the drawing as an SVG element."""
        look = "width:100%;max-width:420px;height:auto;display:block;margin:auto;font-family:inherit"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'role="img" aria-label="{html.escape(self.alt)}" style="{look}">'
            f"<defs>{HATCH.format(self.hatch)}</defs>{''.join(self.parts)}</svg>"
        )


@dataclass(frozen=True)
class Panel:
    """A step of an idea: a title, a drawing, and one or two sentences."""

    title: str
    sketch: Sketch
    words: str


@dataclass(frozen=True)
class Schematic:
    """The idea of a method in numbered panels; a notebook displays it."""

    panels: Sequence[Panel]

    @classmethod
    def of(cls, titles: Sequence[str], sketches: Sequence[Sketch], words: Sequence[str]) -> Schematic:
        """Return the panels with these titles, drawings and sentences."""
        return cls([Panel(*parts) for parts in zip(titles, sketches, words, strict=True)])

    def _repr_html_(self) -> str:
        # Two or four panels are wide, three, five or six narrow.
        narrow = 290 if len(self.panels) in (2, 4) else 220
        grid = (
            f"display:grid;grid-template-columns:repeat(auto-fit,minmax({narrow}px,1fr));gap:1.2rem "
            "1.4rem;text-align:left"
        )
        return f'<div class="nc-schematic" style="{grid}">{"".join(map(self._panel, self._numbered()))}</div>'

    def _numbered(self) -> list[tuple[int, Panel]]:
        return list(enumerate(self.panels, 1))

    @staticmethod
    def _panel(numbered: tuple[int, Panel]) -> str:
        number, panel = numbered
        title, words = html.escape(panel.title), html.escape(panel.words)
        return (
            f'<section><p style="margin:0 0 .3rem"><strong>{number} · {title}</strong></p>'
            f"{panel.sketch.svg()}"
            f'<p style="margin:.3rem 0 0;font-size:.92em">{words}</p></section>'
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        plain = "\n".join(f"{number}. {panel.title}: {panel.words}" for number, panel in self._numbered())
        return {"text/html": self._repr_html_(), "text/plain": plain}
