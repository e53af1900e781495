"""The ledger, every claim of the four papers with a verdict computed from records, and the papers' reports.

Claims are data in ``claims.yml``, compared over recorded runs or over the measurements of a probe; those
about transport itself are functions in ``transport_claims.py``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence

import pandas as pd

from ncbook import transport_claims
from ncbook.board import data_name
from ncbook.compare import Difference, p_text
from ncbook.comparisons import compared, differences, reported, runs_of, untested
from ncbook.effects import STUDIES, printed_runs, with_shares
from ncbook.evidence import (
    UNRUN,
    UNTESTED,
    VERDICTS,
    Line,
    Verdict,
    deciding,
    inside,
)
from ncbook.intervals import interval_plot
from ncbook.layouts import LAYOUTS, PAPERS, layout_of
from ncbook.marks import explained
from ncbook.match import measured
from ncbook.page import Cell, Table, csv_text
from ncbook.papers import MISSING, printed, values_of
from ncbook.regime import SMALL
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


def ledger(runs: Runs, paper: str = "") -> pd.DataFrame:
    """Return every claim of the papers with its verdict.

    Parameters
    ----------
    runs : Runs
    paper : str
        Whose claims are decided; all when empty.

    Returns
    -------
    DataFrame
        One row per claim: ``id``, ``paper``, ``section``, ``claim``, ``printed`` (whether the paper's own
        tables bear it out), ``detail`` (their numbers), ``verdict``, ``test`` (what the claim says of the
        differences), ``why``, ``lines`` (of evidence, as :class:`.Line`), ``data`` (of the lines), ``n``
        (fewest seeds), ``evidence`` (all of it as text), ``chapter``.
    """
    claims = printed("claims", **({"paper": paper} if paper else {}))
    verdicts = [decide(name, runs) for name in claims["id"]]
    table = claims[["id", "paper", "section", "claim"]].copy()
    table["printed"] = claims["check_on_printed_numbers"].replace("needs an experiment", "")
    table["detail"] = claims["detail"]
    table["verdict"] = [v.word for v in verdicts]
    for name in ("test", "why", "lines", "data", "n", "evidence"):
        table[name] = [getattr(v, name) for v in verdicts]
    table["chapter"] = claims["paper"].map(CHAPTERS)
    return table


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many claims of each paper have each verdict."""
    crossed = pd.crosstab(table["paper"], table["verdict"]).reindex(columns=list(VERDICTS), fill_value=0)
    crossed = crossed.loc[list(dict.fromkeys(table["paper"]))]
    crossed.loc["all"] = crossed.sum()
    crossed.columns.name = crossed.index.name = None
    return crossed


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
            _verdict_cell(row["verdict"]),
            Cell(
                "\n".join([*map(str, row["lines"])]) or row["why"],
                own=" ".join([*said, row["why"]]) if row["lines"] else "",
                folded=[f"{line.place}: {line.text}" for line in row["lines"]],
                drawings=[interval_plot(line.tested) for line in row["lines"]],
                kind="nc-text nc-lines",
            ),
        ]
        rows.append(([Cell(row["id"], link=page_link(row["chapter"]), anchor=row["id"])], cells))
    return Table(
        slug=f"claims-{paper.lower() or 'all'}",
        title=f"Claims of {paper}" if paper else "All claims",
        kind="ledger",
        lines=[
            f"{len(part)} claims; verdicts computed from the recorded runs.",
            _explained(line for lines in part["lines"] for line in lines),
        ],
        names=("no.",),
        columns=[("what the paper says, and prints",), ("verdict here",), ("evidence",)],
        rows=rows,
        file=_file(part),
        filters={"verdict here": ""},
    )


