"""What tests of methods start from: a small run of a few drawn pairs, and the scores of four pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import nclib
from nclib.methods import METHODS, ClosedForm
from nclib.runs import experiment_of, resolve

TRAINED = [name for name in METHODS if not issubclass(METHODS[name].factory, ClosedForm)]

TINY: dict[str, Any] = {
    "dataset": "planted",
    "model": "vse",
    "mrate": 0.4,
    "batch_size": 16,
    "warmup_epochs": 1,
    "epochs": 2,
    "data_options": {"n_train": 40, "n_val": 16, "n_test": 16},
    "model_options": {"embed_dim": 16, "sim_dim": 8, "word_dim": 8},
}
SCORES = torch.tensor(
    [[0.82, 0.31, 0.12, 0.25], [0.28, 0.35, 0.47, 0.09], [0.15, 0.22, 0.76, 0.33], [0.05, 0.41, 0.18, 0.54]],
    dtype=torch.float64,
)
# Settings with which every method trains on so few pairs; the count of CRANK needs values and more of them.
FEW: dict[str, dict[str, Any]] = {
    **{name: {"select": "none"} for name in ("crank", "crank_plus")},
    "crcl": {"schedules": 1},
    "mscn": {"threshold": 0.0},
    "pcsr": {"classes": 12},
    "repair": {"bank_size": 64, "K": 5},
}
SMALLER = {"n_train": 32, "n_val": 8, "n_test": 8}  # two batches, as data_options


def run(method: str, out: Path, **values: Any) -> nclib.Record:
    """Train by the small settings, changed by ``values``."""
    return nclib.run(method, **{**TINY, **values}, out=str(out), progress=False)


def trainer_of(method: str, folder: Path, on: str = "cpu", **values: Any) -> Any:
    """Return the trainer of such a run, on a device, before its first epoch."""
    settings = resolve(method, **{**TINY, **values}, out=str(folder))
    return experiment_of(method).load(settings, folder, torch.device(on)).trainer


def started(method: str, folder: Path, **values: Any) -> tuple[Any, Any]:
    """Return the trainer of such a run before its first training epoch, and its method."""
    trainer = trainer_of(method, folder, **values)
    trainer.epoch = 1
    return trainer, trainer.method
