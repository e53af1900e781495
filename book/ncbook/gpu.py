"""What ``make gpu`` measured, beside the figures before; the code that each part timed; hours of runs.

:func:`lines_of` is a section of the page on GPUs. :func:`seconds_of` multiplies measured steps by the steps
of a run, for the plans of grids.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ncbook.marks import OUTDATED
from ncbook.measurements import DIGITS, MEASURED, ROOT, measurement, sources
from nclib.common.files import digest
from nclib.label_noise.base import METHODS as OF_LABELS
from nclib.methods.base import METHODS as OF_PAIRS
from nclib.models.registry import MODELS

VERSIONS = ("driver", "cuda", "torch", "triton")
HEADS = ("before", "after", "commit")
NOTHING = "**Nothing was measured on a GPU yet.** The command above writes what this section will show."
DATASETS = ("f30k", "coco", "cc152k")  # of the printed runs

TITLES = {
    "step": "Training steps of the models; difference: of compiled scores from eager ones, in norm",
    "method": "Steps of the methods, and what surrounds those of an epoch",
    "score": "Scoring of a test set; share: of the captions that were scored",
    "transport/partial": "Partial masked transport from a cost on the device to a plan on it",
    "transport/omit": "OMIT's problems of a batch",
    "launches": "Calls of a step",
    "agree": "CPU and GPU agree, nothing compiled: the largest relative differences in norm",
    "resume": "L2RM with SAF, killed and continued: the largest relative difference in norm of its tensors",
    "run": "Runs of L2RM with a short schedule",
    "labels": "Epochs of the methods for wrong labels",
}


Measured = Mapping[str, Any]


def stored() -> dict[str, Any] | None:
    """Return the stored results; None where there are none.

    Raises
    ------
    ValueError
        When the file holds results of small sizes, or none of this command.
    """
    if not (MEASURED / "bench_gpu.json").is_file():
        return None
    measured = measurement("bench_gpu")
    if measured.get("benchmark") != "gpu" or measured.get("small"):
        raise ValueError("bench_gpu.json must hold the results of make gpu in the papers' sizes")
    return measured


def results(measured: Measured, start: str = "") -> dict[str, Any]:
    """Return the results of the measured parts whose name starts so, by the rest of their names."""
    return {
        name.removeprefix(start): part["result"]
        for name, part in measured["parts"].items()
        if part["state"] == "done" and name.startswith(start)
    }


def lines_of(measured: Measured | None) -> list[str]:
    """Return a section of a page as lines of Markdown: a table for each kind of part, and what failed.

    Before them the figures that were measured before, too, and where both were measured.
    """
    if measured is None:
        return [NOTHING]
    former = [dict(zip(("", "unit", *HEADS), row, strict=True)) for row in beside(measured)]
    parts, lines = measured["parts"], [*measured_on(measured), "", *table(former), ""]
    for start, title in TITLES.items():
        rows = [
            _marked(row) | {"commit": part_commit(start + name, parts[start + name])}
            for name, part in results(measured, start).items()
            for row in part["rows"]
        ]
        if rows:
            lines += [f"**{title}**", "", *table(rows), ""]
    if of_runs := table(hours(measured)):
        said = (
            f"**Hours of a run with the printed settings on {measured['device']['name']}, from these steps**"
        )
        lines += [said, "", *of_runs, ""]
    errors = {name: " ".join(part["error"].split()) for name, part in parts.items() if "error" in part}
    return lines + [f"- {name} failed: `{error.replace('`', chr(39))}`" for name, error in errors.items()]


def _marked(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row; steps that were timed while something was compiled show so in place of a time."""
    shown = {key: value for key, value in row.items() if key != "compiles"}
    return shown | ({"step_ms": "compiled meanwhile"} if row.get("compiles") else {})


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows as a table of Markdown, with a column for every key; no lines without rows."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"] if rows else []
    return lines + [f"| {' | '.join(text(row.get(head)) for head in heads)} |" for row in rows]


def text(value: Any) -> str:
    """Return a cell; numbers with three digits."""
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    return "–" if value is None else " ".join(str(value).replace("|", "/").split())


# ----------------------------------------------------------------------------- beside the former figures


def measured_on(measured: Measured) -> list[str]:
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


def beside(measured: Measured) -> list[tuple[str, ...]]:
    """Return what was measured before: its name, unit, the figures before and after, the commit of these."""
    rows: list[tuple[str, ...]] = []
    for row in measurement("bench_gpu_before")["rows"]:
        part = measured["parts"].get(row["part"], {"state": "left"})
        now = _now(row, part)
        commit = "" if now is None else part_commit(row["part"], part)
        rows.append((row["what"], row["unit"], text(row["before"]), text(now), commit))
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


