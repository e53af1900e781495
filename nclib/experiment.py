"""One run from settings to record: any method on any model, any data, any noise.

``nclib.run(method="l2rm", mrate=0.6)`` is the whole interface; the notebooks call it too.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nclib import data, methods, models
from nclib._options import Rule, make, option, plain_values, problems, rules
from nclib.evaluation import map_at_r, recall, relevant_recall
from nclib.noise import Mismatch
from nclib.presets import PRESETS, preset
from nclib.records import Record, environment, peak_memory_mb
from nclib.training import NoisyPairs, Schedule, Trainer, choose_device

if TYPE_CHECKING:
    from nclib.data import Dataset, Split


@dataclass(frozen=True)
class RunOptions:
    """What every run chooses, whatever its method."""

    dataset: str = option("emoji", help="name of the data; see nclib.data.available()")
    model: str = option("saf", help="name of the model; see nclib.models.available()")
    mrate: float = option(0.6, low=0, high=1, help="mismatch rate: share of training pairs made wrong")
    protocol: str = option("images", choices=("images", "captions", "pairs"), help="what is shuffled")
    noise_file: str = option("", help="a published noise index file, instead of a draw")
    seed: int = option(0, low=0, help="seed of noise, weights and batches")
    preset: str = option("quick", choices=PRESETS, help="size of the run")
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, ...")
    threads: int = option(0, low=0, help="CPU threads; 0: as many as torch takes")
    out: str = option("runs", help="folder for records, checkpoints and arrays")


DICTS = ("model_options", "data_options")


def parameters(method: str) -> dict[str, Rule]:
    """Return every parameter of a run with ``method`` and what it may be, by name."""
    return {**rules(RunOptions), **rules(Schedule), **rules(methods.options(method))}


def check_parameters(namespace: Mapping[str, Any], method: str, **extra: Rule) -> dict[str, Any]:
    """Check a notebook's parameters in its first code cell and return those that were given.

    Parameters
    ----------
    namespace : mapping
        ``globals()`` of the notebook: at that moment every plain value in it is a parameter. None means
        "as the preset says".
    method : str
        Method that the notebook runs.
    **extra : Rule
        Further parameters that belong to the notebook itself.

    Returns
    -------
    dict
        Name and value of the parameters of :func:`run`.

    Raises
    ------
    ValueError
        Naming each unknown parameter, with the nearest known one, and each value out of range.
    """
    values = {k: v for k, v in plain_values(namespace).items() if v is not None and k not in DICTS}
    found = problems(values, {**parameters(method), **extra})
    for name, names in (("dataset", data.available()), ("model", models.available())):
        if name in values and values[name] not in names:
            found.append(f"{name}={values[name]!r}: must be one of {', '.join(names)}")
    if found:
        raise ValueError("bad parameters: " + "; ".join(found))
    given = {k: v for k, v in values.items() if k not in extra}
    return given | {k: v for k, v in plain_values(namespace).items() if k in DICTS}


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
        One of ``nclib.methods.available()``.
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
    >>> record = run("plain", dataset="planted", model="vse", epochs=1, out="/tmp/runs")  # doctest: +SKIP
    """
    settings = resolve(method, model_options=model_options, data_options=data_options, **values)
    folder = Path(settings["out"]) / run_name(settings)
    if (folder / "record.json").exists():
        if progress:
            print(f"already done: {folder / 'record.json'}")
        return Record.load(folder / "record.json")
    device = choose_device(settings["device"])
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        cpu_threads(settings["threads"]),
    ):
        return _run(settings, folder, device, progress)


