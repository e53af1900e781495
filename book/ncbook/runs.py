"""Recorded runs: one row per run, with the settings in which it differs from a usual run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import nclib
from ncbook.nearest import nearest, requests
from ncbook.plots import reader
from ncbook.variant import NAMED, in_words, usual_settings, variant
from nclib.common.files import digest
from nclib.runs.collapse import CURVES, collapse
from nclib.runs.frame import frame_of, row
from nclib.runs.record import RECALLS as OF_SUM
from nclib.runs.record import Record
from nclib.runs.store import StoredRun, stored_records
from nclib.runs.words import value_text

RECORDED = Path(__file__).resolve().parents[1] / "results"  # the book's own records
METRICS = ("seed", "rsum", "map_avg")
NUMERICS = "environment.numerics"
KEYS = ("method", "model", "dataset", "preset", "mrate", "protocol", "networks", "variant", *METRICS)
BUNDLED = {"emoji", "planted", "emoji_category", "planted_category"}
RECALLS = (*OF_SUM, "rsum")
FIRST = ("cost_matched", "auc_split", "auc_infonce", "auc_cost")  # of the first training epoch of L2RM
SIGNALS = ("auc", "auc_consistency", "auc_cost", "auc_uncertainty", "rc_auc", "precision_first", "ece")
WAYS = {way: [f"{way}_r{k}" for k in (1, 5, 10)] for way in ("i2t", "t2i")}
DIGITS = 8  # of a checksum, in text
SHOWN_DIGESTS = 3
CATEGORY_KEYS = ("method", "dataset", "preset", "noise_rate", "protocol", "variant", *METRICS)


@dataclass(frozen=True, eq=False)
class Runs:
    """Recorded runs: ``retrieval`` (image-text) and ``category`` (labels), one row per run.

    Columns as in :func:`nclib.table`, and ``variant``, the settings that differ from the usual ones in words
    (:func:`ncbook.variant.variant`), which tells runs with code of the user's apart as well. Besides
    ``i2t_sum`` and ``t2i_sum``, sums of three recalls; ``first.*``, what L2RM measured in its first training
    epoch; ``tested.*``, what a method's signals told of wrong pairs in the tested epoch, or in the first
    training epoch where that is one of warm-up; and the validation rSum ``before_noisy`` and ``after_noisy``,
    of the epochs before and in which the loss on noisy pairs begins.
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
    FileNotFoundError
        When ``ncbook`` is installed away from the book's folder.
    """
    rows: dict[str, list[dict[str, Any]]] = {"pairs": [], "labels": []}
    for one in stored_records(folder or _own()):
        s = one.settings
        if (dataset is None or s.get("dataset") == dataset) and (preset is None or s.get("preset") == preset):
            rows[one.task].append({**_row(one), **_derived(one)})
    for of_task in rows.values():
        _tell_apart(of_task)
    without = {"pairs": KEYS, "labels": CATEGORY_KEYS}
    tables = [frame_of(of_task, None if of_task else without[task]) for task, of_task in rows.items()]
    return Runs(*tables)


def _row(one: StoredRun) -> dict[str, Any]:
    """Return a record as one row, with its settings that differ from the usual ones in words."""
    return {**row(one), "variant": variant(one.settings)}


def _own() -> Path:
    """Return the folder of the book's records, each of which must stand in a table with a noted digest."""
    if not RECORDED.is_dir():
        raise FileNotFoundError(
            f"there is no {RECORDED}: ncbook reads the book beside it; pip install -e book"
        )
    if single := next(RECORDED.rglob("*.json"), None):
        raise ValueError(f"{single} is in no table of the book: ncbook collect GRID FILE puts it into one")
    return RECORDED


def _tell_apart(rows: list[dict[str, Any]]) -> None:
    """Tell runs apart that are not seeds of one setting, and count each seed once.

    Those with code of the user's, or with weights of one name and other contents, get the digest of these
    into their variant. Of a seed that was run twice the one with the latest numerics counts.
    """
    for column, what in (("environment.own_code", "code"), ("files", "files")):
        for group in _settings(rows).values():
            if len({one.get(column) for one in group}) > 1:
                for one in group:
                    origin = str(one.get(column) or "none")
                    said = f"{what}={digest(origin) if column == 'files' else origin:.{DIGITS}}"
                    one["variant"] = ", ".join(filter(None, (one["variant"], said)))
    rows[:] = [
        max((one for one in group if one["seed"] == seed), key=lambda one: one.get(NUMERICS, 1))
        for group in _settings(rows).values()
        for seed in dict.fromkeys(one["seed"] for one in group)
    ]


