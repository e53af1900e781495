"""What the numbers of a record must fulfil: it makes sense, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

DIRECTIONS = ("i2t", "t2i")
RECALLS = tuple(f"{way}_r{k}" for way in DIRECTIONS for k in (1, 5, 10))
MAPS = tuple(f"map_{way}" for way in DIRECTIONS)
SCORED = ("test", "val", "last", "test_dsl", "folds", "single")  # groups of metrics with the task's results
ROUNDING = 1e-6  # of a sum of recalls in percent


def check_sense(content: Mapping[str, Any], path: str | Path) -> None:
    """Raise a ValueError that names a record and its first field which cannot be the result of a run.

    Recalls lie in [0, 100] and grow from R@1 to R@10, rSum is their sum, mean average precision lies in
    [0, 1] and ``map_avg`` is its mean over both directions; the selected epoch is one of the run.

    Parameters
    ----------
    content : mapping
        Of a form that :func:`nclib.runs.record.check_form` passed; curves may be left out.
    path : path
        Names the record in the message.
    """
    if fault := next(_faults(content), ""):
        raise ValueError(f"{path} makes no sense as the record of a run: {fault}. Make the run again")


def _faults(content: Mapping[str, Any]) -> Iterator[str]:
    metrics = content["metrics"]
    for name in SCORED:
        if name in metrics:
            yield from _score_faults(metrics[name], f"metrics.{name}", whole=name == "test")
    for where, group in {**metrics, "cost": content["cost"]}.items():
        for k, value in group.items():
            if isinstance(value, str) or (type(value) is float and not math.isfinite(value)):
                yield f"{where}.{k} is {value!r}, not a number"
    settings, best, curves = content["settings"], content["best_epoch"], content.get("curves")
    planned = [settings.get(k, 0) for k in ("warmup_epochs", "epochs")]
    epochs = len(curves) if curves else None
    if epochs is None and "epochs" in settings and all(type(n) is int for n in planned):
        epochs = max(1, sum(planned))  # a closed form takes one
    if epochs is not None and not 0 <= best <= epochs:
        yield f"best_epoch is {best}, outside the {epochs} epochs of the run"
    if not best and any(planned):
        yield "best_epoch is 0, but epochs count from 1"


def _score_faults(group: Mapping[str, Any], where: str, whole: bool) -> Iterator[str]:
    """Yield what is wrong with a group of metrics; of a ``whole`` one no result may be missing."""
    labels = "map_avg" in group
    parts, total, share = (MAPS, "map_avg", 1 / len(MAPS)) if labels else (RECALLS, "rsum", 1)
    high = 1 if labels else 100
    for k, top in {**dict.fromkeys(parts, high), total: round(high * len(parts) * share)}.items():
        if k not in group:
            if whole:
                yield f"{where}.{k} is missing"
        elif type(group[k]) not in (int, float):
            yield f"{where}.{k} is {group[k]!r}, not a number"
        elif not -ROUNDING <= group[k] <= top + ROUNDING:  # not a number is refused as well
            yield f"{where}.{k} is {group[k]!r}, outside [0, {top}]"
    if not {*parts, total} <= group.keys():
        return
    for one, more in () if labels else pairwise(parts):
        if one[:3] == more[:3] and group[more] < group[one] - ROUNDING:
            yield f"{where}.{more} is {group[more]!r}, below {one}, {group[one]!r}"
    if abs(group[total] - share * sum(group[k] for k in parts)) > ROUNDING:
        what = "mean of both directions" if labels else "sum of the six recalls"
        yield f"{where}.{total} is {group[total]!r}, not the {what}"
