"""One run from settings to record: any method on any model, any data, any noise.

``nclib.run(method="l2rm", mrate=0.6)`` is the whole interface; the notebooks call it too.
"""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from nclib import label_noise, data, methods, models
from nclib.runs.frame import Frame, cpu_threads, fingerprint, of_last_epoch, of_noise
from nclib.common.options import Rule, make, option, rules
from nclib.runs.settings import check_model_options
from nclib.data.registry import datasets
from nclib.evaluation import dual_softmax, map_at_r, recall, relevant_recall
from nclib.noise import Mismatch
from nclib.runs.presets import PRESETS, preset
from nclib.runs.record import Record
from nclib.runs.pair_trainer import NoisyPairs, Schedule, Trainer, choose_device

if TYPE_CHECKING:
    from nclib.data import Dataset, Split

__all__ = [
    "FRAME",
    "RunOptions",
    "build_networks",
    "check_parameters",
    "cpu_threads",
    "fingerprint",
    "kind_of",
    "load_trainer",
    "open_run",
    "parameters",
    "prepare_noise",
    "resolve",
    "run",
    "run_name",
    "shared",
    "test_metrics",
]


@dataclass(frozen=True)
class RunOptions:
    """What every run chooses, whatever its method."""

    dataset: str = option("emoji", help="name of the data; see nclib.data.available()")
    model: str = option("saf", help="name of the model; see nclib.models.available()")
    mrate: float = option(0.6, low=0, high=1, help="mismatch rate: share of training pairs made wrong")
    protocol: str = option("images", choices=("images", "captions", "pairs"), help="what is shuffled")
    noise_file: str = option("", help="a noise index file instead of a draw; mrate and protocol are its own")
    seed: int = option(0, low=0, high=2**31 - 1, help="seed of noise, weights and batches")
    preset: str = option("quick", choices=PRESETS, help="size of the run")
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, ...")
    threads: int = option(0, low=0, help="CPU threads; 0: as many as torch takes")
    out: str = option("runs", help="folder for records, checkpoints and arrays")


