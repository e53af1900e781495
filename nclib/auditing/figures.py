"""Figures of an audit's page, as SVG: scores of given and exchanged pairs, and how true probabilities are."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binomtest

# Colours of the figures (Okabe and Ito's, as everywhere in the book), and their names in the style sheet,
# where a dark page has others.
GIVEN, EXCHANGED, NEAR, INK, SOFT = "#0072b2", "#d55e00", "#009e73", "#000000", "#7a7a7a"
NAMES = {GIVEN: "given", EXCHANGED: "exchanged", NEAR: "near", INK: "ink", SOFT: "soft"}
# A report looks the same whatever style its caller has set.
in_own_style = matplotlib.style.context(["default", {"svg.fonttype": "none", "svg.hashsalt": "nclib"}])
METADATA = ("Date", "Creator", "Format", "Type")  # of a figure, left out


@in_own_style
def histogram(curves: Mapping[str, Any], label: str) -> str:
    """Return an ``<svg>`` of the scores of given and exchanged pairs, from :attr:`Audit.curves`."""
    looks = (
        ("given", GIVEN, "given pairs", "-"),
        ("exchanged", EXCHANGED, "random exchanges", "--"),
        ("near", NEAR, "near-neighbour exchanges", ":"),
    )
    figure, axis = _axis(label, "density")
    edges, said = np.asarray(curves["edges"]), []
    for name, colour, title, line in looks:
        heights = np.nan_to_num(curves[name])
        axis.stairs(heights, edges, color=colour, ls=line, lw=1.8, label=title)
        if name == "given":
            axis.stairs(heights, edges, color=colour, fill=True, alpha=0.25)
        peak = int(heights.argmax())
        said.append(f"{title}: most at {(edges[peak] + edges[peak + 1]) / 2:.3g}")
    axis.set_yticks([])
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize="medium")
    return _svg(figure, "histogram", f"Histograms of {label}. {'; '.join(said)}.")


@in_own_style
def reliability(bins: Iterable[tuple[float, float, int]]) -> str:
    """Return an ``<svg>`` of the share exchanged over the stated probability, with intervals of 95 %.

    Parameters
    ----------
    bins : iterable of (mean probability, share exchanged, n)
        Bins without pairs are left out.
    """
    full = np.array([one for one in bins if one[2] > 0], float).reshape(-1, 3)
    figure, axis = _axis("stated probability of an exchange", "share really exchanged")
    axis.plot([0, 1], [0, 1], color=SOFT, ls="--", lw=1)
    axis.text(0.82, 0.72, "as stated", color=SOFT)
    if len(full):
        stated, shares, n = full.T
        tests = (binomtest(round(share * k), int(k)) for share, k in zip(shares, n, strict=True))
        ends = np.array([test.proportion_ci(method="wilson") for test in tests])
        axis.plot(stated, shares, color=GIVEN, lw=1.8)
        axis.vlines(stated, *ends.T, color=GIVEN, lw=1.8)
        axis.scatter(stated, shares, (5 + 8 * np.sqrt(n / n.max())) ** 2 / 2, color=GIVEN, zorder=3)
    else:
        axis.text(0.05, 0.9, "not measured", color=INK)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    return _svg(
        figure, "reliability", f"Reliability curve with {len(full)} bins; the numbers are in the table."
    )


def _axis(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure((4.6, 3.05), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    axis.set(xlabel=x, ylabel=y)
    return figure, axis


def _svg(figure: Figure, name: str, said: str) -> str:
    """Return a figure as SVG that a page with a content security policy shows, in the colours of its style.

    The policy admits no style but that of the page: what matplotlib writes as styles become attributes, and
    its colours variables of the style sheet. Ids begin with ``name``, to be unique on the page.
    """
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(METADATA))
    text = out.getvalue()
    text = re.sub(r"<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", text)
    text = re.sub(r'style="([^"]*)"', _attributes, text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1)


def _attributes(style: re.Match[str]) -> str:
    """Return the attributes that say what an inline style says; fonts are those of the page."""
    parts = [part.split(":", 1) for part in style[1].split(";") if part.strip()]
    known = {key.strip(): value.strip() for key, value in parts if not key.strip().startswith("font")}
    return " ".join(
        f'{key}="{f"var(--{NAMES[value]})" if value in NAMES else value}"' for key, value in known.items()
    )
