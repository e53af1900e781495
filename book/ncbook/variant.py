"""The settings in which a run differs from a usual run, in words."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baselines import fashion as _fashion  # noqa: F401  registers the sets for judging
from baselines.weights import GLOVE, WEIGHTS

from nclib import models
from nclib.common.options import defaults, needed_options
from nclib.data.registry import datasets
from nclib.methods.decl import DECL
from nclib.runs.identity import JOINED, UNSAID, former_values, naming
from nclib.runs.presets import PAPER
from nclib.runs.tasks import experiment_of
from nclib.runs.words import value_text

NAMED = ("method", "model", "dataset", "mrate", "protocol", "noise_rate", "noise_sha256", "seed", "preset")
"""Settings that name a run; everything else that differs from the usual makes a variant of it."""
ENCODED_BY = ("pieces", "pixels", "boxes")  # options of the papers' data that decide what a model reads
VECTORS = {(model, data): f"glove_{data}.npy" for model in GLOVE for data in ("f30k", "coco")}
"""The published vectors from which a model usually starts on a data set, in the preset ``paper``."""

WARMUP_HIGH_RATE = {"f30k": 2, "coco": 1}
"""Epochs of warm-up of DECL at mismatch rates above 0.4, in the preset ``paper``."""


def published_warmup(dataset: str, mrate: float) -> int:
    """Return the warm-up epochs of DECL's paper for a data set of the papers, at a mismatch rate."""
    usual: int = DECL.settings[dataset]["warmup_epochs"]
    return WARMUP_HIGH_RATE.get(dataset, usual) if mrate > 0.4 else usual


def in_words(values: Mapping[str, Any]) -> str:
    """Write settings as text, in alphabetical order."""
    return ", ".join(f"{k}={value_text(v)}" for k, v in sorted(values.items()))


def variant(settings: Mapping[str, Any]) -> str:
    """Return the settings in which a run differs from a usual run of the same method, model, data and preset.

    Values are compared with those that the present version would take; settings that either side does not
    know are left out.

    Parameters
    ----------
    settings : mapping
        As a record holds them.

    Returns
    -------
    str
        For example ``"loss=infonce, tau=0.1"``; ``model.NAME`` is an option of the model that the method has
        as well. Empty for a usual run.
    """
    method, model, dataset, preset = (
        str(settings.get(k, "")) for k in ("method", "model", "dataset", "preset")
    )
    usual = usual_settings(method, model, dataset, preset)
    if usual is None:
        return "method unknown to this version"
    mine, of_paper = _flat(settings), preset == "paper"
    usual = UNSAID | former_values() | former_values(method) | former_values("model_options") | usual
    if of_paper and method == "decl" and dataset in PAPER:  # whose warm-up depends on the rate of noise
        usual["warmup_epochs"] = published_warmup(dataset, settings.get("mrate") or 0.0)
    if of_paper and (model, dataset) in VECTORS and mine.get("text", "bigru") == "bigru":
        usual, mine = usual | {"word_vectors": VECTORS[model, dataset]}, {"word_vectors": "none"} | mine
    return in_words({k: v for k, v in mine.items() if k in usual and v != usual[k]})


def published_name(value: object) -> str:
    """Return the name of the published weights that a path names; empty for any other value."""
    if not isinstance(value, str) or not value:
        return ""
    path = Path(value)
    return path.name if path.name in WEIGHTS and path.parent.name in ("weights", "") else ""


@functools.cache
def usual_settings(method: str, model: str, dataset: str, preset: str) -> dict[str, Any] | None:
    """Return the usual settings of a run as one mapping; None when this version does not know the method."""
    model = model.partition(JOINED)[0]  # a combination has the usual settings of its first part
    given: dict[str, Any] = {"model": model} if model else {}
    known = dataset in datasets
    if known:  # folders that a loader needs; they are not there, and change no other setting
        given["data_options"] = dict.fromkeys(needed_options(datasets.options(dataset)), "unknown")
    try:
        own = defaults(models.options(model)) if model else {}
        usual = experiment_of(method).resolve(dataset=dataset, preset=preset, **given)
    except ValueError:
        return None
    data = defaults(datasets.options(dataset)) if known else {}
    return {k: data[k] for k in ENCODED_BY if k in data} | _flat(usual.flat(), own)


def _flat(settings: Mapping[str, Any], model_defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return settings as one mapping; ``model.<name>`` is an option of the model that the method has too.

    Options that name published weights have that name in place of the digest.
    """
    names = {
        part: {k: name for k, v in (settings.get(part) or {}).items() if (name := published_name(v))}
        for part in ("data_options", "model_options")
    }
    settings = naming(settings)
    flat = {k: v for k, v in settings.items() if k not in NAMED and not isinstance(v, dict)}
    method = settings.get("method_options", {})
    model = {**(model_defaults or {}), **settings.get("model_options", {}), **names["model_options"]}
    flat |= settings.get("data_options", {}) | names["data_options"] | method
    return flat | {f"model.{k}" if k in method else k: v for k, v in model.items()}
