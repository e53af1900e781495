"""One run of category retrieval from settings to record: any method, any data, any label noise."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nclib.common.options import Rule, make, option, rules
from nclib.data import category as data
from nclib.label_noise import build, options
from nclib.label_noise.base import DeepMethod, Shape, Training
from nclib.noise import LABEL_PROTOCOLS, LABEL_SCOPES, LabelNoise
from nclib.runs.frame import Frame, fingerprint, of_last_epoch, of_noise
from nclib.runs.label_presets import preset
from nclib.runs.label_record import CategoryRecord
from nclib.runs.label_trainer import CategorySchedule, CategoryTrainer
from nclib.runs.pair_trainer import choose_device, epoch_arrays
from nclib.runs.presets import PRESETS

LARGEST_CONFUSION = 50  # classes up to which a record holds the matrix of corrected labels


@dataclass(frozen=True)
class CategoryOptions:
    """What every run chooses, whatever its method."""

    dataset: str = option("emoji_category", help="name of the data; see nclib.data.category.available()")
    noise_rate: float = option(0.4, low=0, high=1, help="share of training labels that are redrawn")
    noise: str = option("symmetric", choices=tuple(LABEL_PROTOCOLS), help="how labels are redrawn")
    noise_scope: str = option(
        "modality", choices=LABEL_SCOPES, help="noise for images and texts apart, or per pair"
    )
    noise_file: str = option("", help="a file of noisy labels instead of a draw")
    seed: int = option(0, low=0, high=2**31 - 1, help="seed of noise, weights and batches")
    preset: str = option("quick", choices=PRESETS, help="size of the run")
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, ...")
    threads: int = option(0, low=0, help="CPU threads; 0: as many as torch takes")
    out: str = option("runs", help="folder for records, checkpoints and arrays")


FRAME = Frame(
    options=CategoryOptions,
    schedule=CategorySchedule,
    method_options=options,
    preset=lambda name, dataset, method, given: preset(name, dataset, method),
    datasets=data.category_datasets,
    mappings=("data_options",),
    catalogues={"dataset": data.available},
    noise_from_file={"noise_rate": None, "noise": "file", "noise_scope": "file"},
    record=CategoryRecord,
    in_one_process="runs of category retrieval",
)


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


def resolve(
    method: str = "uot_rcl", *, data_options: Mapping[str, Any] | None = None, **values: Any
) -> dict[str, Any]:
    """Return the complete settings of a run: defaults, then the preset, then what was given.

    Raises
    ------
    ValueError
        As :func:`run`.
    """
    return FRAME.resolve(method, {**values, "data_options": data_options})


def run(
    method: str = "uot_rcl",
    *,
    data_options: Mapping[str, Any] | None = None,
    progress: bool = True,
    **values: Any,
) -> CategoryRecord:
    """Train one method of category retrieval, test the selected epoch, and leave a record.

    A run lives in a folder named after its settings and the code. Called again, an unfinished run continues
    from its last epoch, exactly; a finished one is returned from its record.

    Parameters
    ----------
    method : str
        One of ``nclib.label_noise.available()``.
    data_options : mapping, optional
        Passed to ``nclib.data.category.load``.
    progress : bool
        Print one line per epoch (and draw a bar in a terminal).
    **values
        ``dataset``, ``noise_rate``, ``noise``, ``noise_scope``, ``noise_file``, ``seed``, ``preset``,
        ``device``, ``threads``, ``out``; ``batch_size``, ``epochs``, ``lr``, ``lr_schedule``, ``hidden``,
        ``dim``; and the method's own options. None means "as the preset says".

    Returns
    -------
    CategoryRecord
        Also written to ``<out>/<run>/record.json``.

    Raises
    ------
    ValueError
        For an unknown name, a misspelt parameter or a value out of range, before anything is loaded.

    Examples
    --------
    >>> record = run("mrl", noise_rate=0.4, epochs=1)  # doctest: +SKIP
    """
    settings = resolve(method, data_options=data_options, **values)
    folder = Path(settings["out"]) / run_name(settings)
    return FRAME.run(settings, folder, load_trainer, _run, progress)


def run_name(settings: Mapping[str, Any]) -> str:
    """Return the folder name of a run: readable, and unique by its fingerprint."""
    s = settings
    noise = f"file-{s['noise_sha256'][:8]}" if s["noise_file"] else f"n{s['noise_rate']:g}-{s['noise']}"
    return f"{s['method']}-{s['dataset']}-{noise}-s{s['seed']}-{fingerprint(s)[:8]}"


def shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters of a run that do not belong to its method, to run another one likewise."""
    return FRAME.shared(given)


def prepare_noise(settings: Mapping[str, Any], dataset: data.CategoryData) -> LabelNoise:
    """Draw or read the training labels that ``settings`` name."""
    k, truth = dataset.n_classes, dataset.train.labels
    if settings["noise_file"]:
        return LabelNoise.from_file(settings["noise_file"], truth, n_classes=k)
    return LabelNoise.draw(
        truth,
        settings["noise_rate"],
        n_classes=k,
        seed=settings["seed"],
        protocol=settings["noise"],
        scope=settings["noise_scope"],
    )


