"""Printed tables of the papers: values, their places, and notes on odd values."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ncbook.layouts import DATA, DIRECTION, LAYOUTS, RECALL, Layout, layout_of

PRINTED = (
    "retrieval",
    "category_map",
    "claims",
    "figures",
    "hyperparameters",
    "resources",
    "anomalies",
    "field",
)
MISSING = "–"  # the paper prints no value here
MARKED = (  # kinds of anomalies that belong to single cells or rows
    *("recall_order", "suspicious_value", "rises_with_noise", "unsupervised_not_constant", "identical_rows"),
    *("differs_between_tables", "differs_between_papers", "mixed_protocol_in_one_table"),
    *("type_label", "naming"),
)
WHOLE = re.compile(r"6 recalls|^all$|^map$|^metric$|^method$|^type$|^count$|^sum|^recalls$|^rsum$")


def printed(name: str = "retrieval", **where: Any) -> pd.DataFrame:
    """Return the values printed in the papers.

    Parameters
    ----------
    name : str
        One of retrieval, category_map, claims, figures, hyperparameters, resources, anomalies (of the four
        papers), and field: newer papers, repositories and re-runs, one line per printed row.
    **where
        Column = value pairs that rows must satisfy, for example ``paper="L2RM", table="3"``.

    Returns
    -------
    DataFrame
        Every value as the text that is printed.

    Raises
    ------
    ValueError
        For an unknown table or column.

    Examples
    --------
    >>> printed("retrieval", paper="L2RM", table="6", method="L2RM-SGR", metric="rsum")["value"][0]
    '492.5'
    """
    if name not in PRINTED:
        raise ValueError(f"unknown table of printed values {name!r}; must be one of {', '.join(PRINTED)}")
    table = _file(name)
    for column, value in where.items():
        if column not in table:
            raise ValueError(f"{name} has no column {column!r}; it has {', '.join(table.columns)}")
        table = table[table[column] == str(value)]
    return table.reset_index(drop=True)


@functools.cache
def _file(name: str) -> pd.DataFrame:
    path = Path(__file__).parent / "printed" / f"{name}.csv"
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def _lines(name: str, **where: str) -> list[dict[str, str]]:
    return printed(name, **where).to_dict("records")


@dataclass(frozen=True, eq=False)  # compared and hashed by identity
class Value:
    """One printed value: its place, its text, its line of the CSV file, and notes on it and on its row."""

    row: tuple[str, ...]
    column: tuple[str, ...]
    value: str
    source: dict[str, str]
    marks: tuple[str, ...] = ()
    row_marks: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """The value without its unit."""
        return self.value.partition(" ")[0]


def _rate(row: dict[str, str]) -> str:
    return row["noise_rate"] if row.get("noise_rate") else "natural"


def _data_at_rate(row: dict[str, str]) -> str:
    rate = _rate(row)
    return f"{_data(row)}, {'natural noise' if rate == 'natural' else f'rate {rate}'}"


def _data(row: dict[str, str]) -> str:
    return DATA.get((row["dataset"], row.get("protocol", "")), row["dataset"])


def _method(row: dict[str, str]) -> str:
    name, setting = row["method"], row.get("setting", "")
    if row["paper"] == "OMIT" and row.get("ensemble") == "true":
        return f"{name} ★"
    if "DSL" in setting:
        return f"{name} †"
    own = row.get("source") == "measured by that paper"
    return f"{name} *" if row["paper"] == "REPAIR" and own and name in ("NCR", "BiCro") else name


def _after(key: str, row: dict[str, str]) -> str:
    found = re.search(rf"{key}=([^;]+)", row.get("setting", ""))
    return found.group(1).strip() if found else ""


FIELDS: dict[str, Any] = {
    "rate": _rate,
    "method": _method,
    "data": _data,
    "data at rate": _data_at_rate,
    "direction": lambda row: RECALL[row["metric"]][0] if "metric" in row else DIRECTION[row["direction"]],
    "recall": lambda row: RECALL[row["metric"]][1],
    "warm-up": lambda row: _after("warm-up", row),
    "batch": lambda row: _after("batch", row),
    "type": lambda row: _after("type", row),
    "backbone": lambda row: row["backbone"],
    "bank_size": lambda row: row["bank_size"],
    "quantity": lambda row: row["quantity"],
    "dataset": lambda row: row["dataset"],
}


@functools.cache
def rows_of(paper: str, table: str) -> tuple[dict[str, str], ...]:
    """Return the lines of the CSV file that belong to a printed table."""
    layout = layout_of(paper, table)
    return tuple(_lines(layout.file, paper=paper, table=layout.table))


@functools.cache
def values_of(paper: str, table: str) -> tuple[Value, ...]:
    """Return every printed value of a table with its place in the layout and its notes."""
    layout, oddities = layout_of(paper, table), _anomalies(paper, table)
    found = []
    for row in rows_of(paper, table):
        concerned = [(a, m) for a in oddities for m in [_concerns(a, row)] if m]
        found.append(
            Value(
                tuple(FIELDS[name](row) for name in layout.rows),
                tuple(FIELDS[name](row) for name in layout.columns),
                row["value"] + (f" {row['unit']}" if "unit" in row else "") if "value" in row else row["map"],
                row,
                tuple(a["id"] for a, m in concerned if m == "cell"),
                tuple(a["id"] for a, m in concerned if m == "row"),
            )
        )
    return tuple(found)


def paper_table(paper: str, table: str) -> pd.DataFrame:
    """Return a table of a paper in the paper's own layout, every value as printed.

    Parameters
    ----------
    paper : {"L2RM", "OMIT", "REPAIR", "UOT-RCL"}
    table : str
        Its number: Arabic for L2RM and OMIT, Roman for the others, such as ``"6"`` or ``"IV"``.

    Returns
    -------
    DataFrame of str
        Methods and settings in rows, data sets, directions and metrics in columns; ``–`` where nothing is
        printed.

    Raises
    ------
    ValueError
        For a table that does not exist.
    """
    layout, found = layout_of(paper, table), values_of(paper, table)
    rows, columns = _order(layout, found)
    values = {(c.row, c.column): c.value for c in found}
    frame = pd.DataFrame([[values.get((r, c), MISSING) for c in columns] for r in rows], dtype=object)
    frame.index = pd.MultiIndex.from_tuples(rows, names=layout.rows)
    frame.columns = pd.MultiIndex.from_tuples(columns, names=layout.columns)
    return frame


def _order(layout: Layout, found: tuple[Value, ...]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Rows and columns in the paper's order; recalls in their usual one even where some are missing."""
    rows = list(dict.fromkeys(c.row for c in found))
    columns = list(dict.fromkeys(c.column for c in found))
    first = {name: i for i, name in enumerate(dict.fromkeys(c.column[0] for c in found))}
    metrics = {label: i for i, label in enumerate(RECALL.values())}
    if "recall" in layout.columns:
        columns.sort(key=lambda c: (first[c[0]] if len(c) > 2 else 0, metrics[c[-2:]]))  # type: ignore[index]
    outer = {name: i for i, name in enumerate(dict.fromkeys(r[0] for r in rows))}
    if len(layout.rows) > 1:
        rows.sort(key=lambda r: outer[r[0]])  # keeps the order inside a block
    return rows, columns


