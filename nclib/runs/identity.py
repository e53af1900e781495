"""The identity of a run: what decides its numbers, and so its name.

A name is a digest of the settings, the content of the data and the noise, the number of the numerics, and the
code of classes that are defined outside this package. Files count by their content, wherever they lie. Device
and threads change the last digits of a result but do not name a run: a record tells which of them computed
which epochs; commit and versions are such facts, too.

The code of this package does not name runs, nor that of a package which declares ``GOLDEN_RUNS = True``
because golden runs of its own hold its numbers, such as ``book/baselines``. Golden runs (``tests/golden``)
fail when a change moves the numbers of a method, model or solver beyond rounding; the change then raises
:data:`NUMERICS` and notes in :data:`MOVED` what moved. A name holds the number under which the method or
model of the run last moved, not the newest number: what did not move keeps its names and its finished runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from nclib.common.registry import Registry
from nclib.runs.paths import DATA

NUMERICS = 3
"""The number of the numerics: raised by one when a change moves a golden run beyond rounding."""

MOVED: dict[str, int] = {"method pcsr": 3, "solver scaling_plan": 2}
"""The numbers under which golden runs last moved, such as ``{"model sgr": 2}``; 1 for all others. ``"run"``
means what belongs to none of them, such as the rule of the steps: all runs are affected."""

ADDED: dict[str, Any] = {
    "plain.ema": 0.0,
    "plain.filter": "none",
    **dict.fromkeys(("sps.drop", "gsc.drop", "gsc_plus.drop", "cream.drop"), 0.0),
    **dict.fromkeys(("gsc.words", "gsc_plus.words"), "attention"),
    **dict.fromkeys(("crank.kappa", "crank_plus.kappa"), 0.25),
    **dict.fromkeys(("sps.loss", "cream.loss", "gsc.loss", "gsc_plus.loss"), "infonce"),
    **{"ncr.loss": "triplet", "ncr.tau": 0.07},
    "model_options.caption_drop": 0.0,
}
"""Settings that were added after runs had been recorded, with the values under which a run is what it was
before. Such a value is left out of names, so that they stay. ``"decay"`` is a setting of all runs,
``"l2rm.stop"`` an option of a method, ``"model_options.drop"`` one of models."""

REMOVED: dict[str, dict[str, Any]] = {
    "bicro": {"split": "beta", "margin_of": "pair", "compat_scatter": False, "metric": "cosine"},
    "cream": {"filter": "labels"},
    **{name: {"words": "attention"} for name in ("gsc", "gsc_plus")},
    "decl": {"hinge": "sum"},
    "in2r": {"elite": True, "refine": True, "soft_target": False, "center": "none"},
    "l2rm": {"split": "mean"},
    "mscn": {"margin_of": "pair", "lookahead": "exact", "train_batch": 0},
    "ncr": {"soft_margin": "exponential"},
    "pcsr": {"votes": "training", "duplicates": "ignored", "entropy": "batch"},
    "rcl": {"judge": True, "margin": 0.2, "ratio": 1.0},
    "repair": {"labels_at": "epoch"},
    "sps": {"duplicates": "one"},
    "contrastive_heads": {"supervised": True, "scale": 1 / 0.07},
    **{name: {"top": 0, "loss": "trace"} for name in ("dcca", "dccae")},
    "elrcmr": {"elr_update_in_eval": False, "shrink": 0.0},
    "mrl": {"loss": "robust"},
    "mvda": {"beta": 0.0},
    "nirnl": {"relabel": "prediction", "normalise": False},
    "pls": {"scale": True},
    "uot_rcl": {
        **{"include_self": False, "anchors": "snapshot", "marginal": "empirical", "normalise": True},
        **{"relation_scope": "batch", "relation_sign": 1},
    },
}
"""Options of methods that were taken out after runs had been recorded, with the value that they had in all of
these. Names still hold it, so that they stay, unless it was once :data:`ADDED`; a record with another value
cannot be run again."""

UNSAID: dict[str, Any] = {"noise_seed": None, "networks": 1, "compile": "auto", "pictures_on": "auto"}
"""Settings of all runs that stand among settings only with other values than these."""

FREE = frozenset({"out", "device", "threads", "compile", "pictures_on"})
"""Settings that do not name a run: where files and pictures lie, what computes it and how it is compiled."""

JOINED = "+"
"""Between the values of the parts, in the settings of a combination."""


def since(*, method: str = "", model: str = "") -> int:
    """Return the number of the numerics since which a method or a model gives its present numbers.

    A record that was made under an older number holds other numbers than the present code gives.

    Parameters
    ----------
    method, model : str
        Names, of combined models joined by ``+``; the largest number of those that are given.

    Returns
    -------
    int
        From 1 to :data:`NUMERICS`.

    Examples
    --------
    >>> since(method="plain", model="bow")
    1
    """
    parts = {"method": method, "model": model}
    names = [f"{kind} {name}" for kind, names in parts.items() for name in names.split(JOINED)]
    return max(MOVED.get(name, 1) for name in ("run", *names))


def naming(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that name a run.

    Left out are :data:`FREE`, the paths of the data (a record holds their checksum), those of files whose
    digests are among the settings (these stand in their place), and settings of :data:`ADDED` with the value
    under which a run is what it was without them. Options of :data:`REMOVED` are put back.

    Examples
    --------
    >>> naming({"method": "plain", "out": "runs", "data_options": {"root": "/data", "size": "small"}})
    {'method': 'plain', 'data_options': {'size': 'small'}}
    """
    free = FREE | ({"noise_file"} if settings.get("noise_sha256") else set())
    named = {k: v for k, v in settings.items() if k not in free and k != "files_sha256"}
    for part, files in settings.get("files_sha256", {}).items():
        named[part] = {**named[part], **{name: f"sha256 {sha256}" for name, sha256 in files.items()}}
    if isinstance(named.get("data_options"), Mapping):
        named["data_options"] = {k: v for k, v in named["data_options"].items() if k not in DATA}
    for place, former in ADDED.items():
        part, _, name = place.rpartition(".")
        part = "method_options" if part and part == settings.get("method") else part
        options = named if not part else named.get(part) or {}
        if name in options and options[name] == former:
            rest = {k: v for k, v in options.items() if k != name}
            named = {**named, part: rest} if part else rest
    method = str(settings.get("method"))
    if (gone := REMOVED.get(method)) and "method_options" in named:
        always = {k: v for k, v in gone.items() if f"{method}.{k}" not in ADDED}
        named["method_options"] = {**always, **named["method_options"]}
    return named


