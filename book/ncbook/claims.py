"""The ledger, every claim of the four papers with a verdict computed from records, and the papers' reports.

Claims are data in ``claims.yml``, compared over recorded runs or over the measurements of a probe; those
about transport itself are functions in ``transport_claims.py``.
"""

from __future__ import annotations

import functools
from collections import Counter

import pandas as pd

from ncbook import transport_claims
from ncbook.compare import Difference, p_text
from ncbook.comparisons import compared, differences, reported, runs_of, untested
from ncbook.evidence import CLOSE, FAILS, HOLDS, MIXED, SEEN, UNSEEN, UNTESTED, VERDICTS, Verdict
from ncbook.intervals import interval_plot
from ncbook.layouts import LAYOUTS, PAPERS, layout_of
from ncbook.match import measured
from ncbook.page import Cell, Table, csv_text
from ncbook.papers import printed, values_of
from ncbook.runs import RECORDED, Runs

CHAPTERS = {"L2RM": "l2rm", "OMIT": "omit", "REPAIR": "repair", "UOT-RCL": "uot_rcl"}


def decide(name: str, runs: Runs) -> Verdict:
    """Return the verdict on one claim, computed now.

    Parameters
    ----------
    name : str
        Number of the claim, such as ``"L01"``.
    runs : Runs
        From :func:`ncbook.load_runs`.

    Raises
    ------
    ValueError
        For an unknown claim.
    """
    if name in transport_claims.CLAIMS:
        return transport_claims.CLAIMS[name]()
    if name in compared():
        return compared()[name].verdict(runs)
    if name in untested():
        return Verdict(UNTESTED, why=untested()[name])
    known = sorted({*transport_claims.CLAIMS, *compared(), *untested()})
    raise ValueError(f"unknown claim {name!r}; must be one of {', '.join(known)}")


def ledger(runs: Runs) -> pd.DataFrame:
    """Return every claim of the papers with its verdict.

    Parameters
    ----------
    runs : Runs

    Returns
    -------
    DataFrame
        One row per claim: ``id``, ``paper``, ``section``, ``claim``, ``printed`` (whether the paper's own
        tables bear it out), ``detail`` (their numbers), ``verdict``, ``test`` (what the claim says of the
        differences), ``why``, ``lines`` (of evidence, as :class:`.Line`), ``data`` (of the lines), ``n``
        (fewest seeds), ``evidence`` (all of it as text), ``chapter``.
    """
    claims = printed("claims")
    found = [decide(name, runs) for name in claims["id"]]
    table = claims[["id", "paper", "section", "claim"]].copy()
    table["printed"] = claims["check_on_printed_numbers"].replace("needs an experiment", "")
    table["detail"] = claims["detail"]
    table["verdict"] = [v.word for v in found]
    for name in ("test", "why", "lines", "data", "n", "evidence"):
        table[name] = [getattr(v, name) for v in found]
    table["chapter"] = claims["paper"].map(CHAPTERS)
    return table


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many claims of each paper have each verdict."""
    found = pd.crosstab(table["paper"], table["verdict"]).reindex(columns=list(VERDICTS), fill_value=0)
    found = found.loc[list(dict.fromkeys(table["paper"]))]
    found.loc["all"] = found.sum()
    found.columns.name = found.index.name = None
    return found


def counts_said(table: pd.DataFrame) -> str:
    """Return :func:`counts` of all papers as two sentences."""
    n = Counter(table["verdict"])
    own = table["verdict"].isin([HOLDS, FAILS])
    solved = (own & (table["data"] == "made problems")).sum()
    return (
        f"{own.sum()} of {len(table)} claims are decided on what they are about, {solved} of them by "
        f"mathematics. On other data {n[SEEN]} hold, {n[MIXED]} hold in part, {n[UNSEEN]} do not; {n[CLOSE]} "
        f"are too close to call, {n[UNTESTED]} cannot be tested here."
    )


def claims_table(table: pd.DataFrame, paper: str = "") -> Table:
    """Return the claims of one paper, or all, as a table to look at and to download.

    Parameters
    ----------
    table : DataFrame
        From :func:`ledger`.
    paper : str
        All when empty.
    """
    part = table[table["paper"] == paper] if paper else table
    rows = []
    for row in part.to_dict("records"):
        own = f"Printed numbers: {row['printed']}, {row['detail']}" if row["printed"] else row["detail"]
        said = [f"Claimed: {row['test']}."] if row["lines"] else []
        cells = [
            Cell(row["claim"], own=f"{row['section']}. {own}".strip(), kind="nc-text"),
            Cell(row["verdict"], kind=f"nc-verdict nc-{row['verdict'].replace(' ', '-')}"),
            Cell(
                "\n".join([*map(str, row["lines"])]) or row["why"],
                own=" ".join([*said, row["why"]]) if row["lines"] else "",
                folded=[f"{line.place}: {line.text}" for line in row["lines"]],
                drawings=[interval_plot(line.tested) for line in row["lines"]],
                kind="nc-text nc-lines",
            ),
        ]
        rows.append(([Cell(row["id"], link=chapter_link(row["chapter"]))], cells))
    kept = part.drop(columns="lines")
    return Table(
        slug=f"claims-{paper.lower() or 'all'}",
        title=f"Claims of {paper}" if paper else "All claims",
        kind="ledger",
        lines=[f"{len(part)} claims; verdicts computed from the recorded runs."],
        names=("no.",),
        columns=[("what the paper says, and prints",), ("verdict here",), ("evidence",)],
        rows=rows,
        file=csv_text(list(kept), kept.astype(str).to_numpy().tolist()),
        filters={"verdict here": ""},
    )


@functools.cache
def chapter_link(chapter: str) -> str:
    """Return the page of a method's chapter, if the book has it."""
    contents = RECORDED.parents[1] / "_toc.yml"
    listed = contents.exists() and f"notebooks/{chapter}\n" in contents.read_text("utf8")
    return f"{chapter}.html" if listed else ""


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
    claims = printed("claims")
    words = Counter(decide(name, runs).word for name in claims.loc[claims["paper"] == paper, "id"])
    said = "; ".join(f"{words[v]} {v}" for v in VERDICTS)
    return [
        ("printed values measured on the paper's data", f"{filled:,} of {len(found):,}", ""),
        (f"verdicts on {words.total()} claims", said, ""),
    ]


def _comparisons(paper: str, runs: Runs) -> list[tuple[str, str, str]]:
    found = [d for one in reported(paper) for d in differences(paper, one, runs_of(paper, runs))]
    return [(d.name.removesuffix(","), _found(d), str(d.n) if d.n else "") for d in found]


def _found(d: Difference) -> str:
    if not d.n:
        return "no record"
    return f"{d.mean:+.{d.digits}f}" + (f" {d.interval_text}, {p_text(d.p)}" if d.n > 1 else ", no interval")
