"""Figures and tables of the chapter on OMIT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

import nclib
from ncbook import RECORDED, mean_text, show
from ncbook.compare import SIGNS, by_seed
from ncbook.training import say, words_of
from nclib import Record, ot, plots
from nclib.common.options import defaults
from nclib.data import Dataset
from nclib.models.omit import MASK_RATIO, OMIT
from nclib.runs.record import RECALLS
from nclib.runs.store import rows

NAMES = {  # names of the paper
    "vse": "VSE",
    "pem": "PEM",
    "cam": "CAM",
    "partial_cam": "Partial CAM",
    "ot": "naive OT",
    "full": "Full",
    "prompt": "Prompt",
    "partial_ot": "Partial OT",
}
PAPER_AND_CODE = {  # meaning, the paper (Sec. 4.1, Alg. A1), the scripts of the official code
    "lam": ("weight of the entropy", "0.02", "0.05"),
    "iterations": ("passes of the scaling loop", "3", "3"),
    "margin": ("margin of the loss", "0.05", "0.05"),
    "mask_ratio": ("regions left out in training", "0.4; grid 0.2", "0.2"),
    "batch_size": ("pairs in a batch", "384; grid 128", "128"),
    "epochs": ("epochs, warm-up included", "15", "25"),
}

# Cosines of four regions with three words: "two" names no region, and region 4 has no word.
REGIONS = ("cat", "lemon", "cat's ear", "background")
COSINES = torch.tensor([[0.15, 0.80, 0.10], [0.10, 0.05, 0.75], [0.05, 0.60, 0.10], [0.10, 0.15, 0.10]])
BIN = 0.3  # cosine of a dustbin with a fragment in the drawing


def with_dustbins(cosines: Tensor) -> Tensor:
    """Return cosines (K + 1, L + 1) with a dustbin for each side first, all its cosines :data:`BIN`."""
    padded = torch.full((cosines.shape[0] + 1, cosines.shape[1] + 1), BIN)
    padded[1:, 1:] = cosines
    return padded


def local_score(cosines: Tensor, lam: float = 0.05) -> tuple[Tensor, float]:
    """Return the plan with dustbins, (K + 1, L + 1), and the similarity that its local block collects."""
    padded = with_dustbins(cosines)
    plan = ot.scaling_plan(padded, reg=lam, passes=200)
    return plan, float((plan * padded)[1:, 1:].sum())


def problem(dataset: Dataset, n: int = 4) -> Figure | None:
    """Draw test pictures with a caption whose words without an object stand in brackets."""
    split = dataset.test
    if not split.has_pictures or "scenes" not in split.details:
        return None
    scenes, concepts, lines = split.details["scenes"], dataset.details["concepts"], []
    for image in range(n):
        called = {w for c in scenes["concept"][image][: scenes["count"][image]] for w in concepts[c].split()}
        words = words_of(split, split.captions_per_image * image)[1:-1]
        marked = [word if word in called else f"({word})" for word in words]
        found = sum(word in called for word in words)
        lines.append(
            [(" ".join(marked), "#222222"), (f"{found} of {len(words)} words name an object", "#444444")]
        )
    return plots.captioned_pictures(split, list(range(n)), lines, columns=2)


def types_said(given: Mapping[str, Any]) -> Markdown:
    """Say how partial transport compares with the other types of matching over the recorded runs."""
    sums = recorded_types(given)
    found: dict[str, list[str]] = {"ahead": [], "behind": [], "undecided": []}
    for name in sums.columns.drop(NAMES["partial_ot"]):
        d = by_seed(sums[NAMES["partial_ot"]] - sums[name])
        if d.judged:
            found[SIGNS[d.sign]].append(name)
    parts = [f"{word}: {', '.join(names)}" for word, names in found.items() if names]
    if not parts:
        return say("There are no recorded runs with these settings.")
    return say(f"Partial OT against the other types, seed by seed: {'; '.join(parts)}.")


def settings_table(record: Record) -> Styler:
    """Show the settings of a run beside those of the paper and of the official code."""
    own = defaults(OMIT.Options)
    own |= record.settings | record.settings["method_options"] | record.settings["model_options"]
    own["mask_ratio"] = own["mask_ratio"] or MASK_RATIO[own["features"]]
    own["epochs"] += own["warmup_epochs"]
    rows = {
        name: {"meaning": meaning, "paper": paper, "official code": code, "here": f"{own[name]:g}"}
        for name, (meaning, paper, code) in PAPER_AND_CODE.items()
    }
    caption = f"Settings of the paper, of the official code and of this run (preset {own['preset']})"
    return show(pd.DataFrame(rows).T, "settings", caption)


def changed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``matching`` and the other options of the model that a notebook's ``globals()`` change."""
    defaults: dict[str, Any] = {"marginals": "uni", "lam": 0.02, "iterations": 3, "features": "region"}
    defaults |= {"text": "bigru", "text_folder": "", "text_words": ""}
    other = {name: values[name] for name, value in defaults.items() if values[name] != value}
    return {"matching": values["matching"], **other}