def former_values(method: str = "") -> dict[str, Any]:
    """Return the values of :data:`ADDED` of the settings of all runs, or of the options that a method has."""
    places = ((*place.rpartition("."), v) for place, v in ADDED.items())
    gone = REMOVED.get(method, {})
    return {name: v for part, _, name, v in places if part == method and name not in gone}


def removed_options(methods: Registry[Any], method: str) -> dict[str, Any]:
    """Return the options of :data:`REMOVED` of a registered method and of those whose options it has."""
    own = methods.options(method)
    had_by = [name for name in REMOVED if name in methods and issubclass(own, methods.options(name))]
    return {k: v for name in had_by for k, v in REMOVED[name].items()}


def without_removed(methods: Registry[Any], method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method without those of :data:`REMOVED` that have the value given there."""
    gone = removed_options(methods, method)
    return {k: v for k, v in options.items() if k not in gone or v != gone[k]}


def computed_on(so_far: list[dict[str, Any]], epoch: int, device: str) -> list[dict[str, Any]]:
    """Return on what the epochs of a run are computed, when ``epoch`` is the next: one entry per change.

    Warns when a run goes on elsewhere than before: the last digits of its numbers may then differ.

    Parameters
    ----------
    so_far : list of dict
        What this function returned before, ``from_epoch``, ``device``, ``threads`` and ``torch``; empty at
        the start.
    epoch : int
        From 1.
    device : str
        Name of the device; the number of CPU threads is the present one.
    """
    here = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
    last = {k: v for k, v in so_far[-1].items() if k != "from_epoch"} if so_far else here
    if last != here:
        was, now = (f"{x['device']}, threads={x['threads']}, torch {x.get('torch')}" for x in (last, here))
        text = f"continued on {now} from epoch {epoch}; before that on {was}: the last digits may differ"
        warnings.warn(text, UserWarning, stacklevel=2)
    return so_far if so_far and last == here else [*so_far, {"from_epoch": epoch, **here}]
