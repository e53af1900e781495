"""The runs that chapters show: a small store of records, with the arrays and weights that figures look at.

``make demo`` runs each chapter of ``book/demo/demo.yml`` with its own parameters and stores its runs here. A
chapter with ``source="recorded"`` then shows them without training.

==========================  ===========================================================================
``record.json``             the record of the run
``arrays.npz``              arrays that the run kept, as ``epoch/name``, floats to 2e-5 of each
``weights.safetensors``     weights of the selected epoch in 16 bits, where a figure needs the networks
``SHA256SUMS``              digests of all these files: they are of one moment, or none of them is read
==========================  ===========================================================================
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nclib
from ncbook.nearest import requests
from nclib.common.files import write_atomically
from nclib.runs import LoadedRun, Record, checkpoint, epoch_arrays, experiment_of
from nclib.runs.curves import pack_arrays
from nclib.runs.digests import LIST, NEXT, digests, read_checked, settle, together
from nclib.runs.identity import naming
from nclib.runs.record import completed_settings
from nclib.runs.request import outdated

DEMO = Path(__file__).resolve().parents[1] / "demo"
RECORD, ARRAYS, WEIGHTS = "record.json", "arrays.npz", "weights.safetensors"


@dataclass(frozen=True)
class Keep:
    """What the store keeps of the runs of a chapter.

    Parameters
    ----------
    every, ends, last : sequence of str
        Names of kept arrays: of all training epochs, of the first and the last, and of the last one alone.
    weights : bool
        Whether a figure needs the trained networks.
    own : bool
        Whether the same is kept of runs of classes that the chapter writes; else their record alone.
    """

    every: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    weights: bool = False
    own: bool = False

    def arrays(self, kept: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return the arrays to store, by ``epoch/name``, floats rounded for a figure."""
        if not kept:  # of a run of plain training beside the method's
            return {}
        epochs = {name: {*kept} for name in self.every} | {name: {min(kept), max(kept)} for name in self.ends}
        epochs |= {name: {max(kept)} for name in self.last}
        return {
            f"{epoch}/{name}": rounded(value)
            for epoch, arrays in kept.items()
            for name, value in arrays.items()
            if epoch in epochs.get(name, ())
        }


def declared(chapter: str) -> Keep:
    """Return what the store keeps of a chapter's runs, as ``demo.yml`` says."""
    import yaml

    keep = yaml.safe_load((DEMO / "demo.yml").read_text("utf8"))[chapter]
    every, ends, last = (tuple(keep.get(name, ())) for name in ("every", "ends", "last"))
    return Keep(every, ends, last, keep.get("weights", False), keep.get("own", False))


def store(record: Record, folder: Path, keep: Keep) -> None:
    """Write what ``keep`` names of a finished run into ``folder``, in place of all that is there."""
    if record.environment.get("own_code") and not keep.own:
        keep = Keep()
    with together(folder, whole=True) as new:
        record.save(new / RECORD)
        short = json.dumps(json.loads((new / RECORD).read_text("utf8")), separators=(",", ":"))
        write_atomically(new / RECORD, short)
        write_atomically(new / ARRAYS, pack_arrays(keep.arrays(epoch_arrays(record.folder))))
        if keep.weights:
            best = checkpoint.load(Path(record.folder) / "checkpoint.safetensors")["best"]
            checkpoint.save(new / WEIGHTS, {"weights": halved(best["weights"])})


def rounded(values: np.ndarray) -> np.ndarray:
    """Return floats as 32 bits of which 16 binary digits count (relative error 2e-5), which pack well."""
    if not np.issubdtype(values.dtype, np.floating):
        return values
    fraction, exponent = np.frexp(values.astype(np.float32))
    return np.ldexp(np.round(fraction * 2**16) / 2**16, exponent)


def halved(weights: Any) -> Any:
    """Return nested weights with floats of 16 bits; a network takes them back as its own type."""
    if isinstance(weights, Mapping):
        return {name: halved(value) for name, value in weights.items()}
    if isinstance(weights, list):
        return [halved(value) for value in weights]
    return weights.half() if torch.is_floating_point(weights) else weights


@functools.cache
def stored_runs() -> tuple[Record, ...]:
    """Return the runs stored in :data:`DEMO`; their folders are relative to the working directory."""
    for left in DEMO.glob(f"*/*/{NEXT}*"):  # by a writer that was killed
        settle(left.parent)
    return tuple(Record.load(os.path.relpath(path)) for path in sorted(DEMO.glob(f"*/*/{RECORD}")))


