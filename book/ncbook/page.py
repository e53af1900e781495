"""Tables as HTML: headings, protocol lines, footnotes, and a CSV file to download."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

BOOK = "nclib: image-text retrieval under noisy correspondence, re-examined"  # as CITATION.cff has it
AUTHORS = "The nclib authors"
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
)


@dataclass(frozen=True)
class Cell:
    """One cell of a table on a page."""

    text: str
    marks: tuple[str, ...] = ()  # footnotes that it refers to
    own: str = ""  # second line, for measured values
    kind: str = "nc-value"  # CSS class
    link: str = ""  # page that the text links to
    links: Sequence[tuple[str, str]] = ()  # words and their targets, in place of the text
    folded: Sequence[str] = ()  # lines that open on a click
    drawings: Sequence[str] = ()  # SVG by line of the text, stood before it
    anchor: str = ""  # identifier of the cell, for links to it


@dataclass(frozen=True)
class Table:
    """A table on a page; a notebook displays it as HTML."""

    slug: str  # identifier in the page, and name of the file to download
    title: str
    kind: str  # in page.html: where the numbers come from, shown as a label and a colour
    lines: Sequence[str]  # how the numbers were made
    names: Sequence[str]  # of the row headings
    columns: Sequence[tuple[str, ...]]  # headings, outermost first
    rows: Sequence[tuple[Sequence[Cell], Sequence[Cell]]]  # row headings, cells
    notes: dict[str, str] = field(default_factory=dict)  # footnotes by mark
    file: str = ""  # CSV to download
    filters: dict[str, str] = field(
        default_factory=dict
    )  # headings with a choice of values: the first choice
    apart: Sequence[str] = ()  # those of them whose values are never shown together
    closed: bool = False  # whether the rows open on a click

    def _repr_html_(self) -> str:
        return TEMPLATES.get_template("page.html").render(
            table=self,
            marks={name: number for number, name in enumerate(self.notes, 1)},
            levels=[list(self._groups(level)) for level in range(len(self.columns[0]) - 1)],
            file=base64.b64encode(self.file.encode()).decode(),
            citation=self.citation,
        )

    @property
    def citation(self) -> str:
        """How this table is cited, in BibTeX; a change of its CSV file changes the digest."""
        digest = hashlib.sha256(self.file.encode()).hexdigest()[:8]
        return (
            f"@misc{{nclib-{self.slug},\n  title = {{{{{self.title}}}}},\n  author = {{{{{AUTHORS}}}}},\n"
            f"  howpublished = {{{{{BOOK}}}}},\n  note = {{Table {self.slug}, CSV {digest}}}\n}}"
        )

    def _groups(self, level: int) -> Iterator[tuple[str, int]]:
        """Yield headings of a level and their widths; equal neighbours under equal parents become one."""
        for key, group in groupby(self.columns, key=lambda column: column[: level + 1]):
            yield key[-1], len(list(group))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": f"{self.title}: {len(self.rows)} rows"}

    def text(self) -> str:
        """Return the table as plain text; measured values stand in brackets behind printed ones."""

        def plain(view: Cell) -> str:
            own = " ".join(view.own.split())
            return f"{view.text} [{own}]" if own and view.text else view.text or own

        if not self.rows:
            return "\n".join(filter(None, [self.title, *self.lines]))
        frame = pd.DataFrame(
            [[plain(cell) for cell in cells] for _, cells in self.rows],
            index=[", ".join(head.text for head in heads if head.text) for heads, _ in self.rows],
            columns=pd.MultiIndex.from_tuples(self.columns),
        )
        return "\n".join(filter(None, [self.title, *self.lines, frame.to_string()]))


def listed(
    frame: pd.DataFrame,
    columns: Sequence[str],
    *,
    title: str,
    slug: str,
    filters: Mapping[str, str] | None = None,
    apart: Sequence[str] = (),
    links: str = "",
) -> Table:
    """Return printed values as a table that a reader sorts, filters and downloads.

    Parameters
    ----------
    frame : DataFrame
        The levels of its index are the row headings; all its columns stand in the CSV file.
    columns : sequence of str
        Those that the page shows.
    title, slug : str
        Line above the table; its name in the page, and that of the file.
    filters : mapping of str to str, optional
        Headings with a choice of values, and the first choice; all where no row has it.
    apart : sequence of str
        Those of the filters whose values are never shown together.
    links : str
        Column with the page that the last shown column leads to.
    """
    wide = frame.reset_index()
    names, text = list(frame.index.names), wide.astype(str)
    rows = [
        ([Cell(row[name]) for name in names], [Cell(row[name]) for name in columns])
        for row in text.to_dict("records")
    ]
    for (_, cells), target in zip(rows, wide[links] if links else (), strict=False):
        cells[-1] = Cell(cells[-1].text, link=target)
    chosen = {name: first if first in set(text[name]) else "" for name, first in (filters or {}).items()}
    file = csv_text(wide.columns, text.to_numpy().tolist())
    heads = [(name,) for name in columns]
    return Table(slug, title, "printed", (), names, heads, rows, file=file, filters=chosen, apart=apart)


def csv_text(names: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Write rows as CSV with a header line."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(list(names))
    writer.writerows(rows)
    return target.getvalue()
