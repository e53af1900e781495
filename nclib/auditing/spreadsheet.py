"""CSV files that spreadsheets open and save: a guard against formulas, and marks that come back."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd

from nclib.readers.captions_table import read_text

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


def read_marks(path: Path) -> pd.DataFrame:
    """Return the cells of a file of marks, separated by commas, semicolons or tabs."""
    text, hint = read_text(path)
    if hint:  # Excel's "CSV"
        text, _ = read_text(path, "cp1252")
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    found = pd.read_csv(io.StringIO(text), sep=separator, dtype=str, keep_default_na=False)
    return found.rename(columns=lambda name: str(name).strip().lower())


def to_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV whose cells of text are guarded."""
    text = table.select_dtypes(exclude=["number", "bool"]).map(guarded)
    return table.assign(**text).to_csv(index=False)
