"""One run from a keyword to its record: the class :class:`Experiment`, with a subclass for each task.

A subclass names the parameters and says how a run is loaded, trained and evaluated:
:class:`nclib.runs.pairs.PairExperiment` and :class:`nclib.runs.labels.LabelExperiment`.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from nclib import data
from nclib.common.files import content_digest, digest
from nclib.common.lock import sole_writer
from nclib.common.options import Rule, did_you_mean, make, missing_options, problems, refuse, rules
from nclib.common.precision import products, resolved
from nclib.common.registry import Registry
from nclib.common.source import own_code
from nclib.data import CategoryData, Dataset
from nclib.data.registry import datasets
from nclib.models import compiling
from nclib.noise import LabelNoise, Mismatch
from nclib.runs import checkpoint
from nclib.runs.identity import JOINED, removed_options, without_removed
from nclib.runs.loop import Place, SavedLoop, kept_warnings
from nclib.runs.machine import choose_device, environment, numbers_fixed, peak_memory_mb
from nclib.runs.options import RunOptions, Settings, as_plain
from nclib.runs.paths import DATA
from nclib.runs.record import Record
from nclib.runs.request import Request
from nclib.runs.tracking import reporter

OPTIONS_OF = {"dataset": "data_options", "model": "model_options"}
IN_EVERY_ROW = ("epoch", "phase", "lr", "steps", "idle", "starved", "seconds", "cpu_seconds")  # of the curves

TIMES = ("seconds", "cpu_seconds")  # a run that an earlier version began has no CPU seconds

T = TypeVar("T", bound=SavedLoop)
D = TypeVar("D", Dataset, CategoryData)
N = TypeVar("N", Mismatch, LabelNoise)


@dataclass(frozen=True)
class LoadedRun(Generic[T, D, N]):
    """The objects of a run: trainer, data and noise, each of the run's task."""

    trainer: T
    dataset: D
    noise: N


@dataclass(frozen=True)
class Work:
    """What making a run needs besides its settings and data.

    Parameters
    ----------
    request : Request
    folder : Path
        Of the run.
    damage : str
        What is wrong with the record that lies there; empty without one.
    progress : bool
    tracker : object or None
    reports : list of callable
        Told each row of the curves, among them the tracker.
    warnings : list of str
        Gets the texts of the run's warnings.
    """

    request: Request
    folder: Path
    damage: str
    progress: bool
    tracker: Any
    reports: list[Callable[[Mapping[str, Any]], None]]
    warnings: list[str]

    def set_aside(self) -> None:
        """Rename the record of another run, if there is one."""
        if self.damage:
            checkpoint.set_aside(self.folder / "record.json", self.damage)


