"""The papers' tables beside what this project measured, and the ledger of their claims.

Printed values come from ``book/ncbook/printed``, measured ones from the records in ``book/results``, and the
two are never mixed: a printed cell gets a second line once a run on the paper's own data is recorded, and
runs on bundled data stand in tables of their own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncbook.claims import claims_table, counts, decide, ledger, report_table
    from ncbook.compare import Difference, mean_text, paired
    from ncbook.errata import errata_table, impossible_recalls_figure, printed_sums, two_papers_figure
    from ncbook.evidence import VERDICTS, Line, Verdict
    from ncbook.figures import (
        best_other_differences,
        gains_figure,
        gains_over,
        place_of,
        rates_figure,
        rows_figure,
        sweep_figure,
        verdicts_figure,
    )
    from ncbook.layouts import LAYOUTS, PAPERS, Layout
    from ncbook.match import Rerun, reruns
    from ncbook.measurements import keep, measurement
    from ncbook.notebook import means, show
    from ncbook.papers import paper_table, printed
    from ncbook.runs import RECORDED, Runs, load_runs, protocol_line, recorded, recorded_run
    from ncbook.tables import bundled_table, printed_table, side_by_side, unfilled_table

__all__ = [
    "LAYOUTS",
    "PAPERS",
    "RECORDED",
    "VERDICTS",
    "Difference",
    "Layout",
    "Line",
    "Rerun",
    "Runs",
    "Verdict",
    "best_other_differences",
    "bundled_table",
    "claims_table",
    "counts",
    "decide",
    "errata_table",
    "gains_figure",
    "gains_over",
    "impossible_recalls_figure",
    "keep",
    "ledger",
    "load_runs",
    "mean_text",
    "means",
    "measurement",
    "paired",
    "paper_table",
    "place_of",
    "printed",
    "printed_sums",
    "printed_table",
    "protocol_line",
    "rates_figure",
    "recorded",
    "recorded_run",
    "report_table",
    "reruns",
    "rows_figure",
    "show",
    "side_by_side",
    "sweep_figure",
    "two_papers_figure",
    "unfilled_table",
    "verdicts_figure",
]

_NAMES = {
    **dict.fromkeys(("claims_table", "counts", "decide", "ledger", "report_table"), "claims"),
    **dict.fromkeys(("Difference", "mean_text", "paired"), "compare"),
    **dict.fromkeys(
        ("errata_table", "impossible_recalls_figure", "printed_sums", "two_papers_figure"), "errata"
    ),
    **dict.fromkeys(("VERDICTS", "Line", "Verdict"), "evidence"),
    **dict.fromkeys(
        (
            "best_other_differences",
            "gains_figure",
            "gains_over",
            "place_of",
            "rates_figure",
            "rows_figure",
            "sweep_figure",
            "verdicts_figure",
        ),
        "figures",
    ),
    **dict.fromkeys(("LAYOUTS", "PAPERS", "Layout"), "layouts"),
    **dict.fromkeys(("Rerun", "reruns"), "match"),
    **dict.fromkeys(("keep", "measurement"), "measurements"),
    **dict.fromkeys(("means", "show"), "notebook"),
    **dict.fromkeys(("paper_table", "printed"), "papers"),
    **dict.fromkeys(("RECORDED", "Runs", "load_runs", "protocol_line", "recorded", "recorded_run"), "runs"),
    **dict.fromkeys(("bundled_table", "printed_table", "side_by_side", "unfilled_table"), "tables"),
}


def __getattr__(name: str) -> Any:
    # Looked up on first use, so that `import ncbook` costs next to nothing.
    if name in _NAMES:
        return getattr(import_module(f"ncbook.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'ncbook' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
