"""The identity of a run: settings, files and data that decide its numbers, and the code that computes them.

Files count by their content, wherever they lie: of weights, word vectors, vocabularies and noise the settings
hold a digest, of the data the run knows the checksum.

The code of this package is what the run's method, model, data set and trainer reach by name
(:mod:`nclib.common.code`), as the files were when this module was imported. Of what is defined elsewhere, in
a notebook or a file of the user's, the objects in memory count: the code of functions
(:mod:`nclib.common.compiled`), all that classes hold, the values of global variables and attributes, weights
of modules. Comments, docstrings and all other code may change. Device and threads change the last digits of a
result but do not name a run: a record tells which of them computed which epochs.

Runs with code of the user's get other names under another minor version of Python. Not seen are: a file of
this package that is edited after it was imported, and reloaded; functions that are put into its modules
or classes, unless a class names the run or the user's code mentions the place; what is looked up under a
computed name; the state of objects of other packages, beyond arrays, tensors, modules, dataclasses and what
their ``repr`` shows without an address.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib.util
import json
import os
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from nclib.common.code import Code, Definition, short_digest
from nclib.common.compiled import Compiled
from nclib.common.files import digest

FREE = frozenset({"out", "device", "threads"})
"""Settings that do not name a run: where its files lie and what computes it."""

DATA = ("root", "pairs", "images", "image_emb")
"""Options of data sets that are places of files, all of which the checksum of the data covers."""

BESIDE = ("nclib.runs.identity", "nclib.runs.machine", "nclib.runs.record")  # they look on
GROUPS = (list, tuple, Mapping, set, frozenset)
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
OPEN = (types.SimpleNamespace, torch.nn.Module)  # kinds of objects whose attributes count
HEAP_TYPE = 1 << 9  # flag of classes that a class statement makes


def naming(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that name a run.

    Left out are :data:`FREE`, the places of the data (:data:`DATA`; a record holds their checksum), and those
    of files whose digests are among the settings: these stand in their place.

    Examples
    --------
    >>> naming({"method": "plain", "out": "runs", "data_options": {"root": "/data", "size": "small"}})
    {'method': 'plain', 'data_options': {'size': 'small'}}
    """
    free = FREE | ({"noise_file"} if settings.get("noise_sha256") else set())
    named = {k: v for k, v in settings.items() if k not in free and k != "files_sha256"}
    for part, found in settings.get("files_sha256", {}).items():
        named[part] = {**named[part], **{name: f"sha256 {sha256}" for name, sha256 in found.items()}}
    if isinstance(named.get("data_options"), Mapping):
        named["data_options"] = {k: v for k, v in named["data_options"].items() if k not in DATA}
    return named


def places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are places on one machine: of data, of noise, of weights and other files.

    Names of networks in the hub's cache are none.
    """
    files = {part: tuple(found) for part, found in settings.get("files_sha256", {}).items()}
    files["data_options"] = (*DATA, *files.get("data_options", ()))
    found = {}
    for part, names in files.items():
        options = settings.get(part) or {}
        if here := {name: options[name] for name in names if _is_place(options.get(name))}:
            found[part] = here
    return {**found, **({"noise_file": settings["noise_file"]} if settings.get("noise_file") else {})}


def _is_place(value: Any) -> bool:
    if not value or not isinstance(value, (str, os.PathLike)):
        return False
    return Path(value).is_absolute() or Path(value).expanduser().exists()


def published(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a record stores them: of files the names alone, and no folder of the data."""
    result = dict(settings)
    for part, found in places(settings).items():
        if isinstance(found, Mapping):
            kept = {k: Path(v).name if k in found else v for k, v in settings[part].items()}
            hidden = set(DATA) & found.keys() if part == "data_options" else ()
            result[part] = {k: v for k, v in kept.items() if k not in hidden}
        else:
            result[part] = Path(found).name
    return result


def fingerprint(settings: Mapping[str, Any], parts: Iterable[Any], data: str = "") -> str:
    """Return a digest of all that decides a run's numbers, 16 hexadecimal digits.

    ``parts`` are the classes and functions that compute the run, ``data`` is the checksum of its data.
    """
    content = json.dumps([naming(settings), data, code_of(parts)], sort_keys=True)
    return digest(content)[:16]


