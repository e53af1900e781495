"""What a run would do, without training: its parameters, its folder and its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from nclib.common.options import Catalogue
from nclib.runs.experiment import Experiment, place_of
from nclib.runs.identity import UNSAID
from nclib.runs.machine import choose_device, device_name, numbers_fixed
from nclib.runs.options import Settings
from nclib.runs.tasks import experiment_of
from nclib.runs.words import flatten, value_text, words_of


def plan(settings: Settings) -> dict[str, Any]:
    """Prepare a run as :func:`nclib.run` does, and train nothing; writes nothing.

    Parameters
    ----------
    settings : Settings
        As :func:`nclib.resolve` returns them.

    Returns
    -------
    dict
        ``name`` and ``folder`` of the run; ``state``, ``new``, ``unfinished`` (the run continues it) or
        ``done``; ``device``; all ``settings``; ``noise`` in words; training ``pairs``, ``epochs``, ``steps``
        and ``parameters`` of all networks (methods that leave out pairs take fewer steps).

    Raises
    ------
    ValueError, OSError
        As :func:`nclib.run` before its first epoch.
    """
    experiment: Any = experiment_of(settings.method)
    with numbers_fixed(settings.run.threads):
        device = choose_device(settings.run.device)
        dataset = experiment.read_data(settings)
        apart = experiment.apart(settings)
        request = experiment.request(settings, dataset)
        folder = experiment.folder(settings, request)
        others = [experiment.folder(one, experiment.request(one, dataset)) for one in apart]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            place = place_of(request, dataset, folder, device)
            loaded = experiment.assemble(settings, dataset, place)
    trainer, n = loaded.trainer, len(apart)
    begun = any((each / "checkpoint.safetensors").exists() for each in others)
    state = "done" if (folder / "record.json").exists() else "unfinished" if begun else "new"
    steps = len(trainer.networks) * math.ceil(trainer.n_pairs / trainer.batch_size)
    return {
        "name": folder.name,
        "folder": str(folder),
        "state": state,
        "device": device_name(device),
        "settings": request.settings,
        "noise": loaded.noise.describe(),
        "pairs": trainer.n_pairs,
        "parameters": n * trainer.n_parameters,
        "epochs": trainer.n_planned,
        "steps": n * trainer.n_planned * steps if trainer.n_parameters else 0,
    }


def plan_text(planned: Mapping[str, Any]) -> str:
    """Return what :func:`plan` found in words."""
    p = planned
    steps = f"at most {p['steps']:,}, in {p['epochs']} epochs of {p['pairs']:,} pairs"
    facts = {
        "state": p["state"],
        "noise": p["noise"],
        "steps": steps if p["steps"] else "none, a closed form",
        "device": f"{p['device']}; {p['parameters']:,} parameters",
        "folder": p["folder"],
    }
    flat = flatten(p["settings"])
    settings = {name: "-" if value in (None, "", {}) else value_text(value) for name, value in flat.items()}
    return f"{p['name']}\n{Catalogue(facts)}\n\nsettings\n{Catalogue(settings)}"


def parameters(experiment: Experiment) -> str:
    """Return the parameters of a run as a table: name, value in the quick preset, meaning."""
    settings = experiment.resolve().flat()
    usual = {**UNSAID, **settings, **settings["method_options"]}
    lines = [f"nclib run {experiment.method} [--name value ...], values in the preset quick:", ""]
    for name, rule in experiment.parameters().items():
        lines.append(f"  --{name} {json.dumps(usual[name])}".ljust(34) + f"  {rule.about()}")
    for name in experiment.mappings:
        lines.append("  " + (" ".join(words_of({name: settings[name]})) or f"--{name}.NAME VALUE"))
    lines += ["", "nclib run --help says what --dry-run, --json, --quiet and --import do."]
    return "\n".join(lines)
