"""The papers' tables beside what this project measured, and the ledger of their claims.

Printed values come from ``book/ncbook/printed`` and are never mixed with measured ones: a cell gets a second
line once a run on the paper's own data is recorded, and runs on bundled data stand in tables of their own.
"""

from __future__ import annotations

from ncbook._compare import Difference, mean_text, paired
from ncbook._evidence import VERDICTS, Finding
from ncbook._figures import (
    best_other_differences,
    gains_figure,
    gains_over,
    rates_figure,
    rows_figure,
    sweep_figure,
    verdicts_figure,
)
from ncbook._layouts import LAYOUTS, PAPERS, Layout
from ncbook._ledger import counts, decide, ledger, ledger_sheet
from ncbook._printed import paper_table, printed
from ncbook._report import report_sheet
from ncbook._rerun import Rerun, reruns
from ncbook._sheets import bundled_sheet, errata_sheet, printed_sheet, side_by_side
from ncbook.notebook import means, show
from ncbook.runs import RECORDED, Runs, load_runs, protocol_line, recorded, recorded_run

__all__ = [
    "LAYOUTS",
    "PAPERS",
    "RECORDED",
    "VERDICTS",
    "Difference",
    "Finding",
    "Layout",
    "Rerun",
    "Runs",
    "best_other_differences",
    "bundled_sheet",
    "counts",
    "decide",
    "errata_sheet",
    "gains_figure",
    "gains_over",
    "ledger",
    "ledger_sheet",
    "load_runs",
    "mean_text",
    "means",
    "paired",
    "paper_table",
    "printed",
    "printed_sheet",
    "protocol_line",
    "rates_figure",
    "recorded",
    "recorded_run",
    "report_sheet",
    "reruns",
    "rows_figure",
    "show",
    "side_by_side",
    "sweep_figure",
    "verdicts_figure",
]