def code_names(parts: Iterable[Any]) -> dict[str, str]:
    """Return ``code``, a digest of the code that computes a run, and ``own_code``: that of the user's part.

    The latter is missing where nothing of the run is defined outside this package.
    """
    parts = list(parts)
    found, inside = code_of(parts), nclib_code().paths
    own = any(_home(part) not in inside for part in parts)
    names = {"code": found} | ({"own_code": found["elsewhere"]} if own else {})
    return {name: digest(json.dumps(code, sort_keys=True))[:16] for name, code in names.items()}


@functools.cache
def nclib_code() -> Code:
    """Return the code of this package, as its files were when this module was imported."""
    return Code({"nclib": Path(__file__).parents[1]})


nclib_code()  # read now: later the files may differ from what was imported


@functools.cache
def _within(start: frozenset[Definition]) -> dict[str, dict[str, str]]:
    return nclib_code().reach(start, without=BESIDE)


def code_of(parts: Iterable[Any]) -> dict[str, Any]:
    """Return the digests of the code that classes and functions reach, ``{module: {name: digest}}``.

    Under ``"elsewhere"`` stand the digests of code outside nclib and of the values that it uses.
    """
    search = _Elsewhere()
    for part in parts:
        search.enter(part, "")
    return {**_within(frozenset(search.start)), "elsewhere": sorted(search.found)}