# --------------------------------------------------------------------------------------------- hours of a run


def seconds_of(settings: Mapping[str, Any], measured: Measured) -> float | None:
    """Return the seconds of a run on the measured device, or None where its steps were not measured.

    Steps of a warm-up epoch and the mean of those of the first and the last training epoch, times the steps
    of the run; what surrounds them, times the pairs; validation after every epoch, and the test. A method
    that divides the pairs is taken to find the matched ones. Options of methods and models are those of the
    measurement: the usual ones. None as well where steps were timed while something was compiled.

    Parameters
    ----------
    settings : mapping
        Of one run, as records hold them.
    measured : mapping
        What :func:`stored` returns.
    """
    if "noise_rate" in settings:
        return _of_labels(settings, measured)
    from nclib.data.feature_files import LAYOUTS
    from nclib.data.region_features import VALIDATION_IMAGES

    layout = LAYOUTS.get(settings["dataset"])
    if {"pixels", "pieces"} & {k for k, v in settings.get("data_options", {}).items() if v}:
        return None  # pretrained networks were not measured
    part = results(measured, "method/").get(f"{settings['method']} {settings['model']}")
    if part is None or layout is None or any(row.get("compiles") for row in part.get("rows", ())):
        return None
    images, each = layout.images, layout.captions_per_image
    n, batch, networks = images["train"] * each, settings["batch_size"], part["networks"]
    scale = batch / part["batch"]  # a step costs what its pairs cost
    first = part["warm-up"]
    seconds = settings["warmup_epochs"] * networks * math.ceil(n / batch) * first["step_ms"] * scale / 1e3
    trained = n * (1 - settings["mrate"] if part["divides"] else 1.0)
    for phase in ("first", "last"):
        ms = part[phase]["step_ms"] * part[phase]["steps"] / part["trained_pairs"] * trained
        ms += part[phase]["around_ms"] * n / part["pairs"]
        seconds += settings["epochs"] / 2 * ms / 1e3
    test = images["testall" if "testall" in images else "test"]
    epochs = settings["warmup_epochs"] + settings["epochs"]
    scored = epochs * min(images["dev"], VALIDATION_IMAGES) ** 2 + test**2
    rate = scoring_rate(settings["model"], measured)
    return None if rate is None else seconds + networks * each * scored * rate


def scoring_rate(model: str, measured: Measured) -> float | None:
    """Return the seconds that a model takes to score one image with one caption, as runs do by default."""
    rows = results(measured, "score/").get(model, {}).get("rows", ())
    each = [row["seconds"] / row["share"] / (row["images"] * row["captions"]) for row in rows]
    return float(each[0]) if each else None


def _of_labels(settings: Mapping[str, Any], measured: Measured) -> float | None:
    from nclib.data.category_features import SETS

    part = results(measured, "labels/").get(settings["method"])
    known = SETS.get(settings["dataset"])
    if part is None or known is None:
        return None
    epochs = 1 if part["closed_form"] else settings["epochs"]
    steps = 1.0 if part["closed_form"] else part["batch"] / settings["batch_size"]
    return float(epochs * part["epoch_s"] * known.sizes[0] / part["pairs"] * steps)


def hours(measured: Measured) -> list[dict[str, Any]]:
    """Return hours of printed runs whose steps were measured, at 40 % noise, and what papers print."""
    import nclib

    rows = []
    for method, model in (name.split() for name in results(measured, "method/")):
        row: dict[str, Any] = {"method": method, "model": model}
        for dataset in DATASETS:
            given: dict[str, Any] = {"dataset": dataset, "preset": "paper", "model": model}
            given["data_options"] = {"root": "."}
            if dataset != "cc152k":  # whose own pairs are noisy
                given["mrate"] = 0.4
            seconds = seconds_of(nclib.resolve(method, **given).flat(), measured)
            row[f"{dataset} h"] = seconds / 3600 if seconds else None
        rows.append(row | {"printed": printed_hours(method, model)})
    return rows


def printed_hours(method: str, model: str) -> str | None:
    """Return the hours that a paper prints for its runs of a method with a model, and on which card."""
    from ncbook.papers import printed

    rows = [
        row
        for row in printed("resources", quantity="training time").to_dict("records")
        if (row["method"].lower(), row["backbone"].lower().replace("∞", "_inf")) == (method, model)
    ]
    values = ", ".join(dict.fromkeys(f"{row['value']} (bank {row['bank_size']})" for row in rows))
    return f"{rows[0]['dataset']}: {values} on {rows[0]['hardware']}" if rows else None
