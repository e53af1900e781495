"""The page "How fast, and how near the limit": stored times beside the limits of one core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import show
from ncbook.measurements import made, measurement
from nclib import plots

BOUNDS = {
    "flops": "products",
    "bytes": "memory",
    "cached": "cache",
    "fresh": "fresh memory",
    "exps": "exponentials",
}
FIXED = 0.5
"""Share of a time from which on the fixed cost of a call is said to rule it."""


def measured(file: str = "") -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the rows of a result of ``book/bench/limits.py``, with a letter each, and the rest of the file.

    Columns ``share`` (limit over time) and ``faster`` (time of the other candidate over ours) are added.

    Parameters
    ----------
    file : str
        Empty: the stored result.

    Raises
    ------
    ValueError
        The file is not there, or was written by something else.
    """
    found = {} if file else measurement("bench_limits")
    if file:
        try:
            found = json.loads(Path(file).read_text("utf8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"bench={file!r} cannot be read as JSON: {error}") from None
        if not isinstance(found, dict) or found.get("benchmark") != "limits":
            raise ValueError(
                f"bench={file!r} is not a result of limits.py; make one: "
                "python book/bench/limits.py --out limits.json"
            )
    rows = pd.DataFrame(found.pop("rows"))
    rows["letter"] = [chr(ord("A") + number) for number in range(len(rows))]
    rows["share"], rows["faster"] = rows["limit_ms"] / rows["ms"], rows["other_ms"] / rows["ms"]
    return rows, found


def rules(row: pd.Series) -> str:
    """Name what rules the time of an operation: its limit, the fixed cost of its calls, or neither."""
    if row["share"] >= FIXED:
        return BOUNDS[row["bound"]]
    if row["least_ms"] is not None and row["least_ms"] >= FIXED * row["ms"]:
        return "fixed cost of a call"
    return "steps between"


def table(rows: pd.DataFrame, about: dict[str, Any]) -> Styler:
    """Show every operation: ours, the other candidate, the limit, and how near."""
    shown = pd.DataFrame(
        {
            "operation": rows["operation"],
            "size": rows["size"],
            "nclib": rows["ms"].map(milliseconds),
            "other": [f"{milliseconds(r['other_ms'])} ({r['other']})" for _, r in rows.iterrows()],
            "faster": rows["faster"].map("{:.1f}×".format),
            "limit": rows["limit_ms"].map(milliseconds),
            "set by": rows["bound"].map(BOUNDS),
            "share": rows["share"].map("{:.1%}".format),
            "rest": [rules(row) for _, row in rows.iterrows()],
        }
    ).set_index(pd.Index(rows["letter"], name=None))
    caption = (
        "Measured medians of CPU time, candidates in turns, "
        f"{about['machine']['cpu']}, one thread, torch {about['machine']['versions']['torch']}, "
        f"{made(about)}. Limit: least time that the counted work takes on this core. Share: limit "
        "over time. Rest: what rules the time when the limit does not"
    )
    return show(shown, "limits", caption)


def goals() -> Styler:
    """Show what the solvers were to reach on this class of machine, and the stored ratios."""
    transport, small, labels = (measurement(f"bench_{name}") for name in ("ot_partial", "ot_small", "map"))
    by_size = {
        row["size"]: row
        for row in transport["summary"]
        if row["solver"] == "nclib float32" and row["against"] == "published loop"
    }
    least = min(by_size.values(), key=lambda row: row["least"])
    one = [row for row in small["rows"] if row["solver"] == "nclib log"]
    most = max(row["problems"] for row in one)
    single = [row["ratio"] for row in one if row["problems"] == 1]
    large = [row["ratio"] for row in one if row["problems"] == most and row["what"] == "forward"]
    several = [row["ratio"] for row in labels["rows"] if row["candidate"] == "nclib"]
    lines = [
        ("partial masked transport, 128", "median of 24 problems", 20.0, by_size[128]["median"]),
        ("partial masked transport, 256", "median of 24 problems", 40.0, by_size[256]["median"]),
        (f"partial masked transport, {least['size']}", "slowest of all problems", 6.0, least["least"]),
        (f"small problems, {most:,}", "slowest forward pass", 5.0, min(large)),
        ("small problems, one", "slowest of all", 1.0, min(single)),
        ("mean average precision", "slowest of all sizes", 10.0, min(several)),
    ]
    shown = pd.DataFrame(
        {
            "measure": [line[1] for line in lines],
            "aim": [f"{line[2]:.0f}×" for line in lines],
            "measured": [f"{line[3]:.1f}×" for line in lines],
            "reached": ["yes" if line[3] >= line[2] else "no" for line in lines],
        },
        index=[line[0] for line in lines],
    )
    caption = "Measured times as fast as the published loops, and what was aimed at. Transport "
    caption += f"{made(transport)}; small problems {made(small)}; precision {made(labels)}"
    return show(shown, "goals", caption)


def milliseconds(value: float) -> str:
    """Write a time with two or three digits.

    Examples
    --------
    >>> milliseconds(0.01234), milliseconds(1.234), milliseconds(1234.5)
    ('12.3\\xa0µs', '1.23\\xa0ms', '1.23\\xa0s')
    """
    for scale, unit in ((1e-3, "µs"), (1.0, "ms"), (1e3, "s")):
        if value < 1000 * scale or unit == "s":
            return f"{value / scale:.3g}\N{NO-BREAK SPACE}{unit}"
    raise AssertionError


def peaks_table(about: dict[str, Any]) -> Styler:
    """Show the five rates of the core."""
    rates = about["peaks"]
    text = {
        "float32 products": f"{rates['flops'] / 1e9:.0f} thousand million additions and multiplications",
        "memory": f"{rates['bytes'] / 1e9:.1f} GB",
        "cache, matrix times vector": f"{rates['cached'] / 1e9:.0f} GB",
        "fresh memory, first written": f"{rates['fresh'] / 1e9:.1f} GB",
        "exponentials": f"{rates['exps'] / 1e9:.1f} thousand million",
    }
    return show(
        pd.DataFrame({"per second": text}), "peaks", "Measured: the highest rate of one core in half a second"
    )


def equivalents(work: dict[str, float], rates: dict[str, float]) -> float:
    """Count work in flops; an exponential counts as the flops that the core could do in its place.

    Examples
    --------
    >>> equivalents({"flops": 10.0, "exps": 2.0}, {"flops": 100.0, "exps": 20.0})
    20.0
    """
    return work["flops"] + work["exps"] * rates["flops"] / rates["exps"]


def roofline(rows: pd.DataFrame, about: dict[str, Any]) -> Figure:
    """Draw each operation's rate over its work per byte, below the roofs of memory, cache and products."""
    rates = about["peaks"]
    figure, ((axis,),) = plots.panels(1, 1, 6.8, 4.2)
    x = np.geomspace(0.05, 3000, 200)
    for kind, colour, style in (("bytes", plots.MATCHED, "-"), ("cached", plots.ACCENT, "--")):
        roof = np.minimum(x * rates[kind], rates["flops"]) / 1e9
        axis.plot(x, roof, color=colour, ls=style, lw=1.6, label=f"roof of {BOUNDS[kind]} and products")
    for _, row in rows.iterrows():
        work = row["work"]
        amount = equivalents(work, rates)
        traffic = work["bytes"] or work["cached"]
        if not amount or not traffic:
            continue
        at = amount / traffic, amount / row["ms"] * 1e3 / 1e9
        colour = plots.MATCHED if work["bytes"] else plots.ACCENT
        axis.plot(*at, "o" if work["bytes"] else "s", color=colour, ms=5)
        axis.annotate(row["letter"], at, xytext=(4, 3), textcoords="offset points", fontsize=9)
    axis.set(xscale="log", yscale="log", xlabel="flops, or their equivalents, per byte")
    axis.set_ylabel("thousand million flops a second")
    axis.legend(loc="lower right")
    return figure


def said(rows: pd.DataFrame) -> str:
    """Return what the table says in Markdown: nearest to the limit, farthest from it, what a call costs."""
    near, far = rows.loc[rows["share"].idxmax()], rows.loc[rows["share"].idxmin()]
    slower = rows[rows["faster"] < 1]
    fixed = rows[[rules(row) == "fixed cost of a call" for _, row in rows.iterrows()]]
    lines = [
        f"- Nearest to its limit: {near['operation']} ({near['letter']}), {near['share']:.0%} of what the "
        f"core can do. Farthest: {far['operation']}, {far['size']} ({far['letter']}), {far['share']:.1%}.",
        f"- Against the other candidates: {rows['faster'].min():.1f} to {rows['faster'].max():.0f} times as "
        + ("fast, never slower." if slower.empty else f"fast; slower in {', '.join(slower['letter'])}."),
    ]
    if len(fixed):
        lines.append(
            f"- {', '.join(fixed['letter'])}: checks, Python and the start of operations take more than half "
            "of the time, so a quicker solver would not be noticed; more problems in one call would."
        )
    return "\n".join(lines)