class _Elsewhere:
    """The search from live objects: through the user's own code, up to where nclib begins.

    Everything that it finds is noted with the place where it was found, such as ``Mine.step: SCALE``.
    """

    def __init__(self) -> None:
        self.code = nclib_code()
        self.start: set[Definition] = set()  # in nclib
        self.found: set[str] = set()
        self.seen: dict[int, tuple[int, Any]] = {}  # kept alive, so that no id is used again

    def note(self, place: str, what: str) -> None:
        self.found.add(short_digest(f"{place} = {what}"))

    def enter(self, part: Any, place: str, asked_by: str = "") -> None:
        """Follow what stands at a place in the code of the package ``asked_by``."""
        if isinstance(part, PLAIN) and type(part) in PLAIN:
            self.note(place, repr(part))
            return
        if id(part) in self.seen:  # cycles end here
            self.note(place, f"number {self.seen[id(part)][0]}")
            return
        if not isinstance(part, (tuple, frozenset)):  # Python may make one object of equal ones, or not
            self.seen[id(part)] = len(self.seen), part
        if isinstance(part, GROUPS):
            self._group(part, place, asked_by)
        elif isinstance(part, functools.partial):
            self._group((part.func, part.args, part.keywords), place, asked_by)
        elif isinstance(part, types.FunctionType):
            self._function(part, place, asked_by)
        elif isinstance(part, type):
            self._class(part, place, asked_by)
        elif isinstance(part, types.MethodType):
            self._group((part.__func__, part.__self__), place, asked_by)
        elif isinstance(part, (staticmethod, classmethod)):
            self._group((type(part).__name__, part.__func__), place, asked_by)
        elif isinstance(part, property):
            self._group((part.fget, part.fset, part.fdel), place, asked_by)
        elif isinstance(part, functools.cached_property):
            self._group(("cached_property", part.func), place, asked_by)
        elif not isinstance(part, types.ModuleType):
            self._object(part, place, asked_by)

    def _group(self, part: Any, place: str, asked_by: str) -> None:
        self.note(place, f"{type(part).__name__} of {len(part)}")
        if isinstance(part, Mapping):
            for n, (key, value) in enumerate(part.items()):
                self.enter(key, f"{place} key {n}", asked_by)
                self.enter(value, f"{place}[{n}]", asked_by)
        elif all(type(item) in PLAIN for item in part):
            self.note(place, repr(sorted(part, key=repr) if isinstance(part, (set, frozenset)) else part))
        else:
            unordered = isinstance(part, (set, frozenset))
            for n, item in enumerate(sorted(part, key=_title) if unordered else part):
                self.enter(item, f"{place}[{n}]", asked_by)

    def _object(self, part: Any, place: str, asked_by: str) -> None:
        cls = type(part)
        self.note(place, f"object {cls.__qualname__} {_title(part)}")
        if (content := _array(part)) is not None:
            self.note(place, content)
            return
        self.enter(cls, f"{place} type", asked_by)
        own = cls.__module__ in self.code.paths or not _installed(cls)
        if own or dataclasses.is_dataclass(part) or isinstance(part, OPEN):
            values = {n: getattr(part, n) for n in _fields(part) if hasattr(part, n)}
            for name, value in {**values, **getattr(part, "__dict__", {})}.items():
                if not isinstance(getattr(cls, name, None), functools.cached_property):  # there after use
                    self.enter(value, f"{place}.{name}", asked_by)
        elif hasattr(part, "__wrapped__"):  # functools.cache and the like
            self.enter(part.__wrapped__, f"{place} wraps", asked_by)
        elif " at 0x" not in (shown := repr(part)):
            self.note(place, shown)

    def _class(self, part: type, place: str, asked_by: str) -> None:
        self.note(place, f"class {part.__qualname__}")
        inside = part.__module__ in self.code.paths
        if inside:
            self.start.add((part.__module__, part.__qualname__.partition(".<locals>")[0]))
        elif not _followed(part, asked_by):
            return
        package = _package(part)
        for name, value in vars(part).items():
            function = _function_of(value)
            if inside and function is None and type(value) not in PLAIN:
                continue  # as the source of nclib says
            if inside and function is not None and _home(function) in self.code.paths:
                continue
            if name.startswith("__") and name.endswith("__") and function is None:
                continue
            if name not in ("__abstractmethods__", "_abc_impl"):
                self.enter(value, f"{part.__qualname__}.{name}", package)
        for name, found in () if inside else _fields(part).items():
            self.enter((found.default, found.default_factory), f"{part.__qualname__}.{name} default", package)
            self.enter(dict(found.metadata), f"{part.__qualname__}.{name} metadata", package)
        for n, base in enumerate(() if inside else part.__bases__):
            self.enter(base, f"{part.__qualname__} base {n}", package)

    def _function(self, part: types.FunctionType, place: str, asked_by: str) -> None:
        self.note(place, f"function {part.__qualname__}")
        home = _home(part)
        if part.__module__ in self.code.paths and (home in self.code.paths or _installed(part)):
            self.start.add((part.__module__, part.__qualname__.partition(".<locals>")[0]))
            return
        cells = {}
        for name, cell in zip(part.__code__.co_freevars, part.__closure__ or (), strict=True):
            try:
                cells[name] = cell.cell_contents
            except ValueError:  # not bound yet
                continue
        package = _package(part)
        if not _followed(part, asked_by):  # a decorator of another package around a function of the user's
            for name, value in cells.items():
                if name != "__class__":
                    self.enter(value, f"{place} closes over {name}", asked_by)
            return
        read = Compiled().add(part.__code__)
        self.note(place, read.text)
        self.enter((part.__defaults__, part.__kwdefaults__), f"{part.__qualname__} defaults", package)
        for dotted in sorted(read.names):
            self._name({**part.__globals__, **cells}, dotted, f"{part.__qualname__}: {dotted}", package)
        for level, module, names in sorted(read.imports):
            self._import(part, level, module, names)

    def _name(self, space: Mapping[str, Any], dotted: str, place: str, package: str) -> None:
        first, *rest = dotted.split(".")
        if first not in space or first.startswith("__"):
            return  # a builtin, or a variable of the function
        value = space[first]
        while isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] == "nclib":
                self.start |= set(self.code.locate(f"{value.__name__}:{'.'.join(rest)}"))
                for name in rest:
                    value = getattr(value, name, None)
                if isinstance(value, types.FunctionType) and _home(value) not in self.code.paths:
                    self.enter(value, place, package)  # put in its place by the user
                return
            if not rest or not hasattr(value, rest[0]):
                return
            value, rest = getattr(value, rest[0]), rest[1:]
        self.enter(value, place, package)

    def _import(self, part: types.FunctionType, level: int, module: str, names: tuple[str, ...]) -> None:
        """Follow an import within a function; a module of the user's is imported for that."""
        package = part.__globals__.get("__package__") or ""
        try:
            full = importlib.util.resolve_name("." * level + module, package)
            if full.split(".")[0] == "nclib":
                for name in names or ("",):
                    self.start |= set(self.code.locate(f"{full}:{name}"))
                return
            top = full.split(".")[0]
            spec = importlib.util.find_spec(top)
            if spec is None or (top != _package(part) and _in_python(spec.origin)):
                return
            found = importlib.import_module(full)
        except (ImportError, ValueError):
            return  # the run cannot import it either
        for name in names or [n for n in vars(found) if not n.startswith("__")]:
            self._name({"m": found}, f"m.{name}", f"{part.__qualname__}: {module}.{name}", top)


