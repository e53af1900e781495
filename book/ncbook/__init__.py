"""The papers' tables beside what this project measured, and the ledger of their claims.

Printed values come from ``book/ncbook/printed``, measured ones from the records in ``book/results``, and the
two are never mixed: a printed cell gets a second line once a run on the paper's own data is recorded, and
runs on bundled data stand in tables of their own.
"""

from ncbook.claims import (
    answers_table,
    claims_table,
    counts,
    decide,
    ledger,
    report_said,
    report_table,
)
from ncbook.compare import Difference, mean_text, paired
from ncbook.effects import effects_figure, effects_table
from ncbook.errata import errata_table
from ncbook.evidence import VERDICTS, Line, Verdict
from ncbook.figures import (
    rates_figure,
    rows_figure,
    sweep_figure,
)
from ncbook.ideas import idea
from ncbook.layouts import LAYOUTS, PAPERS, Layout
from ncbook.match import Rerun, reruns
from ncbook.measurements import keep, measurement
from ncbook.notebook import means, show
from ncbook.one_row import compared_table
from ncbook.page import listed
from ncbook.papers import paper_table, printed
from ncbook.parameters import check_parameters
from ncbook.runs import RECORDED, Runs, load_runs, named, protocol_line, recorded, recorded_run
from ncbook.statistics import differences
from ncbook.tables import bundled_table, figures_named, printed_table, unfilled_table
from ncbook.viewing import view