def _preset(name: str, dataset: str, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    values, model_options, data_options = preset(name, dataset, method, given.get("model", RunOptions.model))
    return {**values, "model_options": model_options, "data_options": data_options}


FRAME = Frame(
    options=RunOptions,
    schedule=Schedule,
    method_options=methods.options,
    preset=_preset,
    datasets=datasets,
    mappings=("model_options", "data_options"),
    catalogues={"dataset": data.available, "model": models.available},
    noise_from_file={"mrate": None, "protocol": "file"},
    record=Record,
)


def kind_of(method: str) -> ModuleType:
    """Return the module whose ``run``, ``resolve`` and ``parameters`` belong to a method.

    Parameters
    ----------
    method : str
        One of ``nclib.methods.available()`` or ``nclib.label_noise.available()``.

    Returns
    -------
    module
        :mod:`nclib.runs.pairs` for mismatched pairs, ``nclib.label_noise`` for wrong categories.

    Raises
    ------
    ValueError
        For an unknown name; the message lists those that there are.
    """
    pairs, labels = methods.available(), label_noise.available()
    if method in pairs:
        return sys.modules[__name__]
    if method in labels:
        return label_noise
    every = [*pairs, *labels]
    near = difflib.get_close_matches(str(method), every, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"method={method!r}: must be one of {', '.join(every)}{hint}")


def parameters(method: str) -> dict[str, Rule]:
    """Return every parameter of a run with ``method`` and what it may be, by name."""
    return FRAME.parameters(method)


def check_parameters(namespace: Mapping[str, Any], method: str | None, **extra: Rule) -> dict[str, Any]:
    """Check a notebook's parameters in its first code cell and return those that were given.

    Parameters
    ----------
    namespace : mapping
        ``globals()`` of the notebook: at that moment every plain value in it is a parameter. None means
        "as the preset says".
    method : str or None
        Method that the notebook runs; None when it runs none and all its parameters are ``extra``.
    **extra : Rule
        Further parameters that belong to the notebook itself, or stricter rules for those of the run.

    Returns
    -------
    dict
        Name and value of the parameters of :func:`run`.

    Raises
    ------
    ValueError
        Naming each unknown parameter, with the nearest known one, and each value out of range.
    """
    return FRAME.check_namespace(namespace, method, extra)


def run(
    method: str = "l2rm",
    *,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    progress: bool = True,
    **values: Any,
) -> Record:
    """Train one method on noisy pairs, test the selected epoch, and leave a record.

    A run lives in a folder named after its settings and the code. Called again, an unfinished run continues
    from its last epoch, exactly; a finished one is returned from its record.

    Parameters
    ----------
    method : str
        One of ``nclib.methods.available()``; a name in ``nclib.label_noise.available()`` goes, with ``values``,
        to ``nclib.label_noise.run``, whose parameters are others.
    model_options, data_options : mapping, optional
        Passed to ``nclib.models.build`` and ``nclib.data.load``, over those of the preset.
    progress : bool
        Print one line per epoch (and draw a bar in a terminal).
    **values
        ``dataset``, ``model``, ``mrate``, ``protocol``, ``noise_file``, ``seed``, ``preset``, ``device``,
        ``threads``, ``out``; ``batch_size``, ``warmup_epochs``, ``epochs``, ``lr``, ``decay_every``,
        ``clip``, ``precision``; and the method's own options. None means "as the preset says".

    Returns
    -------
    Record
        Also written to ``<out>/<run>/record.json``.

    Raises
    ------
    ValueError
        For an unknown name, a misspelt parameter or a value out of range, before anything is loaded.

    Examples
    --------
    >>> record = run("plain", dataset="planted", model="vse", epochs=1)  # doctest: +SKIP
    """
    if kind_of(method) is label_noise:
        given = {"model_options": model_options, "data_options": data_options}
        values |= {k: v for k, v in given.items() if v is not None}
        return label_noise.run(method, progress=progress, **values)
    settings = resolve(method, model_options=model_options, data_options=data_options, **values)
    folder = Path(settings["out"]) / run_name(settings)
    return FRAME.run(settings, folder, load_trainer, _run, progress)


def resolve(
    method: str = "l2rm",
    *,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Return the complete settings of a run: defaults, then the preset, then what was given.

    Raises
    ------
    ValueError
        As :func:`run`.
    """
    values |= {"model_options": model_options, "data_options": data_options}
    settings = FRAME.resolve(method, values)
    check_model_options(settings["model"], settings["model_options"])
    if settings["epochs"] + settings["warmup_epochs"] == 0:
        raise ValueError("epochs=0 and warmup_epochs=0: nothing to train")
    return settings


def run_name(settings: Mapping[str, Any]) -> str:
    """Return the folder name of a run: readable, and unique by its fingerprint."""
    s = settings
    noise = f"file-{s['noise_sha256'][:8]}" if s["noise_file"] else f"m{s['mrate']:g}-{s['protocol']}"
    return f"{s['method']}-{s['model']}-{s['dataset']}-{noise}-s{s['seed']}-{fingerprint(s)[:8]}"


def shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters of a run that do not belong to its method, to run another one likewise."""
    return FRAME.shared(given)


def prepare_noise(settings: Mapping[str, Any], train: Split) -> Mismatch:
    """Draw or read the mismatch that ``settings`` name."""
    if settings["noise_file"]:
        return Mismatch.from_file(
            settings["noise_file"], train.image_of, captions_per_image=train.captions_per_image
        )
    return Mismatch.draw(
        train.image_of, settings["mrate"], seed=settings["seed"], protocol=settings["protocol"]
    )


def build_networks(settings: Mapping[str, Any], dataset: Dataset, n: int) -> list[Any]:
    """Build ``n`` models with weights drawn from the run's seed."""
    networks = []
    for i in range(n):
        torch.manual_seed(settings["seed"] * 1000 + i)
        networks.append(
            models.build(
                settings["model"],
                feature_dim=dataset.feature_dim,
                vocab_size=dataset.vocabulary.size,
                n_regions=dataset.n_regions,
                **settings["model_options"],
            )
        )
    return networks


def load_trainer(settings: Mapping[str, Any], folder: Path, device: torch.device) -> tuple[Trainer, Dataset]:
    """Assemble data, noise, models, method and loop of a run, ready to :meth:`Trainer.fit`."""
    dataset = data.load(settings["dataset"], **settings["data_options"])
    noise = prepare_noise(settings, dataset.train)
    method = methods.build(settings["method"], **settings["method_options"])
    schedule = make(Schedule, {k: settings[k] for k in rules(Schedule)})
    trainer = Trainer(
        method,
        [method.prepare(network) for network in build_networks(settings, dataset, method.n_networks)],
        NoisyPairs(dataset.train, noise, truth_is_known=not dataset.details.get("pairs_as_found", False)),
        dataset.val,
        schedule,
        seed=settings["seed"],
        device=device,
        folder=folder,
        fingerprint=fingerprint(settings),
        data_checksum=dataset.checksum,
    )
    return trainer, dataset


def _run(settings: dict[str, Any], loaded: tuple[Trainer, Dataset], progress: bool) -> Record:
    trainer, dataset = loaded
    noise = trainer.pairs.noise
    if progress:
        print(f"{trainer.folder.name}  [{settings['preset']}, {trainer.device}]\n{noise.describe()}")
    curves = trainer.fit(progress)
    trainer.load_best()
    started = time.perf_counter()
    metrics = test_metrics(trainer, dataset.test)
    test_seconds = time.perf_counter() - started
    return FRAME.finish(
        settings,
        trainer,
        data={
            "name": dataset.name,
            "checksum": dataset.checksum,
            "train_pairs": len(trainer.pairs),
            "val_images": dataset.val.n_images,
            "test_images": dataset.test.n_images,
        },
        noise=of_noise(noise),
        metrics=metrics,
        diagnostics=of_last_epoch([row for row in curves if row["phase"] == "training"]),
        test_seconds=test_seconds,
        parameters=sum(p.numel() for network in trainer.networks for p in network.parameters()),
        progress=progress,
    )


def test_metrics(trainer: Trainer, split: Split) -> dict[str, dict[str, float]]:
    """Return the results on a split by name.

    ``test`` scores the mean similarity of all networks: recalls and, where the truth is known, retrieval
    metrics that count it. ``test_dsl`` adds dual-softmax post-processing. ``single``, for methods with
    several networks, is the mean result of the networks alone.
    """
    parts = trainer.scores(split)
    S, d = parts.mean(0), split.captions_per_image
    result = {"test": dict(recall(S, d)), "test_dsl": dict(recall(dual_softmax(S), d))}
    if split.has_relevance:
        truth = split.relevance()
        result["test"] |= map_at_r(S, truth)
        result["test"] |= {f"relevant_{k}": v for k, v in relevant_recall(S, truth).items()}
    if len(parts) > 1:
        alone = [recall(part, d) for part in parts]
        result["single"] = {k: sum(r[k] for r in alone) / len(alone) for k in alone[0]}
    return result


def open_run(record: Record, device: str = "cpu") -> tuple[Trainer, Dataset]:
    """Load the data and the selected weights of a finished run, to look at what it learned.

    Parameters
    ----------
    record : Record
        Of the run; its ``folder`` must hold the checkpoint.
    device : str
        ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...

    Returns
    -------
    trainer : Trainer
        With the weights of the selected epoch in its ``networks``, in eval mode.
    dataset : Dataset
        The data of the run.

    Raises
    ------
    FileNotFoundError
        When the run's folder, which holds its weights, is not there.
    ValueError
        When the checkpoint is damaged or belongs to other settings, data or code, or there is no such device.
    """
    with torch.random.fork_rng(devices=[]):
        trainer, dataset = load_trainer(record.settings, Path(record.folder), choose_device(device))
    trainer.load_best()
    return trainer, dataset
