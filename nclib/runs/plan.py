"""What a run would do, without training: its folder, its steps, and its time where like runs are recorded."""

from __future__ import annotations

import math
import os
import statistics
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nclib.common.arguments import flattened, shown, table
from nclib.common.lock import run_folder
from nclib.runs import experiment_of
from nclib.runs.experiment import content_of
from nclib.runs.machine import choose_device, device_name, numbers_fixed
from nclib.runs.options import Settings
from nclib.runs.record import read

ALIKE = ("method", "model", "dataset", "batch_size", "model_options", "hidden", "dim", "precision")
"""Settings that decide how long a training pair takes."""


@dataclass(frozen=True)
class Plan:
    """A run that was prepared on its data, but not trained.

    Parameters
    ----------
    name, folder : str
        Of the run.
    state : {"new", "unfinished", "done"}
        What its folder holds: nothing, a checkpoint that the run continues from, or its record.
    device : str
    settings : dict
        All of them, as a record holds them.
    noise : str
        What the noise does to the training pairs, in words.
    pairs : int
        Training pairs.
    parameters, epochs, steps : int
        Parameters and steps of all networks; methods that leave out pairs take fewer steps.
    seconds : float or None
        Median time by the recorded runs, scaled by pairs and epochs; None without such a run.
    runs : int
        Recorded runs that the time is from: same :data:`ALIKE`, device, cores and threads.
    """

    name: str
    folder: str
    state: str
    device: str
    settings: dict[str, Any]
    noise: str
    pairs: int
    parameters: int
    epochs: int
    steps: int
    seconds: float | None
    runs: int

    def __str__(self) -> str:
        said = {
            "new": "new",
            "unfinished": "unfinished, the run continues it",
            "done": "done already, nclib show prints it",
        }
        of = " ".join(str(self.settings[k]) for k in ("method", "model", "dataset") if k in self.settings)
        time = (
            f"no estimate: {self.settings['out']} holds no run of {of} on this machine, with as many threads"
        )
        if self.seconds is not None:
            minutes, seconds = divmod(max(1, round(self.seconds)), 60)
            length = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
            runs = f"{self.runs} recorded runs" if self.runs > 1 else "one recorded run"
            time = f"about {length} of training, by {runs} of {of} on this machine"
        steps = f"at most {self.steps:,}, in {self.epochs} epochs of {self.pairs:,} pairs"
        facts = [
            ("state", said[self.state]),
            ("noise", self.noise),
            ("steps", steps if self.steps else "none, a closed form"),
            ("time", time),
            ("device", f"{self.device}; {self.parameters:,} parameters"),
            ("folder", self.folder),
        ]
        settings = [(name, shown(value)) for name, value in flattened(self.settings).items()]
        return f"{self.name}\n{table(facts)}\n\nsettings\n{table(settings)}"


def plan(settings: Settings) -> Plan:
    """Prepare a run as :func:`nclib.run` does, and train nothing; writes nothing.

    Parameters
    ----------
    settings : Settings
        As :func:`nclib.resolve` returns them.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError, OSError
        As :func:`nclib.run` before its first epoch.
    """
    experiment: Any = experiment_of(settings.method)
    with numbers_fixed(settings.run.threads):
        device = choose_device(settings.run.device)
        dataset = experiment.read_data(settings)
        folder = run_folder(settings.run.out, experiment.name(settings, content_of(dataset)))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            loaded = experiment.assemble(settings, dataset, folder, device)
        paces = list(_paces(settings, device))
    trainer = loaded.trainer
    epochs, pairs = trainer.n_planned, trainer.n_pairs
    files = {"done": "record.json", "unfinished": "checkpoint.safetensors"}
    return Plan(
        name=folder.name,
        folder=str(folder),
        state=next((state for state, file in files.items() if (folder / file).exists()), "new"),
        device=device_name(device),
        settings=settings.flat(),
        noise=loaded.noise.describe(),
        pairs=pairs,
        parameters=trainer.n_parameters,
        epochs=epochs,
        steps=epochs * math.ceil(pairs / trainer.batch_size) * len(trainer.networks),
        seconds=round(statistics.median(paces) * pairs * epochs, 1) if paces else None,
        runs=len(paces),
    )


def _paces(settings: Settings, device: torch.device) -> Iterator[float]:
    """Yield the seconds per pair and epoch of recorded runs of this kind on this machine."""
    if not Path(settings.run.out).is_dir():
        return
    wanted = settings.flat()
    here = {"device": device_name(device), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of damaged records and copies
        for _, record in read(settings.run.out):
            work = len(record.curves) * record.data.get("train_pairs", 0)
            alike = all(record.settings.get(k) == wanted.get(k) for k in ALIKE)
            machine = all(record.environment.get(k) == v for k, v in here.items())
            if work and alike and machine and not record.parts:
                yield record.cost["seconds"] / work
