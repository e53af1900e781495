"""Declared grids of runs: read a file of ``book/grids``, expand it, check every run before the first starts.

A grid is a YAML list of blocks. A block gives parameters of ``nclib.run``; where it gives a list, every value
is taken, in every combination. ``method: all`` means every method that trains; ``about`` describes it,
``import`` names code that its runs need, as ``nclib run --import`` does, relative to this repository.
``model: saf+sgr`` is a run of each, tested as one model (:func:`nclib.combine`).
"""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))  # data_check
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # baselines

from baselines import weights
from ncbook.variant import published_name

from nclib.common.importing import import_own

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRIDS = ROOT / "book" / "grids"
NAMED = ("method", "model", "dataset", "mrate", "noise_rate", "protocol", "seed")
METHOD = "l2rm"  # default of nclib.run
UNTRIED = ("about", "import")  # keys of a block that are not parameters of nclib.run
OWN = ("out", "device")  # parameters that the driver decides
LONGEST = 220  # characters of a label, which becomes a file name
UNREAD: dict[str, Callable[[dict[str, Any]], bool]] = {  # files, and data options that need them not
    "*_vocab.json": lambda o: any(o.get(k) for k in ("vocabulary", "pieces", "build_vocabulary")),
    "testall_*": lambda o: o.get("test_split") == "test",
    "*.f16.npy": lambda o: not o.get("half"),
    "*_boxes.npy": lambda o: not o.get("boxes"),
}


class GridError(Exception):
    """A grid cannot be run as asked; the message names the file, block and parameter, or the option."""


class _Loader(yaml.SafeLoader):
    """Refuse a key that is given twice in a block: PyYAML would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                where = f"{pathlib.Path(self.name).name}, line {key.start_mark.line + 1}"
                raise GridError(f"{where}: {key.value} is given twice; a block starts with a dash")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Planned:
    """One run of a grid."""

    label: str  # unique in its grid and usable as a file name
    about: str  # description of its block
    arguments: dict[str, Any]  # of nclib.run; models joined by a plus sign are runs of their own, combined
    settings: dict[str, Any]  # resolved; empty when the run needs the papers' data and they were not given
    code: str = ""  # what is imported first

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The arguments of each run that is combined; those of the run itself where nothing is."""
        from baselines.joined import parts_of

        return parts_of(self.arguments)


def file_of(grid: str, folder: pathlib.Path = GRIDS) -> pathlib.Path:
    """Return the file of a grid, given by its name or as a path; a GridError lists the declared ones."""
    path = pathlib.Path(grid)
    if path.suffix in (".yml", ".yaml") and path.is_file():
        return path
    known = sorted(p.stem for p in folder.glob("*.yml"))
    if grid in known:
        return folder / f"{grid}.yml"
    hint = "".join(f"did you mean {near!r}? " for near in difflib.get_close_matches(grid, known, 1))
    raise GridError(f"there is no grid {grid!r}; {hint}there are: {', '.join(known)}")


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the blocks of a grid file; a GridError when it is not a list of blocks of parameters."""
    try:
        with path.open(encoding="utf8") as file:
            blocks = yaml.load(file, _Loader)
    except yaml.YAMLError as error:
        raise GridError(f"{path.name} is not YAML: {error}") from error
    if not isinstance(blocks, list) or not blocks:
        raise GridError(f"{path.name}: must be a list of blocks, each with a dash before its first parameter")
    for number, block in enumerate(blocks, 1):
        where = f"{path.name}, block {number}"
        if not isinstance(block, dict) or not block or not all(isinstance(k, str) for k in block):
            raise GridError(f"{where}: must be parameters with values, name: value")
        if empty := [k for k, v in block.items() if v == []]:
            raise GridError(f"{where}: {empty[0]} is an empty list, which means no run")
        if text := [k for k in UNTRIED if not isinstance(block.get(k, ""), str)]:
            raise GridError(f"{where}: {text[0]} must be text")
        if own := [k for k in OWN if k in block]:
            raise GridError(f"{where}: {own[0]} is an option of the command, not of the grid")
    return blocks


def combinations(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of every run of a block."""
    from nclib import methods

    block = {k: v for k, v in block.items() if k not in UNTRIED}
    if block.get("method") == "all":
        trained = (
            m for m in methods.METHODS if not issubclass(methods.METHODS[m].factory, methods.ClosedForm)
        )
        block["method"] = list(trained)
    lists = [v if isinstance(v, list) else [v] for v in block.values()]
    for values in itertools.product(*lists):
        run = dict(zip(block, values, strict=True))
        for part in {"data_options", "model_options"} & run.keys():
            given = run[part] or {}
            run[part] = {  # every data set has files of its own
                k: v.replace("{dataset}", str(run.get("dataset"))) if isinstance(v, str) else v
                for k, v in given.items()
            }
        yield run


