"""How each table of the four papers is laid out: which settings stand in rows and which in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
L2RM_NOISE = "all captions of a chosen share of images permuted (stated)"
REPAIR_NOISE = "captions shuffled at the given rate (which kind is not stated)"


@dataclass(frozen=True)
class Layout:
    """One printed table.

    Parameters
    ----------
    paper, table : str
        As in the CSV files.
    title : str
        What the table shows.
    protocol : str
        What is known of data, noise, split, number of models and selection.
    rows, columns : tuple of str
        Names of the fields that make the row headings and the column headings, outermost first.
    file : str
        Table of :func:`nclib.runs.record.printed` that holds its cells.
    number : str
        Number as the paper prints it, when it differs from ``table``.
    noise : str
        Protocol of this package that comes nearest: ``images``, ``captions``, or empty.
    note : str
        Line on reading the table.
    reference : str
        Row that differences are taken against, in the table of measured runs.
    keep : mapping
        Rows of the CSV file that belong to the table, column = value.
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
    keep: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.paper}, Table {self.number or self.table}"

    @property
    def slug(self) -> str:
        text = f"{self.paper}-table-{self.table}".lower()
        return "".join(c if c.isalnum() else "-" for c in text)


RATES = ("rate", "method")
SPLIT = ("data", "direction", "recall")
ONE = ("direction", "recall")
OUR_SELECTION = "checkpoint with the highest sum of recalls on validation"
_L2RM = (
    f"noise: {L2RM_NOISE}; SGRAF rows combine two models, NCR and BiCro two networks, other rows are single; "
    f"selection: {OUR_SELECTION}"
)
_OMIT = (
    "no added noise; one model per row, ★ two; † dual-softmax post-processing; selection: best on validation"
)
_REPAIR = (
    f"noise: {REPAIR_NOISE}; NCR, BiCro, MSCN and REPAIR score with the mean of two networks; "
    "* re-run by the paper's authors; selection: best on validation"
)
_UOT = "symmetric label noise; one model; mean average precision in [0, 1]; selection: best on validation"
_COCO = "MS-COCO 1K is the mean of five folds of 1,000 test images"

