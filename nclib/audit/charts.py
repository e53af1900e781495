"""Charts of the audit's report as inline SVG; colours come from the style sheet of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

WIDTH, LEFT, RIGHT = 440, 56, 12
Z95 = 1.959964  # of the normal distribution, for an interval of 95 %


def histogram(edges: ArrayLike, curves: Sequence[tuple[str, str, ArrayLike]], label: str) -> str:
    """Return histograms as step lines, each named beside its peak.

    Parameters
    ----------
    edges : array, (H + 1,)
        Increasing edges of the bins.
    curves : sequence of (class, name, heights)
        Class in the style sheet, name on the page, and heights (H,), not negative.
    label : str
        Of the horizontal axis.

    Returns
    -------
    str
        An ``<svg>``; its text alternative says where each curve has its peak.
    """
    # Names get a row each above the curves, in the order of the peaks, so that they never meet.
    edge = np.asarray(edges, float)
    top, bottom, height = 24 + 18 * len(curves), 250, 292
    values = [np.nan_to_num(np.asarray(heights, float)) for *_, heights in curves]
    most = max([float(v.max()) for v in values], default=0) or 1.0
    span = float(edge[-1] - edge[0]) or 1.0
    x = LEFT + (WIDTH - LEFT - RIGHT) * (edge - edge[0]) / span
    parts, said = [], []
    for row, k in enumerate(sorted(range(len(curves)), key=lambda k: int(values[k].argmax()))):
        style, name, _ = curves[k]
        y = bottom - (bottom - top) * values[k] / most
        steps = "".join(f"V{b:.1f}H{a:.1f}" for a, b in zip(x[1:], y, strict=True))
        peak = int(values[k].argmax())
        at, text_y = (x[peak] + x[peak + 1]) / 2, 16 + 18 * row
        end, shift = ("end", -5) if at > (LEFT + WIDTH) / 2 else ("start", 5)
        parts.append(f'<path class="{style}" d="M{x[0]:.1f},{bottom}{steps}V{bottom}"/>')
        parts.append(f'<path class="leader {style}" d="M{at:.1f},{text_y - 10}V{y[peak]:.1f}"/>')
        parts.append(
            f'<text class="{style}" x="{at + shift:.1f}" y="{text_y}" text-anchor="{end}">{name}</text>'
        )
        said.append(f"{name}: most at {(edge[peak] + edge[peak + 1]) / 2:.3g}")
    ticks = [
        _tick(LEFT + (WIDTH - LEFT - RIGHT) * (t - edge[0]) / span, bottom, f"{t:.6g}")
        for t in _round_numbers(float(edge[0]), float(edge[-1]))
    ]
    axes = [
        f'<path class="axis" d="M{LEFT},{bottom}H{WIDTH - RIGHT}"/>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 36}" text-anchor="middle">{label}</text>',
        _upright(top, bottom, "density"),
    ]
    return _svg(height, f"Histograms of {label}. {'; '.join(said)}.", [*parts, *ticks, *axes])


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a share among ``n``; (0, 1) for ``n = 0``.

    Examples
    --------
    >>> [round(v, 3) for v in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    if n <= 0:
        return 0.0, 1.0
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * np.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def reliability(bins: Sequence[tuple[float, float, int]]) -> str:
    """Return a reliability curve: share really wrong over the stated P(wrong), intervals of 95 %.

    Parameters
    ----------
    bins : sequence of (mean P, share wrong, n)
        Bins without pairs are left out.

    Returns
    -------
    str
        An ``<svg>`` with one dot per bin, larger where more pairs are in it.
    """
    top, bottom, height = 14, 250, 292
    most = max((n for *_, n in bins), default=1)

    def x(p: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * p

    def y(p: float) -> float:
        return bottom - (bottom - top) * p

    parts = [
        f'<path class="axis" d="M{LEFT},{top}V{bottom}H{WIDTH - RIGHT}"/>',
        f'<path class="axis" stroke-dasharray="4 4" d="M{x(0)},{y(0)}L{x(1)},{y(1)}"/>',
        f'<text class="axis-text" x="{x(0.8) + 8}" y="{y(0.8) + 22}">as stated</text>',
    ]
    full = [(p, share, n) for p, share, n in bins if n > 0]
    line = "L".join(f"{x(p):.1f},{y(share):.1f}" for p, share, _ in full)
    if full:
        parts.append(f'<path class="given line" d="M{line}"/>')
    for p, share, n in full:
        low, high = wilson(share, n)
        radius = 2.5 + 4 * np.sqrt(n / most)
        parts.append(f'<path class="given line" d="M{x(p):.1f},{y(low):.1f}V{y(high):.1f}"/>')
        parts.append(
            f'<circle class="given" cx="{x(p):.1f}" cy="{y(share):.1f}" r="{radius:.1f}">'
            f"<title>stated {p:.3f}, wrong {share:.3f}, {n:,} pairs</title></circle>"
        )
    for t in (0, 0.25, 0.5, 0.75, 1):
        parts.append(_tick(x(t), bottom, f"{t:g}"))
        parts.append(f'<text class="axis-text" x="{LEFT - 6}" y="{y(t) + 4}" text-anchor="end">{t:g}</text>')
    parts.append(
        f'<text x="{x(0.5)}" y="{bottom + 36}" text-anchor="middle">P(wrong) as stated by the audit</text>'
    )
    parts.append(_upright(top, bottom, "share really wrong"))
    said = f"Reliability curve with {len(full)} bins; the numbers are in the table."
    return _svg(height, said, parts)


def _svg(height: int, said: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _tick(x: float, bottom: float, text: str) -> str:
    return (
        f'<path class="axis" d="M{x:.1f},{bottom}v5"/>'
        f'<text class="axis-text" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>'
    )


def _upright(top: float, bottom: float, text: str) -> str:
    y = (top + bottom) / 2
    return f'<text class="axis-text" x="12" y="{y}" transform="rotate(-90 12 {y})" text-anchor="middle">{text}</text>'


def _round_numbers(low: float, high: float) -> list[float]:
    """Return about five round numbers in [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / 5
    size = 10 ** np.floor(np.log10(rough))
    step = size * min((1, 2, 5, 10), key=lambda m: abs(np.log(m * size / rough)))
    return [float(k * step) for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]
