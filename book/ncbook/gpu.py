"""What ``make gpu`` measured, beside the figures before, and the code that each part of it timed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ncbook.marks import OUTDATED
from ncbook.measurements import DIGITS, ROOT, measurement, sources
from nclib.common.files import digest
from nclib.label_noise.base import METHODS as OF_LABELS
from nclib.methods.base import METHODS as OF_PAIRS
from nclib.models.registry import MODELS

VERSIONS = ("driver", "cuda", "torch", "triton")
HEADS = ("before", "after", "commit")


def gpu_lines(measured: dict[str, Any]) -> list[str]:
    """Return lines of Markdown: where ``make gpu`` measured, and its figures beside the former ones.

    Parameters
    ----------
    measured : dict
        What ``make gpu`` wrote. Rows that it did not measure show a dash.
    """
    heads = ("", "unit", *HEADS)
    rows = (heads, ["---"] * len(heads), *beside(measured))
    return [*measured_on(measured), "", *(f"| {' | '.join(row)} |" for row in rows), ""]


def measured_on(measured: dict[str, Any]) -> list[str]:
    """Return sentences: card, versions, commits and days of both measurements; which parts are outdated."""
    parts, before = measured["parts"], measurement("bench_gpu_before")
    days, commits = (", ".join(sorted({part[key] for part in parts.values()})) for key in ("when", "commit"))
    lines = [f"Measured (after) on {_card(measured['device'])}, commit {commits}, {days}."]
    lines.append(f"Before: {_card(before['device'])}, commit {before['commit']}, {before['when']}.")
    if old := [name for name, part in parts.items() if outdated(name, part)]:
        lines.append(f"{OUTDATED} The code changed since, and was not measured again: {', '.join(old)}.")
    return lines


def part_commit(name: str, part: Mapping[str, Any]) -> str:
    """Return the commit of a part of ``make gpu``, marked where the code that it timed changed since."""
    return f"{part['commit'][:8]}{f' {OUTDATED}' if outdated(name, part) else ''}"


def outdated(name: str, part: Mapping[str, Any]) -> bool:
    """Return whether the code that a measured part of ``make gpu`` timed is another one now."""
    return "timed" in part and part["timed"] != timed_code(name)


@cache
def timed_code(part: str, root: Path = ROOT) -> str | None:
    """Return one digest of the modules that a part of ``make gpu`` times; None for a part that times none.

    They are the models, methods and kernels that its name tells, with all that these import of nclib.

    Parameters
    ----------
    part : str
        Such as ``"method/l2rm sgr"``.
    root : Path
        Folder of the repository.
    """
    kind, *words = re.findall(r"\w+", part)
    if kind not in PART_MODULES:
        return None
    named = ["sgr", "saf", "l2rm"] if kind == "launches" else words
    entries = [each[name] for each in (MODELS, OF_PAIRS, OF_LABELS) for name in set(named) & set(each)]
    modules = (*PART_MODULES[kind], *(entry.factory.__module__ for entry in entries))
    waiting = [root.joinpath(*name.split(".")).with_suffix(".py") for name in modules]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nclib"):
                place = root.joinpath(*str(node.module).split("."))
                near = [place.with_suffix(".py"), *(place / f"{alias.name}.py" for alias in node.names)]
                waiting += [file for file in near if file.is_file()]
    names = sorted(path.relative_to(root).as_posix() for path in seen)
    return digest(json.dumps(sources(names, root)))[:DIGITS]


#: What is timed beside the models and methods in the name of a part, by its kind.
PART_MODULES = {
    "step": ("nclib.losses.ranking", "nclib.common.precision"),
    "method": ("nclib.runs.pair_trainer",),
    "launches": ("nclib.runs.pair_trainer",),
    "score": ("nclib.models.scoring",),
    "transport": ("nclib.ot.entropic", "nclib.ot.pairs"),
    "labels": (),
}


def beside(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what was measured before: its name, unit, the figures before and after, the commit of these."""
    rows: list[tuple[str, ...]] = []
    for row in measurement("bench_gpu_before")["rows"]:
        part = measured["parts"].get(row["part"], {"state": "left"})
        now = _now(row, part)
        commit = "" if now is None else part_commit(row["part"], part)
        rows.append((row["what"], row["unit"], _figure(row["before"]), _figure(now), commit))
    return rows


def _card(device: dict[str, Any]) -> str:
    return ", ".join([device["name"], *(f"{k} {device[k]}" for k in VERSIONS if device.get(k))])


def _now(row: dict[str, Any], part: Mapping[str, Any]) -> float | None:
    """Return the present figure of a row of the former measurement; None where it was not measured."""
    for each in part["result"]["rows"] if part["state"] == "done" else []:
        known = row["where"].items() <= each.items() and not each.get("compiles")
        if known and each.get(row["field"]) is not None:
            return float(each[row["field"]]) / each.get("share", 1.0) ** (row["unit"] == "s")
    return None


def _figure(value: float | str | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    return value or "–"
