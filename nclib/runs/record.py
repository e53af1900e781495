"""Record of a run: one JSON file with settings, checksums, metrics, curves, cost and versions."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nclib.common.files import digest, write_atomically
from nclib.runs.identity import naming, places, published

if TYPE_CHECKING:
    import pandas as pd

    from nclib.runs.options import Settings

SCHEMA = 1
MARKS = ("schema", "settings")  # a JSON file with both is the record of a run, or was one
TASKS = ("pairs", "labels")
SUM = "sha256"  # of all that a stored record holds beside it; older records have none
PLACES = "places.json"  # beside a record: the places on this machine, which the record itself leaves out
ROUNDING = 1e-6  # of a sum of stored numbers
KINDS = {"method": str, "model": str, "dataset": str, "preset": str, "seed": int}  # of settings
RENAMED = {"noise": "protocol", "noise_scope": "scope", "clip": "grad_clip"}  # settings of older records


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
        ``single``: their mean alone. Labels: ``map_i2t``, ``map_t2i`` and ``map_avg``
        in [0, 1].
    curves : list of dict
        One per epoch.
    diagnostics : dict
        Numbers of the last training epoch that need the ground truth.
    best_epoch : int
        The epoch selected on validation, from 1.
    cost : dict
        ``seconds`` of training, ``test_seconds``, ``parameters``, and ``peak_memory_mb``: of the run on a
        GPU, of the whole process so far on a CPU.
    environment : dict
        Hardware and versions, the number of ``processes`` that shared the run, as ``computed_on`` what
        computed the epochs from each one on, and digests of the ``code`` that the run reached and of the
        user's own part of it, ``own_code``.
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

        Places on this machine are left out: the folder of the data, and those of files. A digest of the
        content is stored with it, so that :meth:`load` notices a later change.
        """
        content = {k: v for k, v in asdict(self).items() if k != "folder"}
        content["settings"] = published(self.settings)
        content = json.loads(json.dumps(_without_nan(content), allow_nan=False))  # as it will be read
        write_atomically(path, json.dumps({**content, SUM: _own_sum(content)}, indent=1))
        return Path(path)

    def keep_places(self, settings: Mapping[str, Any]) -> None:
        """Take the places on this machine from settings, and keep them beside the record where possible.

        They are kept as absolute paths: a run that was started from another folder is opened all the same.
        """
        if here := places(settings):
            self.settings = _merged(self.settings, here)
            text, path = json.dumps(_absolute(here)), Path(self.folder) / PLACES
            with suppress(OSError):  # finished runs in a folder that only others can write
                if not path.is_file() or path.read_text("utf8") != text:
                    write_atomically(path, text)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the record that :meth:`save` wrote; ``folder`` is the file's.

        In the folder of its run, the settings get the places on this machine back.

        Raises
        ------
        OtherFileError
            When the file is valid JSON, but not a record.
        ValueError
            When it is damaged, of another schema, or lacks something that readers of records rely on.
        """
        try:
            content = json.loads(Path(path).read_text("utf8"))
        except (ValueError, RecursionError) as error:  # no JSON, too deep, or no UTF-8
            raise ValueError(f"{path} is not a record: {error}") from error
        if not (isinstance(content, dict) and content.keys() >= set(MARKS)):
            raise OtherFileError(f"{path} is not a record: it lacks {' or '.join(MARKS)}")
        try:
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']}, this version reads {SCHEMA}")
            stated = content.pop(SUM, None)
            found = stated and _own_sum(content)
            record = cls(**content, folder=str(Path(path).parent))
            record._check()
            if stated != found:
                raise ValueError("its content does not match its digest; it was edited")
            record.settings = _completed({RENAMED.get(k, k): v for k, v in record.settings.items()})
            record.settings = _with_places(record.settings, Path(path).with_name(PLACES))
        except (TypeError, ValueError) as error:  # TypeError: a part too few or too many
            raise ValueError(f"{path} is not a record: {error}") from error
        return record

    def _check(self) -> None:
        """Raise a ValueError unless everything is there that tables, figures and runs read."""
        for part in ("data", "noise", "diagnostics", "cost"):
            _need(part, getattr(self, part))
        _need("settings", self.settings, "method", "preset")
        _need("environment", self.environment, "device")
        _need("metrics", self.metrics, "val", "test")
        _need("metrics.test", self.metrics["test"])
        groups = ("val", "single", "test_dsl", "folds", "last")
        keys: dict[str, tuple[str, ...]] = dict.fromkeys(groups, ("rsum",))
        keys["test"] = (*RECALLS, "rsum")
        if "map_avg" in self.metrics["test"]:  # category retrieval
            _need("settings", self.settings, "dataset", "data_options", "method_options")
            keys = {"val": ("map_avg",), "test": ("map_avg", "map_i2t", "map_t2i")}
        for name, group in self.metrics.items():
            _need(f"metrics.{name}", group, *keys.get(name, ()))
        for name in {"method_options", "model_options", "data_options"} & self.settings.keys():
            _need(f"settings.{name}", self.settings[name])
        for name, kind in KINDS.items():
            if name in self.settings and type(self.settings[name]) is not kind:
                raise ValueError(f"settings.{name}={self.settings[name]!r} must be of type {kind.__name__}")
        for name in {"mrate", "noise_rate"} & self.settings.keys():
            if (rate := self.settings[name]) is not None and not (_is_number(rate) and 0 <= rate <= 1):
                raise ValueError(f"settings.{name}={rate!r} must be between 0 and 1, or null")
        if not (isinstance(self.warnings, list) and all(isinstance(said, str) for said in self.warnings)):
            raise ValueError("warnings must be a list of texts")
        if strange := [k for k, v in self.cost.items() if v is not None and not _is_number(v)]:
            raise ValueError(f"cost.{strange[0]}={self.cost[strange[0]]!r} must be a number or null")
        if not (isinstance(self.curves, list) and all(isinstance(row, dict) for row in self.curves)):
            raise ValueError("curves must be a list of mappings, one per epoch")
        if not isinstance(self.best_epoch, int):
            raise ValueError(f"best_epoch={self.best_epoch!r} must be the number of an epoch")
        for name, group in self.metrics.items():
            for total, names, share, most in (("rsum", RECALLS, 1.0, 100), ("map_avg", MAPS, 0.5, 1)):
                if total in group and group.keys() >= set(names):
                    parts = [group[k] for k in names]
                    _check_sum(f"metrics.{name}.{total}", group[total], parts, share, most)
        if self.curves and self.best_epoch > len(self.curves):
            raise ValueError(f"best_epoch={self.best_epoch}, but the curves have {len(self.curves)} epochs")
        row = self.curves[self.best_epoch - 1] if 0 < self.best_epoch <= len(self.curves) else {}
        for name, value in self.metrics["val"].items():
            if row.get(f"val_{name}", value) != value:
                raise ValueError(f"metrics.val.{name} is {value}, the curves have {row[f'val_{name}']}")

    def check_is_of(self, settings: Settings, data: str, name: str) -> None:
        """Raise a ValueError unless this is the record of a run.

        Parameters
        ----------
        settings : Settings
            Of the run.
        data : str
            Checksum of its data.
        name : str
            Of its folder.
        """
        wanted = json.loads(json.dumps(naming(settings.flat())))
        found = naming(self.settings)
        other = [k for k in {**wanted, **found} if wanted.get(k) != found.get(k)]
        facts = {"data": (data, self.data.get("checksum")), "name": (name, self.name)}
        other += [k for k, (one, two) in facts.items() if one != two]
        if other:
            raise ValueError(
                f"{Path(self.folder) / 'record.json'} is the record of another run, {self.name}: "
                f"it differs in {', '.join(other)}"
            )

    @property
    def remarks(self) -> list[str]:
        """What keeps the run from being what its name says, in a few words each; usually nothing."""
        trained = [row for row in self.curves if row.get("phase", "training") == "training"]
        warm = self.settings.get("method_options", {}).get("warmup_epochs", 0)
        only = len(self.curves) <= warm if self.task == "labels" else not trained
        said = ["warm-up only"] if self.curves and only and self.settings["method"] != "plain" else []
        idle = [row for row in trained if row.get("idle") or row.get("steps") == 0]
        if idle:
            who = sorted({network for row in idle for network in row.get("idle", ())})
            of = f"network {', '.join(map(str, who))} took" if who else "took"
            said.append(f"{of} no step in {len(idle)} of {len(trained)} epochs")
        return said

    def row(self) -> dict[str, Any]:
        """Return the row of this run in the table of :func:`collect`."""
        val, test = self.metrics["val"], self.metrics["test"]
        row = {
            **{k: v for k, v in self.settings.items() if not isinstance(v, dict)},
            **{f"method_{k}": v for k, v in self.settings.get("method_options", {}).items()},
            **self._other_options(),
            "noise_rate": self.noise_rate,
            **test,
        }
        if self.task == "labels":
            row |= {"val_map_avg": val["map_avg"], "variant": variant(self.settings)}
        else:
            groups = ("single", "test_dsl", "folds", "last")
            others = {f"{k}_rsum": v["rsum"] for k, v in self.metrics.items() if k in groups}
            row |= {"val_rsum": val["rsum"], **others}
            for group in ("detection", "people"):
                row |= {f"{group}_{k}": v for k, v in self.metrics.get(group, {}).items()}
        return {
            **row,
            **{k: v for k, v in self.diagnostics.items() if not isinstance(v, list)},
            **self.cost,
            "best_epoch": self.best_epoch,
            "device": self.environment["device"],
            "code": self.environment.get("code") or self.environment.get("commit"),
            "remarks": "; ".join(self.remarks),
            "name": self.name,
        }

    def _other_options(self) -> dict[str, Any]:
        """Return the options of data and model that name the run, under the names of their columns."""
        named = naming(self.settings)  # without the place of the data
        parts = {"data": named.get("data_options"), "model": named.get("model_options")}
        return {f"{part}_{k}": v for part, options in parts.items() for k, v in (options or {}).items()}

    def __str__(self) -> str:
        test = self.metrics["test"]
        head = "; ".join([f"{self.name} [{self.settings['preset']}]", *self.remarks])
        if self.task == "labels":
            ways = f"image to text {test['map_i2t']:.3f}, text to image {test['map_t2i']:.3f}"
            return f"{head}: mAP {test['map_avg']:.3f}  ({ways})"
        recalls = "  ".join(f"{k} {test[k]:.1f}" for k in RECALLS)
        return f"{head}: rSum {test['rsum']:.1f}  ({recalls})"


def _need(name: str, part: Any, *keys: str) -> None:
    """Raise a ValueError unless a part of a record is a mapping with these keys."""
    if not isinstance(part, dict):
        raise ValueError(f"{name} must be a mapping, not {type(part).__name__}")
    lacks = [key for key in keys if key not in part]
    if lacks:
        raise ValueError(f"{name} lacks {', '.join(lacks)}")


def _check_sum(name: str, total: Any, parts: list[Any], share: float, most: float) -> None:
    if strange := [x for x in (total, *parts) if not _is_number(x)]:
        raise ValueError(f"{name} and its parts must be numbers, found {strange[0]!r}")
    if not -ROUNDING <= min(parts) <= max(parts) <= most + ROUNDING:
        raise ValueError(f"the parts of {name} must be between 0 and {most}, found {parts}")
    found = share * math.fsum(parts)
    if not abs(total - found) <= ROUNDING * max(1.0, abs(total)):
        raise ValueError(f"{name} is {total}, its parts give {found:.6g}; it was edited")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _own_sum(content: Mapping[str, Any]) -> str:
    """Return a digest of what a record holds, wherever its line breaks are."""
    return digest(json.dumps(content, sort_keys=True))[:16]


def _with_places(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return settings with the places in a file beside their record, if there is one."""
    try:
        found = json.loads(path.read_text("utf8")) if path.is_file() else {}
    except (OSError, ValueError):
        return settings
    return _merged(settings, found)


