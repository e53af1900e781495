"""One run from settings to record: any method on any model, any data, any noise.

``nclib.run(method="l2rm", mrate=0.6)`` is the whole interface; the notebooks call it too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nclib import category, data, methods, models
from nclib._options import Rule, make, option, plain_values, rules
from nclib._settings import as_plain, check_data_options, checked, noise_digest
from nclib.data.registry import datasets
from nclib.evaluation import dual_softmax, map_at_r, recall, relevant_recall
from nclib.noise import Mismatch
from nclib.presets import PRESETS, preset
from nclib.records import RECORDED, Record, environment, peak_memory_mb
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
    noise_file: str = option("", help="a noise index file instead of a draw; mrate and protocol are its own")
    seed: int = option(0, low=0, high=2**31 - 1, help="seed of noise, weights and batches")
    preset: str = option("quick", choices=PRESETS, help="size of the run")
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, ...")
    threads: int = option(0, low=0, help="CPU threads; 0: as many as torch takes")
    out: str = option("runs", help="folder for records, checkpoints and arrays")


DICTS = ("model_options", "data_options")


def parameters(method: str) -> dict[str, Rule]:
    """Return every parameter of a run with ``method`` and what it may be, by name."""
    return {**rules(RunOptions), **rules(Schedule), **rules(methods.options(method))}


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
    values = plain_values(namespace)
    own = set(extra) - set(parameters(method) if method else ())
    return {k: v for k, v in _checked(values, method, extra).items() if k not in own}


def _checked(values: Mapping[str, Any], method: str | None, extra: Mapping[str, Rule]) -> dict[str, Any]:
    return checked(
        values,
        {**(parameters(method) if method else {}), **extra},
        mappings=DICTS if method else (),
        names={"dataset": data.available(), "model": models.available()},
    )


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
        One of ``nclib.methods.available()``; a name in ``nclib.category.available()`` goes, with ``values``,
        to ``nclib.category.run``, whose parameters are others.
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
    if method not in methods.available() and method in category.available():
        given = {"model_options": model_options, "data_options": data_options}
        values |= {k: v for k, v in given.items() if v is not None}
        return category.run(method, progress=progress, **values)
    settings = resolve(method, model_options=model_options, data_options=data_options, **values)
    folder = Path(settings["out"]) / run_name(settings)
    if (folder / "record.json").exists():
        done = Record.load(folder / "record.json")
        if progress:
            print(f"already done on {done.environment['device']}: {folder / 'record.json'}")
        return done
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
    values |= {"model_options": model_options, "data_options": data_options}
    given = _checked({k: as_plain(v) for k, v in values.items()}, method, {})
    chosen, where = (given.get(k, getattr(RunOptions, k)) for k in ("preset", "dataset"))
    common, model_preset, data_preset = preset(chosen, where, method, given.get("model", RunOptions.model))
    merged = {**common, **given}

    def part(cls: type) -> dict[str, Any]:
        return asdict(make(cls, {k: v for k, v in merged.items() if k in rules(cls)}))

    settings = {
        "method": method,
        **part(RunOptions),
        **part(Schedule),
        "method_options": part(methods.options(method)),
        "model_options": {**model_preset, **given.get("model_options", {})},
        "data_options": {**data_preset, **given.get("data_options", {})},
    }
    if settings["epochs"] + settings["warmup_epochs"] == 0:
        raise ValueError("epochs=0 and warmup_epochs=0: nothing to train")
    check_data_options(datasets, settings["dataset"], settings["data_options"])
    if settings["noise_file"]:
        settings |= {"mrate": None, "protocol": "file", "noise_sha256": noise_digest(settings["noise_file"])}
    return settings


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return a digest of everything that decides a run's numbers: its settings and nclib's code."""
    decisive = {k: v for k, v in settings.items() if k not in ("out", "device")}
    return hashlib.sha256(json.dumps([decisive, _code()], sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _code() -> str:
    """Return a digest of the package's code and bundled files, as they were when first asked for."""
    h = hashlib.sha256()
    root = Path(__file__).parent
    above = {"records.py", "plots.py", "presets.py"}  # they look at a run, or feed its settings
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".npz", ".png") and path.name not in above:
            h.update(path.read_bytes())
    return h.hexdigest()


def run_name(settings: Mapping[str, Any]) -> str:
    """Return the folder name of a run: readable, and unique by its fingerprint."""
    s = settings
    noise = f"file-{s['noise_sha256'][:8]}" if s["noise_file"] else f"m{s['mrate']:g}-{s['protocol']}"
    return f"{s['method']}-{s['model']}-{s['dataset']}-{noise}-s{s['seed']}-{fingerprint(s)[:8]}"


def recorded_run(method: str, **values: Any) -> Record | None:
    """Return the recorded run of the book with exactly the settings that :func:`run` would use, if any."""
    wanted = resolve(method, **values)
    free = ("out", "device", "threads")
    for path in sorted(RECORDED.rglob("*.json")):
        try:
            record = Record.load(path)
        except ValueError:
            continue  # another kind of result
        if all(record.settings.get(k) == v for k, v in wanted.items() if k not in free):
            return record
    return None


def shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters of a run that do not belong to its method, to run another one likewise."""
    common = {*rules(RunOptions), *rules(Schedule), *DICTS}
    return {k: v for k, v in given.items() if k in common}


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


def _run(settings: dict[str, Any], folder: Path, device: torch.device, progress: bool) -> Record:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    trainer, dataset = load_trainer(settings, folder, device)
    noise = trainer.pairs.noise
    if progress:
        print(f"{folder.name}  [{settings['preset']}, {device}]\n{noise.describe()}")
    curves = trainer.fit(progress)
    trainer.load_best()
    started = time.perf_counter()
    metrics = test_metrics(trainer, dataset.test)
    test_seconds = time.perf_counter() - started
    best = trainer.best["epoch"]
    training = [row for row in curves if row["phase"] == "training"]
    known = {"epoch", "phase", "lr", "steps", "seconds"}
    record = Record(
        name=folder.name,
        settings={k: v for k, v in settings.items() if k != "out"},  # a place on one machine
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
            **metrics,
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

    Raises
    ------
    FileNotFoundError
        When the run's folder, which holds its weights, is not there.
    """
    with torch.random.fork_rng(devices=[]):
        trainer, dataset = load_trainer(record.settings, Path(record.folder), choose_device(device))
    trainer.load_best()
    return trainer, dataset
