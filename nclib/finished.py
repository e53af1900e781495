"""Commands on finished runs: ``nclib show|compare|pairs|search``.

A run is named by its folder, or by the file of its record.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nclib.common.arguments import (
    Words,
    count,
    flattened,
    import_files,
    importing,
    noted,
    parser_of,
    shown,
    table,
)
from nclib.common.options import did_you_mean

if TYPE_CHECKING:
    from nclib.runs import Record, TrainedModel

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of the runs that are compared


def show(words: Words) -> int:
    """Show a finished run: results, noise, epochs, seconds, settings and warnings."""
    parser = parser_of("show", show)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run, or its record")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON object")
    asked = parser.parse_args(words)
    record = record_of(asked.run)
    print(as_json(record) if asked.json else described(record))
    return 0


def compare(words: Words) -> int:
    """Compare finished runs: the settings that differ, the results side by side, and their differences.

    Differences are to the first run. Runs on pairs and runs on labels have no result in common.
    """
    parser = parser_of("compare", compare)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(words)
    if not 2 <= len(asked.runs) <= len(LETTERS):
        raise ValueError(f"{len(asked.runs)} runs: give 2 to {len(LETTERS)} of them")
    records = [record_of(run) for run in asked.runs]
    if len({record.task for record in records}) > 1:
        raise ValueError(f"{asked.runs[0]} and the others are not all runs on pairs, or all on labels")
    facts = [_facts(record) for record in records]
    named = {name: [fact.get(name) for fact in facts] for name in {k: None for f in facts for k in f}}
    settings = {name: values for name, values in named.items() if any(v != values[0] for v in values)}
    if settings.keys() & {"method", "model", "dataset"}:  # each has its own code
        settings.pop("code", None)
    tests = [record.metrics["test"] for record in records]
    numbers = [k for k in tests[0] if all(isinstance(test.get(k), (int, float)) for test in tests)]
    results = {name: [test[name] for test in tests] for name in numbers}
    if asked.json:
        runs = [{"name": record.name, "folder": record.folder} for record in records]
        found = {
            name: {"values": values, "differences": _differences(values)} for name, values in results.items()
        }
        print(json.dumps({"runs": runs, "settings": settings, "test": found}))
        return 0
    letters = LETTERS[: len(records)]
    print("\n".join(f"{x}  {record.name}" for x, record in zip(letters, records, strict=True)), end="\n\n")
    print(table([("setting", *letters), *((name, *map(shown, values)) for name, values in settings.items())]))
    rows = [("test", *letters, *(f"{x} - A" for x in letters[1:]))]
    for name in _main_results(records[0]):
        digits = 1 if records[0].task == "pairs" else 3
        values = [f"{value:.{digits}f}" for value in results[name]]
        rows.append((name, *values, *(f"{x:+.{digits}f}" for x in _differences(results[name]))))
    print("\n" + table(rows))
    if "data" in settings:
        print("\nThe runs have different data; their results cannot be compared.")
    return 0


def pairs(words: Words) -> int:
    """List the training pairs of a run with the probability that each is matched, the least likely first.

    The columns caption and image are row numbers of the training split, p_clean is the probability after the
    last epoch (the mean of both networks where there are two), picture its name where the data set knows
    it, and text is the caption.
    """
    parser = parser_of("pairs", pairs, parents=[_of_a_model()])
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write all pairs, or the worst N, as a table"
    )
    parser.add_argument("--worst", type=count, metavar="N", help="how many to list; 10 by default")
    asked = parser.parse_args(words)
    found = _model(asked).pairs()
    worst = found.sort_values("p_clean", kind="stable").head(asked.worst or 10)
    if asked.csv is not None:
        chosen = worst if asked.worst else found
        chosen.to_csv(asked.csv, index=False)
        print(f"{len(chosen):,} pairs: {asked.csv}")
        return 0
    below = int((found["p_clean"] < 0.5).sum())
    print(
        f"{len(found):,} training pairs, {below:,} of them with p_clean below 0.5; the {len(worst)} lowest:\n"
    )
    print(_rows(worst, p_clean="{:.3f}"))
    return 0


def search(words: Words) -> int:
    """Search the test pictures of a run for those that fit a sentence best.

    The column image is the picture's row number in the test split, picture its name where the data set
    knows it, caption the first of its own captions.
    """
    parser = parser_of("search", search, parents=[_of_a_model()])
    parser.add_argument("text", metavar="TEXT", help='a sentence, in quotes: "a dog on a beach"')
    parser.add_argument("--top", type=count, default=5, metavar="N", help="how many pictures; 5 by default")
    asked = parser.parse_args(words)
    with noted():
        found = _model(asked).search(asked.text, k=asked.top)
    print(_rows(found, score="{:.3f}"))
    return 0


# ---------------------------------------------------------------------------------- what the commands share


def record_of(run: Path) -> Record:
    """Return the record of a run: of a folder, or of a file."""
    from nclib.runs import Record

    path = _existing(run) / "record.json" if run.is_dir() else _existing(run)
    if not path.is_file():
        raise ValueError(f"{run} holds no record.json; give the folder of one run")
    return Record.load(path)


def _existing(run: Path) -> Path:
    """Return a folder that holds a record or a saved model, or a file; else say what is wrong."""
    if not run.exists():
        siblings = [path.name for path in run.parent.iterdir()] if run.parent.is_dir() else []
        raise FileNotFoundError(f"{run}: there is no such run{did_you_mean(run.name, siblings)}")
    if run.is_dir() and (run / "checkpoint.safetensors").is_file() and not (run / "record.json").is_file():
        raise ValueError(f"{run}: the run has not finished; the command that started it continues it")
    return run


def as_json(record: Record) -> str:
    """Return a record with its folder as one JSON object."""
    return json.dumps(asdict(record))


def described(record: Record) -> str:
    """Return a finished run in words: result, noise, epochs, cost, folder, settings, warnings."""
    cost, warnings = record.cost, record.warnings
    facts = [
        ("noise", record.noise.get("description", "-")),
        ("epochs", f"{len(record.curves)}, tested: {record.best_epoch}, selected on validation"),
        ("seconds", f"{cost.get('seconds', math.nan):g} of training on {record.environment['device']}"),
        ("folder", record.folder),
        ("warnings", "\n          ".join(warnings) or "none"),
    ]
    settings = [(name, shown(value)) for name, value in _flat(record.settings).items()]
    return f"{record}\n\n{table(facts)}\n\nsettings\n{table(settings)}"


def _main_results(record: Record) -> list[str]:
    from nclib.runs.record import MAPS, RECALLS

    return [*MAPS, "map_avg"] if record.task == "labels" else [*RECALLS, "rsum"]


def _facts(record: Record) -> dict[str, Any]:
    """Return the settings of a run, and what else decides its numbers, by names with dots."""
    from nclib.runs.identity import FREE, naming

    named = {k: v for k, v in naming(record.settings).items() if k not in FREE}
    more = {"data": record.data.get("checksum", "")[:12], "code": record.environment.get("code")}
    return {**_flat(named), **more, "device": record.environment["device"]}


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by names with dots, what the run is before how it was trained."""
    first: dict[str, Any] = {k: settings[k] for k in ("method", "model", "dataset") if k in settings}
    return flattened(first | settings)


def _differences(values: Sequence[float]) -> list[float]:
    return [value - values[0] for value in values[1:]]


def _rows(found: Any, **formats: str) -> str:
    """Return a DataFrame as a table in plain text."""
    how: dict[str, Callable[[Any], str]] = {name: text.format for name, text in formats.items()}
    rows = [[how.get(k, str)(v) for k, v in row.items()] for row in found.to_dict("records")]
    return table([list(found.columns), *rows])


def _of_a_model() -> argparse.ArgumentParser:
    """Return the arguments of commands that load the networks of a run."""
    parser = argparse.ArgumentParser(add_help=False, parents=[importing()])
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run, or of a saved model")
    parser.add_argument("--device", default="cpu", help="where the networks run")
    return parser


def _model(asked: argparse.Namespace) -> TrainedModel:
    import nclib

    import_files(asked.files)
    run = _existing(asked.run)
    return nclib.load(run.parent if run.name == "record.json" else run, asked.device)
