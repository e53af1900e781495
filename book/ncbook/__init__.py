"""The papers' tables beside what this project measured, and the ledger of their claims.

Printed values come from ``book/ncbook/printed``, measured ones from the records in ``book/results``, and the
two are never mixed: a printed cell gets a second line once a run on the paper's own data is recorded, and
runs on bundled data stand in tables of their own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {  # module -> what it gives
    "claims": "claims_table counts decide ledger report_table",
    "compare": "Difference mean_text paired",
    "errata": "errata_table impossible_recalls_figure printed_sums two_papers_figure",
    "evidence": "VERDICTS Line Verdict",
    "figures": (
        "best_other_differences gains_figure gains_over place_of rates_figure rows_figure sweep_figure "
        "verdicts_figure"
    ),
    "layouts": "LAYOUTS PAPERS Layout",
    "match": "Rerun reruns",
    "measurements": "keep measurement",
    "notebook": "means show",
    "papers": "paper_table printed",
    "runs": "RECORDED Runs load_runs protocol_line recorded recorded_run",
    "tables": "bundled_table printed_table side_by_side unfilled_table",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    # Looked up on first use, so that `import ncbook` costs next to nothing.
    if name in _MODULE_OF:
        return getattr(import_module(f"ncbook.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'ncbook' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
