"""Tables as HTML: headings, protocol lines, footnotes, and a CSV file to download."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby


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
    kind: str  # key of KINDS: where the numbers come from, shown as a label and a colour
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
        marks = {name: str(i + 1) for i, name in enumerate(self.notes)}
        body = "".join(self._row(heads, cells, marks) for heads, cells in self.rows)
        fold = f"<details><summary>{len(self.rows)} rows</summary>", "</details>"
        begin, end = fold if self.closed else ("", "")
        return (
            f'<figure class="nc-sheet nc-{self.kind}" id="{self.slug}">'
            f'<figcaption id="{self.slug}-name"><span class="nc-kind">{KINDS[self.kind]}</span> '
            f"<strong>{_e(self.title)}</strong>{''.join(f'<br>{_e(line)}' for line in self.lines if line)}"
            f"{self._link()}</figcaption>"
            f'{begin}<div class="nc-scroll" tabindex="0" role="region" aria-labelledby="{self.slug}-name">'
            f'<table class="dataframe nc-table"><thead>{self._head()}</thead>'
            f"<tbody>{body}</tbody></table></div>"
            f"{self._notes(marks)}{end}</figure>"
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": f"{self.title}: {len(self.rows)} rows"}

    def text(self) -> str:
        """Return the table as plain text; measured values stand in brackets behind printed ones."""
        import pandas as pd

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

    def _link(self) -> str:
        if not self.file:
            return ""
        data = base64.b64encode(self.file.encode()).decode()
        href = f"data:text/csv;charset=utf-8;base64,{data}"
        return f' <a class="nc-csv" download="{self.slug}.csv" href="{href}">CSV</a>'

    def _head(self) -> str:
        """Headings of several levels; equal neighbours under equal parents become one."""
        depth, lines = len(self.columns[0]), []
        names = "".join(
            f'<th scope="col" rowspan="{depth}" data-sort{self._choice(name)}>{_e(name)}</th>'
            for name in self.names
        )
        for level in range(depth - 1):
            cells = []
            for key, group in groupby(self.columns, key=lambda c, level=level: c[: level + 1]):  # type: ignore[misc]
                width = len(list(group))
                span = f' colspan="{width}"' if width > 1 else ""
                cells.append(f'<th scope="colgroup"{span}>{_e(key[-1])}</th>')
            lines.append("".join(cells))
        lines.append(
            "".join(
                f'<th scope="col" data-sort{self._choice(column[-1])}>{_e(column[-1])}</th>'
                for column in self.columns
            )
        )
        return "".join(f"<tr>{line}</tr>" for line in [names + lines[0], *lines[1:]])

    def _choice(self, heading: str) -> str:
        """Attributes of a heading that gets a choice of values: the first choice, empty for all."""
        if heading not in self.filters:
            return ""
        apart = " data-apart" if heading in self.apart else ""
        return f' data-filter="{_e(self.filters[heading])}"{apart}'

    def _row(self, heads: Sequence[Cell], cells: Sequence[Cell], marks: dict[str, str]) -> str:
        first = "".join(f'<th scope="row">{self._view(h, marks)}</th>' for h in heads)
        rest = "".join(f'<td class="{c.kind}">{self._view(c, marks)}</td>' for c in cells)
        return f"<tr>{first}{rest}</tr>"

    def _view(self, view: Cell, marks: dict[str, str]) -> str:
        links = ",".join(
            f'<a href="#{self.slug}-note-{marks[m]}" title="{_e(self.notes[m])}" '
            f'aria-label="note {marks[m]}">{marks[m]}</a>'
            for m in view.marks
        )
        own = f'<span class="nc-own">{_e(view.own)}</span>' if view.own else ""
        text = f'<a href="{_e(view.link)}">{_e(view.text)}</a>' if view.link else _e(view.text)
        if view.drawings:
            lines = zip(view.text.split("\n"), view.drawings, strict=True)
            text = "".join(f'<span class="nc-line">{drawing}{_e(line)}</span>' for line, drawing in lines)
        text = " ".join(f'<a href="{_e(at)}">{_e(words)}</a>' for words, at in view.links) or text
        items = "".join(f"<li>{_e(line)}</li>" for line in view.folded)
        folded = f"<details><summary>numbers</summary><ul>{items}</ul></details>" if items else ""
        at = f' id="{_e(view.anchor)}"' if view.anchor else ""
        return f'<span class="nc-v"{at}>{text}</span>{f"<sup> {links}</sup>" if links else ""}{own}{folded}'

    def _notes(self, marks: dict[str, str]) -> str:
        if not marks:
            return ""
        items = "".join(
            f'<li id="{self.slug}-note-{number}" value="{number}">{_e(self.notes[name])}</li>'
            for name, number in marks.items()
        )
        word = "note" if len(marks) == 1 else "notes"
        summary = f"<summary>{len(marks)} {word}</summary>"
        return f'<details class="nc-notes">{summary}<ol>{items}</ol></details>'


KINDS = {
    "printed": "printed",
    "measured": "measured here",
    "submitted": "submitted",
    "effects": "printed and measured",
    "ledger": "claims",
    "errata": "errata",
}


def _e(text: str) -> str:
    return html.escape(text, quote=True)


def csv_text(names: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Write rows as CSV with a header line."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(list(names))
    writer.writerows(rows)
    return target.getvalue()
