"""Printed tables of the papers: values, their places, and notes on odd values."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ncbook.layouts import DATA, DIRECTION, RECALL, Layout, layout_of

PRINTED = (
    "retrieval",
    "category_map",
    "claims",
    "figures",
    "hyperparameters",
    "resources",
    "anomalies",
    "marks",
    "field",
)
METRICS = (*RECALL, "rsum", "time_s")  # columns of printed/retrieval.csv with values
MISSING = "–"  # the paper prints no value here


def printed(name: str = "retrieval", **where: Any) -> pd.DataFrame:
    """Return the values printed in the papers.

    Parameters
    ----------
    name : str
        One of retrieval, category_map, claims, figures, hyperparameters, resources, anomalies (of the four
        papers), marks (lines of a table, counted from 0, that an anomaly concerns: cells, rows, or the text
        about it), and field: newer papers, repositories and re-runs, one line per printed row.
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
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    if name != "retrieval":
        return table
    own = [column for column in table if column not in METRICS]  # one line a row of the paper
    values = table.melt(own, METRICS, var_name="metric", ignore_index=False)
    values = values[values["value"] != ""].sort_index(kind="stable").reset_index(drop=True)
    before = own.index("ensemble")
    return values[[*own[:before], "metric", "value", *own[before:]]]


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
    match = re.search(rf"{key}=([^;]+)", row.get("setting", ""))
    return match.group(1).strip() if match else ""


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
    layout, values = layout_of(paper, table), []
    marks: dict[tuple[str, str], list[str]] = {}
    for one in _lines("marks", paper=paper, table=table):
        for line in one["lines"].split():
            marks.setdefault((one["mark"], line), []).append(one["id"])
    for number, row in enumerate(rows_of(paper, table)):
        values.append(
            Value(
                tuple(FIELDS[name](row) for name in layout.rows),
                tuple(FIELDS[name](row) for name in layout.columns),
                row["value"] + (f" {row['unit']}" if "unit" in row else "") if "value" in row else row["map"],
                row,
                *(tuple(marks.get((mark, str(number)), ())) for mark in ("cell", "row")),
            )
        )
    return tuple(values)


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
    layout, cells = layout_of(paper, table), values_of(paper, table)
    rows, columns = _order(layout, cells)
    values = {(c.row, c.column): c.value for c in cells}
    frame = pd.DataFrame([[values.get((r, c), MISSING) for c in columns] for r in rows], dtype=object)
    frame.index = pd.MultiIndex.from_tuples(rows, names=layout.rows)
    frame.columns = pd.MultiIndex.from_tuples(columns, names=layout.columns)
    return frame


def _order(layout: Layout, cells: tuple[Value, ...]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Rows and columns in the paper's order; recalls in their usual one even where some are missing."""
    rows = list(dict.fromkeys(c.row for c in cells))
    columns = list(dict.fromkeys(c.column for c in cells))
    first = {name: i for i, name in enumerate(dict.fromkeys(c.column[0] for c in cells))}
    metrics = {label: i for i, label in enumerate(RECALL.values())}
    if "recall" in layout.columns:
        columns.sort(key=lambda c: (first[c[0]] if len(c) > 2 else 0, metrics[c[-2:]]))  # type: ignore[index]
    outer = {name: i for i, name in enumerate(dict.fromkeys(r[0] for r in rows))}
    if len(layout.rows) > 1:
        rows.sort(key=lambda r: outer[r[0]])  # keeps the order inside a block
    return rows, columns


def said_against(paper: str, table: str) -> tuple[str, ...]:
    """Return the identifiers of sentences in the text that a printed table does not bear out exactly."""
    return tuple(row["id"] for row in _lines("marks", paper=paper, table=table, mark="text"))


@functools.cache
def anomaly_text(identifier: str) -> str:
    """Return what is odd, in one sentence, from the list of oddities."""
    row = printed("anomalies", id=identifier).iloc[0]
    kind = row["kind"].replace("_", " ")
    parts = [row["observed"], f"against {row['other']}" if row["other"] else "", row["difference"]]
    said = ", ".join(p for p in parts if p)
    why = "; ".join(p for p in (row["explanation"], row["note"]) if p)
    return f"{kind}: {row['method']}, {said}" + (f". {why}" if why else "")


def wide(rows: pd.DataFrame, index: Any, columns: Any, value: str = "value") -> pd.DataFrame:
    """Return printed values as numbers, in the order of print: ``columns`` beside each other."""
    rows = rows.assign(number=rows[value].astype(float))
    return rows.pivot_table(index=index, columns=columns, values="number", sort=False)
