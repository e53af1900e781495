"""Record of a run: one JSON file with settings, checksums, metrics, curves, cost and versions."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from nclib.common.files import digest, write_atomically
from nclib.common.options import defaults
from nclib.runs.collapse import collapse
from nclib.runs.identity import former_values, without_removed
from nclib.runs.paths import read_paths, with_paths, without_paths, write_paths
from nclib.runs.sense import MAPS as MAPS
from nclib.runs.sense import RECALLS as RECALLS
from nclib.runs.sense import check_sense

SCHEMA = 1
MARKS = ("schema", "settings")  # a JSON file with both is the record of a run, or was one
TASKS = ("pairs", "labels")
SUM = "sha256"  # of all that a stored record holds beside it
MAPPINGS = ("method_options", "model_options", "data_options", "files_sha256")  # among settings


class OtherFileError(ValueError):
    """Valid JSON, but not a record of a run: the result of a benchmark, for example."""


@dataclass
class Record:
    """The record of one run, on pairs or on labels.

    Parameters
    ----------
    settings : dict
        Every setting of the run: method, model, dataset, noise rate, seed, preset, and their options.
    data, noise : dict
        Name, checksum and sizes of the data; protocol, rates and checksum of the noise, and how many pairs or
        labels it ``moved``.
    metrics : dict
        ``val`` and ``test`` results of the selected epoch, ``last``: those of the last epoch on the test
        split. Pairs: recalls in percent, ``test_dsl`` after dual-softmax post-processing, ``folds``: the mean
        over blocks of 1,000 test images where there are several, and for methods with several networks
        ``single``: their mean alone, and ``errors``: the ``correlation`` of their errors. Labels:
        ``map_i2t``, ``map_t2i`` and ``map_avg`` in [0, 1].
    curves : list of dict
        One per epoch.
    diagnostics : dict
        Numbers of the last training epoch that need the ground truth; ``collapsed`` is 1 where the run did.
    best_epoch : int
        The epoch selected on validation, from 1.
    cost : dict
        ``seconds`` of training, ``cpu_seconds`` of it that this process computed, ``test_seconds``,
        ``parameters``, and ``peak_memory_mb``: of the run on a GPU, of the whole process so far on a CPU.
    environment : dict
        Hardware and versions, as ``computed_on`` what computed the epochs from each one on, the number of
        the ``numerics``, and the digest of code of the user's, ``own_code``.
    name, folder : str
        Of the run's folder, and where it lies; the latter is not stored.
    warnings : list of str
        Texts of the run's warnings, without folders.
    """

    settings: dict[str, Any]
    data: dict[str, Any]
    noise: dict[str, Any]
    metrics: dict[str, dict[str, float]]
    curves: list[dict[str, Any]]
    diagnostics: dict[str, float]
    best_epoch: int
    cost: dict[str, float]
    environment: dict[str, Any]
    name: str
    schema: int = SCHEMA
    warnings: list[str] = field(default_factory=list)
    folder: str = field(default="", compare=False)

    @property
    def task(self) -> str:
        """``labels`` for a run on wrong labels, ``pairs`` for one on mismatched pairs."""
        return TASKS["map_avg" in self.metrics["test"]]

    @property
    def parts(self) -> list[str]:
        """Names of the runs that :func:`nclib.combine` combined; empty for a run of its own."""
        return list(self.environment.get("parts", ()))

    def check_is_one_run(self) -> None:
        """Raise a ValueError for the record of a combination, which has no checkpoint."""
        if self.parts:
            raise ValueError(f"{self.name} combines the runs {', '.join(self.parts)}; take these instead")

    @property
    def noise_rate(self) -> float | None:
        """Share of training pairs or labels made wrong; None where a file gave the noise."""
        rate: float | None = self.settings.get("mrate", self.settings.get("noise_rate"))
        return rate

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, atomically; return ``path``. Not-a-number and infinity become null.

        Paths are left out: the folder of the data, and those of files. A digest of the content is stored with
        it, so that :meth:`load` notices a later change.
        """
        content = self.content()
        write_atomically(path, json.dumps({**content, SUM: own_sum(content)}, indent=1))
        return Path(path)

    def content(self) -> dict[str, Any]:
        """Return what a stored record holds, as it will be read."""
        content = {k: v for k, v in asdict(self).items() if k != "folder"}
        content["settings"] = without_paths(self.settings)
        plain: dict[str, Any] = json.loads(json.dumps(content), parse_constant=lambda _: None)
        return plain

    def keep_paths(self, settings: Mapping[str, Any]) -> None:
        """Take the paths from settings, and keep them beside the record, see :mod:`nclib.runs.paths`."""
        self.settings = with_paths(self.settings, write_paths(settings, Path(self.folder)))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the record that :meth:`save` wrote; ``folder`` is the file's.

        In the folder of its run, the settings get the paths on this machine back, and nothing else.

        Raises
        ------
        OtherFileError
            When the file is valid JSON, but not a record.
        ValueError
            When it is damaged, of another schema, without a digest, was changed, or makes no sense: see
            :func:`nclib.runs.sense.check_sense`.
        """
        record = cls(**content_of(path), folder=str(Path(path).parent))
        settings = completed_settings(record.settings)
        record.settings = with_paths(settings, read_paths(settings, Path(path).parent))
        return record

    @property
    def remarks(self) -> list[str]:
        """What keeps the run from being what its name says, in a few words each; usually nothing."""
        trained = [row for row in self.curves if row.get("phase", "training") == "training"]
        warm = self.settings.get("method_options", {}).get("warmup_epochs", 0)
        only = isinstance(warm, int) and len(self.curves) <= warm if self.task == "labels" else not trained
        remarks = list(self.environment.get("remarks", ()))  # on the runs that this one combines
        remarks += ["warm-up only"] if self.curves and only and self.settings["method"] != "plain" else []
        if idle := [row for row in trained if row.get("idle") or row.get("steps") == 0]:
            who = sorted({network for row in idle for network in row.get("idle", ())})
            of = f"network {', '.join(map(str, who))} took" if who else "took"
            remarks.append(f"{of} no step in {len(idle)} of {len(trained)} epochs")
        return remarks

    @property
    def collapsed(self) -> str:
        """How the run collapsed, in a few words, see :func:`nclib.runs.collapse.collapse`; usually empty."""
        return collapse(self.curves) or "one of its runs collapsed" * bool(self.diagnostics.get("collapsed"))

    def __str__(self) -> str:
        test = self.metrics["test"]
        head = "; ".join(
            [f"{self.name} [{self.settings['preset']}]", *self.remarks, *filter(None, [self.collapsed])]
        )
        if self.task == "labels":
            ways = f"image to text {test['map_i2t']:.3f}, text to image {test['map_t2i']:.3f}"
            return f"{head}: mAP {test['map_avg']:.3f}  ({ways})"
        recalls = "  ".join(f"{k} {test[k]:.1f}" for k in RECALLS)
        return f"{head}: rSum {test['rsum']:.1f}  ({recalls})"


def content_of(path: str | Path) -> dict[str, Any]:
    """Return what the file of a record holds, checked against its digest; errors as :meth:`Record.load`."""
    try:
        content = json.loads(Path(path).read_text("utf8"))
    except (ValueError, RecursionError) as error:  # no JSON, too deep, or no UTF-8
        raise ValueError(f"{path} is not a record: {error}") from error
    if not (isinstance(content, dict) and content.keys() >= set(MARKS)):
        kind = ValueError if isinstance(content, dict) and SUM in content else OtherFileError
        raise kind(f"{path} is not a record: it lacks {' or '.join(MARKS)}")
    if content["schema"] != SCHEMA:
        raise ValueError(f"{path} is not a record: schema {content['schema']}, this version reads {SCHEMA}")
    if content.pop(SUM, None) != own_sum(content):
        raise ValueError(
            f"{path} was changed, or has no digest: its content does not match. nclib.run with its settings "
            "makes it again, from its checkpoint where that lies beside it"
        )
    check_form(content, path)
    return content


def check_form(content: Mapping[str, Any], path: str | Path) -> None:
    """Raise a ValueError for a record with missing, unknown or mistyped parts, or one that makes no sense."""
    kinds = {f.name: str(f.type).partition("[")[0] for f in fields(Record) if f.name != "folder"}
    parts: dict[str, Any] = {"schema": SCHEMA, "warnings": [], **content}
    wrong = [k for k in {**kinds, **parts} if type(parts.get(k)).__name__ != kinds.get(k)]
    if not wrong:
        settings, metrics = parts["settings"], {"test": None, **parts["metrics"]}
        names = {"method": None, "model": ""}
        wrong += [
            f"settings.{k}" for k, usual in names.items() if not isinstance(settings.get(k, usual), str)
        ]
        wrong += ["environment.numerics"] * (type(parts["environment"].get("numerics", 1)) is not int)
        wrong += [f"settings.{k}" for k in MAPPINGS if not isinstance(settings.get(k, {}), dict)]
        wrong += [f"metrics.{k}" for k, group in metrics.items() if not isinstance(group, dict)]
        wrong += [f"curves.{i}" for i, row in enumerate(parts["curves"], 1) if not isinstance(row, dict)]
    if wrong:
        named = f"missing, unknown or of a wrong type: {', '.join(wrong)}"
        raise ValueError(f"{path} is not a record that this version can read; {named}")
    check_sense(content, path)


def own_sum(content: Mapping[str, Any]) -> str:
    """Return the digest of what a record holds, wherever its line breaks are."""
    return digest(json.dumps(content, sort_keys=True))[:16]


def completed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record with the parameters that came since, and without those that went.

    They have the values of :data:`nclib.runs.identity.ADDED` under which a run is what it was without them,
    and their defaults where these are such values. Left out are options of
    :data:`nclib.runs.identity.REMOVED`.
    """
    from nclib.label_noise.base import METHODS as LABELS  # all import this module's folder
    from nclib.methods.base import METHODS as PAIRS
    from nclib.runs.options import LabelSchedule, PairSchedule

    method, options = settings["method"], settings.get("method_options")
    for methods, schedule in ((PAIRS, PairSchedule), (LABELS, LabelSchedule)):
        if method in methods and options is not None:
            given = without_removed(methods, method, options)
            own = {**_defaults(methods.options(method)), **former_values(method), **given}
            return {**_defaults(schedule), **former_values(), **settings, "method_options": own}
    return dict(settings)


# Thousands of records have the same few classes.
_defaults: Callable[[type], dict[str, Any]] = functools.cache(defaults)
