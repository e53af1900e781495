"""Tables of the chapter on CRANK: recorded runs on photographs and on drawn scenes, and the ablation."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import recorded, show
from ncbook.chapters import as_preset, devices, labelled
from ncbook.compare import mean_text

# Row of the ablation -> method and the options in which it differs from the method's own.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "CRANK": ("crank", {}),
    "and SPS's terms for a stable space": ("crank", {"stable": 25}),
    "whole batches instead of partial views": ("crank", {"drop": 0}),
    "temperature 0.05 instead of 0.07": ("crank", {"tau": 0.05}),
    "generalised cross entropy to the end": ("crank", {"loss": "gce"}),
    "... and nothing counted or ranked": ("crank", {"loss": "gce", "select": "none"}),
    "nothing counted or ranked": ("crank", {"select": "none"}),
    "plain generalised cross entropy, temperature 0.07": ("plain", {"loss": "gce", "tau": 0.07}),
    "plain generalised cross entropy, temperature 0.05": ("plain", {"loss": "gce"}),
    "plain InfoNCE and reverse cross entropy, 0.07": ("plain", {"loss": "infonce_rce", "tau": 0.07}),
    "plain InfoNCE and reverse cross entropy, 0.05": ("plain", {"loss": "infonce_rce"}),
}

# The same for the drawn scenes.
STABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "crank_plus, stable": ("crank_plus", {"stable": 25}),
    "crank, stable": ("crank", {"stable": 25}),
    "sps, not stable": ("sps", {"symmetry": 0, "geometry": 0}),
}


def ablation_runs(model: str = "bow") -> pd.DataFrame:
    """Return the recorded runs of :data:`VARIANTS` on photographs, with the row's name as ``label``."""
    runs = recorded(preset="standard", dataset="f8k", model=model)
    if runs.empty:
        return pd.DataFrame(columns=["label", "mrate", "protocol", "rsum"])
    parts = []
    for name, (method, options) in VARIANTS.items():
        own = runs[runs["method"] == method]
        if method == "plain":  # its loss names a row of its own
            own = own[own["method_loss"] == options["loss"]]
        found = as_preset(own, data_options={"root": "any"}, **options)
        parts.append(found.assign(label=name))
    every = pd.concat(parts, ignore_index=True)
    return every[every["protocol"] == "images"]


def ablation(model: str = "bow") -> Styler | None:
    """Show the sum of recalls with one part of CRANK taken away or exchanged at a time."""
    runs = ablation_runs(model)
    both = runs[runs["mrate"].isin([0.0, 0.6])]
    if both.empty:
        return None
    cells = both.groupby(["label", "mrate"])["rsum"].agg(lambda values: mean_text(list(values), 1))
    table = cells.unstack("mrate").reindex([name for name in VARIANTS if name in set(both["label"])])
    table = table.fillna("no record").rename_axis(index=None, columns="mismatch rate")
    table.columns = [f"{rate:g}" for rate in table.columns]
    caption = (
        "Measured on Flickr8K, preset standard: rSum on 1,000 test photographs at the epoch selected on the "
        f"validation photographs; mean ± standard deviation (seeds); images exchanged; {devices(both)}"
    )
    return show(table, "crank-ablation", caption)


def counts(model: str = "bow") -> Styler | None:
    """Show the counted share of wrong pairs, and how well the ranking finds them, by rate and protocol."""
    runs = recorded(preset="standard", dataset="f8k", model=model)
    if runs.empty or "crank" not in set(runs["method"]):
        return None
    own = as_preset(runs[runs["method"] == "crank"], data_options={"root": "any"})
    groups = own.groupby(["protocol", "mrate"])
    table = pd.DataFrame(
        {
            "share counted": groups["counted_share"].agg(lambda values: mean_text(list(values), 3)),
            "AUROC of the ranking": groups["auc"].agg(
                lambda values: mean_text(list(values), 3) if values.notna().all() else "no wrong pairs"
            ),
        }
    )
    table.index = [f"{rate:g}, {protocol} exchanged" for protocol, rate in table.index]
    caption = (
        "Measured on the 30,000 training pairs of Flickr8K: share of wrong pairs that CRANK counts after "
        "warm-up, beside the nominal rate, and the area under the ROC curve of its weights after the last "
        "epoch; mean ± standard deviation (seeds)"
    )
    return show(table, "crank-counts", caption)


def scenes() -> Styler | None:
    """Show the methods that are recorded up to rate 0.4 on the drawn scenes, model VSE, preset quick."""
    runs = recorded(preset="quick", dataset="emoji", model="vse")
    if runs.empty:
        return None
    usual = [labelled(as_preset(runs))]
    for name, (method, options) in STABLE.items():
        usual.append(as_preset(runs[runs["method"] == method], **options).assign(label=name))
    runs = pd.concat(usual)
    images = runs[(runs["protocol"] == "images") & runs["mrate"].isin([0.0, 0.2, 0.4, 0.6, 0.8])]
    cells = images.groupby(["label", "mrate"])["rsum"].agg(lambda values: mean_text(list(values), 1))
    table = cells.unstack("mrate")
    means = images.groupby(["label", "mrate"])["rsum"].mean().unstack("mrate")
    shown = means.reindex(columns=[0.0, 0.2, 0.4]).dropna().mean(axis=1).sort_values(ascending=False)
    table = table.loc[shown.index].fillna("no record")
    table.columns = [f"{rate:g}" for rate in table.columns]
    caption = (
        "Measured on drawn scenes, model VSE, preset quick, five epochs in all: rSum on 500 test scenes; "
        "mean ± standard deviation (seeds); images exchanged; stable: with SPS's two terms, not stable: "
        f"without them; in the order of the mean at 0, 0.2 and 0.4; {devices(images)}"
    )
    return show(table.rename_axis(index=None), "crank-scenes", caption)