@contextmanager
def cpu_threads(n: int) -> Iterator[None]:
    """Run with ``n`` CPU threads (0: leave the number alone) and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    given = check_parameters(values, method)
    chosen, where = (given.get(k, getattr(RunOptions, k)) for k in ("preset", "dataset"))
    common, model_preset, data_preset = preset(chosen, where)
    merged = {**common, **given}

    def part(cls: type) -> dict[str, Any]:
        return asdict(make(cls, {k: v for k, v in merged.items() if k in rules(cls)}))

    return {
        "method": method,
        **part(RunOptions),
        **part(Schedule),
        "method_options": part(methods.options(method)),
        "model_options": {**model_preset, **(model_options or {})},
        "data_options": {**data_preset, **(data_options or {})},
    }


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return a digest of everything that decides a run's numbers: its settings and nclib's code."""
    decisive = {k: v for k, v in settings.items() if k not in ("out", "device")}
    h = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
    root = Path(__file__).parent
    above = {"records.py", "plots.py", "experiment.py", "presets.py"}  # they look at a run, or feed settings
    for path in sorted(root.rglob("*.py")):
        if path.name not in above:
            h.update(path.read_bytes())
    return h.hexdigest()[:16]


def run_name(settings: Mapping[str, Any]) -> str:
    """Return the folder name of a run: readable, and unique by its fingerprint."""
    s = settings
    return (
        f"{s['method']}-{s['model']}-{s['dataset']}-m{s['mrate']:g}-{s['protocol']}-s{s['seed']}"
        f"-{fingerprint(s)[:8]}"
    )


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
        build_networks(settings, dataset, method.n_networks),
        NoisyPairs(dataset.train, noise),
        dataset.val,
        schedule,
        seed=settings["seed"],
        device=device,
        folder=folder,
        fingerprint=fingerprint(settings),
    )
    return trainer, dataset


def _run(settings: dict[str, Any], folder: Path, device: torch.device, progress: bool) -> Record:
    trainer, dataset = load_trainer(settings, folder, device)
    noise = trainer.pairs.noise
    if progress:
        print(f"{run_name(settings)}  [{settings['preset']}, {device}]\n{noise.describe()}")
    curves = trainer.fit(progress)
    trainer.load_best()
    started = time.perf_counter()
    test = test_metrics(trainer, dataset.test)
    test_seconds = time.perf_counter() - started
    best = trainer.best["epoch"]
    training = [row for row in curves if row["phase"] == "training"]
    known = {"epoch", "phase", "lr", "steps", "seconds"}
    record = Record(
        name=run_name(settings),
        settings=settings,
        data={
            "name": dataset.name,
            "checksum": dataset.checksum,
            "train_pairs": len(trainer.pairs),
            "val_images": dataset.val.n_images,
            "test_images": dataset.test.n_images,
        },
        noise={
            "protocol": noise.protocol,
            "rate": noise.rate,
            "seed": noise.seed,
            "true_rate": noise.true_rate,
            "checksum": noise.checksum,
            "description": noise.describe(),
        },
        metrics={
            "val": {k[4:]: v for k, v in curves[best - 1].items() if k.startswith("val_")},
            "test": test,
        },
        curves=curves,
        diagnostics={
            k: v
            for k, v in (training[-1] if training else {}).items()
            if k not in known and not k.startswith(("val_", "loss_"))
        },
        best_epoch=best,
        cost={
            "seconds": round(sum(row["seconds"] for row in curves), 2),
            "test_seconds": round(test_seconds, 2),
            "peak_memory_mb": round(peak_memory_mb(device), 1),
            "parameters": sum(p.numel() for network in trainer.networks for p in network.parameters()),
        },
        environment=environment(device),
        folder=str(folder),
    )
    record.save(folder / "record.json")
    if progress:
        print(record)
    return record


def test_metrics(trainer: Trainer, split: Split) -> dict[str, float]:
    """Return recalls on a split and, where the truth is known, retrieval metrics that count it."""
    S = trainer.score(split)
    result: dict[str, float] = dict(recall(S, split.captions_per_image))
    if split.has_relevance:
        truth = split.relevance()
        result |= map_at_r(S, truth)
        result |= {f"relevant_{k}": v for k, v in relevant_recall(S, truth).items()}
    return result


def open_run(record: Record, device: str = "cpu") -> tuple[Trainer, Dataset]:
    """Load the data and the selected weights of a finished run, to look at what it learned.

    Raises
    ------
    FileNotFoundError
        When the run's folder, which holds its weights, is not there.
    """
    trainer, dataset = load_trainer(record.settings, Path(record.folder), choose_device(device))
    trainer.load_best()
    return trainer, dataset
