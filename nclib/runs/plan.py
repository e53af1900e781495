"""What a run would do, without training: its parameters, its folder, its steps, and its time."""

from __future__ import annotations

import json
import math
import os
import statistics
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nclib.runs.experiment import Experiment
from nclib.runs.identity import UNSAID
from nclib.runs.machine import choose_device, device_name, numbers_fixed
from nclib.runs.options import Settings
from nclib.runs.store import stored
from nclib.runs.tasks import experiment_of
from nclib.runs.words import listed, table, words_of

ALIKE = ("method", "model", "dataset", "batch_size", "model_options", "hidden", "dim", "precision")
"""Settings that decide how long a training pair takes."""


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
        and ``parameters`` of all networks (methods that leave out pairs take fewer steps); ``seconds``, the
        median of ``runs`` recorded runs with the same :data:`ALIKE`, device, cores and threads, scaled by
        pairs and epochs, or None without such a run.

    Raises
    ------
    ValueError, OSError
        As :func:`nclib.run` before its first epoch.
    """
    experiment: Any = experiment_of(settings.method)
    with numbers_fixed(settings.run.threads):
        device = choose_device(settings.run.device)
        dataset = experiment.read_data(settings)
        folder = experiment.folder(settings, dataset)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            loaded = experiment.assemble(settings, dataset, folder, device)
        paces = _paces(settings, device)
        apart = experiment.apart(settings)
        begun = [experiment.folder(each, dataset) / "checkpoint.safetensors" for each in apart]
    trainer = loaded.trainer
    epochs, pairs, n = trainer.n_planned, trainer.n_pairs, len(apart)
    done, unfinished = (folder / "record.json").exists(), any(file.exists() for file in begun)
    return {
        "name": folder.name,
        "folder": str(folder),
        "state": "done" if done else "unfinished" if unfinished else "new",
        "device": device_name(device),
        "settings": settings.flat(),
        "noise": loaded.noise.describe(),
        "pairs": pairs,
        "parameters": n * trainer.n_parameters,
        "epochs": epochs,
        "steps": n
        * epochs
        * math.ceil(pairs / trainer.batch_size)
        * len(trainer.networks)
        * bool(trainer.n_parameters),
        "seconds": round(n * statistics.median(paces) * pairs * epochs, 1) if paces else None,
        "runs": len(paces),
    }


def _paces(settings: Settings, device: torch.device) -> list[float]:
    """Return the seconds per pair and epoch of recorded runs of this kind on this machine."""
    if not Path(settings.run.out).is_dir():
        return []
    wanted, found = settings.flat(), []
    here = {"device": device_name(device), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of damaged records and copies
        for record in (one.record() for one in stored(settings.run.out)):
            work = len(record.curves) * record.data.get("train_pairs", 0)
            alike = all(record.settings.get(k) == wanted.get(k) for k in ALIKE)
            machine = all(record.environment.get(k) == v for k, v in here.items())
            if work and alike and machine and not record.parts:
                found.append(record.cost["seconds"] / work)
    return found


def described(planned: Mapping[str, Any]) -> str:
    """Return what :func:`plan` found in words."""
    p = planned
    time = f"no estimate: {p['settings']['out']} holds no run like it on this machine, with as many threads"
    if p["seconds"] is not None:
        time = (
            f"about {p['seconds']:,.0f} s of training, by {p['runs']} recorded run(s) like it on this machine"
        )
    steps = f"at most {p['steps']:,}, in {p['epochs']} epochs of {p['pairs']:,} pairs"
    facts = [
        ("state", p["state"]),
        ("noise", p["noise"]),
        ("steps", steps if p["steps"] else "none, a closed form"),
        ("time", time),
        ("device", f"{p['device']}; {p['parameters']:,} parameters"),
        ("folder", p["folder"]),
    ]
    return f"{p['name']}\n{table(facts)}\n\nsettings\n{listed(p['settings'])}"


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