class Experiment(ABC, Generic[T, D, N]):
    """Runs of one method: their parameters, their settings, and how a run becomes a record."""

    options: ClassVar[type[RunOptions]]  # chosen for every run, whatever its method
    schedule: ClassVar[type]  # how to train
    methods: ClassVar[Registry[Any]]
    catalogues: ClassVar[Mapping[str, Registry[Any]]]  # of parameters that name an entry: models, data
    mappings: ClassVar[tuple[str, ...]]  # parameters that are mappings of option names to values
    file_noise: ClassVar[Mapping[str, Any]]  # settings that a noise file replaces, and by what
    synonyms: ClassVar[Mapping[str, str]] = {}  # other names of parameters
    items: ClassVar[str]  # what the noise makes wrong, in words
    rate_letter: ClassVar[str]  # of the noise rate in the name of a run

    def __init__(self, method: str) -> None:
        self.method = method

    # -- what a task must say ---------------------------------------------------------------------------

    @abstractmethod
    def preset(self, name: str, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a preset, which those in ``given`` will replace."""

    @abstractmethod
    def assemble(self, settings: Settings, dataset: D, place: Place) -> LoadedRun[T, D, N]:
        """Assemble noise, networks, method and trainer of a run on its data. Writes nothing."""

    @abstractmethod
    def evaluate(self, loaded: LoadedRun[T, D, N]) -> dict[str, dict[str, float]]:
        """Return the results of the selected epoch on the test split, ``test`` among them."""

    def apart(self, settings: Settings) -> list[Settings]:
        """Return the settings of each network that is trained apart; of the run alone where none are."""
        return [settings]

    def probe(self, loaded: LoadedRun[T, D, N]) -> dict[str, dict[str, Any]]:
        """Return further results of the selected epoch, groups of metrics by name."""
        return {}

    @abstractmethod
    def data_facts(self, loaded: LoadedRun[T, D, N]) -> dict[str, Any]:
        """Return the sizes of the data that a record keeps."""

    @abstractmethod
    def diagnostics(self, loaded: LoadedRun[T, D, N]) -> dict[str, Any]:
        """Return the numbers that need the ground truth."""

    # -- parameters -------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, Rule]:
        """Return the rule of every parameter of a run, by name; mappings have none."""
        every: dict[str, Rule] = {**rules(self.options), **rules(self.schedule)}
        own = rules(self.methods.options(self.method))
        if twice := sorted(own.keys() & {*every, *self.mappings, *self.synonyms}):
            raise ValueError(
                f"method {self.method!r}: its options {', '.join(twice)} are parameters of every run; "
                "give them other names"
            )
        return {**every, **own}

    def check(self, values: Mapping[str, Any], extra: Mapping[str, Rule] | None = None) -> dict[str, Any]:
        """Check the values of parameters by name, all at once; None means "as the preset says".

        Parameters
        ----------
        values : mapping
        extra : mapping of str to Rule, optional
            Further parameters, or stricter rules.

        Returns
        -------
        dict
            Those that are not None, without synonyms.

        Raises
        ------
        ValueError
            Naming each unknown parameter, with the nearest known one, and each value out of range.
        """
        given, faults = {k: v for k, v in values.items() if v is not None}, []
        for other in [k for k in given if k in self.synonyms and k not in (extra or {})]:
            name = self.synonyms[other]
            if name in given:
                faults.append(f"{name} and {other} are two names of one parameter; give one")
            given[name] = given.pop(other)
        plain = {k: v for k, v in given.items() if k not in self.mappings}
        known = {**self.parameters(), **(extra or {})}
        faults += [f"unknown parameter {k!r}{self._hint(k, known)}" for k in plain if k not in known]
        faults += problems({k: v for k, v in plain.items() if k in known}, known)
        for name in self.mappings:
            if name in given and not isinstance(given[name], Mapping):
                faults.append(f"{name}={given[name]!r}: must be a mapping of option names to values")
        for name, catalogue in self.catalogues.items():
            if name in given and (not isinstance(given[name], str) or given[name] not in catalogue):
                hint = did_you_mean(given[name], catalogue)
                hint = hint or "; import the file that registers another one first"
                if name == "dataset" and given[name] in datasets:
                    hint = f"; this one holds {datasets.task(given[name])}"
                faults.append(f"{name}={given[name]!r}: must be one of {', '.join(catalogue)}{hint}")
        refuse(faults)
        return given

    def _hint(self, name: str, known: Collection[str]) -> str:
        """Return what to give in place of an unknown parameter, or what has a parameter of this name."""
        if name in (gone := removed_options(self.methods, self.method)):
            return f"; it was removed, {gone[name]!r} is what is left"
        if name == "mrate":  # of the other task
            return "; did you mean 'noise_rate'?"
        if having := [method for method in self.methods if name in rules(self.methods.options(method))]:
            return f"; it belongs to {', '.join(having)}"
        return did_you_mean(name, [*known, *self.mappings, *self.synonyms])

    def resolve(self, **values: Any) -> Settings:
        """Return the complete settings of a run, as :func:`nclib.resolve`."""
        given = self.check({k: as_plain(v) for k, v in values.items()})
        name, dataset = (given.get(k, getattr(self.options, k)) for k in ("preset", "dataset"))
        usual = self.preset(name, dataset, given)
        merged = {**usual, **given}

        def part(cls: type) -> Any:
            return make(cls, {k: v for k, v in merged.items() if k in rules(cls)})

        # 1. The preset, and over it what is given. 2. Digests of the files that are named. 3. A check of all.
        run, sha256 = part(self.options), ""
        if run.noise_seed == run.seed:
            run = replace(run, noise_seed=None)
        if run.noise_file:
            if "noise_seed" in given:
                raise ValueError(
                    f"noise_seed={given['noise_seed']} and noise_file={run.noise_file!r}: a file gives the "
                    "noise, and nothing is drawn; give one of them"
                )
            if not Path(run.noise_file).is_file():
                raise ValueError(f"noise_file={run.noise_file!r}: there is no such file")
            sha256 = digest(Path(run.noise_file))[:16]
            run = replace(run, **self.file_noise)
        mappings = {k: {**usual.get(k, {}), **given.get(k, {})} for k in self.mappings}
        schedule = part(self.schedule)
        if getattr(schedule, "precision", "") == "auto":
            schedule = replace(schedule, precision=resolved("auto", run.device))
        settings = Settings(
            method=self.method,
            run=run,
            schedule=schedule,
            method_options=part(self.methods.options(self.method)),
            noise_sha256=sha256,
            **mappings,
        )
        self.check_settings(settings)
        return replace(settings, files_sha256=self._files(settings))

    def _files(self, settings: Settings) -> dict[str, dict[str, str]]:
        """Return the digests of the files that options name, by mapping and option, 16 digits each."""
        digests: dict[str, dict[str, str]] = {}
        for kind, known in self.catalogues.items():
            options = known.options(getattr(settings.run, kind))
            given = getattr(settings, OPTIONS_OF[kind]) or {}
            for name, rule in rules(options).items():
                named = rule.kind is os.PathLike and name not in DATA and given.get(name)
                if named and (file := _file_of(str(named))) is not None:
                    digests.setdefault(OPTIONS_OF[kind], {})[name] = content_digest(file)[:16]
        return digests

    def check_settings(self, settings: Settings) -> None:
        """Raise a ValueError when the data lack a given option, or one is missing or of another type."""
        given = settings.data_options
        options = self.catalogues["dataset"].options(settings.run.dataset)
        refuse(problems(given, rules(options)) + missing_options(options, given), "data_options")

    def read(self, flat: Mapping[str, Any]) -> Settings:
        """Return the settings in a record; parameters that it lacks keep their defaults.

        Raises
        ------
        ValueError
            Naming each parameter that is unknown, and each value that is not allowed.
        """
        whole: tuple[str, ...] = ("noise_sha256", "files_sha256", *self.mappings)
        from_file: Collection[str] = self.file_noise.keys() if flat.get("noise_file") else ()
        plain = {k: v for k, v in flat.items() if k not in ("method", "method_options", *whole, *from_file)}
        options, gone = self.methods.options(self.method), removed_options(self.methods, self.method)
        own = without_removed(self.methods, self.method, flat.get("method_options", {}))
        faults = problems(plain, rules(self.options) | rules(self.schedule))
        faults += problems({k: v for k, v in own.items() if k not in gone}, rules(options))
        faults += [f"{k}={v!r}: removed; {gone[k]!r} is what is left" for k, v in own.items() if k in gone]
        refuse(faults, "settings of the record")
        run, schedule = (
            {k: flat[k] for k in rules(cls) if k in flat} for cls in (self.options, self.schedule)
        )
        parts = {"data_options": {}, **{k: flat[k] for k in whole if k in flat}}
        return Settings(self.method, self.options(**run), self.schedule(**schedule), options(**own), **parts)

    # -- from settings to a record ----------------------------------------------------------------------

    def read_data(self, settings: Settings) -> D:
        """Load the data of a run."""
        dataset: D = data.load(settings.run.dataset, **settings.data_options)
        return dataset

    def load(self, settings: Settings, folder: Path, device: torch.device) -> LoadedRun[T, D, N]:
        """Load the data of a run and assemble it, as :meth:`assemble`."""
        dataset = self.read_data(settings)
        place = place_of(self.request(settings, dataset), dataset, folder, device)
        return self.assemble(settings, dataset, place)

    def request(self, settings: Settings, dataset: D | None = None) -> Request:
        """Return the request for a run with these settings, on these data where they are loaded."""
        flat = settings.flat()
        own = own_code(self.parts(flat))
        if dataset is None:
            return Request(flat, own)
        return Request(flat, own, lambda *_: dataset.checksum, content_of(dataset))

    def parts(self, flat: Mapping[str, Any]) -> list[Any]:
        """Return the classes and functions that compute a run and may be the user's; of joined models all."""
        kinds = self.catalogues.items()
        named: list[Any] = [
            known[name].factory for kind, known in kinds for name in str(flat[kind]).split(JOINED)
        ]
        return [self.methods[self.method].factory, *named]

    def folder(self, settings: Settings, request: Request) -> Path:
        """Return the folder of a run, ``~`` expanded; its name is readable, and unique by its fingerprint."""
        run: Any = settings.run
        if run.noise_file:
            noise = f"file-{settings.noise_sha256[:8]}"
        else:
            noise = f"{self.rate_letter}{run.noise_rate:g}-{run.protocol}"
            noise += "" if run.noise_seed is None else f"-noise{run.noise_seed}"
        named: list[str] = [self.method, *(getattr(run, kind) for kind in self.catalogues)]
        named += [noise, f"s{run.seed}"] + ([f"x{run.networks}"] if len(self.apart(settings)) > 1 else [])
        return Path(run.out).expanduser() / "-".join([*named, request.fingerprint[:8]])

    def run(self, settings: Settings, progress: bool = True, tracker: Any = None, before: int = 0) -> Record:
        """Return the record of a run, which is made, continued or read; errors as of :func:`nclib.run`.

        ``before`` is the number of epochs that the tracker was told of other networks.

        A record that is damaged or another run's is set aside with a warning and made again from the
        checkpoint. Global generators, threads, and what else of the session changes numbers are restored
        afterwards.
        """
        # 1. The data are loaded: their content is a part of the run's name.
        # 2. A sound record of this very run in its folder is the answer; another one is set aside.
        # 3. Otherwise the run is made: see make.
        reports = [] if tracker is None else [reporter(tracker, before)]
        mode = getattr(settings.run, "compile", "auto")
        with numbers_fixed(settings.run.threads), compiling(mode), kept_warnings() as texts:
            dataset = self.read_data(settings)
            request = self.request(settings, dataset)
            folder, damage = self.folder(settings, request), ""
            if (path := folder / "record.json").exists():
                try:
                    record = Record.load(path)
                    request.check(record, folder.name)
                except ValueError as error:
                    damage = str(error)
                else:
                    record.keep_paths(request.settings)
                    if progress:
                        print(f"already done on {record.environment['device']}\n{record}")
                    return record
            work = Work(request, folder, damage, progress, tracker, reports, texts)
            record = self.make(settings, dataset, work)
            if progress:
                print(record)
            return record

    def make(self, settings: Settings, dataset: D, work: Work) -> Record:
        """Train a run to its end, from its checkpoint if there is one, and return its record."""
        # The folder is locked; a start that fails in its first epoch leaves none.
        device = choose_device(settings.run.device)
        gpu = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpu), sole_writer(work.folder):
            if gpu:
                torch.cuda.reset_peak_memory_stats(device)
            loaded = self.assemble(settings, dataset, place_of(work.request, dataset, work.folder, device))
            work.set_aside()
            loaded.trainer.warnings, loaded.trainer.after_epoch = work.warnings, work.reports
            with products(getattr(settings.schedule, "precision", "fp32"), device):
                return self.finish(settings, loaded, work)

    def finish(self, settings: Settings, loaded: LoadedRun[T, D, N], work: Work) -> Record:
        """Train a loaded run to its end, test the selected epoch, write the record and return it."""
        trainer, noise, request = loaded.trainer, loaded.noise, work.request
        of = len(noise)
        moved = round(noise.true_rate * of)
        if work.progress:
            print(f"{moved:,} of {of:,} {self.items} moved{_reason(settings.run, noise.protocol)}")
            print(f"{trainer.folder.name}  [{settings.run.preset}, {trainer.device}]")
        trainer.fit(work.progress)
        # Papers report the last epoch where training collapses; the selected one may be an early one.
        last = {} if trainer.best["epoch"] == trainer.n_planned else self.evaluate(loaded)
        trainer.load_best()
        started = time.perf_counter()
        metrics = self.evaluate(loaded)
        metrics["last"] = (last or metrics)["test"]
        test_seconds = time.perf_counter() - started
        metrics |= self.probe(loaded)
        curves, best = trainer.history, trainer.best["epoch"]
        validated = {k[4:]: v for k, v in curves[best - 1].items() if k.startswith("val_")}
        facts = ("protocol", "scope", "rate", "seed", "true_rate", "checksum")
        dataset, content = loaded.dataset, content_of(loaded.dataset)
        bits = {"content": content} if content != dataset.checksum else {}  # of files rounded elsewhere
        record = Record(
            name=trainer.folder.name,
            settings={k: v for k, v in request.settings.items() if k != "out"},  # a path on one machine
            data={"name": dataset.name, "checksum": dataset.checksum} | bits | self.data_facts(loaded),
            noise={k: getattr(noise, k) for k in facts if hasattr(noise, k)}
            | {"of": of, "moved": moved, "description": noise.describe()},
            metrics={"val": validated, **metrics},
            curves=curves,
            diagnostics=self.diagnostics(loaded),
            best_epoch=best,
            cost={
                **{k: round(sum(row[k] for row in curves), 2) for k in TIMES if k in curves[0]},
                "test_seconds": round(test_seconds, 2),
                "peak_memory_mb": round(peak_memory_mb(trainer.device), 1),
                "parameters": trainer.n_parameters,
            },
            environment=environment(trainer.device) | {"computed_on": trainer.computed_on} | request.code,
            warnings=trainer.warnings,
            folder=str(trainer.folder),
        )
        record.keep_paths(request.settings)
        record.save(trainer.folder / "record.json")
        return record

    def open_run(self, record: Record, device: str = "cpu") -> LoadedRun[T, D, N]:
        """Load the objects of a finished run, as :func:`nclib.open_run`."""
        record.check_is_one_run()
        settings = self.read(record.settings)
        with torch.random.fork_rng(devices=[]):
            loaded = self.load(settings, Path(record.folder), choose_device(device))
        loaded.trainer.load_best()
        return loaded


