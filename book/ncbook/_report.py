"""The results of a reproduction report: what the records say to the heart of a paper, in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncbook._compare import Difference, p_text
from ncbook._evidence import CATEGORY_CONDITIONS, CONDITIONS, VERDICTS, compare
from ncbook._html import Sheet, View, csv_text
from ncbook._layouts import LAYOUTS, layout_of
from ncbook._ledger import ledger
from ncbook._match import measured
from ncbook._printed import cells
from ncbook.runs import Runs, select


@dataclass(frozen=True)
class Comparison:
    """One line of a report: two settings, compared wherever both were recorded."""

    name: str
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    where: Mapping[str, Any]


def _against(method: str, other: str) -> Comparison:
    return Comparison(f"{method} − {other}", {"method": method}, {"method": other}, {"variant": ""})


def _matching(name: str, variant: str) -> Comparison:
    same = {"method": "plain", "model": "omit", "mrate": 0.0}
    return Comparison(f"Partial OT − {name}", {**same, "variant": ""}, {**same, "variant": variant}, {})


def _labels(other: str) -> Comparison:
    return Comparison(
        f"uot_rcl − {other}",
        {"method": "uot_rcl"},
        {"method": other},
        {"protocol": "symmetric", "variant": ""},
    )


# What each paper is about: the method against training without it, and against the nearest other one.
HEART: dict[str, tuple[Comparison, ...]] = {
    "L2RM": (_against("l2rm", "plain"), _against("l2rm", "rcl")),
    "OMIT": (_matching("CAM", "matching=cam"), _matching("naive OT", "matching=ot")),
    "REPAIR": (_against("repair", "plain"), _against("repair", "ncr")),
    "UOT-RCL": (_labels("deep_sm"), _labels("mrl"), _labels("elrcmr")),
}


def report_sheet(paper: str, runs: Runs) -> Sheet:
    """Return the results part of a paper's reproduction report.

    Parameters
    ----------
    paper : {"L2RM", "OMIT", "REPAIR", "UOT-RCL"}
    runs : Runs
        Runs runs.

    Returns
    -------
    Sheet
        Printed values measured on the paper's data; verdicts on its claims; and the paired differences of the
        method to training without it and to the nearest other method, with 95 % intervals.

    Raises
    ------
    ValueError
        For another paper.
    """
    if paper not in HEART:
        raise ValueError(f"paper must be one of {', '.join(HEART)}, got {paper!r}")
    rows = [*_coverage(paper, runs), *_comparisons(paper, runs)]
    views = [([View(what)], [View(found), View(n)]) for what, found, n in rows]
    return Sheet(
        slug=f"report-{paper.lower()}",
        title=f"{paper}: results in brief",
        kind="measured",
        lines=[
            "Computed from the records. Differences: same seed, same noise; mean and 95 % interval of the "
            "paired t-test; in rSum (at most 600), for UOT-RCL in mean average precision (at most 1).",
        ],
        names=("question",),
        columns=[("found",), ("seeds",)],
        rows=views,
        file=csv_text(("question", "found", "seeds"), rows),
    )


def _coverage(paper: str, runs: Runs) -> list[tuple[str, str, str]]:
    """How much was measured on the paper's data, and how its claims stand."""
    found = [(layout_of(*key), c) for key in LAYOUTS if key[0] == paper for c in cells(*key)]
    filled = sum(bool(measured(layout, cell, runs)) for layout, cell in found)
    claims = ledger(runs)
    counts = claims[claims["paper"] == paper]["verdict"].value_counts()
    said = "; ".join(f"{counts.get(v, 0)} {v}" for v in VERDICTS)
    return [
        ("printed values measured on the paper's data", f"{filled:,} of {len(found):,}", ""),
        (f"verdicts on {int(counts.sum())} claims", said, ""),
    ]


def _comparisons(paper: str, runs: Runs) -> list[tuple[str, str, str]]:
    labels = paper == "UOT-RCL"
    table = runs.category if labels else runs.retrieval
    if paper in ("L2RM", "REPAIR"):  # they are about noise
        table = table[table["mrate"] > 0]
    lines: list[tuple[str, str, str]] = []
    for one in HEART[paper]:
        differences = compare(
            select(table, **one.where),
            one.ours,
            one.theirs,
            "map_avg" if labels else "rsum",
            digits=3 if labels else 1,
            conditions=CATEGORY_CONDITIONS if labels else CONDITIONS,
        )
        lines += _lines(one.name, differences)
    return lines


def _lines(name: str, differences: Sequence[Difference]) -> Iterable[tuple[str, str, str]]:
    if not differences:
        return [(name, "no record", "")]
    return [(f"{name}, {d.name}", _found(d), str(d.n)) for d in differences]


def _found(d: Difference) -> str:
    if d.n == 1:
        return f"{d.mean:+.{d.digits}f}, no interval"
    low, high = d.interval
    return f"{d.mean:+.{d.digits}f} [{low:+.{d.digits}f}, {high:+.{d.digits}f}], {p_text(d.p)}"
