"""Runs behind printed rows: method, model and options, by the names that the papers print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ncbook.layouts import Layout
from ncbook.papers import Value
from ncbook.runs import Runs, select, variant

if TYPE_CHECKING:
    import pandas as pd

MODELS = {  # printed name -> model; others are spelt alike
    "VSE∞": "vse_inf",
    "VSE++": "vse",
}
DATASETS = {
    "Flickr30K": "f30k",
    "MS-COCO": "coco",
    "CC152K": "cc152k",
    "Wikipedia": "wikipedia",
    "NUS-WIDE": "nuswide",
    "XMediaNet": "xmedianet",
}
STAND_INS = {"GSS-SL": "gss_regression", "FGCrossNet": "fgcrossnet_losses"}  # of methods without public code
TESTED = {"test-1k": ("", 1000), "full-5k": ("", 5000), "5fold-1k": ("folds.", 5000)}
"""Printed test protocol -> group of metrics in a record, number of test images."""


@dataclass(frozen=True)
class RunSpec:
    """The run behind a printed row: ``options`` are what differs from the method's usual settings."""

    method: str
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The options as text, as :func:`ncbook.runs.variant_of` writes them."""
        return variant(self.options)

    @property
    def label(self) -> str:
        """Method and options, as text."""
        return f"{self.method} ({self.variant})" if self.options else self.method


def run_of(layout: Layout, row: Mapping[str, str]) -> RunSpec | None:
    """Return the run behind a line of a table's CSV file; None where this package has none (CLIP, NAAF, ...).

    In ablations the layout gives the options of each row. Elsewhere the printed name leads to the run:
    ``L2RM-SGR`` is l2rm on sgr, ``NCR`` is ncr on its backbone, ``SGR`` alone is plain training.
    """
    if layout.method:
        name = row["setting"].removeprefix("warm-up=") if layout.rows == ("warm-up",) else row["method"]
        known = name in layout.options
        return RunSpec(layout.method, layout.model, layout.options[name]) if known else None
    if layout.runs == "none" or (layout.runs == "models" and "DSL" in row["setting"]):
        return None
    if layout.runs == "categories":
        method = category_method(row["method"])
        return RunSpec(method) if method else None
    if layout.runs == "models":
        model = _model(row["method"])
        return RunSpec("plain", model) if model else None
    run = _by_name(row["method"], row["backbone"])
    if not layout.options:
        return run
    options = dict(layout.options[row["setting"].removeprefix("batch=")])
    if run.method != "l2rm":
        options.pop("rho", None)
    return RunSpec(run.method, run.model, options)


def category_method(name: str) -> str:
    """Return the method of category retrieval, or the stand-in, behind a printed name; empty for none."""
    from nclib import label_noise

    method = name.lower().replace("-", "_")
    return method if method in label_noise.available() else STAND_INS.get(name, "")


def _model(name: str) -> str:
    from nclib import models

    model = MODELS.get(name, name.lower())
    return model if model in models.available() and name != "CLIP" else ""  # CLIP's rows are zero-shot


def _by_name(name: str, backbone: str) -> RunSpec:
    from nclib import methods

    head, _, tail = name.partition("-")
    if head.lower() in methods.available():
        return RunSpec(head.lower(), _model(tail or backbone))
    return RunSpec("plain", _model(name))


def models_named(layout: Layout) -> bool:
    """Return whether the rows of a table are models, so that no other model can stand in for them."""
    return layout.paper == "OMIT"


def measured(layout: Layout, value: Value, runs: Runs) -> tuple[float, ...]:
    """Return what was measured on the paper's own data for one printed value, one number per seed.

    Only runs of the preset ``paper`` on that data, with the paper's row, rate and test protocol count; for
    OMIT only where the fragments are regions, as in the data's public files.
    """
    row = value.source
    run = run_of(layout, row)
    if run is None or DATASETS.get(row["dataset"]) not in runs.datasets:
        return ()
    found = runs.paper_sized.get((DATASETS[row["dataset"]], run.method, run.variant))
    if found is None:
        return ()
    if layout.of_labels:
        return numbers(select(found, noise_rate=float(row["noise_rate"])), f"map_{row['direction']}")
    if "grid" in row.get("features", "") or row["metric"] == "time_s":
        return ()
    group, size = TESTED[row["protocol"]]
    rate = float(row["noise_rate"] or 0)
    kind = {"protocol": layout.noise} if rate > 0 and layout.noise else {}
    table = select(found, model=run.model, mrate=rate, test_images=size, **kind)
    return numbers(table, group + row["metric"])


def numbers(table: pd.DataFrame, column: str) -> tuple[float, ...]:
    """Return the values of a column of runs without the missing ones; none for a missing column."""
    return tuple(float(v) for v in table[column].dropna()) if column in table else ()