def _merged(settings: dict[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    merged = {
        k: {**settings[k], **v} if isinstance(v, dict) else v for k, v in found.items() if k in settings
    }
    return {**settings, **merged}


def _absolute(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return places, also those within mappings, as absolute paths."""
    return {
        k: _absolute(v) if isinstance(v, Mapping) else str(Path(v).expanduser().absolute())
        for k, v in found.items()
    }


RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")
MAPS = ("map_i2t", "map_t2i")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read(folder: str | Path, task: str = "") -> Iterator[tuple[Path, Record]]:
    """Yield path and record of every record below ``folder``, in the order of the paths.

    Parameters and errors as in :func:`collect`. Hidden files and folders are skipped. Of records with the
    same settings, data and code the first one counts, and a warning names the first of the others.
    """
    if task not in ("", *TASKS):
        raise ValueError(f"task={task!r}: must be one of {', '.join(map(repr, ('', *TASKS)))}")
    if not Path(folder).is_dir():
        raise ValueError(f"folder={str(folder)!r} is not a folder; give one that holds records of runs")
    seen: dict[str, Path] = {}
    copies: list[tuple[Path, Path]] = []
    for path in sorted(Path(folder).rglob("*.json")):
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue  # a folder, a dead link, what editors keep of opened files
        try:
            record = Record.load(path)
        except OtherFileError:
            continue  # results of benchmarks live there as well
        except (ValueError, OSError) as error:
            said = f"{error}; it is left out of what is read here. Make the run again, or delete the file"
            warnings.warn(said, UserWarning, stacklevel=2)
            continue
        same = json.dumps(
            [naming(record.settings), record.data, record.environment.get("code")], sort_keys=True
        )
        if (first := seen.setdefault(same, path)) != path:
            copies.append((path, first))
        elif task in ("", record.task):
            yield path, record
    if copies:
        path, first = copies[0]
        more = f", and {len(copies) - 1} more are copies" if len(copies) > 1 else ""
        said = f"{path} is a run that {first} holds as well{more}; each run counts once"
        warnings.warn(said, UserWarning, stacklevel=2)


def collect(folder: str | Path, task: str = "") -> pd.DataFrame:
    """Read every record below ``folder`` into a table, one row per run.

    Parameters
    ----------
    folder : path
        A damaged file in it is passed over with a warning that names it, other JSON files without one.
    task : {"", "pairs", "labels"}
        Keep the runs of one task only.

    Returns
    -------
    DataFrame
        Columns: the settings, ``noise_rate`` of either task, ``method_*``, ``data_*`` and ``model_*`` for
        options of the method, the data (without the folder ``root``) and the model, test metrics, the
        selected epoch's ``val_rsum`` or ``val_map_avg``, ``detection_*`` and ``people_*`` where a run has
        them, diagnostics that are numbers, cost, device, ``name`` and ``path``; for labels ``variant``, the
        settings that differ from the preset in words. An option that a run was not given is missing there.
        Empty, without columns, where there is no record.

    Raises
    ------
    ValueError
        When there is no such folder, or no such task.
    """
    import pandas as pd

    return pd.DataFrame([{**record.row(), "path": str(path)} for path, record in read(folder, task)])


def _completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a record with the parameters that came since, at their defaults."""
    from nclib.label_noise.base import METHODS as LABELS  # all import this module's folder
    from nclib.methods.base import METHODS as PAIRS
    from nclib.runs.options import LabelSchedule, PairSchedule

    def completed(of: type, given: dict[str, Any]) -> dict[str, Any]:
        return {f.name: f.default for f in fields(of) if f.default is not MISSING} | given

    method, schedules = settings["method"], ((PAIRS, PairSchedule), (LABELS, LabelSchedule))
    known = next(((of, schedule) for of, schedule in schedules if method in of), None)
    if known is None or "method_options" not in settings:
        return settings
    own = completed(known[0].options(method), settings["method_options"])
    return {**completed(known[1], settings), "method_options": own}


def find(folder: str | Path, settings: Settings) -> Record | None:
    """Return the first record below ``folder`` with exactly these settings, if any.

    Parameters
    ----------
    folder : path
    settings : Settings
        As :func:`nclib.resolve` returns them; those that name a run are compared.

    Returns
    -------
    Record or None
        None where no record has these settings.

    Raises
    ------
    ValueError
        When there is no such folder.
    """
    wanted = naming(settings.flat())
    for _, record in read(folder):
        found = naming(record.settings)
        if all(found.get(k) == v for k, v in wanted.items()):
            return record
    return None


def variant(settings: Mapping[str, Any]) -> str:
    """Return the settings in a record on labels that differ from its preset, in words, or ``default``."""
    from nclib.common.options import rules
    from nclib.label_noise.base import METHODS  # imports this module's folder, as do the other two
    from nclib.runs.options import LabelSchedule
    from nclib.runs.presets import label_preset

    method, options = settings["method"], METHODS.options(settings["method"])
    usual = asdict(LabelSchedule()) | asdict(options())
    usual |= label_preset(settings["preset"], settings["dataset"], method)
    flat = {**settings, **settings["method_options"]}
    decisive = [*rules(LabelSchedule), *rules(options)]
    return " ".join(f"{k}={flat.get(k)}" for k in decisive if flat.get(k) != usual[k]) or "default"
