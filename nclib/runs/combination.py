"""Finished runs combined: the mean of their similarities, tested as one model (L2RM-SGRAF is SGR and SAF)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from nclib.common.files import digest
from nclib.runs.identity import JOINED, naming
from nclib.runs.options import PairSchedule
from nclib.runs.pairs import PairExperiment
from nclib.runs.record import Record

# Settings in which the parts may differ: models have schedules of their own. The noise itself is compared.
APART = {"model", "model_options", "noise_seed", *(f.name for f in fields(PairSchedule))}


def combine(
    runs: Sequence[Record | str | PathLike[str]], out: str | PathLike[str] = "runs", device: str = "cpu"
) -> Record:
    """Test the mean similarity of finished runs as one model, and leave a record of it.

    Parameters
    ----------
    runs : sequence of Record or path
        Two or more records with their checkpoints, or the folders of the runs: on the same data, with the
        same noise and settings but for ``model``, ``model_options`` and the schedule; runs of one model with
        the same options may differ in ``seed`` instead.
    out : path
        Folder for the record of the combination.
    device : str
        ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...

    Returns
    -------
    Record
        Its ``model`` and ``model_options`` join those of the parts with a plus sign, its ``seed`` is that of
        the first, its ``best_epoch`` is the earliest of theirs, and its environment names them as ``parts``.

    Raises
    ------
    ValueError
        For fewer than two runs, one that is given twice, runs on labels, or runs that differ in
        more than model, its options and its schedule.
    FileNotFoundError
        When a checkpoint is not there.
    """
    records = [
        run if isinstance(run, Record) else Record.load(Path(run).expanduser() / "record.json")
        for run in runs
    ]
    settings = _joined_settings(records)
    name = f"{settings['method']}-{settings['model']}-{digest([record.name for record in records])[:8]}"
    experiment = PairExperiment(settings["method"])
    return experiment.combined(records, settings, Path(out).expanduser() / name, device)


def _joined_settings(records: Sequence[Record]) -> dict[str, Any]:
    """Return the settings of a combination, checked."""
    names = [record.name for record in records]
    if len(set(names)) < max(2, len(names)):
        raise ValueError(f"runs={names!r}: must be two or more, each given once")
    first = records[0]
    seeds = {record.settings["seed"] for record in records}
    kinds = {str([record.settings.get(k) for k in ("model", "model_options")]) for record in records}
    again = len(seeds) == len(records) and len(kinds) == 1  # one model, trained several times
    free = APART | {"seed"} if again else APART
    for record in records:
        if record.task != "pairs" or record.parts:
            raise ValueError(f"{record.name}: only single runs on pairs can be combined")
        mine, its = (naming(r.settings) for r in (first, record))
        other = [k for k in {**mine, **its} if k not in free and mine.get(k) != its.get(k)]
        parts = ("data", "noise")
        other += [k for k in parts if getattr(first, k).get("checksum") != getattr(record, k).get("checksum")]
        if other:
            raise ValueError(
                f"{record.name} differs from {first.name} in {', '.join(other)}; runs that are combined may "
                "differ in model, its options and its schedule alone"
            )
    options: dict[str, Any] = {}
    for name in dict.fromkeys(k for r in records for k in r.settings["model_options"]):
        values = [r.settings["model_options"].get(name) for r in records]
        given = [v for v in values if v is not None]
        options[name] = given[0] if len(set(map(str, given))) == 1 else JOINED.join(map(str, values))
    models = [r.settings["model"] for r in records]
    model = models[0] if len(set(models)) == 1 and not again else JOINED.join(models)
    return {**first.settings, "model": model, "model_options": options}
