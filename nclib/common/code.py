"""The code that a piece of Python reaches by name, as digests of definitions.

A definition is what a module binds at its top level: a function, a class, a constant or an import. From some
definitions the search follows every name they mention, through the exports of packages, to the definition
that the name leads to. Nothing is imported. Comments, docstrings, type hints of functions and layout are not
part of a digest, and all versions of Python give the same one.

The search errs towards more: a module that is passed around counts as a whole, and so do all entries of a
registry that is mentioned. Only methods, models and data sets count one by one: a run names those that it
uses. What is looked up under a computed name (``getattr(module, name)``) is not seen.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nclib.common.files import digest

Definition = tuple[str, str]  # module and name in it
WHOLE, LOOSE = "*", ""  # as names: all of a module; its statements that run when it is imported
DIGITS = 12
IGNORED = {"ctx", "kind", "type_comment", "type_params", "returns"}  # fields of a syntax tree
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BY_NAME = ("methods", "label_noise", "models", "data")  # subpackages whose entries are chosen by the user
ENTRY = re.compile(
    r"""^@(?:([\w.]+)\.)?register\(\s*["']([^"']+)["'].*?^(?:class|def) (\w+)""", re.MULTILINE | re.DOTALL
)
NO_DATA = {".py", ".pyc", ".md", ".typed", ".part"}


def short_digest(content: str | Path) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a text or a file."""
    return digest(content)[:DIGITS]


@dataclass
class Reading:
    """Statements as canonical text, and what they mention."""

    package: str  # where relative imports start
    parts: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # with dots; they start at no local variable of a function
    strings: set[str] = field(default_factory=set)  # values of constants
    imports: dict[str, str] = field(default_factory=dict)  # local name to origin, within functions

    _local: set[str] = field(default_factory=set)  # of the function that is being read
    _outer: set[str] = field(default_factory=set)  # what it declares global

    @property
    def text(self) -> str:
        return " ".join(self.parts)

    def add(self, value: object) -> Reading:
        """Read a node, or a list of nodes."""
        if isinstance(value, list):
            self.parts.append("[")
            for item in value:
                if not _is_text(item):
                    self.add(item)
            self.parts.append("]")
        elif isinstance(value, (ast.Name, ast.Attribute)):
            self._name(value)
        elif isinstance(value, ast.AST):
            self._node(value)
        else:
            self.parts.append(repr(value))
        return self

    def _name(self, node: ast.Name | ast.Attribute) -> None:
        base: ast.expr = node
        last = ""
        while isinstance(base, ast.Attribute):
            last = f".{base.attr}{last}"
            base = base.value
        if not isinstance(base, ast.Name):
            self.add(base)
            self.parts.append(last)
            return
        self.parts.append(base.id + last)
        if isinstance(base.ctx, ast.Store):
            self._local.add(base.id)
        elif not last.endswith(".register"):  # filing an entry uses no other entry
            self.names.add(base.id + last)

    def _node(self, node: ast.AST) -> None:
        self.parts.append(f"{type(node).__name__}(")
        if isinstance(node, FUNCTIONS):
            self.add(node.args).add(getattr(node, "decorator_list", []))
            taken = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
            self._scope(node, {"args", "decorator_list"}, taken)
            self._local.add(getattr(node, "name", ""))
        elif isinstance(node, LOOPS):
            self.add(node.generators[0].iter)  # belongs to the scope around it
            self._scope(node)
        else:
            before = set(self._local)
            self._fields(node)
            if isinstance(node, ast.ClassDef):
                self._local = before | {node.name}
        self.parts.append(")")

    def _scope(self, node: ast.AST, without: Iterable[str] = (), taken: Iterable[str] = ()) -> None:
        """Read what has local names; they do not lead out of it."""
        around = self.names, self._local, self._outer
        self.names, self._local, self._outer = set(), set(taken), set()
        self._fields(node, without)
        own = self._local - self._outer
        free = {name for name in self.names if name.partition(".")[0] not in own}
        self.names, self._local, self._outer = around
        self.names |= free

    def _fields(self, node: ast.AST, without: Iterable[str] = ()) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports.update(_origins(node, self.package))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self._outer.update(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self._local.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.strings.add(node.value)
        for key in node._fields:
            value = getattr(node, key, None)
            if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty pieces to some format strings
                value = [v for v in node.values if getattr(v, "value", None) != ""]
            hint = key == "annotation" and isinstance(node, ast.arg)
            if value is None or value == [] or hint or key in IGNORED or key in without:
                continue
            self.parts.append(key)
            self.add(value)


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a statement assigns to."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_text(node: object) -> bool:
    """Return whether a statement is a string by itself: a docstring, or a remark on an attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _origins(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, str]:
    """Return the local names that an import binds, with their origins, ``module:`` or ``module:name``."""
    if isinstance(node, ast.Import):
        return {
            a.asname or (top := a.name.split(".")[0]): f"{a.name if a.asname else top}:" for a in node.names
        }
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return {a.asname or a.name: f"{base}:{a.name}" for a in node.names}


def _for_type_checkers(node: ast.stmt) -> bool:
    """Return whether a statement is ``if TYPE_CHECKING:``."""
    test = node.test if isinstance(node, ast.If) else None
    return (getattr(test, "id", None) or getattr(test, "attr", None)) == "TYPE_CHECKING"


def _joined(origin: str, rest: str) -> str:
    """Return the origin of an attribute of something with an origin."""
    return f"{origin}{'.' if rest and not origin.endswith(':') else ''}{rest}"


class Module:
    """The definitions of a piece of code; relative imports start at ``package``."""

    def __init__(self, source: str | bytes, package: str = "") -> None:
        self.package = package
        self.defined: dict[str, list[ast.stmt]] = {}  # name to the statements that bind it
        self.imported: dict[str, str] = {}  # name to its origin, module:name
        self.loose: list[ast.stmt] = []  # what runs at import and binds nothing
        late: dict[str, str] = {}
        for node in ast.parse(source).body:
            if isinstance(node, ast.If) and _for_type_checkers(node):
                late |= self._imports(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imported |= _origins(node, package)
            elif not _is_text(node) and not isinstance(node, ast.Delete):
                self._file(node)
        if "__getattr__" in self.defined:  # names are imported late, from where type checkers find them
            self.imported = {**late, **self.imported}

    def _imports(self, node: ast.stmt) -> dict[str, str]:
        found = (n for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom)))
        return {name: origin for n in found for name, origin in _origins(n, self.package).items()}

    def _file(self, node: ast.stmt) -> None:
        """File a statement under the names that it binds; one with blocks or other targets runs anyway."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.defined.setdefault(node.name, []).append(node)
            return
        bound = _stored(node)
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):  # if, try, for, with, a call
            inner = (n for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.ClassDef)))
            bound |= {n.name for n in inner}
            self.imported |= self._imports(node)
            self.loose.append(node)
        elif not bound:  # table["key"] = value
            self.loose.append(node)
        for name in bound:
            self.defined.setdefault(name, []).append(node)

    def names(self) -> Iterator[str]:
        """Yield every name that the module binds."""
        yield from self.defined.keys() - {"__all__"}
        yield from self.imported

    def read(self, name: str) -> Reading:
        """Return the reading of a name (of an import, its origin), or of a method, ``Class.name``."""
        reading = Reading(self.package)
        if name in self.imported:
            reading.parts.append(self.imported[name])
        first, _, member = name.partition(".")
        nodes = self.loose if name == LOOSE else self.defined.get(first, [])
        if member:
            inner = (n for node in nodes for n in getattr(node, "body", []))
            nodes = [n for n in inner if getattr(n, "name", "") == member]
        return reading.add(nodes)