def _followed(part: Any, asked_by: str) -> bool:
    """Return whether code outside nclib is read: the user's, and that of the package that asks for it."""
    return not asked_by or not _installed(part) or _package(part) == asked_by


def _home(part: Any) -> str:
    """Return the module in which a function or class was defined."""
    if isinstance(part, types.FunctionType):
        return part.__globals__.get("__name__") or ""
    return str(getattr(part, "__module__", ""))


def _package(part: Any) -> str:
    """Return the first part of the name of that module; "?" for what code without a module made."""
    package = _home(part).split(".")[0]
    return "?" if package in ("", "builtins") else package


def _function_of(value: Any) -> types.FunctionType | None:
    """Return the function behind a member of a class, if there is one."""
    value = next((getattr(value, n) for n in ("fget", "__func__", "func") if hasattr(value, n)), value)
    while not isinstance(value, type) and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value if isinstance(value, types.FunctionType) else None


def _title(part: Any) -> str:
    """Return the name of a function, a class or a builtin; of anything else that of its class."""
    return str(getattr(part, "__qualname__", "") or getattr(part, "__name__", "") or type(part).__qualname__)


def _array(part: Any) -> str | None:
    """Return type, shape and a digest of an array or a tensor, whatever device it lies on; else None."""
    if isinstance(part, torch.Tensor):
        if part.device.type == "meta" or part.layout != torch.strided:
            return f"{part.dtype} {tuple(part.shape)} {part.layout}"
        plain = part.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif hasattr(part, "tobytes") and hasattr(part, "dtype"):
        content = part.tobytes() if not part.dtype.hasobject else repr(part.tolist()).encode()
    else:
        return None
    return f"{part.dtype} {tuple(part.shape)} {digest(content)}"


def _installed(part: Any) -> bool:
    """Return whether something comes with Python or an installed package, whose version a record holds."""
    home = _home(part)
    if isinstance(part, type):
        if not part.__flags__ & HEAP_TYPE or getattr(builtins, part.__name__, None) is part:
            return True
        return home != "builtins" and _module_is_installed(home)  # exec without a module says builtins
    if isinstance(part, types.FunctionType) and _in_python(part.__code__.co_filename):
        return True
    module = sys.modules.get(home)
    made_there = not isinstance(part, types.FunctionType) or vars(module or types) is part.__globals__
    return made_there and _module_is_installed(home)


def _module_is_installed(name: str) -> bool:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if name == "__main__" or module is None:
        return False
    return getattr(module, "__spec__", None) is not None if file is None else _in_python(file)


@functools.cache
def _in_python(file: str | None) -> bool:
    """Return whether a file lies where Python or its packages are installed, or is a part of Python."""
    if file is None or file in ("built-in", "frozen") or file.startswith("<frozen "):
        return file is not None
    places = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return any(Path(place) in Path(file).resolve().parents for place in places)


def _fields(part: Any) -> Mapping[str, Any]:
    """Return the fields of a dataclass; none of anything else."""
    return getattr(part, "__dataclass_fields__", {})


def computed_on(so_far: list[dict[str, Any]], epoch: int, device: str) -> list[dict[str, Any]]:
    """Return on what the epochs of a run are computed, when ``epoch`` is the next: one entry per change.

    Warns when a run goes on elsewhere than before: the last digits of its numbers may then differ.

    Parameters
    ----------
    so_far : list of dict
        What this function returned before, ``from_epoch``, ``device``, ``threads`` and ``torch``; empty at
        the start.
    epoch : int
        From 1.
    device : str
        Name of the device; the number of CPU threads is the present one.
    """
    here = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
    last = {k: v for k, v in so_far[-1].items() if k != "from_epoch"} if so_far else here
    if last != here:
        was, now = (f"{x['device']}, threads={x['threads']}, torch {x.get('torch')}" for x in (last, here))
        said = f"continued on {now} from epoch {epoch}; before that on {was}: the last digits may differ"
        warnings.warn(said, UserWarning, stacklevel=2)
    return so_far if so_far and last == here else [*so_far, {"from_epoch": epoch, **here}]
