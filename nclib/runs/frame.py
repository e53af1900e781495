"""The frame of a run, whatever its kind: parameters and their check, complete settings, and its record.

Two kinds of runs stand in it: :mod:`nclib.runs.pairs` trains on pairs that may be mismatched,
``nclib.label_noise`` on pairs whose classes may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from nclib.common.lock import check_writable, sole_writer
from nclib.common.options import Rule, make, plain_values, rules
from nclib.common.registry import Registry
from nclib.runs import checkpoint, identity
from nclib.runs.distributed import processes
from nclib.runs.loop import SavedLoop
from nclib.runs.pair_trainer import choose_device
from nclib.runs.record import Record, environment, peak_memory_mb
from nclib.runs.settings import as_plain, check_data_options, checked, noise_digest

R = TypeVar("R", bound=Record)
L = TypeVar("L")
OF_A_ROW = ("epoch", "phase", "lr", "steps", "seconds")  # in every row of the curves


@dataclass(frozen=True)
class Frame(Generic[R]):
    """What one kind of run is made of.

    Parameters
    ----------
    options : type
        Options dataclass of what every run chooses; has at least ``dataset``, ``preset``, ``noise_file``,
        ``seed``, ``device``, ``threads`` and ``out``.
    schedule : type
        Options dataclass of how to train.
    method_options : callable
        Method name to its options dataclass.
    preset : callable
        ``preset(name, dataset, method, given)``: values below those that are given, mappings by their names.
    datasets : Registry
        Data sets by name.
    mappings : tuple of str
        Parameters that are mappings of option names to values, ``data_options`` among them.
    catalogues : mapping
        Parameters that name an entry of a catalogue, with a function that returns the catalogue.
    noise_from_file : mapping
        Settings of the noise that a noise file replaces, and by what.
    record : type
        Kind of its record.
    in_one_process : str
        Name of these runs if several processes cannot share one, else empty.
    """

    options: type
    schedule: type
    method_options: Callable[[str], type]
    preset: Callable[[str, str, str, Mapping[str, Any]], dict[str, Any]]
    datasets: Registry[Any]
    mappings: tuple[str, ...]
    catalogues: Mapping[str, Callable[[], Collection[str]]]
    noise_from_file: Mapping[str, Any]
    record: type[R]
    in_one_process: str = ""

    def parameters(self, method: str) -> dict[str, Rule]:
        """Return every parameter of a run with ``method`` and what it may be, by name."""
        return {**rules(self.options), **rules(self.schedule), **rules(self.method_options(method))}

    def check(
        self, values: Mapping[str, Any], method: str | None, extra: Mapping[str, Rule] | None = None
    ) -> dict[str, Any]:
        """Return the values that are given (not None), or raise a ValueError with everything wrong."""
        return checked(
            values,
            {**(self.parameters(method) if method else {}), **(extra or {})},
            mappings=self.mappings if method else (),
            names={name: catalogue() for name, catalogue in self.catalogues.items()},
        )

    def check_namespace(
        self, namespace: Mapping[str, Any], method: str | None, extra: Mapping[str, Rule]
    ) -> dict[str, Any]:
        """Check a notebook's parameters; return those of the run that were given."""
        own = set(extra) - set(self.parameters(method) if method else ())
        found = self.check(plain_values(namespace), method, extra)
        return {name: value for name, value in found.items() if name not in own}

    def resolve(self, method: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete settings of a run: defaults, then the preset, then what was given."""
        given = self.check({k: as_plain(v) for k, v in values.items()}, method)
        chosen, where = (given.get(k, getattr(self.options, k)) for k in ("preset", "dataset"))
        usual = self.preset(chosen, where, method, given)
        merged = {**usual, **given}

        def part(cls: type) -> dict[str, Any]:
            return asdict(make(cls, {k: v for k, v in merged.items() if k in rules(cls)}))

        settings = {
            "method": method,
            **part(self.options),
            **part(self.schedule),
            "method_options": part(self.method_options(method)),
            **{name: {**usual.get(name, {}), **given.get(name, {})} for name in self.mappings},
        }
        check_data_options(self.datasets, where, settings["data_options"])
        if settings["noise_file"]:
            digest = noise_digest(settings["noise_file"])
            settings |= {**self.noise_from_file, "noise_sha256": digest}
        return settings

    def shared(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return those parameters of a run that do not belong to its method."""
        common = {*rules(self.options), *rules(self.schedule), *self.mappings}
        return {name: value for name, value in given.items() if name in common}

    def run(
        self,
        settings: dict[str, Any],
        folder: Path,
        load: Callable[[dict[str, Any], Path, torch.device], L],
        execute: Callable[[dict[str, Any], L, bool], R],
        progress: bool,
    ) -> R:
        """Return the record in ``folder``, or that of a run.

        A run is ``execute(settings, load(settings, folder, device), progress)``; ``load`` writes nothing.
        A damaged record is set aside with a warning and made again from the checkpoint. The global generators
        and the number of threads are as before afterwards. Processes that ``torchrun`` started share the run;
        the first one prints and writes.

        Raises
        ------
        RuntimeError
            When another process works on this run.
        """
        path, damage = folder / "record.json", ""
        with processes(settings["device"], refuse=self.in_one_process) as group:
            shown = progress and group.rank == 0
            if path.exists():
                try:
                    done = self.record.load(path)
                except ValueError as error:
                    damage = str(error)
                else:
                    if shown:
                        print(f"already done on {done.environment['device']}: {path}")
                    return done
            device = choose_device(group.device or settings["device"])
            lock = sole_writer(folder) if group.rank == 0 else nullcontext()
            with (
                torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
                cpu_threads(settings["threads"]),
                ExitStack() as held,
            ):
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                if folder.exists():  # another process may be at work there: say so at once
                    held.enter_context(lock)
                    loaded = load(settings, folder, device)
                else:  # a first start that fails on its data leaves no folder
                    check_writable(folder)
                    loaded = load(settings, folder, device)
                    held.enter_context(lock)
                if damage and group.rank == 0:
                    checkpoint.set_aside(path, damage)
                return execute(settings, loaded, shown)

    def finish(
        self,
        settings: dict[str, Any],
        loop: SavedLoop,
        *,
        data: dict[str, Any],
        noise: dict[str, Any],
        metrics: dict[str, dict[str, float]],
        diagnostics: dict[str, Any],
        test_seconds: float,
        parameters: int,
        progress: bool,
    ) -> R:
        """Write the record of a finished run, and return it."""
        curves, best = loop.history, loop.best["epoch"]
        record = self.record(
            name=loop.folder.name,
            settings={k: v for k, v in settings.items() if k != "out"},  # a place on one machine
            data=data,
            noise=noise,
            metrics={
                "val": {k[4:]: v for k, v in curves[best - 1].items() if k.startswith("val_")},
                **metrics,
            },
            curves=curves,
            diagnostics=diagnostics,
            best_epoch=best,
            cost={
                "seconds": round(sum(row["seconds"] for row in curves), 2),
                "test_seconds": round(test_seconds, 2),
                "peak_memory_mb": round(peak_memory_mb(loop.device), 1),
                "parameters": parameters,
            },
            environment={**environment(loop.device), "processes": loop.processes.size},
            folder=str(loop.folder),
        )
        if loop.processes.rank == 0:
            record.save(loop.folder / "record.json")
        loop.processes.agree("the record", record.name)
        if progress:
            print(record)
        return record


def of_noise(noise: Any) -> dict[str, Any]:
    """Return what a record says about the noise, of pairs or of labels."""
    names = ("protocol", "rate", "seed", "true_rate", "checksum")
    return {**{name: getattr(noise, name) for name in names}, "description": noise.describe()}


def of_last_epoch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the diagnostics in the last of some rows of the curves; empty without rows."""
    last = rows[-1] if rows else {}
    return {k: v for k, v in last.items() if k not in OF_A_ROW and not k.startswith(("val_", "loss_"))}


@contextmanager
def cpu_threads(n: int) -> Iterator[None]:
    """Run with ``n`` CPU threads (0: leave the number alone) and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return a digest of everything that decides a run's numbers: its settings and its code."""
    if "model" in settings:
        from nclib.data.registry import datasets
        from nclib.methods import METHODS
        from nclib.models.registry import MODELS
        from nclib.runs.pairs import load_trainer, test_metrics

        registries: dict[str, Registry[Any]] = {"method": METHODS, "model": MODELS, "dataset": datasets}
        parts: list[Any] = [load_trainer, test_metrics]
    else:
        from nclib.data.category import category_datasets
        from nclib.label_noise import METHODS as LABEL_METHODS
        from nclib.runs.labels import corrected_confusion
        from nclib.runs.labels import load_trainer as load_label_trainer

        registries = {"method": LABEL_METHODS, "dataset": category_datasets}
        parts = [load_label_trainer, corrected_confusion]
    return identity.fingerprint(
        settings, [*parts, *(registry[settings[name]].factory for name, registry in registries.items())]
    )