def stored_run(method: str, **values: Any) -> Record:
    """Return the stored run with exactly these parameters of :func:`nclib.run`, on the same data.

    A run whose numbers moved since does not answer, nor one of a class that a chapter wrote otherwise.

    Raises
    ------
    ValueError
        Where there is none; the message says what is stored and how to make the run.
    """
    (wanted,) = requests([nclib.resolve(method, **values).flat()])
    others = []
    for record in stored_runs():
        if record.settings["method"] == method:
            settings = completed_settings(record.settings)  # its method may be registered since it was read
            unlike = wanted.unlike(vars(record) | {"settings": settings})
            if not unlike:
                return record
            others.append("; ".join([*differences(naming(settings), wanted.naming)] or unlike))
    nearest = f"the nearest one has {min(others, key=len)}" if others else f"none of {method} is stored"
    raise ValueError(
        f"source='recorded': no stored run has these parameters; {nearest}. "
        "source='train' trains with the parameters given; a chapter's defaults are stored"
    )


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings in which a stored run differs from the wanted one, also those within mappings."""
    for name in sorted({**stored, **wanted}):
        here, there = stored.get(name), wanted.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            yield from differences(here, there)
        elif here != there:
            yield f"{name}={here!r} (not {there!r})"


def is_stored(record: Record) -> bool:
    """Tell whether a run comes from the store, not from a training here."""
    return any((Path(record.folder) / name).is_file() for name in (ARRAYS, LIST))


def source_of(record: Record) -> str:
    """Return the ``source`` with which further runs are shown beside this one."""
    return "recorded" if is_stored(record) else "train"


def _checked(record: Record) -> Path:
    """Return the folder of a stored run.

    A ValueError names a file of it that is not as it was stored, and a run whose numbers moved since.
    """
    folder = Path(record.folder)
    if older := outdated(record.settings, record.environment.get("numerics", 1)):
        raise ValueError(f"the stored run {folder} has {older}; make demo makes it again")
    listed = digests(folder)
    if gone := [name for name in listed if not (folder / name).is_file()]:
        raise ValueError(f"{folder / gone[0]} is not there, but in {folder / LIST}; make demo makes it again")
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != LIST:  # not the folder of a writer that was killed
            read_checked(path)
    return folder


def kept_arrays(record: Record) -> dict[int, dict[str, np.ndarray]]:
    """Return the arrays that a run kept, or the store keeps of it, by epoch and name.

    Raises
    ------
    ValueError
        When a file of the stored run was changed or has no digest, or its numbers moved since.
    """
    if not is_stored(record):
        return epoch_arrays(record.folder)
    by_epoch: dict[int, dict[str, np.ndarray]] = {}
    with np.load(_checked(record) / ARRAYS, allow_pickle=False) as file:
        for key in file.files:
            epoch, name = key.split("/")
            by_epoch.setdefault(int(epoch), {})[name] = file[key]
    return dict(sorted(by_epoch.items()))


def opened(record: Record) -> LoadedRun:
    """Return trainer, data and noise of a finished run, with the weights of the selected epoch.

    A stored run without weights has no networks.

    Raises
    ------
    ValueError
        As :func:`kept_arrays`.
    """
    if not is_stored(record):
        return nclib.open_run(record)
    weights = _checked(record) / WEIGHTS
    experiment = experiment_of(record.settings["method"])
    with torch.random.fork_rng(devices=[]):
        settings = experiment.read(record.settings)
        loaded: Any = experiment.load(settings, Path(record.folder), torch.device("cpu"))
    if weights.is_file():
        loaded.trainer.best = {"epoch": record.best_epoch, **checkpoint.load(weights)}
        loaded.trainer.load_best()
    elif record.task == "pairs":
        loaded.trainer.networks = []  # untrained ones would draw wrong figures
    return loaded


def log(record: Record) -> Iterator[str]:
    """Yield one line per epoch of a stored run, as training printed it."""
    metric, name, digits = ("val_map_avg", "mAP", 3) if record.task == "labels" else ("val_rsum", "rSum", 1)
    for row in record.curves:
        losses = "  ".join(f"{k[5:]} {v:.3f}" for k, v in row.items() if k.startswith("loss_"))
        phase = f" {row['phase']:<8}" if record.task == "pairs" else ""
        area = f"  AUC {row['auc']:.3f}" if row.get("auc") is not None else ""
        head = f"epoch {row['epoch']:>2}/{len(record.curves)}{phase} {losses}"
        yield f"{head}  val {name} {row[metric]:.{digits}f}{area}  {row['seconds']:.1f} s"


def trained(method: str, source: str, *, progress: bool = True, **given: Any) -> Record:
    """Return the record of a run, made now or taken from the store.

    Parameters
    ----------
    method : str
    source : {"train", "recorded"}
    progress : bool
    **given
        Parameters of :func:`nclib.run`, as ``progress``.

    Raises
    ------
    ValueError
        For ``source="recorded"`` and parameters that no stored run has.
    """
    if source == "train":
        return nclib.run(method, **given, progress=progress)
    record = stored_run(method, **given)
    if progress:
        cost, where = record.cost, record.environment
        head = f"stored run, trained in {cost['seconds']:.0f} s on {where['device']}"
        print("\n".join([head, *log(record), str(record)]))
    return record
