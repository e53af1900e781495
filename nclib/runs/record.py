"""Record of a run: one JSON file with settings, checksums, metrics, curves, diagnostics, cost and versions."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch

from nclib.runs.checkpoint import write_atomically
from nclib.runs.identity import naming

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
MARKS = ("schema", "settings")  # a JSON file with both is the record of a run, or was one


class OtherFileError(ValueError):
    """A sound JSON file is no record of the kind that was asked for, but a benchmark's result, say."""


@dataclass
class Record:
    """The record of one run.

    Parameters
    ----------
    settings : dict
        Everything that was chosen: method, model, dataset, mrate, protocol, seed, preset, and their options.
    data, noise : dict
        Name and checksum of the data; protocol, rates and checksum of the noise.
    metrics : dict
        ``val`` and ``test`` results of the selected epoch (recalls in percent), ``test_dsl`` after
        dual-softmax post-processing, and for methods with several networks ``single``: their mean alone.
    curves : list of dict
        One dict per epoch.
    diagnostics : dict
        Numbers of the last training epoch that need the ground truth.
    best_epoch : int
        The epoch selected on validation, from 1.
    cost : dict
        ``seconds`` of training, ``test_seconds``, ``parameters``, and ``peak_memory_mb``: of the run on a
        GPU, of the whole process so far on a CPU.
    environment : dict
        Hardware and versions, and the number of ``processes`` that shared the run.
    folder : str
        Where checkpoints and per-epoch arrays lie; not stored.
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
    folder: str = field(default="", compare=False)

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, atomically; not-a-number and infinity become null.

        Parameters
        ----------
        path : path
            The file; its folder is made if need be.

        Returns
        -------
        Path
            ``path``.

        Raises
        ------
        OSError
            When it cannot be written; what was there before is kept.
        """
        content = {k: v for k, v in asdict(self).items() if k != "folder"}
        text = json.dumps(_without_nan(content), indent=1, allow_nan=False)
        write_atomically(Path(path), text.encode())
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record.

        Parameters
        ----------
        path : path
            The JSON file that :meth:`save` wrote.

        Returns
        -------
        Record
            With the file's folder as ``folder``.

        Raises
        ------
        OtherFileError
            When the file is sound JSON, but of something else; it is a ValueError.
        ValueError
            When the file is damaged, of another schema, or lacks something that readers of records rely on.
        OSError
            When the file cannot be read.
        """
        try:
            content = json.loads(Path(path).read_text("utf8"))
        except ValueError as error:  # no JSON, or no UTF-8
            raise ValueError(f"{path} is not a record: {error}") from error
        if not (isinstance(content, dict) and content.keys() >= set(MARKS)):
            raise OtherFileError(f"{path} is not a record: it lacks {' or '.join(MARKS)}")
        try:
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']}, this version reads {SCHEMA}")
            record = cls(**content, folder=str(Path(path).parent))
            record._check()
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
        keys: dict[str, tuple[str, ...]] = dict.fromkeys(("val", "single", "test_dsl"), ("rsum",))
        keys["test"] = (*RECALLS, "rsum")
        if "map_avg" in self.metrics["test"]:  # category retrieval
            _need("settings", self.settings, "dataset", "data_options", "method_options")
            keys = {"val": ("map_avg",), "test": ("map_avg", "map_i2t", "map_t2i")}
        for name, group in self.metrics.items():
            _need(f"metrics.{name}", group, *keys.get(name, ()))
        for name in {"method_options", "model_options", "data_options"} & self.settings.keys():
            _need(f"settings.{name}", self.settings[name])
        if not (isinstance(self.curves, list) and all(isinstance(row, dict) for row in self.curves)):
            raise ValueError("curves must be a list of mappings, one per epoch")
        if not isinstance(self.best_epoch, int):
            raise ValueError(f"best_epoch={self.best_epoch!r} must be the number of an epoch")

    def columns(self) -> dict[str, Any]:
        """Return what a table of this kind of runs shows beside what all kinds have."""
        others = {f"{k}_rsum": v["rsum"] for k, v in self.metrics.items() if k in ("single", "test_dsl")}
        return {"val_rsum": self.metrics["val"].get("rsum"), **others}

    def __str__(self) -> str:
        test = self.metrics["test"]
        recalls = "  ".join(f"{k} {test[k]:.1f}" for k in RECALLS)
        return f"{self.name} [{self.settings['preset']}]: rSum {test['rsum']:.1f}  ({recalls})"


def _need(name: str, part: Any, *keys: str) -> None:
    """Raise a ValueError unless a part of a record is a mapping with these keys."""
    if not isinstance(part, dict):
        raise ValueError(f"{name} must be a mapping, not {type(part).__name__}")
    lacks = [key for key in keys if key not in part]
    if lacks:
        raise ValueError(f"{name} lacks {', '.join(lacks)}")


RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


R = TypeVar("R", bound=Record)


def read(folder: str | Path, kind: type[R]) -> Iterator[tuple[Path, R]]:
    """Yield path and record of every record of a kind below ``folder``, in the order of the paths.

    A damaged file is passed over with a warning that names it, other JSON files without one.

    Parameters
    ----------
    folder : path
    kind : type
        Kind of record.

    Yields
    ------
    path : Path
    record : Record
        Of the given kind.

    Raises
    ------
    ValueError
        When there is no such folder.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"folder={str(folder)!r} is not a folder; give one that holds records of runs")
    for path in sorted(Path(folder).rglob("*.json")):
        try:
            record = kind.load(path)
        except OtherFileError:
            continue  # benchmark results and other kinds of records live there as well
        except ValueError as error:
            said = f"{error}; it is left out of what is read here. Make the run again, or delete the file"
            warnings.warn(said, UserWarning, stacklevel=2)
            continue
        yield path, record


