"""Base of both trainers: epochs, selection on validation, checkpoints, and exact resume."""

from __future__ import annotations

import copy
import hashlib
import io
import math
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nclib.common.files import digest, write_atomically
from nclib.runs import checkpoint
from nclib.runs.identity import computed_on
from nclib.runs.machine import device_name

CHECKPOINT, ARRAYS = "checkpoint.safetensors", "epochs"  # in the folder of a run
OUT_OF_MEMORY = re.compile("out of memory|allocate memory")  # as torch says it, on a GPU and on the CPU
LOOK_EVERY = 20  # steps between two looks at the losses, each of which waits for the device


def seed_of(*parts: object) -> int:
    """Return a seed in [0, 2**63) that the text of some values determines, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+")  # of an absolute path in a text


@contextmanager
def kept_warnings() -> Iterator[list[str]]:
    """Yield a list that gets the text of every warning of the block, without folders; they are shown too."""
    texts: list[str] = []
    show = warnings.showwarning

    def keep(message: Warning | str, *rest: Any, **more: Any) -> None:
        text = FOLDERS.sub("", str(message))
        if text not in texts:
            texts.append(text)
        show(message, *rest, **more)

    with warnings.catch_warnings():
        warnings.showwarning = keep
        yield texts


@dataclass(frozen=True)
class Place:
    """Where a run is trained, and what it is.

    Parameters
    ----------
    seed : int
        Seed of every draw.
    device : torch.device
    folder : Path
        Where the checkpoint and per-epoch arrays go.
    identity : dict of str to str
        Checksums of settings and code, noise and data; a checkpoint with others is refused.
    """

    seed: int
    device: torch.device
    folder: Path
    identity: dict[str, str]

    def with_noise(self, checksum: str) -> Place:
        """Return the same place with the checksum of the noise in its identity."""
        return replace(self, identity={**self.identity, "noise": checksum})


class SavedLoop(ABC):
    """Epochs that are validated, selected and saved one by one; a killed run continues from the last one.

    A subclass says how an epoch is trained and validated, which weights testing needs, and which further
    state a run needs to continue with the same bits.

    Parameters
    ----------
    place : Place
    """

    criterion: ClassVar[str]  # of the validation results: the epoch with its largest value is selected
    stream: ClassVar[str]  # name of the global generator's seed

    def __init__(self, place: Place) -> None:
        self.seed, self.device, self.folder = place.seed, place.device, place.folder
        self.identity = place.identity
        self.n_planned = 0  # epochs of the whole run
        self.schedule: Any = None  # with ``batch_size``
        self.networks: list[Any] = []
        self.epoch = 0
        self.history: list[dict[str, Any]] = []
        self.computed_on: list[dict[str, Any]] = []  # which device and threads computed which epochs
        self.warnings: list[str] = []  # of the run, for its record; who runs it fills the list
        self.best: dict[str, Any] = {self.criterion: -math.inf, "epoch": -1}
        self.after_epoch: list[Callable[[Mapping[str, Any]], None]] = []  # told each row once it is saved
        self._arrays: dict[str, np.ndarray] = {}
        self._kept: dict[str, str] = {}  # digests of the files of arrays, by name
        self._added = 0  # steps whose losses were summed

    # -- what a trainer must say --------------------------------------------------------------------------

    @abstractmethod
    def _train_epoch(self, progress: bool) -> dict[str, Any]:
        """Train one epoch; return its row of the curves, with ``loss_*`` from :meth:`_mean_losses`."""

    @abstractmethod
    def _validate(self) -> dict[str, float]:
        """Return the results on validation, :attr:`criterion` among them."""

    def _may_be_tested(self) -> bool:
        """Whether this epoch takes part in the selection."""
        return True

    def _look_back(self) -> None:  # noqa: B027
        """Warn of what the history, its last row included, shows."""

    @abstractmethod
    def _weights(self) -> Any:
        """Return the weights that testing needs."""

    @abstractmethod
    def _put(self, weights: Any) -> None:
        """Put weights that :meth:`_weights` returned in place, ready to test."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return everything that continuing needs."""

    @abstractmethod
    def _load_state(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`_state` returned."""

    @abstractmethod
    def _line(self, row: dict[str, Any]) -> str:
        """Return the line that is printed after an epoch."""

    # -- the loop ---------------------------------------------------------------------------------------

    @property
    def n_parameters(self) -> int:
        """Parameters of all networks; 0 for a closed form."""
        return sum(p.numel() for network in self.networks for p in network.parameters())

    def keep(self, **arrays: Any) -> None:
        """Store tensors or arrays of this epoch by name; :func:`epoch_arrays` reads them back."""
        for name, value in arrays.items():
            self._arrays[name] = value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)

    def fit(self, progress: bool = True) -> list[dict[str, Any]]:
        """Train to the end, from the last checkpoint if there is one; return the rows of the curves.

        A damaged checkpoint is set aside with a warning, and training starts from the first epoch. With
        ``progress`` one line per epoch is printed, and a bar drawn in a terminal.

        Raises
        ------
        ValueError
            When the folder holds the checkpoint of another run.
        OSError
            When the folder cannot be written.
        RuntimeError
            When a loss is no longer finite.
        """
        self._resume()
        if not self.n_planned:  # a model that is tested as it was published
            result = self._validate()
            self.best = {self.criterion: result[self.criterion], "epoch": 0, "weights": self._weights()}
            none = {"lr": 0.0, "steps": 0, "seconds": 0.0, "cpu_seconds": 0.0}
            metrics = {f"val_{name}": value for name, value in result.items()}
            self.history = [{"epoch": 0, "phase": "as published", **none, **metrics}]
            self._end_epoch()
            return self.history
        for epoch in range(len(self.history), self.n_planned):
            self.epoch = epoch
            self.computed_on = computed_on(self.computed_on, epoch + 1, device_name(self.device))
            started, worked = time.perf_counter(), time.process_time()
            torch.manual_seed(seed_of(self.seed, epoch, self.stream))
            self._arrays = {}
            try:
                row = {"epoch": epoch + 1, **self._train_epoch(progress)}
            except (MemoryError, RuntimeError) as error:
                if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
                    raise
                text = (str(error) or type(error).__name__).splitlines()[0]
                raise RuntimeError(
                    f"out of memory in epoch {epoch + 1} with batch_size={self.schedule.batch_size}; take a "
                    f"smaller one ({text:.200})"
                ) from error
            result = self._validate()
            row |= {f"val_{name}": value for name, value in result.items()}
            if self._may_be_tested() and result[self.criterion] > self.best[self.criterion]:
                # Kept with the checkpoint, so that weights and the epoch they belong to are written at once.
                best = {self.criterion: result[self.criterion], "epoch": epoch + 1}
                self.best = {**best, "weights": copy.deepcopy(self._weights())}
            row["seconds"] = round(time.perf_counter() - started, 3)
            row["cpu_seconds"] = round(time.process_time() - worked, 3)  # whatever else ran on the machine
            self.history.append(row)
            self._look_back()
            self._end_epoch()
            if progress:
                print(self._line(row), flush=True)
        return self.history

    def _end_epoch(self) -> None:
        """Save the run, then tell who asked; a run that continues therefore tells no epoch twice."""
        self._save()
        for tell in self.after_epoch:
            tell(self.history[-1])

    def _shown(self, items: Any, progress: bool) -> Any:
        """Return ``items`` with a bar in a terminal."""
        from tqdm import tqdm

        return tqdm(items, f"epoch {self.epoch + 1}", leave=False, disable=None if progress else True)

    def _add(self, totals: dict[str, Tensor], terms: Mapping[str, Tensor]) -> None:
        """Add the loss terms of a step to their sums; the device is waited for every few steps only."""
        for name, value in terms.items():
            totals[name] = totals.get(name, torch.zeros((), device=self.device)) + value.detach()
        self._added += 1
        if self._added % LOOK_EVERY == 0:
            self._check_losses(totals)

    def _check_losses(self, totals: Mapping[str, Tensor]) -> None:
        """Raise a RuntimeError that names the sums of loss terms which are not finite."""
        if bad := [f"loss_{name}" for name, value in totals.items() if not math.isfinite(value)]:
            raise RuntimeError(
                f"epoch {self.epoch + 1}, within {LOOK_EVERY} steps: {', '.join(bad)} is not finite. The "
                "features were checked as they were read, so training diverged; lower lr"
            )

    def _mean_losses(self, totals: Mapping[str, Tensor], steps: int) -> dict[str, float]:
        """Return the sums of loss terms as means ``loss_*``, or say which is not finite."""
        self._check_losses(totals)
        return {f"loss_{name}": float(value) / max(steps, 1) for name, value in totals.items()}

    def load_best(self) -> None:
        """Put the weights of the selected epoch in place, ready to test; errors of :func:`nclib.open_run`."""
        if "weights" not in self.best:
            try:
                self.best = self._read()["best"]
            except checkpoint.DamagedError as error:
                again = "take the file back from where it came, or delete the folder and run again"
                raise checkpoint.DamagedError(f"{error}; {again}") from error
        self._put(self.best["weights"])

    # -- checkpoints ------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.folder / CHECKPOINT

    def _save(self) -> None:
        if self._arrays:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **self._arrays)  # type: ignore[arg-type]
            name = f"{self.epoch + 1:03d}.npz"
            write_atomically(self.folder / ARRAYS / name, buffer.getvalue())
            self._kept[name] = digest(buffer.getvalue())
        so_far: dict[str, Any] = {"history": self.history, "best": self.best, "computed_on": self.computed_on}
        so_far |= {"warnings": self.warnings, "arrays": self._kept}
        checkpoint.save(self._file, {**self.identity, **self._state(), **so_far})

    def _resume(self) -> None:
        if self._file.exists():
            try:
                saved = self._read()
            except checkpoint.DamagedError as error:
                checkpoint.set_aside(self._file, str(error))
                return
            self.history, self.best = saved["history"], saved["best"]
            self.computed_on = saved["computed_on"]
            self.warnings += [text for text in saved["warnings"] if text not in self.warnings]
            self._kept = saved.get("arrays", {})
            self._load_state(saved)

    def _read(self) -> dict[str, Any]:
        saved = checkpoint.load(self._file)
        for key, value in self.identity.items():
            if saved.get(key) != value:
                what = "settings or code" if key == "fingerprint" else key
                raise ValueError(
                    f"{self._file} belongs to a run with other {what}; take another out or delete it"
                )
        return saved


def epoch_arrays(folder: str | Path) -> dict[int, dict[str, np.ndarray]]:
    """Return the arrays that a run kept, by epoch (1-based) and name.

    Parameters
    ----------
    folder : path
        Of the run: ``record.folder``.

    Returns
    -------
    dict of int to dict of str to ndarray
        The epoch, from 1, and the name of each array; empty where the run kept none.

    Raises
    ------
    FileNotFoundError
        When the checkpoint of the run, or a file of arrays that it names, is not there.
    ValueError
        When a file is damaged, was changed, or is that of another epoch or run: checkpoints hold digests.
    """
    folder, result = Path(folder), dict[int, dict[str, np.ndarray]]()
    for name, stated in checkpoint.load(folder / CHECKPOINT).get("arrays", {}).items():
        path = folder / ARRAYS / name
        data = path.read_bytes()
        if digest(data) != stated:
            raise ValueError(
                f"{path} was changed, or belongs to another epoch or run: its checkpoint states another "
                "digest. Take the file back from where it came, or run again with another out"
            )
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            result[int(path.stem)] = {array: file[array] for array in file.files}
    return result
