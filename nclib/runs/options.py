"""Typed, frozen settings of a run: options of every run, schedule, and options of the method."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from typing_extensions import TypedDict

from nclib.common.options import option
from nclib.common.precision import PRECISIONS
from nclib.models.compiled import MODES
from nclib.noise import LABEL_PROTOCOLS, LABEL_SCOPES, PROTOCOLS
from nclib.runs.identity import UNSAID
from nclib.runs.optimizers import OPTIMIZERS
from nclib.runs.presets import PRESETS

NARROW = {"float16": np.float16, "float32": np.float32}  # of scalars whose digits a float prints in full
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class RunOptions:
    """Options of every run, whatever its task and method."""

    dataset: str = option("emoji", help="name of the data; see nclib.data.available()")
    seed: int = option(0, low=0, high=LARGEST_SEED, help="seed of noise, weights and batches")
    noise_seed: int | None = option(
        None, kind=int, low=0, high=LARGEST_SEED, help="seed of the noise alone; by default seed"
    )
    noise_file: str = option("", help="file that gives the noise; then no rate and no protocol are chosen")
    preset: str = option("quick", choices=PRESETS, help="size of the run")
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, ...")
    threads: int = option(0, low=0, high=1024, help="CPU threads; 0: torch's own choice")
    out: str = option("runs", help="folder for records, checkpoints and arrays")

    @property
    def drawn_with(self) -> int:
        """Seed of the noise."""
        return self.seed if self.noise_seed is None else self.noise_seed


@dataclass(frozen=True)
class PairOptions(RunOptions):
    """Options of a run on mismatched pairs."""

    model: str = option("saf", help="name of the model; see nclib.models.available()")
    mrate: float | None = option(
        0.0, low=0, high=1, help="mismatch rate: share of training pairs made wrong; noise_rate is a synonym"
    )
    protocol: str = option("images", choices=tuple(PROTOCOLS), help="what is shuffled")
    networks: int = option(
        1, low=1, high=100, help="networks trained apart on the same noise, whose mean similarity is tested"
    )
    compile: str = option("auto", choices=MODES, help="auto: comparisons are compiled on a GPU; off: never")
    pictures_on: str = option(
        "auto",
        choices=("auto", "host", "device"),
        help="memory that holds the training pictures; auto: a GPU's, where a third of what is free suffices",
    )

    @property
    def noise_rate(self) -> float | None:
        """Same as ``mrate``, under the name that both tasks know."""
        return self.mrate


@dataclass(frozen=True)
class LabelOptions(RunOptions):
    """Options of a run on wrong labels."""

    dataset: str = option("emoji_category", help="name of the data; see nclib.data.available()")
    noise_rate: float | None = option(0.0, low=0, high=1, help="share of training labels that are redrawn")
    protocol: str = option("symmetric", choices=tuple(LABEL_PROTOCOLS), help="how labels are redrawn")
    scope: str = option(
        "modality", choices=LABEL_SCOPES, help="noise for images and texts apart, or per pair"
    )


@dataclass(frozen=True)
class PairSchedule:
    """How long and how fast to train on pairs."""

    batch_size: int = option(128, low=2, help="pairs in a batch")
    warmup_epochs: int = option(5, low=0, help="epochs of warm-up on all pairs")
    epochs: int = option(35, low=0, help="training epochs after warm-up")
    optimizer: str = option("adam", choices=OPTIMIZERS, help="rule of the steps")
    lr: float = option(2e-4, above=0, help="learning rate")
    decay_every: int = option(15, low=1, help="training epochs after which the rate falls")
    decay_factor: float = option(0.1, above=0, high=1, help="what is left of the rate when it falls")
    decay_again: int = option(0, low=0, help="training epochs after which it falls once more; 0: never")
    decay: str = option(
        "steps", choices=("steps", "cosine"), help="cosine: to 0 in decay_every epochs, again after each fall"
    )
    weight_decay: float = option(0.0, low=0, help="decoupled weight decay, as of AdamW")
    grad_clip: float = option(2.0, above=0, help="largest norm of a network's gradient")
    precision: str = option("fp32", choices=PRECISIONS, help="of products; auto: tf32 on a GPU, else fp32")

    def share(self, epoch: int) -> float:
        """Return what is left of the learning rate in a training epoch, counted from 0.

        Examples
        --------
        >>> schedule = PairSchedule(decay_every=15, decay_again=25)
        >>> [schedule.share(epoch) for epoch in (14, 15, 25)]
        [1.0, 0.1, 0.010000000000000002]
        """
        falls, since = divmod(epoch, self.decay_every)
        share = self.decay_factor ** (falls + (0 < self.decay_again <= epoch))
        if self.decay == "cosine":
            share *= (1 + math.cos(math.pi * since / self.decay_every)) / 2
        return share


@dataclass(frozen=True)
class LabelSchedule:
    """How long and how fast to train on labels, and the size of the networks; closed forms ignore it."""

    batch_size: int = option(100, low=1, help="pairs in a batch")
    epochs: int = option(100, low=1, help="epochs, warm-up included, unlike for pairs")
    lr: float = option(1e-4, above=0, help="learning rate")
    lr_schedule: str = option("cosine", choices=("cosine", "constant"), help="the rate falls to 0, or stays")
    hidden: int = option(4096, low=1, help="width of hidden layers")
    dim: int = option(512, low=1, help="width L of the common space")


class RunParameters(TypedDict, total=False, extra_items=Any):  # type: ignore[call-arg]  # PEP 728
    """Parameters of :func:`nclib.run` by name; options of the method are further items.

    Each is a field of :class:`PairOptions`, :class:`PairSchedule`, :class:`LabelOptions` or
    :class:`LabelSchedule`, which hold what it may be and what it means. None is "as the preset says".
    ``Experiment.resolve`` makes :class:`Settings` of them: ``mrate`` is ``settings.run.mrate``, ``lr`` is
    ``settings.schedule.lr``, and L2RM's ``rho`` is ``settings.method_options.rho``.
    """

    # Of every run.
    dataset: str | None
    seed: int | None
    noise_seed: int | None
    noise_file: str | PathLike[str] | None
    preset: str | None
    device: str | torch.device | None
    threads: int | None
    out: str | PathLike[str] | None
    batch_size: int | None
    epochs: int | None
    lr: float | None
    noise_rate: float | None  # of pairs another name of mrate
    protocol: str | None
    data_options: Mapping[str, Any] | None  # passed to the loader of the data
    # Of runs on pairs.
    model: str | None
    mrate: float | None
    networks: int | None
    compile: str | None
    pictures_on: str | None
    warmup_epochs: int | None
    optimizer: str | None
    decay_every: int | None
    decay_factor: float | None
    decay_again: int | None
    decay: str | None
    weight_decay: float | None
    grad_clip: float | None
    precision: str | None
    model_options: Mapping[str, Any] | None  # passed to the model
    # Of runs on labels.
    scope: str | None
    lr_schedule: str | None
    hidden: int | None
    dim: int | None


O = TypeVar("O", bound=RunOptions)  # noqa: E741
S = TypeVar("S", PairSchedule, LabelSchedule)


@dataclass(frozen=True)
class Settings(Generic[O, S]):
    """Complete settings of a run, checked and frozen.

    Parameters
    ----------
    method : str
    run : PairOptions or LabelOptions
    schedule : PairSchedule or LabelSchedule
    method_options : dataclass
        Of the type ``Options`` of the method.
    data_options : mapping
        Passed to the loader of the data.
    model_options : mapping, optional
        Passed to the model; None where the method builds its own networks.
    noise_sha256 : str
        Digest of the noise file; empty without one.
    files_sha256 : mapping
        Digests of the other files that options of the model and the data name, by mapping and option.

    Examples
    --------
    >>> import nclib
    >>> settings = nclib.resolve("l2rm", mrate=0.4, rho=0.2)
    >>> settings.run.mrate, settings.schedule.batch_size, settings.method_options.rho
    (0.4, 32, 0.2)
    """

    method: str
    run: O
    schedule: S
    method_options: Any
    data_options: Mapping[str, Any]
    model_options: Mapping[str, Any] | None = None
    noise_sha256: str = ""
    files_sha256: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """Return the settings as the flat dict of plain values that records hold, without :data:`UNSAID`."""
        run = {k: v for k, v in asdict(self.run).items() if k not in UNSAID or v != UNSAID[k]}
        values = {"method": self.method, **run, **asdict(self.schedule)}
        values |= {"method_options": asdict(self.method_options), "data_options": dict(self.data_options)}
        if self.model_options is not None:
            values["model_options"] = dict(self.model_options)
        if self.noise_sha256:
            values["noise_sha256"] = self.noise_sha256
        if self.files_sha256:
            values["files_sha256"] = {k: dict(v) for k, v in self.files_sha256.items()}
        return values


def as_plain(value: Any) -> Any:
    """Turn NumPy scalars, paths and devices, in mappings of any depth, into plain values of JSON.

    A float of fewer digits, such as ``np.float32(0.6)``, is its shortest decimal, 0.6: what was meant.
    """
    if isinstance(value, Mapping):
        return {str(k): as_plain(v) for k, v in value.items()}
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        narrow = NARROW.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
        return float(str(narrow(value.item()))) if narrow else value.item()
    return str(value) if isinstance(value, (os.PathLike, torch.device)) else value