def label(run: dict[str, Any]) -> str:
    """Return a file name for a run: method, model, data, noise and seed, then every unusual parameter."""
    usual = [str(run[k]) for k in ("method", "model", "dataset") if k in run]
    for key, sign in (("mrate", "m"), ("noise_rate", "n"), ("protocol", ""), ("seed", "s")):
        usual += [f"{sign}{run[key]}"] if key in run else []
    extra: dict[str, None] = {}  # an ordered set: published weights are named once, whatever they are for
    for key, value in sorted(run.items()):
        parts = value.items() if isinstance(value, dict) else [(key, value)]
        extra |= {} if key in NAMED else dict.fromkeys(published_name(v) or f"{k}={v}" for k, v in parts)
    return re.sub(r"[^\w.=+,-]", "_", "-".join([*usual, *extra]))


def told(arguments: Mapping[str, Any]) -> str:
    """Return the arguments that runs of one row with different seeds share, as text, without places."""
    found = {k: v for k, v in arguments.items() if k != "seed"}
    for part in {"data_options", "model_options"} & found.keys():
        given = {k: v for k, v in found[part].items() if k != "root"}
        found[part] = {k: published_name(v) or v for k, v in given.items()}
    return json.dumps({k: v for k, v in found.items() if v != {}}, sort_keys=True)


def plan(path: pathlib.Path, root: str = "") -> list[Planned]:
    """Return the runs of a grid file, each once, low seeds first, checked as ``nclib.run`` would check them.

    Without ``root``, the folder of the papers' data, runs on these data are checked but have no ``settings``.
    A GridError names the file, the block and the parameter of everything that is wrong.
    """
    from baselines.joined import parts_of

    import nclib

    found: dict[str, Planned] = {}
    origin: dict[str, tuple[int, str]] = {}  # label -> block and arguments
    wrong: dict[str, None] = {}  # an ordered set
    for number, block in enumerate(read(path), 1):
        where, code = f"{path.name}, block {number}", block.get("import", "")
        try:
            if code:
                import_own(code, ROOT)
        except (ValueError, ImportError) as error:
            wrong[f"{where}: {error}"] = None
            continue
        for run in combinations(block):
            try:
                name, text = label(run), json.dumps(run, sort_keys=True, default=str)
                if name in found:
                    if origin[name][1] != text:
                        wrong[f"{where} and block {origin[name][0]}: two runs would be called {name}"] = None
                    continue
                if len(name) > LONGEST:
                    many = f"a run has too many parameters for a file name ({len(name)} characters)"
                    raise ValueError(many)
                needed = needs_root(run)
                if needed:
                    run["data_options"] = {**(run.get("data_options") or {}), "root": root or "unknown"}
                for part in {"data_options", "model_options"} & run.keys():
                    given = run[part] or {}
                    run[part] = {k: weights.below(root or "unknown", v) for k, v in given.items()}
                resolved = [nclib.resolve(**{"method": METHOD, **part}).flat() for part in parts_of(run)]
                settings = json.loads(json.dumps(resolved[0]))
                if len(resolved) > 1:  # a combination has the settings of its first part, but for these
                    settings |= {"model": run["model"]}
                    settings["model_options"] |= run.get("model_options") or {}
            except (ValueError, TypeError) as error:
                wrong[f"{where}: {str(error).removeprefix('bad parameters: ')}"] = None
                continue
            if needed and not root:
                settings, run = {}, json.loads(text)
            found[name] = Planned(name, str(block.get("about", "")), run, settings, code)
            origin[name] = number, text
    if wrong:
        raise GridError("\n".join(wrong))
    return sorted(found.values(), key=lambda run: run.arguments.get("seed", 0))


def needs_root(arguments: dict[str, Any]) -> bool:
    """Return whether a run reads files whose folder must be given and is not."""
    from nclib.data.registry import datasets

    name = str(arguments.get("dataset", ""))
    if name not in datasets or "root" in (arguments.get("data_options") or {}):
        return False
    root = inspect.signature(datasets[name].factory).parameters.get("root")
    return root is not None and root.default is root.empty


def chosen(runs: list[Planned], match: str, part: tuple[int, int] = (1, 1)) -> list[Planned]:
    """Return the runs whose label matches a regular expression; of these every n-th, from the k-th on."""
    try:
        found = [run for run in runs if re.search(match, run.label)]
    except re.error as error:
        raise GridError(f"match={match!r} is not a regular expression: {error}") from error
    if not found:
        raise GridError(f"match={match!r} fits no run; the first is called {runs[0].label}")
    return found[part[0] - 1 :: part[1]]


def check_place(runs: Collection[Planned], root: str, device: str = "auto") -> None:
    """Check in seconds what the runs need of this machine: the device, the data folder and its files.

    Data of other sizes than the published ones are printed; they stop only runs that would refuse them. A
    GridError names what is missing.
    """
    from nclib.common.precision import check_precision
    from nclib.runs.machine import choose_device

    if runs and root and not pathlib.Path(root).is_dir():
        raise GridError(f"root={root!r}: there is no such folder; give the one that holds the papers' data")
    try:
        place = choose_device(device)
        for precision in sorted({run.settings.get("precision", "fp32") for run in runs}):
            check_precision(precision, place)
    except ValueError as error:
        raise GridError(str(error)) from error
    if lacking := lacking_data(runs):
        advice = (
            "Complete these files (tools/data_check.py ROOT says more), or leave their runs out with match."
        )
        raise GridError("\n".join([*dict.fromkeys(lacking.values()), advice]))


def lacking_data(runs: Collection[Planned]) -> dict[str, str]:
    """Return, by label, what data and weights of runs lack; runs whose files are all there are not in it."""
    found: dict[str, str] = {}
    seen: dict[str, str] = {}
    for run in runs:
        name, options = run.settings["dataset"], run.settings["data_options"]
        if "root" not in options:
            continue
        key = json.dumps([name, options], sort_keys=True)
        if key not in seen:
            seen[key] = lacking_files(name, options)
        parts = ("data_options", "model_options")
        files = [v for part in parts for v in (run.settings.get(part) or {}).values() if published_name(v)]
        said = {v: weights.problem(pathlib.Path(v).expanduser()) for v in files}
        lines = [seen[key], *(f"{place}: {problem}" for place, problem in said.items() if problem)]
        if any(lines):
            found[run.label] = "\n".join(filter(None, lines))
    return found


def lacking_files(name: str, options: dict[str, Any]) -> str:
    """Describe the files of a data set that keep a run from starting; empty when there are none."""
    from data_check import CHECKS, GOOD, OTHER, PAIRS, check

    root = pathlib.Path(options["root"]).expanduser()
    if not root.exists():
        return f"{name}: root={str(root)!r}: there is no such file or folder"
    if name not in CHECKS:  # a data set that the user registered
        return ""
    name = f"{name}_{options['pixels']}" if options.get("pixels") else name
    report = check(name, root, half=bool(options.get("half")), boxes=bool(options.get("boxes")))
    unread = [pattern for pattern, is_unread in UNREAD.items() if is_unread(options)]
    read = [n for n in report.lines if not any(fnmatch.fnmatch(n.file, pattern) for pattern in unread)]
    lines = [line for line in read if line.state != GOOD]
    described = "\n".join([f"{name}: {report.folder}", *map(str, lines)])
    allowed = {OTHER} if name in PAIRS or options.get("sizes") == "any" else set()
    if any(line.state not in allowed for line in lines):
        return described
    if lines:
        print(described)
    return ""
