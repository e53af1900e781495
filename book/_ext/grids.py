"""Declared grids of runs: the files in ``book/grids``, what they stand for, and everything wrong with them.

A grid is a YAML file: a list of blocks. A block names parameters of ``nclib.run``; where it gives a list,
every value is taken, in every combination. ``about``, if given, is a line of text on the block. Two programs
make the runs: ``grid.py`` (records only, in one pool of processes) and ``sweep.py`` (a notebook per run).
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import json
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRIDS = ROOT / "book" / "grids"
NAMED = ("method", "model", "dataset", "mrate", "noise_rate", "protocol", "noise", "seed")
ABOUT = "about"
METHOD = "l2rm"  # of a run that names none, as in nclib.run
OWN = ("out", "device")  # parameters that the program decides


class GridError(Exception):
    """A grid file that cannot be run; the message names file, block and parameter."""


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
            found.setdefault(json.dumps(run, sort_keys=True), run)
    return sorted(found.values(), key=lambda run: run.get("seed", 0))


def label(run: dict[str, Any]) -> str:
    """Return a file name for a run's record: what it is, then what is unusual about it."""
    usual = [str(run[k]) for k in ("method", "model", "dataset") if k in run]
    for key, sign in (("mrate", "m"), ("noise_rate", "n"), ("protocol", ""), ("noise", ""), ("seed", "s")):
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
        blocks = yaml.safe_load(path.read_text("utf8"))
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
    from nclib import category
    from nclib.data.category import category_datasets
    from nclib.data.registry import datasets
    from nclib.experiment import kind_of

    name = arguments.get("dataset")
    registry = category_datasets if kind_of(arguments.get("method", METHOD)) is category else datasets
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
    from nclib.experiment import kind_of

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
            name, text = label(run), json.dumps(run, sort_keys=True)
            if name in found:
                if origin[name][1] != text:
                    wrong[f"{where} and block {origin[name][0]}: two runs would be called {name}"] = None
                continue
            try:
                needed = needs_root(run)
                options = {**(run.get("data_options") or {}), "root": root or "unknown"}
                arguments = {**run, "data_options": options} if needed else run
                settings = kind_of(run.get("method", METHOD)).resolve(**arguments)
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
