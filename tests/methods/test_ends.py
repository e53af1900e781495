"""Every method where its kinds of pairs run out: no wrong pair, nine in ten, tiny and large batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny

ENDS: list[dict[str, Any]] = [
    {"mrate": 0.0},
    {"mrate": 0.9},
    {"batch_size": 2, "data_options": {"n_train": 8, "n_val": 8, "n_test": 8}},
    {"batch_size": 53},
]


@pytest.mark.filterwarnings(
    "ignore:.*do not fill a batch", "ignore:.*took one step", "ignore:mscn learns from"
)
@pytest.mark.parametrize("values", ENDS, ids=str)
@pytest.mark.parametrize("method", tiny.TRAINED)
def test_a_run_at_the_ends_trains(method: str, values: dict[str, Any], tmp_path: Path) -> None:
    record = tiny.run(method, tmp_path, **{"epochs": 1, **tiny.FEW.get(method, {}), **values})
    assert record.curves[-1]["steps"] > 0
    assert all(math.isfinite(v) for k, v in record.curves[-1].items() if k.startswith("loss_"))
    assert record.metrics["test"]["rsum"] > 0
