"""Tables of a notebook: one look for all of them, and means over seeds as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from ncbook.compare import mean_text
from ncbook.marks import MARKS, marks_of

NOT_RUN = "not run"
# A mean with its spread or its interval, or one value, and the number of seeds behind it.
SEEDS = re.compile(r"^[-+]?[\d.,]+(?: ± [\d.,]+| \[[^]]*\])? \((\d+)\)(?= |$)")


def show(
    table: pd.DataFrame,
    name: str,
    caption: str = "",
    *,
    format: str | Mapping[Any, str] | None = None,
    digits: int | None = None,
    missing: str | None = None,
    best: bool = False,
    index: bool = True,
) -> Styler:
    """Return a table as a notebook's last line, in the look of the book.

    The number of seeds that most means have is said once, by the caption; other numbers stay in the cells.

    Parameters
    ----------
    table : DataFrame
        The values.
    name : str
        Name of the table in its HTML, unique in the notebook; output cells are then equal between executions.
    caption : str
        Line above the table.
    format : str or mapping of column to str, optional
        Format of the cells, such as ``"{:.1f}"``.
    digits : int, optional
        Decimals of floats without a ``format``; headings that are numbers have their shortest form.
    missing : str, optional
        Text of missing values.
    best : bool
        Print the largest value of each column in bold.
    index : bool
        Show the row headings.

    Returns
    -------
    Styler

    Examples
    --------
    >>> import pandas as pd
    >>> styled = show(pd.DataFrame({"0.6": [410.25]}, index=["l2rm"]), "rsum", "rSum", digits=1)
    >>> "410.2" in styled.to_html()
    True
    """
    if caption:
        table, caption = count_once(table, caption)
    words = {word.strip(";.,") for cell in table.to_numpy().flat for word in str(cell).split()[1:]}
    for mark in MARKS if caption else ():
        caption += f". {mark} {MARKS[mark]}" if mark in words else ""
    name = re.sub(r"[^\w-]", "-", name)  # a link to the table is a selector of scripts, too
    style = table.style.set_uuid(name).set_table_attributes('class="dataframe"')
    style = style.format_index(_heading).format_index(_heading, axis=1)
    if format is not None or digits is not None or missing is not None:
        style = style.format(format, precision=digits, na_rep=missing)
    if table.index.is_unique and table.columns.is_unique:  # a mean stays on one line with its spread
        style = style.map(lambda value: "white-space: nowrap" if "±" in str(value) else "")
    if best:
        style = style.highlight_max(props="font-weight: bold")
    if not index:
        style = style.hide()
    return style.set_caption(caption) if caption else style


def _heading(value: object) -> object:
    """Return a heading; a number such as a rate in its shortest form."""
    return f"{value:g}" if isinstance(value, float) else value


def count_once(table: pd.DataFrame, caption: str) -> tuple[pd.DataFrame, str]:
    """Move the number of seeds that most means have, ``a ± b (n)``, from the cells to the caption."""
    matches = [SEEDS.search(cell) for cell in table.to_numpy().flat if isinstance(cell, str)]
    counts = Counter(int(match[1]) for match in matches if match)
    n, times = counts.most_common(1)[0] if counts else (0, 0)
    # A lone run must not look like the mean of several.
    if 2 * times <= counts.total() or (n == 1 and len(counts) > 1):
        return table, caption
    said = f"{n} {'seed' if n == 1 else 'seeds'}" + (
        " unless a number is given" if len(counts) > 1 else " each"
    )
    place = next((words for words in (" (seeds)", " (number of seeds)") if words in caption), None)
    caption = caption.replace(place, f", {said}") if place else f"{caption.removesuffix('.')}; {said}"

    def without(cell: Any) -> Any:
        match = SEEDS.search(cell) if isinstance(cell, str) else None
        return cell if match is None or int(match[1]) != n else cell.replace(f" ({n})", "", 1)

    return table.map(without), caption


def means(
    runs: pd.DataFrame,
    rows: str | Sequence[str],
    columns: str | Sequence[str],
    value: str = "rsum",
    *,
    digits: int = 1,
) -> pd.DataFrame:
    """Return mean ± standard deviation (n) of a metric by two groups of columns, as text.

    Parameters
    ----------
    runs : DataFrame
        One row per run, as from :func:`ncbook.recorded`.
    rows, columns : str or sequence of str
        Columns of ``runs`` whose values become the row headings and the column headings.
    value : str
        The metric.
    digits : int
        Decimals.

    Returns
    -------
    DataFrame of str
        ``"not run"`` where no run fits; behind a cell the marks of :data:`ncbook.marks.MARKS`.
        Headings that are floats are written in their shortest form.

    Examples
    --------
    >>> import pandas as pd
    >>> runs = pd.DataFrame({"method": ["l2rm"] * 2, "mrate": [0.6] * 2, "rsum": [280.0, 282.0]})
    >>> print(means(runs, "method", "mrate").to_string(index_names=False))
                      0.6
    l2rm  281.0 ± 1.4 (2)
    """
    rows, columns = ([part] if isinstance(part, str) else list(part) for part in (rows, columns))

    def text(part: pd.Series) -> str:
        return " ".join([mean_text(list(part), digits), *marks_of(runs.loc[part.index], value)])

    cells = runs.groupby([*rows, *columns])[value].agg(text)
    table = cells.unstack(columns).fillna(NOT_RUN)
    table.index.names = [None] * table.index.nlevels
    if len(columns) == 1:
        table.columns = table.columns.map(lambda v: f"{v:g}" if isinstance(v, float) else str(v))
    return table


def measures(
    runs: pd.DataFrame,
    names: Mapping[str, str],
    by: str | Sequence[str] = "label",
    *,
    digits: int = 3,
    missing: str = "–",
) -> pd.DataFrame:
    """Return mean ± standard deviation (n) of several metrics by the values of columns, as text.

    Parameters
    ----------
    runs : DataFrame
        One row per run.
    names : mapping
        Columns of metrics, and what the table calls them; those without a value are left out.
    by : str or sequence of str
        Columns whose values become the row headings, in the order in which they come.
    digits : int
        Decimals.
    missing : str
        Text of a row without a value.

    Examples
    --------
    >>> runs = pd.DataFrame({"label": ["ncr"] * 2, "auc": [0.8, 0.9], "ece": [None] * 2})
    >>> print(measures(runs, {"auc": "AUROC", "ece": "calibration error"}).to_string())
                     AUROC
    ncr  0.850 ± 0.071 (2)
    """
    there = [name for name in names if name in runs and runs[name].notna().any()]
    cells = runs.groupby(by, sort=False)[there]
    table = cells.agg(lambda values: mean_text(list(values.dropna()), digits) or missing)
    return table.rename(columns=names).rename_axis([None] * table.index.nlevels)
