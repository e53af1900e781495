"""Odd values, disagreements and gaps in the papers as printed, and checks that find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from ncbook.page import Cell, Table, csv_text
from ncbook.papers import printed
from ncbook.runs import RECALLS
from nclib import plots

EXPLAINED = {"no": "the papers do not explain it", "partly": "partly explained", "yes": "explained"}
SAME = {"L2RM": "6", "REPAIR": "I"}  # tables with the same methods at the same nominal rates


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
    found = printed("anomalies")
    found = found[found["kind"].isin(PASSED) == passed]
    if paper:
        found = found[found["paper"].str.contains(paper, regex=False) | (found["paper"] == "all")]
    order = found["kind"].map({kind: i for i, kind in enumerate((*WEIGHT, *PASSED))})
    found = found.assign(order=order).sort_values(["order", "id"]).drop(columns="order")
    findings = found.groupby(["kind", "paper", "explanation", "explained_by_papers"], sort=False)
    rows = [_finding(entries.to_dict("records")) for _, entries in findings]
    words = "Checks that passed" if passed else "Odd values and gaps"
    return Table(
        slug=f"errata-{paper.lower() or 'all'}{'-passed' if passed else ''}",
        title=f"{words}: {paper}" if paper else f"{words}, all papers",
        kind="errata",
        lines=[f"{len(found)} entries, {len(rows)} findings."],
        names=("no.",),
        columns=[("where and what",), ("printed",), ("explanation",)],
        rows=rows,
        file=csv_text(list(found), found.to_numpy().tolist()),
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


def _wide() -> pd.DataFrame:
    """Return the printed recalls and rSum with a column per metric."""
    table = printed("retrieval")
    keys = [c for c in table if c not in ("metric", "value")]
    return table.assign(value=table["value"].astype(float)).pivot_table(
        index=keys, columns="metric", values="value", sort=False
    )


def printed_sums() -> pd.DataFrame:
    """Return how many printed sums of recalls are the sum of their six recalls, by paper."""
    wide = _wide().dropna(subset=list(RECALLS))
    off = (wide["rsum"] - wide[list(RECALLS[:-1])].sum(axis=1)).round(2).abs()
    counts = {
        "rows": off.notna(),
        "exact": off == 0,
        "off by 0.1": off == 0.1,
        "off by more": off > 0.1,
    }
    return pd.DataFrame(counts).groupby("paper").sum()


def impossible_recalls_figure() -> Figure:
    """Draw printed R@10 over R@5; a point below the diagonal is impossible."""
    wide = _wide()
    figure, (axes,) = plots.panels(1, 2, height=3.4, sharex=True, sharey=True)
    for axis, way, name in zip(axes, ("i2t", "t2i"), ("image → text", "text → image"), strict=True):
        low, high = wide[f"{way}_r5"], wide[f"{way}_r10"]
        wrong = high < low
        axis.plot(low[~wrong], high[~wrong], ".", ms=3, color=plots.NEUTRAL, alpha=0.6, label="possible")
        label = f"impossible ({int(wrong.sum())})"
        axis.plot(low[wrong], high[wrong], "s", ms=7, color=plots.MISMATCHED, label=label)
        axis.plot([0, 100], [0, 100], color="#444444", lw=1)
        axis.set(xlabel="R@5", title=f"Printed, {name}")
    axes[0].set_ylabel("R@10")
    axes[0].legend()
    return figure


def two_papers_figure() -> Figure:
    """Draw rSum on Flickr30K of the methods that L2RM and REPAIR print at the same nominal rates."""
    found = {
        paper: printed("retrieval", paper=paper, table=table, dataset="Flickr30K", metric="rsum")
        .set_index(["method", "noise_rate"])["value"]
        .astype(float)
        for paper, table in SAME.items()
    }
    both = pd.DataFrame(found).dropna()
    figure, (axes,) = plots.panels(1, 3, height=2.9, sharey=True)
    for axis, (name, part) in zip(axes, both.groupby("method"), strict=True):
        rate = [float(r) for r in part.index.get_level_values("noise_rate")]
        for paper, line in (("REPAIR", "-o"), ("L2RM", "--s")):
            colour = plots.METHOD_STYLES[paper.lower()][0]
            axis.plot(rate, part[paper], line, color=colour, label=f"as printed in {paper}")
        axis.set(xlabel="nominal rate", title=name, ylim=(0, 600))
    axes[0].set_ylabel("rSum, Flickr30K")
    axes[0].legend(fontsize=8)
    return figure