def recalls(compared: Mapping[str, Record]) -> Styler:
    """Show recalls, with and without dual softmax, of the compared runs."""
    rows = {
        name: {"rSum": r.metrics["test"]["rsum"], "rSum, dual softmax": r.metrics["test_dsl"]["rsum"]}
        | {k: r.metrics["test"][k] for k in RECALLS}
        | {"best epoch": r.best_epoch, "seconds": r.cost["seconds"]}
        for name, r in compared.items()
    }
    r = next(iter(compared.values()))
    s = r.settings
    caption = (
        f"Measured: {r.data['name']}, preset {s['preset']}, mismatch rate {s['mrate']:g}, seed {s['seed']}, "
        f"best epoch on {r.data['val_images']} validation pictures, {r.data['test_images']} test pictures, "
        f"{r.environment['device']}"
    )
    shown = show(pd.DataFrame(rows).T, "recalls", caption, digits=1)
    return shown.format("{:.0f}", subset=["best epoch"])


def recorded_sums(choices: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> pd.DataFrame:
    """Return the test rSum of recorded runs on clean pairs: seeds in rows, names of choices in columns.

    ``choices`` holds options of the model by name; the runs share the parameters ``given`` for this one, less
    the seed and the noise.
    """
    table = RECORDED / "omit.csv"
    stored, sums = rows(table) if table.is_file() else [], {}
    for name, options in choices.items():
        base = {**given, "mrate": 0.0, "device": "cpu"}
        wanted = nclib.resolve("plain", model="omit", model_options=options, **base).flat()
        free = {"out", "device", "threads", "seed"}
        same = [r for r in stored if all(r.settings.get(k) == v for k, v in wanted.items() if k not in free)]
        sums[name] = {r.settings["seed"]: r.content["metrics"]["test"]["rsum"] for r in same}
    return pd.DataFrame(sums, dtype=float)


def recorded_types(given: Mapping[str, Any]) -> pd.DataFrame:
    """Return :func:`recorded_sums` of every type of matching."""
    return recorded_sums({name: {"matching": key} for key, name in NAMES.items()}, given)


def measured(choices: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any], name: str) -> Styler:
    """Show mean ± standard deviation (seeds) of the recorded rSum of each choice; arguments as above."""
    sums = recorded_sums(choices, given)
    texts = {k: mean_text(list(sums[k].dropna())) or "not run" for k in choices}
    run = nclib.resolve("plain", model="omit", **given).run
    what = "mismatch rate 0, mean ± standard deviation (seeds)"
    caption = f"Measured: {run.dataset}, preset {run.preset}, {what}"
    return show(pd.DataFrame({"rSum": texts}), name, caption)


def gains(given: Mapping[str, Any]) -> Styler | None:
    """Show rSum of partial transport minus that of each other matching with the same seed, recorded runs."""
    sums, best = recorded_types(given), NAMES["partial_ot"]
    table = sums.drop(columns=best).rsub(sums[best], axis=0).agg(["mean", "min", "max", "count"]).T
    table = table[table["count"] > 0].set_axis(["mean gain", "smallest", "largest", "seeds"], axis=1)
    if table.empty:
        return None
    caption = "Measured gains: rSum of Partial OT minus that of others, seed by seed"
    return show(table.astype({"seeds": int}), "gains", caption, digits=1)