def load_trainer(
    settings: Mapping[str, Any], folder: Path, device: torch.device
) -> tuple[CategoryTrainer, data.CategoryData, LabelNoise]:
    """Assemble data, noise, method, networks and loop of a run, ready to :meth:`CategoryTrainer.fit`."""
    dataset = data.load(settings["dataset"], **settings["data_options"])
    noise = prepare_noise(settings, dataset)
    method = build(settings["method"], **settings["method_options"])
    schedule = make(CategorySchedule, {k: settings[k] for k in rules(CategorySchedule)})
    train = Training(
        torch.from_numpy(dataset.train.images),
        torch.from_numpy(dataset.train.texts),
        torch.from_numpy(noise.image_labels),
        torch.from_numpy(noise.text_labels),
        dataset.n_classes,
    )
    network = None
    if isinstance(method, DeepMethod):
        torch.manual_seed(settings["seed"])
        network = method.build(
            Shape(
                dataset.image_dim,
                dataset.text_dim,
                dataset.n_classes,
                hidden=schedule.hidden,
                dim=schedule.dim,
            )
        )
    trainer = CategoryTrainer(
        method,
        network,
        train,
        dataset.train.labels,
        dataset.val,
        schedule,
        seed=settings["seed"],
        device=device,
        folder=folder,
        identity={"fingerprint": fingerprint(settings), "noise": noise.checksum, "data": dataset.checksum},
    )
    return trainer, dataset, noise


def _run(
    settings: dict[str, Any], loaded: tuple[CategoryTrainer, data.CategoryData, LabelNoise], progress: bool
) -> CategoryRecord:
    trainer, dataset, noise = loaded
    if progress:
        print(f"{trainer.folder.name}  [{settings['preset']}, {trainer.device}]\n{noise.describe()}")
    curves = trainer.fit(progress)
    last = trainer.evaluate(dataset.test)
    trainer.load_best()
    started = time.perf_counter()
    test = trainer.evaluate(dataset.test)
    test_seconds = time.perf_counter() - started
    given = {
        "given_accuracy_image": float((noise.image_labels == noise.truth).mean()),
        "given_accuracy_text": float((noise.text_labels == noise.truth).mean()),
        "given_accuracy": 1 - noise.true_rate,
    }
    network = trainer.network
    return FRAME.finish(
        settings,
        trainer,
        data={
            "name": dataset.name,
            "checksum": dataset.checksum,
            "train_pairs": len(dataset.train),
            "val_pairs": len(dataset.val),
            "test_pairs": len(dataset.test),
            "classes": dataset.n_classes,
        },
        noise={**of_noise(noise), "scope": noise.scope},
        metrics={"test": test, "last": last},
        diagnostics={
            **given,
            **of_last_epoch(curves),
            **corrected_confusion(trainer.folder, noise.truth, trainer.best["epoch"]),
        },
        test_seconds=test_seconds,
        parameters=sum(p.numel() for p in network.parameters()) if network is not None else 0,
        progress=progress,
    )


def corrected_confusion(folder: Path, truth: np.ndarray, epoch: int) -> dict[str, Any]:
    """Return where the mass of every true class went, for methods that keep corrected labels.

    Parameters
    ----------
    folder : Path
        Of the run.
    truth : ndarray, int64, (N,)
        True classes.
    epoch : int
        The epoch to look at, from 1; the nearest with corrected labels is taken.

    Returns
    -------
    dict
        ``confusion``: K rows of K shares, true classes in rows, rows sum to 1, or 0;
        ``confusion_epoch``. Empty when no labels were corrected, or for more than 50 classes.
    """
    kept = {e: x["corrected"] for e, x in epoch_arrays(folder).items() if "corrected" in x}
    if not kept or next(iter(kept.values())).shape[1] > LARGEST_CONFUSION:
        return {}
    nearest = min(kept, key=lambda e: abs(e - epoch))
    corrected = kept[nearest].astype(np.float64)
    k = corrected.shape[1]
    mass = np.zeros((k, k))
    np.add.at(mass, truth, corrected)
    share = mass / np.maximum(mass.sum(1, keepdims=True), 1e-12)
    return {"confusion": share.round(4).tolist(), "confusion_epoch": nearest}


def open_run(
    record: CategoryRecord, device: str = "cpu"
) -> tuple[CategoryTrainer, data.CategoryData, LabelNoise]:
    """Load data, noise and the selected weights of a finished run, to look at what it learned.

    Raises
    ------
    FileNotFoundError
        When the run's folder, which holds its weights, is not there.
    """
    with torch.random.fork_rng(devices=[]):
        trainer, dataset, noise = load_trainer(record.settings, Path(record.folder), choose_device(device))
    trainer.load_best()
    return trainer, dataset, noise
