"""Figures and tables of the page on photographs: recorded runs on Flickr8K."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import recorded, show
from ncbook.chapters import as_preset, devices, labelled
from ncbook.notebook import means
from nclib import plots

LOSSES = ["plain (triplet)", "plain (infonce)", "rcl", "plain (infonce_rce)", "plain (gce)"]
METHODS = ["ncr", "decl", "bicro", "mscn", "repair", "l2rm, dropped", "l2rm"]
ORDER = [*LOSSES, *METHODS]
SHOWN = ["plain (triplet)", "plain (infonce)", "rcl", "plain (gce)", "l2rm"]


def photograph_runs(model: str = "bow") -> pd.DataFrame:
    """Return the recorded runs of a model on Flickr8K in the preset ``standard``, with a column ``label``."""
    runs = recorded(preset="standard", dataset="f8k", model=model)
    if runs.empty:
        return pd.DataFrame(columns=["label", "protocol", "mrate", "seed", "auc"])
    place = {"root": "any"}
    usual = labelled(as_preset(runs, data_options=place))
    dropped = as_preset(runs[runs["method"] == "l2rm"], data_options=place, rematch_weight=0)
    return pd.concat([usual, dropped.assign(label="l2rm, dropped")], ignore_index=True)


def summary(runs: pd.DataFrame) -> str:
    """Return how many runs there are, of how many rows and seeds."""
    if runs.empty:
        return "no recorded runs of this model here"
    rates = ", ".join(f"{rate:g}" for rate in sorted(set(runs["mrate"])))
    rows, seeds = (runs[column].nunique() for column in ("label", "seed"))
    return f"{len(runs)} recorded runs: {rows} rows, rates {rates}, seeds: {seeds}"


def rate_rows(runs: pd.DataFrame, protocol: str, name: str, value: str = "rsum") -> Styler | None:
    """Show the sum of recalls by method and mismatch rate.

    Parameters
    ----------
    runs : DataFrame
        From :func:`photograph_runs`.
    protocol : {"images", "captions"}
        What was exchanged.
    name : str
        Of the table in the page.
    value : {"rsum", "last_rsum"}
        At the epoch that validation selected, or at the last one.
    """
    part = runs[runs["protocol"] == protocol]
    if part.empty:
        return None
    table = means(part, "label", "mrate", value).rename_axis(columns="mismatch rate")
    rows = [label for label in ORDER if label in table.index]
    model = ", ".join(sorted(set(part["model"])))
    epoch = "last epoch" if value == "last_rsum" else "epoch selected on the validation photographs"
    caption = (
        f"Measured on Flickr8K, model {model}, preset standard: rSum on 1,000 test photographs, {epoch}; "
        f"mean ± standard deviation (seeds); {protocol} exchanged at random, drawn with the run's seed; "
        f"{devices(part)}"
    )
    return show(table.loc[rows], name, caption)


def rate_curves(runs: pd.DataFrame) -> Figure | None:
    """Draw the sum of recalls over the mismatch rate for the plain losses and for L2RM."""
    part = runs[(runs["protocol"] == "images") & runs["label"].isin(SHOWN)]
    if part.empty:
        return None
    order = {label: k for k, label in enumerate(SHOWN)}
    figure = plots.rates(part.sort_values("label", key=lambda labels: labels.map(order), kind="stable"))
    figure.axes[0].set_title("Flickr8K, images exchanged")
    return figure


def detectors(runs: pd.DataFrame) -> Styler | None:
    """Show how well P(clean) of each method finds the wrong pairs: area under the ROC curve, last epoch."""
    part = runs[(runs["protocol"] == "images") & (runs["mrate"] > 0) & runs["auc"].notna()]
    if part.empty:
        return None
    table = means(part, "label", "mrate", "auc", digits=3).rename_axis(columns="mismatch rate")
    caption = (
        "Measured on the training pairs of Flickr8K: area under the ROC curve of P(clean), last epoch; "
        "mean ± standard deviation (seeds)"
    )
    return show(table.loc[[label for label in ORDER if label in table.index]], "detectors", caption)