def collect(folder: str | Path, kind: type[Record] = Record) -> pd.DataFrame:
    """Read every record below ``folder`` into a table, one row per run.

    Parameters
    ----------
    folder : path
        A damaged file in it is passed over with a warning, other JSON files without one.
    kind : type
        Kind of record.

    Returns
    -------
    DataFrame
        Columns: the settings, ``method_*`` for options of the method, test metrics, what the ``kind`` of
        record adds (validation rSum as ``val_rsum``), diagnostics that are numbers, cost, device, ``name``
        and ``path``. Empty, without columns, where there is no record.

    Raises
    ------
    ValueError
        When there is no such folder.
    """
    import pandas as pd

    rows = []
    for path, record in read(folder, kind):
        options = {f"method_{k}": v for k, v in record.settings.get("method_options", {}).items()}
        plain = {k: v for k, v in record.settings.items() if not isinstance(v, dict)}
        rows.append(
            {
                **plain,
                **options,
                **record.metrics["test"],
                **record.columns(),
                **{k: v for k, v in record.diagnostics.items() if not isinstance(v, list)},
                **record.cost,
                "best_epoch": record.best_epoch,
                "device": record.environment["device"],
                "name": record.name,
                "path": str(path),
            }
        )
    return pd.DataFrame(rows)


def find(folder: str | Path, settings: Mapping[str, Any], kind: type[R]) -> R | None:
    """Return the first record below ``folder`` with exactly these settings, if any.

    Parameters
    ----------
    folder : path
    settings : mapping
        Complete settings, as ``resolve`` gives them; those that name a run are compared.
    kind : type
        Kind of record.

    Returns
    -------
    Record or None
        Of the given kind; None where no record has these settings.

    Raises
    ------
    ValueError
        When there is no such folder.
    """
    for _, record in read(folder, kind):
        found = naming(record.settings)
        if all(found.get(k) == v for k, v in naming(settings).items()):
            return record
    return None


def environment(device: torch.device) -> dict[str, Any]:
    """Return hardware, threads, versions and, in a checkout, the git commit.

    Parameters
    ----------
    device : torch.device
        Where a run is made.

    Returns
    -------
    dict
        Plain values: ``device`` (name of the GPU or CPU), ``cores``, ``threads``, ``platform``, ``python``,
        ``versions`` (by package), ``commit`` (``unknown`` outside a checkout).
    """
    from importlib.metadata import version

    names = ("torch", "numpy", "scipy", "pot", "scikit-learn", "pandas", "matplotlib")
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {_processor()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {n: version(n) for n in names},
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Return the commit of the checkout nclib runs from, with ``+`` when files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def peak_memory_mb(device: torch.device) -> float:
    """Return the largest memory used so far.

    Parameters
    ----------
    device : torch.device

    Returns
    -------
    float
        In MB (2**20 bytes): of the GPU's allocator, or resident memory of the process on a CPU; NaN on
        Windows without a GPU.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return float("nan")
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**20
