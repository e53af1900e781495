"""Recorded runs: one row per run, with the settings in which it differs from a usual run."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import nclib
from ncbook import weights
from nclib import models
from nclib.common.files import digest
from nclib.data.registry import datasets
from nclib.methods.decl import published_warmup
from nclib.runs import record as records
from nclib.runs.combination import JOINED
from nclib.runs.identity import naming
from nclib.runs.presets import PAPER

RECORDED = Path(__file__).resolve().parents[1] / "results"  # the book's own records
# Settings that name a run; everything else that differs from the usual makes a variant of it.
NAMED = ("method", "model", "dataset", "mrate", "protocol", "noise_rate", "noise_sha256", "seed", "preset")
ENCODED_BY = ("pieces", "pixels", "boxes")  # options of the papers' data that decide what a model reads
GLOVE = ("omit", "naaf", "sbe", "pvse", "pcme")  # models whose papers start words from GloVe
METRICS = ("seed", "rsum", "map_avg")
KEYS = ("method", "model", "dataset", "preset", "mrate", "protocol", "variant", *METRICS)
BUNDLED = {"emoji", "planted", "emoji_category", "planted_category"}
RECALLS = (*records.RECALLS, "rsum")
SIZES = ("test_images", "val_images", "test_pairs", "val_pairs", "train_pairs")
DIGITS = 8  # of a checksum, in text
SHOWN_DIGESTS = 3
CATEGORY_KEYS = ("method", "dataset", "preset", "noise_rate", "protocol", "variant", *METRICS)


@dataclass(frozen=True)
class Runs:
    """Recorded runs: ``retrieval`` (image-text) and ``category`` (labels), one row per run.

    Columns: settings, test metrics, metrics of other groups as ``group.metric``, diagnostics, cost,
    ``device``, and ``variant``: the settings that differ from the usual ones of that method, model, data and
    preset, as text; empty for a usual run.
    """

    retrieval: pd.DataFrame
    category: pd.DataFrame

    @functools.cached_property
    def datasets(self) -> frozenset[str]:
        """Names of the data that runs were recorded on."""
        return frozenset(self.retrieval.get("dataset", ())) | frozenset(self.category.get("dataset", ()))

    @functools.cached_property
    def paper_sized(self) -> dict[tuple[str, str, str], pd.DataFrame]:
        """Runs of the preset ``paper`` by data, method and variant."""
        keys = ["dataset", "method", "variant"]
        tables = [select(t, preset="paper") for t in (self.retrieval, self.category)]
        return {tuple(k): part for t in tables if len(t) for k, part in t.groupby(keys)}

    def __len__(self) -> int:
        return len(self.retrieval) + len(self.category)

    def __str__(self) -> str:
        pairs, labels = len(self.retrieval), len(self.category)
        return f"{pairs} recorded runs of image-text retrieval, {labels} of category retrieval"


def load_runs(
    folder: str | Path | None = None, *, dataset: str | None = None, preset: str | None = None
) -> Runs:
    """Read the recorded runs of both tasks, as the printed tables and the claims need them.

    Parameters
    ----------
    folder : path, optional
        Folder of records; the book's own by default.
    dataset, preset : str, optional
        Keep only runs on this data, or of this preset.

    Returns
    -------
    Runs

    Raises
    ------
    ValueError
        When there is no such folder.
    """
    rows: dict[str, list[dict[str, Any]]] = {"pairs": [], "labels": []}
    for path, record in records.read(folder or RECORDED):
        s = record.settings
        if (dataset is None or s.get("dataset") == dataset) and (preset is None or s.get("preset") == preset):
            rows[record.task].append(_row(record, path))
    for found in rows.values():
        _tell_versions_apart(found)
    without = {"pairs": KEYS, "labels": CATEGORY_KEYS}
    tables = [pd.DataFrame(found, columns=None if found else without[task]) for task, found in rows.items()]
    return Runs(*tables)


def _tell_versions_apart(rows: list[dict[str, Any]]) -> None:
    """Add the code to the variant of runs that would count as seeds of one setting, but are versions of it.

    These are runs with other code of the user's, and runs with the same seed. A run that was made twice with
    the same code, once with a usual value written out, counts once. Runs with weights of one name and other
    contents get the digest of these.
    """
    seen: dict[str, dict[str, Any]] = {}
    for row in rows:
        numbers = [row.get(k) for k in (*NAMED, "variant", "data_checksum", "code", "own_code", *METRICS)]
        seen.setdefault(repr(numbers), row)
    rows[:] = seen.values()
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        same = (k for k in (*NAMED, "variant", "data_checksum") if k != "seed")
        groups.setdefault(tuple(row.get(k) for k in same), []).append(row)
    for group in groups.values():
        own, seeds = ({row[k] for row in group} for k in ("own_code", "seed"))
        if len(own) > 1 or len(seeds) < len(group):
            for row in group:
                code = f"code={(row['own_code'] or row['code'] or 'unknown')[:DIGITS]}"
                row["variant"] = ", ".join(filter(None, (row["variant"], code)))
        if len({row["files"] for row in group}) > 1:  # weights of one name and other contents
            for row in group:
                files = f"files={digest(row['files'])[:DIGITS]}"
                row["variant"] = ", ".join(filter(None, (row["variant"], files)))


def recorded(task: str = "pairs", /, **where: Any) -> pd.DataFrame:
    """Return the book's recorded runs of one task, one row per run.

    Parameters
    ----------
    task : {"pairs", "labels"}
        Image-text retrieval with mismatched pairs, or category retrieval with wrong labels.
    **where
        Column = value pairs that rows must satisfy, for example ``method="plain", mrate=0.6``.

    Returns
    -------
    DataFrame
        Columns as in :func:`nclib.runs.record.collect`; empty where a column is unknown or no run satisfies
        all of ``where``.

    Raises
    ------
    ValueError
        For another task.

    Examples
    --------
    >>> sorted(set(recorded(preset="quick", model="omit")["dataset"]))
    ['emoji']
    """
    table = records.collect(RECORDED, task) if RECORDED.is_dir() else pd.DataFrame()
    for column, value in where.items():
        if column not in table:
            return table.iloc[:0]
        table = table[table[column] == value]
    return table.reset_index(drop=True)


def recorded_run(method: str, **values: Any) -> records.Record | None:
    """Return the book's recorded run with exactly the settings that a run would use, if there is one.

    Parameters
    ----------
    method : str
        Method of either task.
    **values
        Parameters of :func:`nclib.run`.

    Returns
    -------
    Record or None

    Raises
    ------
    ValueError
        As :func:`nclib.run`, for a wrong name or value.
    """
    settings = nclib.resolve(method, **values)
    return records.find(RECORDED, settings) if RECORDED.is_dir() else None


def _row(record: records.Record, path: Path) -> dict[str, Any]:
    """Return a run as one row; metrics other than those of the test are called ``group.metric``."""
    settings, test = record.settings, record.metrics["test"]
    ways = {way: [f"{way}_r{k}" for k in (1, 5, 10)] for way in ("i2t", "t2i")}
    return {
        **{k: v for k, v in settings.items() if not isinstance(v, dict)},
        **{f"option.{k}": v for k, v in settings.get("method_options", {}).items()},
        **test,
        **{f"{g}.{k}": v for g, part in record.metrics.items() if g != "test" for k, v in part.items()},
        **record.diagnostics,
        **_around_noisy(record.curves),
        **_first_epoch(record.curves),
        **{k: record.data.get(k) for k in SIZES},
        **{f"{w}_sum": sum(test[k] for k in keys) for w, keys in ways.items() if set(keys) <= set(test)},
        "seconds": record.cost.get("seconds"),
        "test_seconds": record.cost.get("test_seconds"),
        "peak_memory_mb": record.cost.get("peak_memory_mb"),
        "true_rate": record.noise.get("true_rate"),
        "noise_checksum": record.noise.get("checksum"),
        "data_checksum": record.data.get("checksum"),
        "device": record.environment.get("device"),
        "code": record.environment.get("code") or record.environment.get("commit"),
        "own_code": record.environment.get("own_code"),
        "files": json.dumps(settings.get("files_sha256", {}), sort_keys=True),
        "remarks": "; ".join(record.remarks),
        "best_epoch": record.best_epoch,
        "variant": variant_of(settings),
        "name": record.name,
        "path": str(path),
    }


def _around_noisy(curves: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the validation rSum of the epochs before and in which the loss on noisy pairs begins."""
    for before, after in itertools.pairwise(curves):
        if "loss_noisy" in after and "loss_noisy" not in before and before.get("phase") == "training":
            return {"before_noisy": before["val_rsum"], "after_noisy": after["val_rsum"]}
    return {}


