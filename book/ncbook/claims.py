"""The ledger: every claim of the four papers with a verdict computed from records.

Most claims are data in ``claims.yml``; the rest are functions in ``claim_functions.py`` and
``transport_claims.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ncbook import claim_functions, transport_claims
from ncbook.comparisons import compared, untested
from ncbook.evidence import UNTESTED, VERDICTS, Verdict
from ncbook.page import Cell, Table, csv_text
from ncbook.papers import printed
from ncbook.runs import RECORDED, Runs

if TYPE_CHECKING:
    import pandas as pd

FUNCTIONS: dict[str, Callable[[Runs], Verdict]] = {**claim_functions.CLAIMS, **transport_claims.CLAIMS}
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
    if name in FUNCTIONS:
        return FUNCTIONS[name](runs)
    if name in compared():
        return compared()[name].verdict(runs)
    if name in untested():
        return Verdict(UNTESTED, untested()[name])
    known = sorted({*FUNCTIONS, *compared(), *untested()})
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
        tables bear it out), ``detail`` (their numbers), ``verdict``, ``evidence``, ``n``, ``data``, ``test``,
        ``chapter``.
    """
    claims = printed("claims")
    found = [decide(name, runs) for name in claims["id"]]
    table = claims[["id", "paper", "section", "claim"]].copy()
    table["printed"] = claims["check_on_printed_numbers"].replace("needs an experiment", "")
    table["detail"] = claims["detail"]
    table["verdict"] = [v.word for v in found]
    for name in ("evidence", "n", "data", "test"):
        table[name] = [getattr(v, name) for v in found]
    table["chapter"] = claims["paper"].map(CHAPTERS)
    return table


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many claims of each paper have each verdict."""
    import pandas as pd

    found = pd.crosstab(table["paper"], table["verdict"]).reindex(columns=list(VERDICTS), fill_value=0)
    found = found.loc[list(dict.fromkeys(table["paper"]))]
    found.loc["all"] = found.sum()
    found.columns.name = found.index.name = None
    return found


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
        how = f"{row['data']}, n = {row['n']}; {row['test']}" if row["n"] else ""
        own = f"Printed numbers: {row['printed']}, {row['detail']}" if row["printed"] else row["detail"]
        cells = [
            Cell(row["claim"], own=f"{row['section']}. {own}".strip(), kind="nc-text"),
            Cell(row["verdict"], kind=f"nc-verdict nc-{row['verdict'].replace(' ', '-')}"),
            Cell(row["evidence"], own=how, kind="nc-text"),
        ]
        rows.append(([Cell(row["id"], link=chapter_link(row["chapter"]))], cells))
    return Table(
        slug=f"claims-{paper.lower() or 'all'}",
        title=f"Claims of {paper}" if paper else "All claims",
        kind="ledger",
        lines=[f"{len(part)} claims; verdicts computed from the recorded runs."],
        names=("no.",),
        columns=[("what the paper says, and prints",), ("verdict here",), ("evidence",)],
        rows=rows,
        file=csv_text(list(part), part.astype(str).to_numpy().tolist()),
    )


@functools.cache
def chapter_link(chapter: str) -> str:
    """Return the page of a method's chapter, if the book has it."""
    contents = RECORDED.parents[1] / "_toc.yml"
    listed = contents.exists() and f"notebooks/{chapter}\n" in contents.read_text("utf8")
    return f"{chapter}.html" if listed else ""
