"""Text in CSV files that a spreadsheet may open: a guard against cells that it would run as formulas."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

#: What a spreadsheet takes for a formula; guarded text counts too, so that a guard can be taken off again.
FORMULA = re.compile(r"'*[=+\-@＝＋－＠\t\r\n]")
NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?\s?%?", re.IGNORECASE)


def guarded(cell: Any) -> Any:
    """Return a cell with ``'`` before text that a spreadsheet would run as a formula.

    Examples
    --------
    >>> guarded("=1+1"), guarded("-0.5"), guarded("a - b")
    ("'=1+1", '-0.5', 'a - b')
    """
    risky = isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell)
    return f"'{cell}" if risky else cell


def unguarded(cell: str) -> str:
    """Return the text that :func:`guarded` was given.

    Examples
    --------
    >>> unguarded("'=1+1"), unguarded("'tis"), unguarded("-0.5")
    ('=1+1', "'tis", '-0.5')
    """
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def to_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV whose cells of text are guarded."""
    text = {
        name: column.map(guarded)
        for name, column in table.items()
        if not (pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column))
    }
    return table.assign(**text).to_csv(index=False)