def answers_table(paper: str, runs: Runs) -> Table:
    """Return each claim that a paper's tables give a number, beside what was measured, decided ones first.

    Of several comparisons in a place the table shows the one least in line with the claim, and unfolds the
    others. Claims without a number or a test stand in the lines above the table. A difference under noise has
    its share of what the noise costs an undefended network, see :func:`ncbook.effects.with_shares`.

    Parameters
    ----------
    paper : {"L2RM", "OMIT", "REPAIR", "UOT-RCL"}
    runs : Runs

    Raises
    ------
    ValueError
        For another paper.
    """
    table = ledger(runs, _known(paper))
    values = [(layout_of(*key), c) for key in LAYOUTS if key[0] == paper for c in values_of(*key)]
    filled = sum(bool(measured(layout, value, runs)) for layout, value in values)
    words, ledger_page, shares = Counter(table["verdict"]), page_link("claims"), paper in STUDIES
    decided = ~table["verdict"].isin([UNRUN, UNTESTED])
    shown = table[(table["printed"] != "") & decided]
    untestable = table.loc[(table["printed"] != "") & ~decided, "id"]
    rows = []
    for row in sorted(shown.to_dict("records"), key=lambda row: VERDICTS.index(row["verdict"])):
        lines = deciding(row["lines"])
        cells = [
            Cell(row["claim"], own=row["section"], kind="nc-text"),
            Cell(row["detail"], own="" if row["printed"] == "holds" else row["printed"], kind="nc-text"),
            Cell(
                "\n".join(map(_measured, lines)),
                folded=[f"{line.place}: {line.text}" for line in lines if len(line.tested) > 1],
                drawings=[interval_plot(line.tested) for line in lines],
                kind="nc-text nc-lines",
            ),
            *([Cell(_shares(row["id"], lines, runs))] if shares else []),
            _verdict_cell(row["verdict"]),
        ]
        rows.append(([Cell(row["id"], link=ledger_page and f"{ledger_page}#{row['id']}")], cells))
    return Table(
        slug=f"answers-{paper.lower()}",
        title=f"{paper}: what it claims and prints, and what was measured here",
        kind="ledger",
        lines=[
            f"All {len(table)} claims: {'; '.join(f'{words[v]} {v}' for v in VERDICTS if words[v])}. "
            f"{len(shown)} of them are printed with a number and tested here.",
            f"Not tested here: {', '.join(untestable)}; the ledger says why." if len(untestable) else "",
            f"Printed values measured on the paper's data: {filled:,} of {len(values):,}.",
            "Measured: mean difference and 95 % interval by seed (n); of several, the one that supports the "
            "claim least.",
            f"Share: a difference over what noise costs {STUDIES[paper].undefended}, at rate "
            f"{min(STUDIES[paper].shown):g} and above; {MISSING} where that was not printed or not recorded."
            if shares
            else "",
            _explained(line for row in shown["lines"] for line in deciding(row)),
        ],
        names=("no.",),
        columns=[
            ("claim",),
            ("printed effect",),
            ("measured here",),
            *([("share of the loss",)] if shares else []),
            ("verdict",),
        ],
        rows=rows,
        file=_file(table),
        closed=len(rows) > 12,
    )


def _measured(line: Line) -> str:
    """Return the comparison of a line that supports its claim least, and how many do."""
    d, place = line.weakest, line.place.replace(line.dataset, data_name(line.dataset), 1)
    right = sum(inside(*pair) for pair in line.tested)
    count = f". {right} of {len(line.tested)} as claimed" if len(line.tested) > 1 else ""
    name = f"{d.name.strip(', ')}; " if d.name else ""
    how = " ".join([d.interval_text, f"(n = {d.n})", *d.marks])
    return f"{d.mean:+.{d.digits}f} {how}: {name}{place}{count}"


def _shares(name: str, lines: Sequence[Line], runs: Runs) -> str:
    """Return the shares of the loss that a claim's differences are: as printed, and of the measured ones.

    Several printed ones are a range; measured is the comparison that each line of evidence shows.
    """
    claim = compared().get(name)
    of_shares = claim and claim.of_shares
    if claim is None or of_shares is None:
        return MISSING
    study = STUDIES[claim.paper]
    table = with_shares(printed_runs(claim.paper), study, min(study.shown))
    own = [d.mean for one in of_shares.compare for d in differences(claim.paper, one, table) if d.n]
    there = {(line.place, d.name): d for line in of_shares.verdict(runs).lines for d, _ in line.tested}
    ours = [there.get((line.place, line.weakest.name)) for line in lines]
    if not own and not any(ours):
        return MISSING
    printed_ones = dict.fromkeys(map(_share, (min(own), max(own)))) if own else [MISSING]
    texts = [" ".join([_share(d.mean), *d.marks]) if d else MISSING for d in ours]
    return f"printed {' to '.join(printed_ones)}\nhere {'; '.join(texts)}"


