"""Small drawings of intervals beside a claimed region, as SVG that follows the theme of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncbook.compare import Difference
from ncbook.evidence import Region, inside
from ncbook.page import TEMPLATES

WIDTH, ROW, EDGE, RADIUS = 132.0, 8.0, 4.0, 2.4  # pixels: of a drawing, of an interval, margin, of a mean
SHOWN = 8  # intervals in a drawing
WORDS = {"inside": "in the claimed region", "outside": "outside it", "open": "across its border"}


def kind_of(d: Difference, region: Region) -> str:
    """Return whether the interval lies in the claimed region, outside it, or reaches over its border."""
    low, high = d.interval
    if inside(d, region):
        return "inside"
    return "outside" if high < region[0] or low > region[1] else "open"


def interval_plot(compared: Sequence[tuple[Difference, Region]]) -> str:
    """Draw mean and interval of some differences over the region that a claim says they lie in.

    Parameters
    ----------
    compared : sequence of (Difference, (float, float))
        Differences of at least two seeds, with the claimed region, whose ends may be infinite. The first
        eight are drawn.

    Returns
    -------
    str
        SVG: zero as a line, the region shaded, a filled mean where the interval lies in the region and an
        open one elsewhere. Empty for no differences.
    """
    if not compared:
        return ""
    kinds = [kind_of(d, region) for d, region in compared]
    drawn = compared[:SHOWN]
    values = [0.0, *(v for d, region in drawn for v in (*d.interval, *filter(math.isfinite, region)))]
    low, high = min(values), max(values)
    space = (high - low) * 0.06 or 1.0
    low, high = low - space, high + space

    def x(value: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * (min(max(value, low), high) - low) / (high - low)

    lines = [
        {"y": EDGE + ROW * i, "kind": kinds[i], "text": str(d), "mean": x(d.mean)}
        | {"region": list(map(x, region)), "interval": list(map(x, d.interval))}
        for i, (d, region) in enumerate(drawn)
    ]
    counts = [f"{kinds.count(kind)} {words}" for kind, words in WORDS.items() if kind in kinds]
    label = f"{len(compared)} interval{'s' if len(compared) > 1 else ''}: {', '.join(counts)}"
    size = {"width": WIDTH, "height": 2 * EDGE + ROW * len(drawn), "row": ROW, "radius": RADIUS}
    return TEMPLATES.get_template("intervals.svg").render(lines=lines, zero=x(0), label=label, **size)