class Code:
    """The source code of packages, by name and folder, as it is now; data files are read when needed.

    Examples
    --------
    >>> import nclib
    >>> code = Code({"nclib": Path(nclib.__file__).parent})
    >>> reached = code.reach([("nclib.common.files", "write_atomically")])["nclib.common.files"]
    >>> "replacing" in reached, "digest" in reached
    (True, False)
    """

    def __init__(self, packages: Mapping[str, Path]) -> None:
        # All files are read now: what is imported later, or edited, does not change the answers.
        self.paths: dict[str, Path] = {}
        for package, folder in packages.items():
            for path in sorted(folder.rglob("*.py")):
                parts = (package, *path.relative_to(folder).with_suffix("").parts)
                for n in range(1, len(parts)):  # a folder without a file of its own is a package too
                    self.paths.setdefault(".".join(parts[:n]), folder.joinpath(*parts[1:n], "__init__.py"))
                self.paths[".".join(parts[:-1] if path.name == "__init__.py" else parts)] = path
        self.sources = {name: p.read_bytes() if p.exists() else b"" for name, p in self.paths.items()}
        self.module = functools.cache(self._module)
        self.read = functools.cache(self._read)

    def _module(self, name: str) -> Module:
        path = self.paths[name]
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        return Module(self.sources[name], package)

    def _read(self, module: str, name: str) -> tuple[str, frozenset[Definition], list[Path]]:
        """Return the digest of a definition, those that it leads to, and the data files that it names."""
        here = self.module(module)
        reading = here.read(name)
        files = sorted({f for s in reading.strings for f in self._files(module, s)})
        return short_digest(reading.text), frozenset(self.follow(here, reading, module)), files

    def _files(self, module: str, word: str) -> Iterator[Path]:
        """Yield the file beside a module that a string names, or those in the folder that it names."""
        if not word or len(word) > 100 or "\0" in word or word.startswith((".", "/")):
            return
        path = self.paths[module].parent / word
        found = path.rglob("*") if path.is_dir() and not (path / "__init__.py").exists() else [path]
        yield from (f for f in found if f.suffix not in NO_DATA and f.is_file())

    @functools.cached_property
    def entries(self) -> dict[str, list[tuple[str, Definition]]]:
        """Where each registered name is defined, and under which registry, as the decorator calls that."""
        found: dict[str, list[tuple[str, Definition]]] = {}
        for module, source in self.sources.items():
            for entry in ENTRY.finditer(source.decode("utf8")):
                registry, name, definition = entry.groups()
                found.setdefault(name, []).append((registry or "", (module, definition)))
        return found

    @functools.cached_property
    def together(self) -> dict[Definition, set[Definition]]:
        """The entries of each registry that is not one of :data:`BY_NAME`; they count when it does."""
        found: dict[Definition, set[Definition]] = {}
        for registry, (module, definition) in (e for every in self.entries.values() for e in every):
            if registry and module.split(".")[1] not in BY_NAME:
                *_, home = self.follow(self.module(module), Reading("", names={registry}), module)
                found.setdefault(home, set()).add((module, definition))
        return found

    def locate(self, origin: str) -> Iterator[Definition]:
        """Yield the definition that an origin, ``module:name.name``, leads to, and the exports on the way."""
        seen = set()
        while origin not in seen:
            seen.add(origin)
            module, _, rest = origin.partition(":")
            if module not in self.paths:
                return
            yield module, LOOSE
            name, _, further = rest.partition(".")
            found = self.module(module)
            if found.imported.get(name, origin) not in (origin, f"{module}:{name}"):
                yield module, name
                origin = _joined(found.imported[name], further)
            elif name not in found.defined and f"{module}.{name}" in self.paths:
                origin = _joined(f"{module}.{name}:", further)
            else:
                yield module, name if name in found.defined else WHOLE
                return

    def follow(self, module: Module, reading: Reading, name: str = "") -> Iterator[Definition]:
        """Yield the definitions that a reading of code in a module mentions."""
        for dotted in reading.names:
            first, _, rest = dotted.partition(".")
            if first in reading.imports:
                yield from self.locate(_joined(reading.imports[first], rest))
            elif name and first in (*module.imported, *module.defined):
                yield from self.locate(f"{name}:{dotted}")
            elif first in module.imported:
                yield from self.locate(_joined(module.imported[first], rest))

    def reach(self, start: Iterable[Definition], without: Iterable[str] = ()) -> dict[str, dict[str, str]]:
        """Return the digests of all definitions that some definitions lead to, ``{module: {name: digest}}``.

        The name ``"*"`` means all of a module. Modules in ``without`` are not entered. The result is sorted;
        data files stand under their module as ``file:<path>``.
        """
        todo, found, shut = set(start), {}, set(without)
        while todo:
            module, name = item = todo.pop()
            if item in found or module in shut:
                continue
            if name == WHOLE:
                found[item] = ""
                for other in self.module(module).names():
                    todo |= set(self.locate(f"{module}:{other}"))
                continue
            found[item], further, files = self.read(module, name)
            todo |= further | self.together.get(item, set())
            for path in files:
                inside = path.relative_to(self.paths[module].parent).as_posix()
                found[module, f"file:{inside}"] = short_digest(path)
            above = module
            while above:  # importing a module runs the packages above it
                if above in self.paths:
                    todo.add((above, LOOSE))
                above = above.rpartition(".")[0]
        result: dict[str, dict[str, str]] = {}
        for (module, name), value in sorted(found.items()):
            if value:
                result.setdefault(module, {})[name] = value
        return result
