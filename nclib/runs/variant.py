"""The settings in which a run differs from a usual run, in words."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nclib import models
from nclib.common.options import defaults, needed
from nclib.data.registry import datasets
from nclib.methods.decl import published_warmup
from nclib.runs.identity import JOINED, UNSAID, former, naming
from nclib.runs.presets import PAPER
from nclib.runs.tasks import experiment_of

NAMED = ("method", "model", "dataset", "mrate", "protocol", "noise_rate", "noise_sha256", "seed", "preset")
"""Settings that name a run; everything else that differs from the usual makes a variant of it."""
ENCODED_BY = ("pieces", "pixels", "boxes")  # options of the papers' data that decide what a model reads
PUBLISHED: set[str] = set()
"""Files and folders of published weights, whose names a variant shows in place of their digests.
``book/baselines/weights.py`` adds those of the papers' tables."""
VECTORS: dict[tuple[str, str], str] = {}
"""The file of :data:`PUBLISHED` from which a model usually starts on a data set, in the preset ``paper``."""


def in_words(values: Mapping[str, Any]) -> str:
    """Write settings as text, in alphabetical order."""
    return ", ".join(f"{k}={shown(v)}" for k, v in sorted(values.items()))


def shown(value: Any) -> str:
    """Write a value; a number in its shortest form."""
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    usual = usual_settings(*(str(settings.get(k, "")) for k in ("method", "model", "dataset", "preset")))
    if usual is None:
        return "method unknown to this version"
    parts = ("", str(settings["method"]), "model_options")
    added = UNSAID | {k: v for part in parts for k, v in former(part).items()}
    usual, mine = added | usual | _at_rate(settings), _flat(settings)
    if (vectors := published_vectors(settings)) and mine.get("text", "bigru") == "bigru":
        usual, mine = usual | {"word_vectors": vectors}, {"word_vectors": "none"} | mine
    return in_words({k: v for k, v in mine.items() if k in usual and v != usual[k]})


def published_vectors(settings: Mapping[str, Any]) -> str:
    """Return the file of word vectors from which a model usually starts, as in its paper; empty for none."""
    model, dataset, preset = (str(settings.get(k, "")) for k in ("model", "dataset", "preset"))
    return VECTORS.get((model, dataset), "") if preset == "paper" else ""


def named(value: object) -> str:
    """Return the name of the published weights that a path names; empty for any other value."""
    if not isinstance(value, str) or not value:
        return ""
    path = Path(value)
    return path.name if path.name in PUBLISHED and path.parent.name in ("weights", "") else ""


def _at_rate(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings of a usual run that depend on its rate of noise: DECL's warm-up in preset paper."""
    dataset, of_paper = str(settings.get("dataset")), settings.get("preset") == "paper"
    if settings.get("method") != "decl" or not of_paper or dataset not in PAPER:
        return {}
    return {"warmup_epochs": published_warmup(dataset, settings.get("mrate") or 0.0)}


@functools.cache
def usual_settings(method: str, model: str, dataset: str, preset: str) -> dict[str, Any] | None:
    """Return the usual settings of a run as one mapping; None when this version does not know the method."""
    model = model.partition(JOINED)[0]  # a combination has the usual settings of its first part
    of_model: dict[str, Any] = {"model": model} if model else {}
    try:
        own = defaults(models.options(model)) if model else {}
        usual = experiment_of(method).resolve(dataset=dataset, preset=preset, **of_model, **_root(dataset))
    except ValueError:
        return None
    taken = defaults(datasets.options(dataset)) if dataset in datasets else {}
    encoded = {k: taken[k] for k in ENCODED_BY if k in taken}
    return encoded | _flat(usual.flat(), own)


def _root(dataset: str) -> dict[str, Any]:
    """Return folders for data whose loader needs them; they are not there, and change no other setting."""
    if dataset not in datasets:
        return {}
    return {"data_options": dict.fromkeys(needed(datasets.options(dataset)), "unknown")}


def _flat(settings: Mapping[str, Any], model_defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return settings as one mapping; ``model.<name>`` is an option of the model that the method has too."""
    published = {part: _published(settings.get(part) or {}) for part in ("data_options", "model_options")}
    settings = naming(settings)
    flat = {k: v for k, v in settings.items() if k not in NAMED and not isinstance(v, dict)}
    method = settings.get("method_options", {})
    model = {**(model_defaults or {}), **settings.get("model_options", {}), **published["model_options"]}
    flat |= settings.get("data_options", {}) | published["data_options"] | method
    return flat | {f"model.{k}" if k in method else k: v for k, v in model.items()}


def _published(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that name published weights, with the name in place of the digest."""
    return {name: found for name, value in options.items() if (found := named(value))}
