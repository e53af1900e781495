"""Results part of a reproduction report, computed from records."""

from __future__ import annotations

from ncbook.claims import ledger
from ncbook.compare import Difference, p_text
from ncbook.comparisons import differences, name_of, reported
from ncbook.evidence import VERDICTS
from ncbook.layouts import LAYOUTS, PAPERS, layout_of
from ncbook.match import measured
from ncbook.page import Cell, Table, csv_text
from ncbook.papers import values_of
from ncbook.runs import Runs


def report_table(paper: str, runs: Runs) -> Table:
    """Return the results part of a paper's reproduction report.

    Parameters
    ----------
    paper : {"L2RM", "OMIT", "REPAIR", "UOT-RCL"}
    runs : Runs

    Returns
    -------
    Table
        Printed values measured on the paper's data; verdicts on its claims; and the paired differences of the
        method to training without it and to the nearest other method, with 95 % intervals.

    Raises
    ------
    ValueError
        For another paper.
    """
    if paper not in PAPERS:
        raise ValueError(f"paper must be one of {', '.join(PAPERS)}, got {paper!r}")
    rows = [*_coverage(paper, runs), *_comparisons(paper, runs)]
    return Table(
        slug=f"report-{paper.lower()}",
        title=f"{paper}: results in brief",
        kind="measured",
        lines=[
            "Computed from the records. Differences: same seed, same noise; mean and 95 % interval of the "
            "paired t-test; in rSum (at most 600), for UOT-RCL in mean average precision (at most 1).",
        ],
        names=("question",),
        columns=[("found",), ("seeds",)],
        rows=[([Cell(what)], [Cell(found), Cell(n)]) for what, found, n in rows],
        file=csv_text(("question", "found", "seeds"), rows),
    )


def _coverage(paper: str, runs: Runs) -> list[tuple[str, str, str]]:
    """Return how much was measured on the paper's data, and the verdicts on its claims."""
    found = [(layout_of(*key), c) for key in LAYOUTS if key[0] == paper for c in values_of(*key)]
    filled = sum(bool(measured(layout, value, runs)) for layout, value in found)
    claims = ledger(runs)
    counts = claims[claims["paper"] == paper]["verdict"].value_counts()
    said = "; ".join(f"{counts.get(v, 0)} {v}" for v in VERDICTS)
    return [
        ("printed values measured on the paper's data", f"{filled:,} of {len(found):,}", ""),
        (f"verdicts on {int(counts.sum())} claims", said, ""),
    ]


def _comparisons(paper: str, runs: Runs) -> list[tuple[str, str, str]]:
    lines = []
    for one in reported(paper):
        found = differences(paper, one, runs)
        lines += [(d.name, _found(d), str(d.n)) for d in found]
        if not found:
            lines.append((name_of(paper, one).removesuffix(","), "no record", ""))
    return lines


def _found(d: Difference) -> str:
    return f"{d.mean:+.{d.digits}f}" + (f" {d.interval_text}, {p_text(d.p)}" if d.n > 1 else ", no interval")