def _first_epoch(curves: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what L2RM measured at the start of its first training epoch, as ``first.name``."""
    first = next((row for row in curves if "auc_split" in row), {})
    names = [k for k in first if k == "cost_matched" or k.startswith("auc_")]
    return {f"first.{name}": first[name] for name in names}


def variant(values: Mapping[str, Any]) -> str:
    """Write settings that differ from the usual ones as text, in alphabetical order."""
    return ", ".join(f"{k}={_text(v)}" for k, v in sorted(values.items()))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def variant_of(settings: Mapping[str, Any]) -> str:
    """Return the settings in which a run differs from a usual run of the same method, model, data and preset.

    Values are compared with those that the present version would take; settings that either side does not
    know are left out.
    """
    usual = _usual(*(str(settings.get(k, "")) for k in ("method", "model", "dataset", "preset")))
    if usual is None:
        return "method unknown to this version"
    usual, mine = usual | published_at_rate(settings), _flat(settings)
    if (vectors := published_vectors(settings)) and mine.get("text", "bigru") == "bigru":
        usual, mine = usual | {"word_vectors": vectors}, {"word_vectors": "none"} | mine
    return variant({k: v for k, v in mine.items() if k in usual and v != usual[k]})


def published_vectors(settings: Mapping[str, Any]) -> str:
    """Return the file of word vectors from which a model usually starts, as in its paper; empty for none."""
    model, dataset, preset = (str(settings.get(k, "")) for k in ("model", "dataset", "preset"))
    name = f"glove_{dataset}.npy"
    return name if model in GLOVE and preset == "paper" and name in weights.WEIGHTS else ""


def published_at_rate(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings of a usual run that depend on its rate of noise: DECL's warm-up in preset paper."""
    dataset, of_paper = str(settings.get("dataset")), settings.get("preset") == "paper"
    if settings.get("method") != "decl" or not of_paper or dataset not in PAPER:
        return {}
    return {"warmup_epochs": published_warmup(dataset, settings.get("mrate") or 0.0)}


def usual_value(table: pd.DataFrame, option: str) -> Any:
    """Return the value of an option in usual runs of the method, model and data in a table's first row."""
    if table.empty:
        return None
    row = table.iloc[0]
    usual = _usual(*(str(row.get(k, "")) for k in ("method", "model", "dataset", "preset")))
    return (usual or {}).get(option)


@functools.cache
def _usual(method: str, model: str, dataset: str, preset: str) -> dict[str, Any] | None:
    """Return the usual settings of a run as one mapping; None when this version does not know the method."""
    model = model.partition(JOINED)[0]  # a combination has the usual settings of its first part
    registry = models.registry
    of_model: dict[str, Any] = {"model": model} if model else {}
    try:
        own = registry.parameters_of(registry.MODELS[model].factory) if model else {}
        usual = nclib.resolve(method, dataset=dataset, preset=preset, **of_model, **_root(dataset))
    except ValueError:
        return None
    taken = inspect.signature(datasets[dataset].factory).parameters if dataset in datasets else {}
    encoded = {k: taken[k].default for k in ENCODED_BY if k in taken}
    return encoded | _flat(usual.flat(), {k: p.default for k, p in own.items() if p.default is not p.empty})


def _root(dataset: str) -> dict[str, Any]:
    """Return folders for data whose loader needs them; they are not there, and change no other setting."""
    if dataset not in datasets:
        return {}
    needed = inspect.signature(datasets[dataset].factory).parameters.values()
    return {"data_options": {p.name: "unknown" for p in needed if p.default is p.empty}}


def _flat(settings: Mapping[str, Any], model_defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return settings as one mapping; ``model.<name>`` is an option of the model that the method has too."""
    published = {part: _published(settings.get(part) or {}) for part in ("data_options", "model_options")}
    settings = naming(settings)
    flat = {k: v for k, v in settings.items() if k not in NAMED and not isinstance(v, dict)}
    method = settings.get("method_options", {})
    model = {**(model_defaults or {}), **settings.get("model_options", {}), **published["model_options"]}
    flat |= settings.get("data_options", {}) | published["data_options"] | method
    return flat | {f"model.{k}" if k in method else k: v for k, v in model.items()}


def _published(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that name published weights, with the name in place of the digest."""
    return {name: found for name, value in options.items() if (found := weights.named(value))}


def select(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Return the rows with the given values: column = value, where a list means any of its values.

    Floats match to 1e-9, a missing column matches nothing.
    """
    if not where:
        return table
    if not set(where) <= set(table):
        return table.iloc[:0]
    keep = True
    for column, value in where.items():
        if isinstance(value, float):
            keep &= (table[column] - value).abs() < 1e-9
        else:
            keep &= table[column].isin(value) if isinstance(value, list) else table[column] == value
    return table[keep]


def protocol_line(table: pd.DataFrame) -> str:
    """Return the conditions of the runs in a table, as one sentence.

    Parameters
    ----------
    table : DataFrame
        Rows of :attr:`Runs.retrieval` or :attr:`Runs.category`.
    """
    if table.empty:
        return "No record."

    def values(column: str) -> list[str]:
        return sorted({_text(v) for v in table[column].dropna()}) if column in table else []

    def listed(words: str, column: str) -> str:
        found = values(column)
        return f"{words} {', '.join(found)}" if found else ""

    labels = not values("model")
    items = "pairs" if labels else "pictures"
    level = " and ".join(f"{p.removesuffix('s')}-level" for p in values("protocol"))
    noise = listed("label noise", "protocol") if labels else f"{level} noise"
    size = max(values("test_images") or values("test_pairs"), key=len, default="")
    best = "mean average precision of both directions" if labels else "rSum"
    parts = [
        listed("bundled data" if set(values("dataset")) <= BUNDLED else "data", "dataset")
        + _digests(table, "data_checksum", "checksum"),
        listed("preset", "preset"),
        listed("model", "model"),
        noise + _digests(table, "noise_checksum", "noise checksums"),
        f"{_seeds(table)}",
        _ensembles(table),
        f"selected: the epoch with the highest {best} on "
        f"{'/'.join(values('val_images') or values('val_pairs'))} validation {items}",
        f"tested on {size} test {items}",
        ", ".join(values("device")),
    ]
    return "; ".join(part for part in parts if part) + "."


def _digests(table: pd.DataFrame, column: str, word: str) -> str:
    """Return the first checksums of some runs, in brackets."""
    found = checksums(table, column)
    if not found:
        return ""
    more = f" and {len(found) - SHOWN_DIGESTS} more, see CSV" if len(found) > SHOWN_DIGESTS else ""
    return f" ({word} {', '.join(found[:SHOWN_DIGESTS])}{more})"


def checksums(table: pd.DataFrame, column: str) -> list[str]:
    """Return the distinct checksums in a column of runs, shortened, in the order of rate and seed."""
    if column not in table:
        return []
    order = [c for c in ("mrate", "noise_rate", "protocol", "seed") if c in table]
    return list(dict.fromkeys(str(v)[:DIGITS] for v in table.sort_values(order)[column].dropna()))


def _ensembles(table: pd.DataFrame) -> str:
    """Return which methods were tested as the mean of two networks."""
    if "single.rsum" not in table:
        return "single models"
    two = table["single.rsum"].notna()
    if not two.any():
        return "single models"
    return f"two networks, mean similarity: {', '.join(sorted(set(table[two]['method'])))}; others single"


def _seeds(table: pd.DataFrame) -> str:
    return "seeds " + ", ".join(str(int(s)) for s in sorted(set(table["seed"].dropna())))