def _settings(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return runs by what the seeds of one setting have in common."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in rows:
        same = (one.get(k) for k in (*NAMED, "variant", "data.checksum") if k != "seed")
        groups.setdefault(tuple(same), []).append(one)
    return groups


def outdated(runs: pd.DataFrame) -> pd.Series:
    """Tell which runs were made under a number of the numerics below the one in which theirs last moved.

    Parameters
    ----------
    runs : DataFrame
        From :func:`nclib.table`; a run without ``environment.numerics`` has number 1.

    Returns
    -------
    Series of bool
    """
    made = runs.get(NUMERICS, pd.Series(1, runs.index)).fillna(1)
    parts = [runs.get(part, pd.Series("", runs.index)).fillna("") for part in ("method", "model")]
    moved = [nclib.runs.since(method=method, model=model) for method, model in zip(*parts, strict=True)]
    return made < pd.Series(moved, runs.index)


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
        Columns as in :func:`nclib.table`, and ``variant``; empty where no run satisfies all of ``where``.
        Networks that were trained apart and averaged are left out unless ``networks`` asks for them.

    Raises
    ------
    ValueError
        For another task, and for a column that no record has.

    Examples
    --------
    >>> sorted(set(recorded(preset="quick", model="omit")["dataset"]))
    ['emoji']
    """
    table = frame_of([_row(one) for one in stored_records(_own(), task)])
    if unknown := [name for name in where if name not in table and len(table)]:
        raise ValueError(f"no record has a column {', '.join(unknown)}; there are {', '.join(table)}")
    if "networks" in table and "networks" not in where:
        table = table[table["networks"] == 1]
    return select(table, **where).reset_index(drop=True)


def recorded_run(method: str, **values: Any) -> Record | None:
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
        A record answers as of :class:`nclib.runs.request.Request`: its data have the same checksum, code of
        the user's is the same, and its numbers did not move since.

    Raises
    ------
    ValueError
        As :func:`nclib.run`, for a wrong name or value.
    """
    settings = nclib.resolve(method, **values)
    if not RECORDED.is_dir():
        return None
    one, unlike = nearest(_own(), requests([settings.flat()]))[0]
    return one.record() if one and not unlike else None


def _derived(one: StoredRun) -> dict[str, float]:
    """Return what claims compare besides the columns of :func:`nclib.table`; see :class:`Runs`."""
    if one.task == "labels":
        return {}
    test = one.content["metrics"]["test"]
    sums = {f"{way}_sum": sum(test[k] for k in keys) for way, keys in WAYS.items() if set(keys) <= set(test)}
    curves = one.curves(*dict.fromkeys((*CURVES, "loss_noisy", *FIRST, *SIGNALS)))
    fallen = {"collapsed": 1} if collapse(curves) else {}  # records of earlier versions do not say it
    told = next((row for row in curves[one.content["best_epoch"] - 1 :] if "auc" in row), {})
    tested = {f"tested.{name}": told[name] for name in SIGNALS if name in told}
    return {**sums, **fallen, **_around_noisy(curves), **_first_epoch(curves), **tested}


def _around_noisy(curves: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the validation rSum of the epochs before and in which the loss on noisy pairs begins."""
    for before, after in itertools.pairwise(curves):
        if "loss_noisy" in after and "loss_noisy" not in before and before.get("phase") == "training":
            return {"before_noisy": before["val_rsum"], "after_noisy": after["val_rsum"]}
    return {}


def _first_epoch(curves: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what L2RM measured at the start of its first training epoch, as ``first.name``."""
    first = next((row for row in curves if "auc_split" in row), {})
    return {f"first.{name}": first[name] for name in FIRST if name in first}


def usual_value(table: pd.DataFrame, option: str) -> Any:
    """Return the value of an option in usual runs of the method, model and data in a table's first row."""
    if table.empty:
        return None
    row = table.iloc[0]
    usual = usual_settings(*(str(row.get(k, "")) for k in ("method", "model", "dataset", "preset")))
    return (usual or {}).get(option)


def select(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Return the rows with the given values: column = value, where a list means any of its values.

    Floats match to 1e-9, a missing column matches nothing.
    """
    if not where:
        return table
    if not all(column in table for column in where):
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
        return sorted({value_text(v) for v in table[column].dropna()}) if column in table else []

    def listed(words: str, column: str) -> str:
        texts = values(column)
        return f"{words} {', '.join(texts)}" if texts else ""

    labels = not values("model")
    items = "pairs" if labels else "pictures"
    level = " and ".join(f"{p.removesuffix('s')}-level" for p in values("protocol"))
    noise = listed("label noise", "protocol") if labels else f"{level} noise"
    size = max(values("test_images") or values("test_pairs"), key=len, default="")
    best = "mean average precision of both directions" if labels else "rSum"
    parts = [
        listed("bundled data" if set(values("dataset")) <= BUNDLED else "data", "dataset")
        + _digests(table, "data.checksum", "checksum"),
        listed("preset", "preset"),
        listed("model", "model"),
        noise + _digests(table, "noise.checksum", "noise checksums"),
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
    sums = checksums(table, column)
    if not sums:
        return ""
    more = f" and {len(sums) - SHOWN_DIGESTS} more, see CSV" if len(sums) > SHOWN_DIGESTS else ""
    return f" ({word} {', '.join(sums[:SHOWN_DIGESTS])}{more})"


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


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with a column ``label``: the method, of plain training also its loss."""
    plain = "plain (" + runs.get("option.loss", runs["method"]).astype(str) + ")"
    return runs.assign(label=runs["method"].where(runs["method"] != "plain", plain))


def rows_of(runs: pd.DataFrame, rows: Mapping[str, tuple[str, dict[str, Any]]]) -> pd.DataFrame:
    """Return the runs of an ablation's rows, with the row's name as ``label``.

    Parameters
    ----------
    runs : DataFrame
        From :func:`ncbook.recorded`.
    rows : mapping
        Name of a row to its method and the options in which it differs from the preset.
    """
    parts = []
    for name, (method, options) in rows.items():
        own = runs[runs["method"] == method]
        if method == "plain":  # its loss names a row of its own
            own = own[own["option.loss"] == options["loss"]]
            options = {option: value for option, value in options.items() if option != "loss"}
        parts.append(as_preset(own, **options).assign(label=name))
    return pd.concat(parts, ignore_index=True)


def as_preset(runs: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Return the runs that differ from their preset in these options alone; plain training has any loss."""
    free = runs["variant"].str.replace(r"(^|, )loss=\w+", "", regex=True).str.removeprefix(", ")
    changed = runs["variant"].where(runs["method"] != "plain", free)
    return runs[changed == in_words(options)]


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that have the options of their preset, with a column ``label`` for readers.

    Parameters
    ----------
    runs : DataFrame
        From :func:`recorded`.

    Returns
    -------
    DataFrame
        ``label`` is the method, of plain training its loss (:data:`ncbook.plots.NAMES`). "L2RM without
        rematching" leaves its wrong pairs out; "GCE, averaged" is the mean of two networks trained apart.

    Examples
    --------
    >>> runs = named(recorded(dataset="f8k", preset="standard", mrate=0.6))
    >>> {"L2RM", "InfoNCE", "linear"} <= set(runs["label"])
    True
    """
    if "option.warmup_epochs" in runs:  # of category retrieval it is an option of the method
        runs = runs.assign(warmup_epochs=runs.get("warmup_epochs", runs["option.warmup_epochs"]))
    single = labelled(as_preset(runs))
    dropped = rows_of(runs, {"l2rm, dropped": ("l2rm", {"rematch_weight": 0})})
    alone = pd.concat([single, dropped])
    alone["label"] = alone["label"].map(reader)
    pairs = labelled(as_preset(runs, networks=2))
    pairs["label"] = pairs["label"].map(reader) + ", averaged"
    return pd.concat([alone, pairs], ignore_index=True)
