"""Tables and figures of the book's chapters: what they share here, one module per chapter beside it."""

from ncbook.chapters.common import (
    Finished,
    beside,
    by_epoch,
    finished,
    gains,
    paired,
    printed_rates,
    rate_table,
    rates,
    recall_bars,
    recall_table,
    recorded_labels,
    recorded_or_run,
    recorded_rates,
    stored_benchmark,
    tested_in_warmup,
)

__all__ = [
    "Finished",
    "beside",
    "by_epoch",
    "finished",
    "gains",
    "paired",
    "printed_rates",
    "rate_table",
    "rates",
    "recall_bars",
    "recall_table",
    "recorded_labels",
    "recorded_or_run",
    "recorded_rates",
    "stored_benchmark",
    "tested_in_warmup",
]