def place_of(request: Request, dataset: Dataset | CategoryData, folder: Path, device: torch.device) -> Place:
    """Return where a run is trained, and what it is but for its noise."""
    identity = {"fingerprint": request.fingerprint, "data": dataset.checksum}
    return Place(request.settings["seed"], device, folder, identity)


def _reason(run: Any, protocol: str) -> str:
    """Return where the noise of a run comes from."""
    if run.noise_file:
        return f" by the file {run.noise_file}"
    if not run.noise_rate:
        return ": none asked for"
    return f" by {protocol} noise, rate {run.noise_rate:g}, seed {run.drawn_with}"


def content_of(dataset: Dataset | CategoryData) -> str:
    """Return a digest of all files of data; their checksum may leave out rounding of another machine."""
    return str(dataset.details.get("content", dataset.checksum))


def _file_of(value: str) -> Path | None:
    """Return the file or folder that an option names, which may lie in the hub's cache; None without one."""
    if (path := Path(value).expanduser()).exists():
        return path
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(value, "config.json")
    except (ImportError, ValueError):  # no such library, or no name of the hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def last_diagnostics(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last of some rows of the curves without losses, validation and what every row holds."""
    last = rows[-1] if rows else {}
    return {k: v for k, v in last.items() if k not in IN_EVERY_ROW and not k.startswith(("val_", "loss_"))}