_ALL = (
    Layout(
        "L2RM",
        "1",
        "Recall under mismatching rates, selected methods",
        f"{_L2RM}; {_COCO}",
        RATES,
        SPLIT,
        noise="images",
    ),
    Layout(
        "L2RM",
        "2",
        "Recall on CC152K, real web pairs",
        "natural noise of unknown rate (about 3 to 20 %); 1,000 test images",
        ("method",),
        ONE,
    ),
    Layout(
        "L2RM",
        "3",
        "Ablation, Flickr30K at rate 0.6",
        f"L2RM-SGR, one model; noise: {L2RM_NOISE}",
        ("method",),
        ONE,
        noise="images",
        note="The paper prints no rSum here.",
        reference="full",
    ),
    Layout(
        "L2RM",
        "4",
        "Warm-up losses with L2RM-SGR",
        f"L2RM-SGR, one model; noise on Flickr30K: {L2RM_NOISE}; CC152K has natural noise",
        ("warm-up",),
        ("data at rate", "direction", "recall"),
        noise="images",
        note="The default warm-up, InfoNCE + reverse cross entropy, stands in Tables 1 and 2.",
        reference="full",
    ),
    Layout(
        "L2RM",
        "6",
        "Recall under mismatching rates, all methods",
        f"{_L2RM}; {_COCO}",
        RATES,
        SPLIT,
        noise="images",
        note="Supplement, Table 2. It repeats the rows of Table 1.",
    ),
    Layout(
        "L2RM",
        "7",
        "Recall on the original data, no noise added",
        f"rate 0; SGRAF rows combine two models, NCR and BiCro two networks; {_COCO}",
        ("method",),
        SPLIT,
        note="Supplement, Table 3.",
    ),
    Layout(
        "L2RM",
        "8",
        "Recall on all 5,000 test images of MS-COCO",
        f"{_L2RM}",
        RATES,
        ONE,
        noise="images",
        note="Supplement, Table 4.",
    ),
    Layout(
        "L2RM",
        "9",
        "Batch sizes, Flickr30K at rate 0.6",
        f"{_L2RM}; transported mass 0.05, 0.1, 0.2 for batches of 64, 128, 256",
        ("batch", "method"),
        ONE,
        noise="images",
        note="Supplement, Table 5. The lines at 128 repeat Table 6.",
    ),
    Layout(
        "OMIT",
        "1",
        "Recall on Flickr30K and on all 5,000 test images of MS-COCO",
        _OMIT,
        ("backbone", "type", "method"),
        SPLIT,
        reference="omit",
    ),
    Layout(
        "OMIT",
        "2",
        "Recall on MS-COCO, five folds of 1,000",
        _OMIT,
        ("backbone", "type", "method"),
        ONE,
        reference="omit",
    ),
    Layout(
        "OMIT",
        "3",
        "Matching modules: recall and time, Flickr30K",
        "no added noise; one model; time for matching the whole test set, hardware not stated",
        ("backbone", "method"),
        ONE,
        reference="partial_ot",
    ),
    Layout(
        "OMIT",
        "4",
        "Partial matching, Flickr30K",
        "no added noise; one model",
        ("backbone", "method"),
        ONE,
        reference="partial_ot",
    ),
    Layout(
        "OMIT",
        "5/B1",
        "Marginals, Flickr30K",
        "no added noise; one model; whether partial matching is on is not stated",
        ("backbone", "method"),
        ONE,
        number="5 (again as B1)",
        reference="uni",
    ),
    Layout("REPAIR", "I", "Recall under noise", f"{_REPAIR}; {_COCO}", RATES, SPLIT, noise="captions"),
    Layout(
        "REPAIR",
        "II",
        "Recall on CC152K, real web pairs",
        "natural noise of unknown rate (about 3 to 20 %); 1,000 test images; * re-run by the paper's authors",
        ("method",),
        ONE,
    ),
    Layout(
        "REPAIR",
        "III",
        "Ablation, Flickr30K at rate 0.4",
        f"two networks, SGR; noise: {REPAIR_NOISE}",
        ("method",),
        ONE,
        noise="captions",
        note="The tick marks of the rows are lost in the text at hand; the modules are named from Sec. IV-C.",
        reference="full",
    ),
    Layout(
        "REPAIR",
        "IV",
        "Recall on all 5,000 test images of MS-COCO",
        _REPAIR,
        RATES,
        ONE,
        noise="captions",
        note="MSCN is not printed at 0.4 and 0.6.",
    ),
    Layout(
        "REPAIR",
        "V",
        "rSum with the VSE∞ backbone",
        f"two networks; noise: {REPAIR_NOISE}; {_COCO}",
        ("method",),
        ("data", "rate"),
        noise="captions",
    ),
    Layout(
        "REPAIR",
        "VI",
        "Extra memory and training time of the bank, Flickr30K",
        "one RTX 4090; noise rate not stated",
        ("backbone", "bank_size"),
        ("quantity",),
        file="resources",
    ),
    Layout(
        "UOT-RCL",
        "I",
        "Mean average precision, NUS-WIDE and XMediaNet",
        _UOT,
        ("method",),
        ("dataset", "direction", "rate"),
        file="category_map",
    ),
    Layout(
        "UOT-RCL",
        "II",
        "Mean average precision, Wikipedia",
        _UOT,
        ("method",),
        ("direction", "rate"),
        file="category_map",
    ),
    Layout(
        "UOT-RCL",
        "III",
        "CLIP on XMediaNet",
        "symmetric label noise; rows that use no labels are printed at every rate; 16 epochs",
        ("method",),
        ("direction", "rate"),
        file="category_map",
    ),
    Layout(
        "UOT-RCL",
        "IV",
        "Ablation, Wikipedia",
        _UOT,
        ("method",),
        ("direction", "rate"),
        file="category_map",
        note="The symbols of the removed losses are lost in the text at hand; named from their subscripts.",
        reference="full",
    ),
)
LAYOUTS: dict[tuple[str, str], Layout] = {(layout.paper, layout.table): layout for layout in _ALL}
PAPERS = tuple(dict.fromkeys(layout.paper for layout in _ALL))


def layout_of(paper: str, table: str) -> Layout:
    """Return the layout of a printed table.

    Raises
    ------
    ValueError
        For a table that does not exist, naming those that do.
    """
    if (paper, str(table)) not in LAYOUTS:
        known = "; ".join(f"{p}: {', '.join(t for q, t in LAYOUTS if q == p)}" for p in PAPERS)
        raise ValueError(f"no table {table!r} of {paper!r}; there are {known}")
    return LAYOUTS[paper, str(table)]