@functools.cache
def _anomalies(paper: str, table: str) -> tuple[dict[str, str], ...]:
    rows = _lines("anomalies")
    return tuple(r for r in rows if r["kind"] in MARKED and table in _tables_named(r, paper))


def _tables_named(anomaly: dict[str, str], paper: str) -> set[str]:
    """Tables of ``paper`` that an entry speaks of; with several papers the parts stand in their order."""
    papers = [p.strip() for p in anomaly["paper"].split(";")]
    if paper not in papers:
        return set()
    text = anomaly["table"]
    parts = text.split(";")
    if len(papers) > 1 and len(parts) == len(papers):
        text = parts[papers.index(paper)]
    against = text.split("against")[-1] if "against" in text else text
    words = re.findall(r"5/B1|\b(?:[IVX]+|\d)\b", re.sub(r"Sec\. [\w.-]+|App\. [\w.-]+", "", against))
    return {w for w in words if (paper, w) in LAYOUTS}


def _concerns(anomaly: dict[str, str], row: dict[str, str]) -> str:
    """Return how an entry concerns a printed value: its ``cell``, its ``row``, or not at all."""
    if anomaly["dataset"] not in ("", "all") and row["dataset"] not in _parts(anomaly["dataset"]):
        return ""
    rates = _rates(anomaly)
    if rates and row.get("noise_rate", "") not in rates:
        return ""
    if not _names(anomaly, row):
        return ""
    metric = anomaly["metric"]
    if "(" in metric and "backbone" in row and row["backbone"] not in metric:
        return ""
    if anomaly["kind"] in ("differs_between_papers", "differs_between_tables") or WHOLE.search(metric):
        return "row"
    return "cell" if _metric(row) & _metrics(metric) else ""


def _parts(text: str) -> list[str]:
    return [p.strip() for p in text.split(";")]


def _rates(anomaly: dict[str, str]) -> set[str]:
    text = anomaly["noise_rate"]
    if " to " in text:
        low, high = text.split(" to ")
        if anomaly["kind"] == "rises_with_noise":
            return {high.strip()}
        return {r for r in ("0.2", "0.4", "0.6", "0.8") if low <= r <= high}
    return {r for r in _parts(text) if r}


def _names(anomaly: dict[str, str], row: dict[str, str]) -> bool:
    wanted = [n for part in _parts(anomaly["method"]) for n in re.split(r" / |, ", part)]
    if "OMIT (ResNeXT-101)" in wanted:
        return row.get("method") == "OMIT" and row.get("backbone", "").startswith("ResNeXT")
    return row.get("method", "") in wanted


def _metric(row: dict[str, str]) -> set[str]:
    return {row["metric"]} if "metric" in row else {f"map {row.get('direction', '')}"}


def _metrics(text: str) -> set[str]:
    if text in ("i2t recalls", "t2i recalls"):
        return {f"{text[:3]}_r{k}" for k in (1, 5, 10)}
    return {part.strip() for part in re.split(r"[,;]", text)}


def said_against(paper: str, table: str) -> tuple[str, ...]:
    """Return the identifiers of sentences in the text that a printed table does not bear out exactly."""
    rows = _lines("anomalies", kind="text_against_table")
    return tuple(row["id"] for row in rows if table in _tables_named(row, paper))


@functools.cache
def anomaly_text(identifier: str) -> str:
    """Return what is odd, in one sentence, from the list of oddities."""
    row = printed("anomalies", id=identifier).iloc[0]
    kind = row["kind"].replace("_", " ")
    parts = [row["observed"], f"against {row['other']}" if row["other"] else "", row["difference"]]
    said = ", ".join(p for p in parts if p)
    why = "; ".join(p for p in (row["explanation"], row["note"]) if p)
    return f"{kind}: {row['method']}, {said}" + (f". {why}" if why else "")
