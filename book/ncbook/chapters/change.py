"""The cell of a chapter in which the reader changes a step of its method: the run beside the changed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import show
from ncbook.chapters import recorded_or_run, trained
from ncbook.demo import source_of
from nclib.runs import Record

METRICS = {"pairs": ("rsum", "rSum", 1), "labels": ("map_avg", "mAP", 3)}  # of a task: key, name, decimals


def changed(
    method: str,
    record: Record,
    given: Mapping[str, Any],
    *,
    of: str = "",
    same: Mapping[str, Any] | None = None,
    also: Sequence[str] = (),
    **own: Any,
) -> Styler | None:
    """Train a changed method as a run was trained, and show both.

    Parameters
    ----------
    method : str
        The changed method, which a cell has registered; a stored run of it is shown beside a stored one.
    record, given : Record, mapping
        The run of the chapter, and the parameters that were given for it.
    of : str
        Method that is changed; where ``record`` is of another one, nothing is trained.
    same : mapping, optional
        Parameters of both runs that differ from ``given``: a recorded run takes the place of the chapter's.
    also : sequence of str
        Diagnostics to show.
    **own
        Parameters of the changed run that differ.
    """
    made = record.settings["method"]
    if of and made != of:
        print(f"this cell changes {of}: it trains beside a run of {of} (-p method {of})")
        return None
    given = {**given, **(same or {})}
    published = recorded_or_run(made, record, **given) if same else record
    other = trained(method, source_of(record), progress=False, **{**given, **own})
    key, name, digits = METRICS[record.task]
    rows = {
        label: {
            f"{name}, selected epoch": one.metrics["test"][key],
            f"{name}, last epoch": one.metrics.get("last", {}).get(key),
            **{what: one.diagnostics.get(what) for what in also},
            "selected epoch": str(one.best_epoch),
        }
        for label, one in (("unchanged", published), ("changed", other))
    }
    rate, s = other.noise_rate, published.settings
    noise = f"{rate:.0%} of the {record.task} wrong" if rate else f"no wrong {record.task}"
    where = ", ".join(filter(None, (s["dataset"], s.get("model"), noise, f"seed {s['seed']}")))
    caption = f"Measured: one run each, {where}"
    return show(pd.DataFrame(rows).T, "changed", caption, digits=digits, missing="–")
