"""Settings of runs that take a second, and a record that no run made."""

from typing import Any

import numpy as np
import torch

from nclib.common.files import digest
from nclib.runs import Record, checkpoint
from nclib.runs.record import RECALLS

FEW = {"n_train": 40, "n_val": 10, "n_test": 10}
SMALL: dict[str, Any] = {"dataset": "planted", "model": "bow", "mrate": 0.4, "data_options": FEW}
SMALL |= {"batch_size": 16, "warmup_epochs": 0, "epochs": 1}
QUIET = SMALL | {"progress": False}
FEW_LABELS = {"n_train": 90, "n_val": 30, "n_test": 40, "n_classes": 4, "image_dim": 16, "text_dim": 16}
SMALL_LABELS: dict[str, Any] = {"dataset": "planted_category", "noise_rate": 0.5, "data_options": FEW_LABELS}
SMALL_LABELS |= {"epochs": 2, "batch_size": 32, "hidden": 16, "dim": 8}


def made(name: str = "r", seed: int = 0, rsum: float = 300.0, **parts: Any) -> Record:
    """Return a record that no run made, with these parts in place of its own or beside them."""
    settings = {"method": "mine", "preset": "quick", "seed": seed, "mrate": 0.6, "method_options": {"a": 0.1}}
    record = Record(
        name=name,
        settings=settings,
        data={"checksum": "d"},
        noise={"checksum": "12e34", "protocol": "images"},
        metrics={"val": {"rsum": rsum}, "test": {**dict.fromkeys(RECALLS, rsum / 6), "rsum": rsum}},
        curves=[{"epoch": 1, "phase": "training", "loss": 0.1 + 0.2, "seconds": 0.5}],
        diagnostics={},
        best_epoch=1,
        cost={"seconds": 1.0},
        environment={"device": "CPU"},
    )
    for part, values in parts.items():
        setattr(record, part, {**getattr(record, part), **values} if isinstance(values, dict) else values)
    return record


def fact(value: Any) -> Any:
    """Return what is compared of a value: arrays and tensors by their digests, without times."""
    if isinstance(value, torch.Tensor):
        return checkpoint.digest({"": value})
    if isinstance(value, np.ndarray):
        return digest(value)
    if isinstance(value, dict):
        return {str(k): fact(v) for k, v in value.items() if not str(k).endswith("seconds")}
    return [fact(v) for v in value] if isinstance(value, (list, tuple)) else repr(value)
