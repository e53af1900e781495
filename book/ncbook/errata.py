"""Odd values, disagreements and gaps in the papers as printed, and checks that find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncbook.page import Cell, Table, csv_text
from ncbook.papers import printed

EXPLAINED = {"no": "the papers do not explain it", "partly": "partly explained", "yes": "explained"}
# Kinds of entries by weight: what cannot be right, what contradicts, what is missing, what is only odd.
WEIGHT = (
    *("recall_order", "suspicious_value", "unsupervised_not_constant", "identical_rows"),
    *("text_against_table", "mixed_protocol_in_one_table", "noise_protocol"),
    *("differs_between_papers", "differs_between_tables", "formula_or_setting"),
    *("missing_cells", "lost_symbols", "type_label", "naming", "rises_with_noise"),
)
PASSED = ("rsum_check", "granularity_check", "cross_paper_agreement")  # checks that found nothing wrong


def errata_table(paper: str = "", *, passed: bool = False) -> Table:
    """Return the list of odd values, disagreements and gaps in the papers as printed.

    Entries of one kind and paper with the same explanation are one finding; findings are sorted by weight.

    Parameters
    ----------
    paper : str
        Entries that concern this paper; all when empty.
    passed : bool
        The checks that found nothing wrong, instead.
    """
    entries = printed("anomalies")
    entries = entries[entries["kind"].isin(PASSED) == passed]
    if paper:
        entries = entries[entries["paper"].str.contains(paper, regex=False) | (entries["paper"] == "all")]
    order = entries["kind"].map({kind: i for i, kind in enumerate((*WEIGHT, *PASSED))})
    entries = entries.assign(order=order).sort_values(["order", "id"]).drop(columns="order")
    findings = entries.groupby(["kind", "paper", "explanation", "explained_by_papers"], sort=False)
    rows = [_finding(part.to_dict("records")) for _, part in findings]
    words = "Checks that passed" if passed else "Odd values and gaps"
    return Table(
        slug=f"errata-{paper.lower() or 'all'}{'-passed' if passed else ''}",
        title=f"{words}: {paper}" if paper else f"{words}, all papers",
        kind="errata",
        lines=[f"{len(entries)} entries, {len(rows)} findings."],
        names=("no.",),
        columns=[("where and what",), ("printed",), ("explanation",)],
        rows=rows,
        file=csv_text(list(entries), entries.to_numpy().tolist()),
    )


def _finding(entries: Sequence[Mapping[str, str]]) -> tuple[list[Cell], list[Cell]]:
    """Return the row of a finding: its first entry in full, the others folded."""
    first, n = entries[0], len(entries)

    def each(column: str) -> list[str]:
        return [value for value in dict.fromkeys(entry[column] for entry in entries) if value]

    def where(entry: Mapping[str, str]) -> str:
        return ", ".join(entry[k] for k in ("dataset", "noise_rate", "method", "metric") if entry[k])

    def what(entry: Mapping[str, str]) -> str:
        return entry["observed"] + (f"; against: {entry['other']}" if entry["other"] else "")

    tables = "; ".join(table if table != "all" else "all tables" for table in each("table"))
    why = "; ".join([*each("explanation"), *each("note")])
    others = [f"{e['id']}, {where(e)}: {what(e)} ({e['difference']})" for e in entries[1:]]
    cells = [
        Cell(
            f"{first['paper']}, {tables}: {first['kind'].replace('_', ' ')}", own=where(first), kind="nc-text"
        ),
        Cell(what(first), own=first["difference"], kind="nc-text", folded=others),
        Cell(why, own=EXPLAINED.get(first["explained_by_papers"], ""), kind="nc-text nc-soft"),
    ]
    return [Cell(first["id"] + (f" and {n - 1} more" if n > 1 else ""))], cells
