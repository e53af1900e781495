"""Declared grids of runs: the files in ``book/grids``, what they stand for, and everything wrong with them.

A grid is a YAML file: a list of blocks. A block names parameters of ``nclib.run``; where it gives a list,
every value is taken, in every combination. ``about``, if given, is a line of text on the block. Two programs
make the runs: ``grid.py`` (records only, in one pool of processes) and ``sweep.py`` (a notebook per run).
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import inspect
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRIDS = ROOT / "book" / "grids"
NAMED = ("method", "model", "dataset", "mrate", "noise_rate", "protocol", "seed")
ABOUT = "about"
METHOD = "l2rm"  # of a run that names none, as in nclib.run
OWN = ("out", "device")  # parameters that the program decides
UNREAD: dict[str, Callable[[dict[str, Any]], bool]] = {  # files, and the data options without use for them
    "*_vocab.json": lambda o: o.get("vocabulary") is not None or o.get("build_vocabulary") is True,
    "testall_*": lambda o: o.get("test_split") == "test",
    "*.f16.npy": lambda o: not o.get("half"),
}


class GridError(Exception):
    """A grid file that cannot be run; the message names file, block and parameter."""


class Refused(Exception):
    """The grid cannot be made as asked; the message says why and what to do."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: PyYAML takes the last, and runs would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                where = f"{pathlib.Path(self.name).name}, line {key.start_mark.line + 1}"
                raise GridError(
                    f"{where}: {key.value} is given twice in one block; a block starts with a dash"
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Planned:
    """One run of a grid.

    Parameters
    ----------
    label : str
        Name of the run, unique in its grid and fit for a file name.
    about : str
        What its block says of itself.
    arguments : dict
        What ``nclib.run`` is called with.
    settings : dict
        What that stands for: defaults, then the preset, then the arguments. Empty where the place of the data
        is needed and not known.
    """

    label: str
    about: str
    arguments: dict[str, Any]
    settings: dict[str, Any]


def combinations(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return every run of a block, seeds outermost, so that an unfinished grid is balanced."""
    lists = {k: v if isinstance(v, list) else [v] for k, v in block.items() if k != ABOUT}
    names = sorted(lists, key=lambda name: name != "seed")
    for values in itertools.product(*(lists[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def runs_of(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of a grid, the lowest seeds of all blocks first; each once."""
    found: dict[str, dict[str, Any]] = {}
    for block in blocks:
        for run in combinations(block):
            found.setdefault(_text(run), run)
    return sorted(found.values(), key=lambda run: run.get("seed", 0))


def _text(run: dict[str, Any]) -> str:
    """Return a run's parameters as text; what JSON lacks, such as a date, is refused later, by its name."""
    return json.dumps(run, sort_keys=True, default=str)


def label(run: dict[str, Any]) -> str:
    """Return a file name for a run's record: what it is, then what is unusual about it."""
    usual = [str(run[k]) for k in ("method", "model", "dataset") if k in run]
    for key, sign in (("mrate", "m"), ("noise_rate", "n"), ("protocol", ""), ("seed", "s")):
        usual += [f"{sign}{run[key]}"] if key in run else []
    extra: list[str] = []
    for key, value in sorted(run.items()):
        parts = value.items() if isinstance(value, dict) else [(key, value)]
        extra += [] if key in NAMED else [f"{k}={v}" for k, v in parts]
    return re.sub(r"[^\w.=+,-]", "_", "-".join(usual + extra))


def file_of(grid: str, folder: pathlib.Path = GRIDS) -> pathlib.Path:
    """Return the file of a grid, given by its name or as a path.

    Raises
    ------
    GridError
        When there is none; the message lists those that there are.
    """
    path = pathlib.Path(grid)
    if path.suffix in (".yml", ".yaml") and path.is_file():
        return path
    known = sorted(p.stem for p in folder.glob("*.yml"))
    if grid in known:
        return folder / f"{grid}.yml"
    near = difflib.get_close_matches(grid, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise GridError(f"there is no grid {grid!r}; {hint}there are: {', '.join(known)}")


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the blocks of a grid file.

    Raises
    ------
    GridError
        When it is not a list of blocks of parameters.
    """
    try:
        with path.open(encoding="utf8") as file:
            blocks = yaml.load(file, _Loader)
    except yaml.YAMLError as error:
        raise GridError(f"{path.name} is not YAML: {error}") from error
    if not isinstance(blocks, list) or not blocks:
        raise GridError(f"{path.name}: must be a list of blocks, each with a dash before its first parameter")
    for number, block in enumerate(blocks, 1):
        if not isinstance(block, dict) or not block or not all(isinstance(k, str) for k in block):
            raise GridError(f"{path.name}, block {number}: must be parameters with values, name: value")
        empty = [k for k, v in block.items() if v == []]
        if empty:
            raise GridError(f"{path.name}, block {number}: {empty[0]} is an empty list, which means no run")
    return blocks


def needs_root(arguments: dict[str, Any]) -> bool:
    """Return whether the data of a run are files whose folder must be given, and is not."""
    from nclib.runs import experiment_of

    name, registry = arguments.get("dataset"), experiment_of(arguments.get("method", METHOD)).datasets
    if name not in registry or "root" in (arguments.get("data_options") or {}):
        return False
    root = inspect.signature(registry[name].factory).parameters.get("root")
    return root is not None and root.default is root.empty


def plan(path: pathlib.Path, root: str = "") -> list[Planned]:
    """Return every run of a grid file, checked as ``nclib.run`` would, before anything is loaded.

    Parameters
    ----------
    path : Path
        The grid file.
    root : str
        Folder of the papers' data, for runs on data that are not bundled. Where it is empty, such runs are
        planned and checked, but have no ``settings``.

    Raises
    ------
    GridError
        Naming the file, the block and the parameter, for everything wrong at once.
    """
    from nclib.runs import experiment_of

    found: dict[str, Planned] = {}
    origin: dict[str, tuple[int, str]] = {}
    wrong: dict[str, None] = {}
    for number, block in enumerate(read(path), 1):
        where = f"{path.name}, block {number}"
        if not isinstance(block.get(ABOUT, ""), str):
            wrong[f"{where}: {ABOUT} must be text"] = None
        for name in (n for n in OWN if n in block):
            wrong[f"{where}: {name} is decided by the program that makes the runs, not by the grid"] = None
        for run in combinations(block):
            try:
                name, text = label(run), _text(run)
                if name in found:
                    if origin[name][1] != text:
                        wrong[f"{where} and block {origin[name][0]}: two runs would be called {name}"] = None
                    continue
                needed = needs_root(run)
                options = {**(run.get("data_options") or {}), "root": root or "unknown"}
                arguments = {**run, "data_options": options} if needed else run
                settings = experiment_of(run.get("method", METHOD)).resolve(**arguments).flat()
            except (ValueError, TypeError) as error:
                wrong[f"{where}: {str(error).removeprefix('bad parameters: ')}"] = None
                continue
            unknown = needed and not root
            about = str(block.get(ABOUT, ""))
            found[name] = Planned(
                name, about, run if unknown else arguments, {} if unknown else as_json(settings)
            )
            origin[name] = number, text
    if wrong:
        raise GridError("\n".join(wrong))
    return sorted(found.values(), key=lambda run: run.arguments.get("seed", 0))


def as_json(value: Any) -> Any:
    """Return settings as they come back from a record."""
    return json.loads(json.dumps(value))


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers for argparse."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least {least}")
        return int(text)

    return number


def chosen(runs: list[Planned], match: str) -> list[Planned]:
    """Return the runs whose name fits a regular expression."""
    try:
        found = [run for run in runs if re.search(match, run.label)]
    except re.error as error:
        raise Refused(f"match={match!r} is not a regular expression: {error}") from error
    if not found:
        raise Refused(f"match={match!r} fits no run; the first is called {runs[0].label}")
    return found


def check_place(runs: Collection[Planned], root: str, device: str = "") -> None:
    """Check what runs need of this machine, in seconds: the folder of the data, its files, the device.

    Without runs there is nothing to check. Other sizes than the published ones are printed, and refused only
    where the runs would refuse them.

    Parameters
    ----------
    runs : collection of Planned
        Those that are to be made.
    root : str
        Folder of the papers' data; may be empty.
    device : str
        Name of the device; empty where the runs choose, or where the jobs run on other machines.

    Raises
    ------
    Refused
        Naming what is missing.
    """
    from nclib.runs.machine import choose_device

    if not runs:
        return
    if root and not pathlib.Path(root).is_dir():
        raise Refused(f"root={root!r}: there is no such folder; give the one that holds the papers' data")
    if device:
        try:
            choose_device(device)
        except ValueError as error:
            raise Refused(str(error)) from error
    needed: dict[str, tuple[str, dict[str, Any]]] = {}
    for run in runs:
        name, options = run.settings["dataset"], run.settings["data_options"]
        if "root" in options:
            needed[_text({name: options})] = name, options
    lacking = [text for name, options in needed.values() if (text := _lacking(name, options))]
    if lacking:
        advice = "Complete these files (nclib data check ROOT says more), or leave their runs out with match."
        raise Refused("\n".join([*lacking, advice]))


def _lacking(name: str, options: dict[str, Any]) -> str:
    """Return what is wrong with the files of a data set that a run reads; empty where it can start."""
    from nclib.data.check import CHECKS, GOOD, OTHER, PAIRS, check

    root = pathlib.Path(options["root"]).expanduser()
    if not root.exists():
        return f"{name}: root={str(root)!r}: there is no such file or folder"
    if name not in CHECKS:  # somebody's own files
        return ""
    report = check(name, root, half=bool(options.get("half")))
    unread = [pattern for pattern, is_unread in UNREAD.items() if is_unread(options)]
    lines = [
        line
        for line in report.lines
        if line.state != GOOD and not any(fnmatch.fnmatch(line.file, pattern) for pattern in unread)
    ]
    said = "\n".join([f"{name}: {report.folder}", *map(str, lines)])
    allowed = {OTHER} if name in PAIRS or options.get("sizes") == "any" else set()
    if any(line.state not in allowed for line in lines):
        return said
    if lines:
        print(said)
    return ""
