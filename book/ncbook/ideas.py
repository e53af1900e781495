"""Drawn ideas of methods: numbered panels of pictures that are files in ``book/_static/ideas``.

A drawing is put into the page and takes its colours from the page's theme (``--nc-match`` and others), so it
can be read in light and dark; outside the book each colour has the fixed value beside it in the file.
Blue and solid is what matches, orange and hatched what does not: no meaning rests on colour alone.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

IDEAS = Path(__file__).resolve().parents[1] / "_static" / "ideas"


@dataclass(frozen=True)
class Idea:
    """The idea of a method in numbered panels; a notebook displays it."""

    drawings: Sequence[str]  # SVG
    panels: Mapping[str, str]  # title, and a sentence

    def _repr_html_(self) -> str:
        # Two or four panels are wide, three, five or six narrow.
        narrow = 290 if len(self.panels) in (2, 4) else 220
        grid = (
            f"display:grid;grid-template-columns:repeat(auto-fit,minmax({narrow}px,1fr));gap:1.2rem "
            "1.4rem;text-align:left"
        )
        parts = (
            f'<section><p style="margin:0 0 .3rem"><strong>{number} · {html.escape(title)}</strong></p>'
            f'{svg}<p style="margin:.3rem 0 0;font-size:.92em">{html.escape(words)}</p></section>'
            for number, (svg, (title, words)) in enumerate(
                zip(self.drawings, self.panels.items(), strict=True), 1
            )
        )
        return f'<div class="nc-schematic" style="{grid}">{"".join(parts)}</div>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        lines = (
            f"{number}. {title}: {words}" for number, (title, words) in enumerate(self.panels.items(), 1)
        )
        return {"text/html": self._repr_html_(), "text/plain": "\n".join(lines)}


def idea(name: str, panels: Mapping[str, str]) -> Idea:
    """Return the panels of a method's idea, with the drawings ``name-1.svg``, ``name-2.svg``, ...

    Parameters
    ----------
    name : str
        Of the drawings in ``book/_static/ideas``.
    panels : mapping
        Title of each panel, and a sentence.

    Raises
    ------
    ValueError
        When there are not as many drawings as panels.
    """
    files = sorted(IDEAS.glob(f"{name}-?.svg"))
    if len(files) != len(panels) or not files:
        known = ", ".join(sorted({path.stem[:-2] for path in IDEAS.glob("*.svg")}))
        raise ValueError(
            f"{name!r} has {len(files)} drawings for {len(panels)} panels; there are drawings of {known}"
        )
    return Idea([path.read_text("utf8").replace("\n", "") for path in files], panels)
