"""Trackers: a run reports the numbers of each epoch to a function, an object, or an installed tool."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from nclib.common.options import did_you_mean
from nclib.runs.loop import SavedLoop

Report = Callable[[dict[str, float], int], None]
PROJECT = "nclib"


def _shaped_like_wandb(package: str) -> Callable[[str], Report]:
    def start(name: str) -> Report:
        tool = importlib.import_module(package)
        tool.init(project=PROJECT, name=name)
        return lambda values, step: tool.log(values, step=step)

    return start


def _tensorboard(name: str) -> Report:
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(f"runs/tensorboard/{name}")

    def report(values: dict[str, float], step: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return report


def _mlflow(name: str) -> Report:
    tool = importlib.import_module("mlflow")
    tool.set_experiment(PROJECT)
    tool.start_run(run_name=name)
    return lambda values, step: tool.log_metrics(values, step=step)


TRACKERS: Mapping[str, Callable[[str], Report]] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "trackio": _shaped_like_wandb("trackio"),
    "wandb": _shaped_like_wandb("wandb"),
}
"""Functions from the name of a run to what reports its epochs, by the name of the tool."""


def check_tracker(tracker: Any) -> None:
    """Raise a ValueError or a TypeError unless ``tracker`` is one that :func:`follow` takes."""
    if isinstance(tracker, str) and tracker not in TRACKERS:
        hint = did_you_mean(tracker, TRACKERS) or ""
        raise ValueError(f"tracker={tracker!r}: must be one of {', '.join(TRACKERS)}{hint}")
    if not (tracker is None or isinstance(tracker, str) or callable(getattr(tracker, "log", tracker))):
        raise TypeError(
            f"tracker must be a function, an object with log(values, step), or one of {', '.join(TRACKERS)}, "
            f"got {type(tracker).__name__}"
        )


def follow(trainer: SavedLoop, tracker: Any) -> None:
    """Report each epoch of a trainer when its checkpoint is on disk.

    A run that continues therefore reports no epoch twice, and of several processes one reports.

    Parameters
    ----------
    trainer : SavedLoop
    tracker : str, callable or object
        A name in :data:`TRACKERS`; a function of the epoch's numbers by name and the epoch, from 1; or an
        object with such a method ``log``.

    Raises
    ------
    ImportError
        When the tool is not installed.
    """
    try:
        report: Report = (
            TRACKERS[tracker](trainer.folder.name)
            if isinstance(tracker, str)
            else getattr(tracker, "log", tracker)
        )
    except ImportError as error:
        raise ImportError(f"tracker={tracker!r} needs the package {error.name}: pip install it") from error
    save = trainer._save

    def save_and_report() -> None:
        save()
        row = trainer.history[-1]
        report({name: float(value) for name, value in row.items() if _is_number(value)}, row["epoch"])

    # On the object: code of the trainer's class names runs, and a tracker changes nothing in them.
    trainer._save = save_and_report  # type: ignore[method-assign]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
