"""What the numbers of a record must fulfil: it makes sense, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
    if said := next(_faults(content), ""):
        raise ValueError(f"{path} makes no sense as the record of a run: {said}. Make the run again")


def _faults(content: Mapping[str, Any]) -> Iterator[str]:
    metrics = content["metrics"]
    for name in SCORED:
        if name in metrics:
            yield from _faults_of(metrics[name], f"metrics.{name}", whole=name == "test")
    for where, group in {**metrics, "cost": content["cost"]}.items():
        for k, value in group.items():
            if isinstance(value, str) or (type(value) is float and not math.isfinite(value)):
                yield f"{where}.{k} is {value!r}, not a number"
    yield from _epoch_faults(content)


def _faults_of(group: Mapping[str, Any], where: str, whole: bool) -> Iterator[str]:
    """Yield what is wrong with a group of metrics; of a ``whole`` one no result may be missing."""
    labels = "map_avg" in group
    due = (*MAPS, "map_avg") if labels else (*RECALLS, "rsum")
    there = [k for k in due if k in group]
    if whole and len(there) < len(due):
        yield f"{where}.{next(k for k in due if k not in group)} is missing"
    high = 1 if labels else 100
    for k in there:
        value, top = group[k], high * len(RECALLS) if k == "rsum" else high
        if type(value) not in (int, float):
            yield f"{where}.{k} is {value!r}, not a number"
        if not -ROUNDING <= value <= top + ROUNDING:  # not a number is refused as well
            yield f"{where}.{k} is {value!r}, outside [0, {top}]"
    if len(there) < len(due):
        return
    if labels:
        if abs(group["map_avg"] - (group["map_i2t"] + group["map_t2i"]) / 2) > ROUNDING:
            yield f"{where}.map_avg is {group['map_avg']!r}, not the mean of map_i2t and map_t2i"
        return
    r = [group[k] for k in RECALLS]
    for i in (1, 2, 4, 5):
        if r[i] < r[i - 1] - ROUNDING:
            yield f"{where}.{RECALLS[i]} is {r[i]!r}, below {RECALLS[i - 1]}, {r[i - 1]!r}"
    if abs(group["rsum"] - sum(r)) > ROUNDING:
        yield f"{where}.rsum is {group['rsum']!r}, but the six recalls sum to {sum(r)!r}"


def _epoch_faults(content: Mapping[str, Any]) -> Iterator[str]:
    settings, best, curves = content["settings"], content["best_epoch"], content.get("curves")
    planned = [settings.get(k, 0) for k in ("warmup_epochs", "epochs")]
    epochs = len(curves) if curves else None
    if epochs is None and "epochs" in settings and all(type(n) is int for n in planned):
        epochs = max(1, sum(planned))  # a closed form takes one
    if epochs is not None and not 0 <= best <= epochs:
        yield f"best_epoch is {best}, outside the {epochs} epochs of the run"
    if not best and any(planned):
        yield "best_epoch is 0, but epochs count from 1"