def _share(share: float) -> str:
    return f"{round(share, 2) + 0.0:.2f}"  # no minus before a zero


def _verdict_cell(word: str) -> Cell:
    return Cell(word, kind=f"nc-verdict nc-{word.replace(' ', '-')}")


def _file(table: pd.DataFrame) -> str:
    """Return a ledger as CSV."""
    kept = table.drop(columns="lines")
    return csv_text(list(kept), kept.astype(str).to_numpy().tolist())


@functools.cache
def page_link(name: str) -> str:
    """Return the page of a notebook, if the book has it."""
    contents = RECORDED.parents[1] / "_toc.yml"
    listed = contents.exists() and f"notebooks/{name}\n" in contents.read_text("utf8")
    return f"{name}.html" if listed else ""


def report_table(paper: str, runs: Runs) -> Table:
    """Return what a paper's method gains over training without it and over the nearest other method.

    Parameters
    ----------
    paper : {"L2RM", "OMIT", "REPAIR", "UOT-RCL"}
    runs : Runs

    Returns
    -------
    Table
        Paired differences under every recorded condition, with 95 % intervals, of the preset ``quick`` where
        no longer runs of both sides exist.

    Raises
    ------
    ValueError
        For another paper.
    """
    seen = _reported(paper, runs)
    rows = [(d.name.removesuffix(","), _found(d), str(d.n) if d.n else "") for d in seen]
    return Table(
        slug=f"differences-{paper.lower()}",
        title=f"{paper}: differences in every setting",
        kind="measured",
        lines=[
            "Computed from the records. Differences: same seed, same noise; mean and 95 % interval of the "
            "paired t-test; in rSum (at most 600), for UOT-RCL in mean average precision (at most 1). "
            f"Runs of the preset {SMALL} are left out where longer runs of both sides exist.",
            explained(mark for d in seen for mark in d.marks),
        ],
        names=("difference",),
        columns=[("found",), ("seeds",)],
        rows=[([Cell(what)], [Cell(value), Cell(n)]) for what, value, n in rows],
        file=csv_text(("difference", "found", "seeds"), rows),
        closed=True,
    )


def _known(paper: str) -> str:
    if paper not in PAPERS:
        raise ValueError(f"paper must be one of {', '.join(PAPERS)}, got {paper!r}")
    return paper


def report_said(paper: str, runs: Runs) -> str:
    """Return the differences of :func:`report_table` in sentences: where they lie above zero, below, or open.

    Settings with fewer than three seeds are left out.
    """
    by_sign: dict[str, dict[str, list[str]]] = {}
    for d in _reported(paper, runs):
        what, _, place = d.name.partition(", ")
        if d.judged:
            words = ", ".join(data_name(word) for word in place.strip(", ").split(", "))
            by_sign.setdefault(what, {}).setdefault(d.sign, []).append(words)
    lines = []
    for what, at in by_sign.items():
        n = sum(map(len, at.values()))
        parts = [
            f"{word} in {len(at[sign])}"
            + (f" ({'; '.join(at[sign])})" if len(at[sign]) <= min(3, n - 1) else "")
            for sign, word in (("above", "above zero"), ("below", "below zero"), ("open", "open"))
            if sign in at
        ]
        settings = "setting" if n == 1 else "settings"
        lines.append(f"- **{what}**, {n} {settings} with three seeds or more: {', '.join(parts)}.")
    return "\n".join(lines)


def _reported(paper: str, runs: Runs) -> list[Difference]:
    """Return the differences of a paper's report, of runs of ``quick`` only where no longer ones exist."""
    every = runs_of(_known(paper), runs)
    longer, shown = every[every["preset"] != SMALL], list[Difference]()
    for one in reported(paper):
        own = differences(paper, one, longer)
        shown += own if any(d.n for d in own) else differences(paper, one, every)
    return shown


def _found(d: Difference) -> str:
    if not d.n:
        return "no record"
    how = f" {d.interval_text}, {p_text(d.p)}" if d.judged else ", no interval"
    return " ".join([f"{d.mean:+.{d.digits}f}{how}", *d.marks])


def _explained(lines: Iterable[Line]) -> str:
    """Say what the marks of the comparisons behind claims mean."""
    return explained(mark for line in lines for d, _ in line.tested for mark in d.marks)
