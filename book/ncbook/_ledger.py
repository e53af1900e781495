"""The ledger: every claim of the four papers with a verdict that code computes from records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ncbook._evidence import UNTESTED, VERDICTS, Finding
from ncbook._html import Sheet, View, csv_text
from ncbook._printed import printed
from ncbook.runs import RECORDED, Runs

if TYPE_CHECKING:
    import pandas as pd

Judge = Callable[[Runs], Finding]
JUDGES: dict[str, Judge] = {}
CHAPTERS = {"L2RM": "l2rm", "OMIT": "omit", "REPAIR": "repair", "UOT-RCL": "uot_rcl"}

# Why a claim is not tested here, and which claims share the reason.
REASONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "web data": (
        "It is about CC152K, web pairs of which an unknown part is wrong; no bundled data are like that.",
        ("L03", "L04", "L05", "L12", "R05"),
    ),
    "papers' data": (
        "It is about numbers on a data set or a gallery that is not bundled; with the data in a folder, "
        "the same table's cells fill themselves from recorded runs.",
        ("L20", "R03", "R04", "U05", "U06"),
    ),
    "pretrained encoders": (
        "It is about pretrained encoders (ResNet-152, BUTD, BERT, ResNeXT-101, CLIP), whose weights "
        "and features are not bundled.",
        ("O02", "O03", "O04", "O05", "U07", "U08", "U09", "U10"),
    ),
    "GPU time": (
        "It is about hours and memory of full-size runs on one GPU model; another machine says nothing "
        "about it.",
        ("R17", "R25"),
    ),
    "per-pair values": (
        "It is about per-pair values of a run, which records do not keep; the method's chapter draws them "
        "for its own run.",
        ("L13", "L15", "L24", "L25", "L28", "R16", "R20", "R24", "U20", "U22"),
    ),
    "looking": (
        "It is about what single examples look like; chapters show them, and no number decides it.",
        ("O20", "O21", "O26"),
    ),
    "no switch": (
        "It needs a variant of the method that this package lacks, or longer runs than the recorded ones.",
        ("L26", "L30", "R10", "R11", "R18", "R22"),
    ),
}


def judge(*identifiers: str) -> Callable[[Judge], Judge]:
    """File a function as the one that decides the claims ``identifiers``."""

    def add(function: Judge) -> Judge:
        for name in identifiers:
            if name in JUDGES:
                raise ValueError(f"claim {name} has two judges")
            JUDGES[name] = function
        return function

    return add


def untested() -> dict[str, tuple[str, str]]:
    """Return kind of reason and reason for every claim that nothing here can decide."""
    return {name: (kind, why) for kind, (why, names) in REASONS.items() for name in names}


def decide(identifier: str, runs: Runs) -> Finding:
    """Return the finding on one claim, computed now.

    Raises
    ------
    ValueError
        For an unknown claim.
    """
    from ncbook import _claims_l2rm, _claims_omit, _claims_repair, _claims_uot_rcl  # noqa: F401

    if identifier in JUDGES:
        return JUDGES[identifier](runs)
    reasons = untested()
    if identifier not in reasons:
        raise ValueError(f"unknown claim {identifier!r}; there are {', '.join(sorted({*JUDGES, *reasons}))}")
    return Finding(UNTESTED, reasons[identifier][1])


def ledger(runs: Runs) -> pd.DataFrame:
    """Return every claim of the papers with its verdict.

    Parameters
    ----------
    runs : Runs
        Runs runs; :func:`recorded` reads those of the book.

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
    for name in ("verdict", "evidence", "n", "data", "test"):
        table[name] = [getattr(f, name) for f in found]
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


def ledger_sheet(table: pd.DataFrame, paper: str = "") -> Sheet:
    """Return the claims of one paper, or all, as a table to look at and to download.

    Parameters
    ----------
    table : DataFrame
        From :func:`ledger`.
    paper : str
        One paper; all when empty.
    """
    part = table[table["paper"] == paper] if paper else table
    names = (
        "id",
        "paper",
        "section",
        "claim",
        "printed",
        "detail",
        "verdict",
        "evidence",
        "n",
        "data",
        "test",
        "chapter",
    )
    rows = []
    for row in part.to_dict("records"):
        how = f"{row['data']}, n = {row['n']}; {row['test']}" if row["n"] else ""
        own = f"Printed numbers: {row['printed']}, {row['detail']}" if row["printed"] else row["detail"]
        rows.append(
            (
                [View(row["id"], link=chapter_link(row["chapter"]))],
                [
                    View(row["claim"], own=f"{row['section']}. {own}".strip(), kind="nc-text"),
                    View(row["verdict"], kind=f"nc-verdict nc-{row['verdict'].replace(' ', '-')}"),
                    View(row["evidence"], own=how, kind="nc-text"),
                ],
            )
        )
    return Sheet(
        slug=f"claims-{paper.lower() or 'all'}",
        title=f"Claims of {paper}" if paper else "All claims",
        kind="ledger",
        lines=[f"{len(part)} claims; verdicts computed from the recorded runs."],
        names=("no.",),
        columns=[("what the paper says, and prints",), ("verdict here",), ("evidence",)],
        rows=rows,
        file=csv_text(names, ([str(r[n]) for n in names] for r in part.to_dict("records"))),
    )


def chapter_link(chapter: str) -> str:
    """Return the page of a method's chapter, if the book has it."""
    contents = RECORDED.parents[1] / "_toc.yml"
    listed = contents.exists() and f"notebooks/{chapter}\n" in contents.read_text("utf8")
    return f"{chapter}.html" if listed else ""
