"""Layouts of the printed tables, read from ``layouts.yml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

RECALL = {
    "i2t_r1": ("image → text", "R@1"),
    "i2t_r5": ("image → text", "R@5"),
    "i2t_r10": ("image → text", "R@10"),
    "t2i_r1": ("text → image", "R@1"),
    "t2i_r5": ("text → image", "R@5"),
    "t2i_r10": ("text → image", "R@10"),
    "rsum": ("", "rSum"),
    "time_s": ("", "time (s)"),
}
DATA = {  # (dataset, protocol of the test) -> heading
    ("Flickr30K", "test-1k"): "Flickr30K",
    ("MS-COCO", "5fold-1k"): "MS-COCO 1K",
    ("MS-COCO", "full-5k"): "MS-COCO 5K",
    ("CC152K", "test-1k"): "CC152K",
}
DIRECTION = {"i2t": "image → text", "t2i": "text → image"}


@dataclass(frozen=True)
class Layout:
    """One printed table.

    Parameters
    ----------
    paper, table, title, protocol : str
        Paper and number as in the CSV files; what the table shows; what is known of data, noise, split,
        number of models and selection.
    rows, columns : tuple of str
        Fields that make the row headings and the column headings, outermost first.
    file : {"retrieval", "category_map", "resources"}
        CSV file that holds its cells; see :func:`ncbook.printed`.
    number, note : str
        Number as the paper prints it, where it differs from ``table``; remark for the reader.
    noise : {"", "images", "captions"}
        The kind of mismatch here that comes nearest.
    reference : str
        Row that measured differences are taken against: ``plain`` (plain training of the same model),
        ``full method`` (the row's method with usual settings), ``deep_sm``, or a name for plain OMIT.
    runs : {"methods", "models", "categories", "none"}
        How the name of a row leads to a run, where ``options`` does not say.
    method, model : str
        Method and model of all rows of an ablation.
    options : mapping
        Options of the runs by row (ablations) or by batch size.
    """

    paper: str
    table: str
    title: str
    protocol: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    file: str = "retrieval"
    number: str = ""
    noise: str = ""
    note: str = ""
    reference: str = "plain"
    runs: str = "methods"
    method: str = ""
    model: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Paper and number, as text."""
        return f"{self.paper}, Table {self.number or self.table}"

    @property
    def slug(self) -> str:
        """Identifier in a page."""
        text = f"{self.paper}-table-{self.table}".lower()
        return "".join(c if c.isalnum() else "-" for c in text)

    @property
    def of_labels(self) -> bool:
        """Whether the table is about category retrieval."""
        return self.file == "category_map"


def _read() -> dict[tuple[str, str], Layout]:
    content = yaml.safe_load(Path(__file__).with_name("layouts.yml").read_text("utf8"))
    texts: dict[str, str] = content["texts"]
    layouts = {}
    for entry in content["tables"]:
        protocol = entry["protocol"].format(**texts).format(**texts)  # texts hold other texts, one level deep
        lists = {key: tuple(entry[key]) for key in ("rows", "columns")}
        layout = Layout(**{**entry, **lists, "protocol": protocol})
        layouts[layout.paper, layout.table] = layout
    return layouts


LAYOUTS = _read()
"""Every printed table by paper and number."""
PAPERS = tuple(dict.fromkeys(paper for paper, _ in LAYOUTS))


def layout_of(paper: str, table: str) -> Layout:
    """Return the layout of a printed table; for an unknown one a ValueError that names those that exist."""
    if (paper, str(table)) not in LAYOUTS:
        known = "; ".join(f"{p}: {', '.join(t for q, t in LAYOUTS if q == p)}" for p in PAPERS)
        raise ValueError(f"no table {table!r} of {paper!r}; there are {known}")
    return LAYOUTS[paper, str(table)]
