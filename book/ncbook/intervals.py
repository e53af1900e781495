"""Small drawings of intervals beside a claimed region, as SVG that follows the theme of the page."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from ncbook.compare import Difference
from ncbook.evidence import Region, inside

WIDTH, ROW, EDGE, RADIUS = 132.0, 8.0, 4.0, 2.4  # pixels: of a drawing, of an interval, margin, of a mean
SHOWN = 8  # intervals in a drawing
WORDS = {"inside": "in the claimed region", "outside": "outside it", "open": "across its border"}


def kind_of(d: Difference, region: Region) -> str:
    """Return whether the interval lies in the claimed region, outside it, or reaches over its border."""
    low, high = d.interval
    if inside(d, region):
        return "inside"
    return "outside" if high < region[0] or low > region[1] else "open"


def interval_plot(found: Sequence[tuple[Difference, Region]]) -> str:
    """Draw mean and interval of some differences over the region that a claim says they lie in.

    Parameters
    ----------
    found : sequence of (Difference, (float, float))
        Differences of at least two seeds, with the claimed region, whose ends may be infinite. The first
        eight are drawn.

    Returns
    -------
    str
        SVG: zero as a line, the region shaded, a filled mean where the interval lies in the region and an
        open one elsewhere. Empty for no differences.
    """
    if not found:
        return ""
    kinds = [kind_of(d, region) for d, region in found]
    drawn = found[:SHOWN]
    values = [0.0, *(v for d, region in drawn for v in (*d.interval, *filter(math.isfinite, region)))]
    low, high = min(values), max(values)
    space = (high - low) * 0.06 or 1.0
    low, high = low - space, high + space

    def x(value: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * (min(max(value, low), high) - low) / (high - low)

    height, parts = 2 * EDGE + ROW * len(drawn), []
    for i, (_, region) in enumerate(drawn):
        left, right = map(x, region)
        parts.append(
            f'<rect class="nc-region" x="{left:.1f}" y="{EDGE + ROW * i:.1f}" width="{right - left:.1f}" '
            f'height="{ROW:.1f}"/>'
        )
    parts.append(f'<path class="nc-zero" d="M{x(0):.1f} 0V{height:.1f}"/>')
    for i, (d, _) in enumerate(drawn):
        y = EDGE + ROW * (i + 0.5)
        start, end = map(x, d.interval)
        parts.append(
            f'<g class="nc-{kinds[i]}"><title>{html.escape(str(d))}</title>'
            f'<path d="M{start:.1f} {y:.1f}H{end:.1f}"/>'
            f'<circle cx="{x(d.mean):.1f}" cy="{y:.1f}" r="{RADIUS}"/></g>'
        )
    counts = [f"{kinds.count(kind)} {words}" for kind, words in WORDS.items() if kind in kinds]
    label = f"{len(found)} interval{'s' if len(found) > 1 else ''}: {', '.join(counts)}"
    return (
        f'<svg class="nc-intervals" width="{WIDTH:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )
