"""The identity of a run: the settings that decide its numbers, and the code that computes them.

The code is what the run's method, model, data set and trainer reach by name (:mod:`nclib.common.code`), and
the source of what is defined elsewhere, in a notebook or a file of the user's. Comments, docstrings and all
other code may change. Device and threads change the last digits of a result but do not name a run: a record
tells which of them computed which epochs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import linecache
import sys
import sysconfig
import textwrap
import types
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nclib.common.code import Code, Definition, Reading, short_digest
from nclib.common.files import digest

FREE = frozenset({"out", "device", "threads"})
"""Settings that do not name a run: where its files lie and what computes it."""

# They look on, or make the settings, which count by their values.
BESIDE = tuple(f"nclib.runs.{name}" for name in ("identity", "record", "experiment", "presets", "options"))
GROUPS = (list, tuple, dict, set, frozenset)
PLAIN = (bool, int, float, complex, str, bytes, type(None), *GROUPS)


def naming(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that name a run.

    Parameters
    ----------
    settings : mapping
        Complete settings of a run.

    Returns
    -------
    dict
        Without :data:`FREE`, without the place of the data (``root``; a record holds their checksum), and
        without the place of a noise file whose digest is among the settings.

    Examples
    --------
    >>> naming({"method": "plain", "out": "runs", "data_options": {"root": "/data", "size": "small"}})
    {'method': 'plain', 'data_options': {'size': 'small'}}
    """
    free = FREE | ({"noise_file"} if settings.get("noise_sha256") else set())
    named = {k: v for k, v in settings.items() if k not in free}
    if isinstance(named.get("data_options"), Mapping):
        named["data_options"] = {k: v for k, v in named["data_options"].items() if k != "root"}
    return named


def fingerprint(settings: Mapping[str, Any], parts: Iterable[Any]) -> str:
    """Return a digest of all that decides a run's numbers, 16 hexadecimal digits.

    The place of the data counts here, however it is spelt: data are not read before a run has a name, and
    two folders may hold different data.

    Parameters
    ----------
    settings : mapping
        Complete settings of the run.
    parts : iterable of classes and functions
        What computes it: method, model, data set, trainer.
    """
    root = settings.get("data_options", {}).get("root")
    place = str(Path(root).expanduser().resolve()) if root else ""
    content = json.dumps([naming(settings), place, code_of(parts)], sort_keys=True)
    return digest(content)[:16]


@functools.cache
def nclib_code() -> Code:
    """Return the code of this package, as it was when first asked for."""
    return Code({"nclib": Path(__file__).parents[1]})


@functools.cache
def _within(start: frozenset[Definition]) -> dict[str, dict[str, str]]:
    return nclib_code().reach(start, without=BESIDE)


def code_of(parts: Iterable[Any]) -> dict[str, Any]:
    """Return the digests of the code that classes and functions reach.

    Parameters
    ----------
    parts : iterable of classes and functions

    Returns
    -------
    dict
        ``{module: {name: digest}}`` for nclib; under ``"elsewhere"`` the digests of other sources and of the
        plain values that these use.
    """
    search = _Elsewhere()
    for part in parts:
        search.enter(part)
    return {**_within(frozenset(search.start)), "elsewhere": sorted(search.found)}


class _Elsewhere:
    """The search from live objects: through the user's own code, up to where nclib begins."""

    def __init__(self) -> None:
        self.start: set[Definition] = set()  # in nclib
        self.found: set[str] = set()
        self.seen: set[int] = set()

    def enter(self, part: Any, asked_by: str = "") -> None:
        """Follow a class, a function or a value that code in the package ``asked_by`` mentions."""
        if id(part) in self.seen:
            return
        self.seen.add(id(part))
        if isinstance(part, functools.partial):
            part = (part.func, part.args, part.keywords)
        if isinstance(part, PLAIN):
            text = repr(sorted(part, key=repr) if isinstance(part, (set, frozenset)) else part)
            if isinstance(part, GROUPS) and " at 0x" in text:  # functions and other objects
                for item in [*part, *(part.values() if isinstance(part, dict) else ())]:
                    self.enter(item, asked_by)
            else:
                self.found.add(short_digest(text))
        elif hasattr(part, "tolist"):  # an array or a tensor
            self.found.add(short_digest(repr(part.tolist())))
        elif not isinstance(part, (type, types.FunctionType)):
            if not isinstance(part, (types.ModuleType, types.BuiltinFunctionType)):
                self.enter(type(part), asked_by)
        elif part.__module__ in nclib_code().paths:
            self.start.add((part.__module__, part.__qualname__.partition(".<locals>")[0]))
            for member in _functions(part) if isinstance(part, type) else []:
                if member.__module__ not in nclib_code().paths:  # put in its place by the user
                    self.enter(member)
        elif not asked_by or not _installed(part) or part.__module__.split(".")[0] == asked_by:
            self._source(part)

    def _source(self, part: type | types.FunctionType) -> None:
        reading = Reading("").add(_tree(part))
        self.found.add(short_digest(f"{part.__qualname__} {reading.text}"))
        functions = _functions(part) if isinstance(part, type) else [part]
        space = dict(vars(sys.modules.get(part.__module__, types)))
        for function in functions:
            space |= {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        package = part.__module__.split(".")[0]
        for dotted in sorted(reading.names):
            self._name(space, dotted, package)
        for base in part.__bases__ if isinstance(part, type) else ():
            self.enter(base, package)

    def _name(self, space: Mapping[str, Any], dotted: str, package: str) -> None:
        first, *rest = dotted.split(".")
        if first not in space:
            return  # a builtin, or a variable of the function
        value = space[first]
        while isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] == "nclib":
                self.start |= set(nclib_code().locate(f"{value.__name__}:{'.'.join(rest)}"))
                return
            if not rest or not hasattr(value, rest[0]):
                return
            value, rest = getattr(value, rest[0]), rest[1:]
        self.enter(value, package)


def _functions(cls: type) -> list[types.FunctionType]:
    """Return the functions in the body of a class, those behind properties and decorators among them."""
    found = []
    for value in vars(cls).values():
        value = getattr(value, "fget", None) or getattr(value, "__func__", value)
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.FunctionType):
            found.append(value)
    return found


def _installed(part: Any) -> bool:
    """Return whether something comes with Python or an installed package, whose version a record holds."""
    file = getattr(sys.modules.get(part.__module__), "__file__", None)
    if part.__module__ == "__main__":
        return False
    places = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return file is None or any(Path(place) in Path(file).resolve().parents for place in places)


def _tree(part: type | types.FunctionType) -> list[ast.stmt]:
    """Return the statement that defines a class or a function.

    ``inspect.getsource`` does not find classes of notebook cells before Python 3.13; their methods know the
    cell. A class without methods is taken by its values.
    """
    for function in _functions(part) if isinstance(part, type) else [part]:
        code = function.__code__
        linecache.checkcache(code.co_filename)
        for node in _statements("".join(linecache.getlines(code.co_filename, function.__globals__))):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            last = node.end_lineno or node.lineno
            if getattr(node, "name", "") == part.__name__ and first <= code.co_firstlineno <= last:
                return [node]
    try:
        return _statements(textwrap.dedent(inspect.getsource(part)))[:1]
    except (OSError, TypeError):
        shown = {k: repr(v) for k, v in vars(part).items() if isinstance(v, PLAIN) and k != "__doc__"}
        shown |= {k: repr((f.default, f.metadata)) for k, f in shown_fields(part).items()}
        return [ast.Expr(ast.Constant(json.dumps(shown).encode()))]


def shown_fields(part: Any) -> Mapping[str, Any]:
    """Return the fields of a dataclass; none of anything else."""
    return getattr(part, "__dataclass_fields__", {})


@functools.lru_cache(64)
def _statements(source: str) -> list[ast.stmt]:
    """Return all definitions in some source."""
    nodes = ast.walk(ast.parse(source))
    return [n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]


def computed_on(so_far: list[dict[str, Any]], epoch: int, device: str, threads: int) -> list[dict[str, Any]]:
    """Return on what the epochs of a run are computed, when ``epoch`` is the next.

    Warns in one line when a run goes on elsewhere than before: the last digits of its numbers may then differ
    from those of a run in one place.

    Parameters
    ----------
    so_far : list of dict
        What this function returned before; empty at the start of a run.
    epoch : int
        From 1.
    device : str
        Name of the device.
    threads : int
        CPU threads.

    Returns
    -------
    list of dict
        ``from_epoch``, ``device`` and ``threads``; one entry per change.
    """
    here = {"device": device, "threads": threads}
    last = {k: v for k, v in so_far[-1].items() if k != "from_epoch"} if so_far else here
    if last != here:
        was, now = (f"{x['device']}, threads={x['threads']}" for x in (last, here))
        said = f"continued on {now} from epoch {epoch}; before that on {was}: the last digits may differ"
        warnings.warn(said, UserWarning, stacklevel=2)
    return so_far if so_far and last == here else [*so_far, {"from_epoch": epoch, **here}]
