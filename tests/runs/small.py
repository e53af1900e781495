"""Settings of runs that take a second."""

from typing import Any

SMALL: dict[str, Any] = {
    "dataset": "planted",
    "model": "bow",
    "mrate": 0.4,
    "batch_size": 16,
    "warmup_epochs": 0,
    "epochs": 1,
    "data_options": {"n_train": 40, "n_val": 10, "n_test": 10},
}
QUIET = SMALL | {"progress": False}
