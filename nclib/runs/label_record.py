"""Records of category retrieval: the same JSON as every run's, with mean average precision as its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nclib.runs import record as records
from nclib.common.options import rules
from nclib.runs.record import OtherFileError, Record

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class CategoryRecord(Record):
    """The record of one run of category retrieval.

    ``metrics["val"]`` and ``metrics["test"]`` hold ``map_i2t``, ``map_t2i`` and ``map_avg`` in [0, 1] of the
    selected epoch; ``metrics["last"]`` the test values of the last one.
    """

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record.

        Raises
        ------
        OtherFileError
            When the file is not a record of category retrieval; it is a ValueError.
        ValueError
            As :meth:`nclib.runs.record.Record.load`.
        """
        record = super().load(path)
        if "map_avg" not in record.metrics["test"]:
            raise OtherFileError(f"{path} is not a record of category retrieval")
        return record

    def columns(self) -> dict[str, Any]:
        """Return ``val_map_avg`` and ``variant``."""
        return {"val_map_avg": self.metrics["val"]["map_avg"], "variant": variant(self.settings)}

    def __str__(self) -> str:
        test = self.metrics["test"]
        return (
            f"{self.name} [{self.settings['preset']}]: mAP {test['map_avg']:.3f}  "
            f"(image to text {test['map_i2t']:.3f}, text to image {test['map_t2i']:.3f})"
        )


def collect(folder: str | Path) -> pd.DataFrame:
    """Read every record of category retrieval below ``folder`` into a table, one row per run.

    Columns: the settings, ``method_*`` for options of the method, test metrics, ``val_map_avg``, diagnostics
    of the last epoch, cost, device, and ``variant``: the settings that differ from the preset, such as
    ``lam=0.1``, or ``default``.
    """
    return records.collect(folder, CategoryRecord)


def variant(settings: Mapping[str, Any]) -> str:
    """Return what differs from the preset in words: ``name=value`` of each, or ``default``."""
    from nclib.runs.labels import resolve
    from nclib.runs.label_trainer import CategorySchedule

    names = ("dataset", "preset", "data_options")
    usual = resolve(settings["method"], **{k: settings[k] for k in names})
    flat, expected = ({**s, **s["method_options"]} for s in (settings, usual))
    decisive = [*rules(CategorySchedule), *usual["method_options"]]
    return " ".join(f"{k}={flat.get(k)}" for k in decisive if flat.get(k) != expected[k]) or "default"
