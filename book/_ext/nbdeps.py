"""What a notebook depends on: the modules of nclib that its code can reach, and their data files.

The walk reads source code and imports nothing. It follows imports at every level (inside functions too) and
names rather than whole packages: ``nclib.data.load`` leads to the module that defines ``load``, not to all
that ``nclib/data/__init__.py`` happens to import. Modules that only register themselves by name (methods,
models, datasets) are followed when that name is mentioned, so that a fix in one method leaves the other pages
fresh.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

IGNORED_FIELDS = {"kind", "type_comment", "type_params"}  # absent or different in other Python versions
IGNORED_FILES = {".py", ".pyc", ".md", ".typed", ".part"}


def digest(data: bytes | str) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of ``data``."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:12]


def canonical(node: object) -> str:
    """Return code as text without comments, layout and positions, equal for all Python versions in use."""
    if isinstance(node, ast.AST):
        fields = (
            f"{k}={canonical(v)}"
            for k, v in ast.iter_fields(node)
            if v is not None and v != [] and k not in IGNORED_FIELDS
        )
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(map(canonical, node))}]"
    return repr(node)


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Drop docstrings in place: rewording one changes no result."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                node.body = node.body[1:]
    return tree


def is_export(node: ast.stmt) -> bool:
    """True for what a package's ``__init__`` only passes on: imports and tables of names."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
        node.value, ast.Dict | ast.List | ast.Tuple
    ):
        parts = [n for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
        return all(isinstance(n.value, str) for n in parts)
    return False


@dataclass
class Uses:
    """What one piece of code asks for."""

    modules: set[str] = field(default_factory=set)  # used whole
    packages: set[str] = field(default_factory=set)  # only imported, to reach something below
    names: set[tuple[str, str]] = field(default_factory=set)  # (module, attribute)
    strings: set[str] = field(default_factory=set)  # constants that may select a registered factory
    words: set[str] = field(default_factory=set)  # every string constant
    exports: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # local name -> its origin
    registers: set[str] = field(default_factory=set)  # names that this code registers
    lists_all: bool = False  # asks a registry for everything it knows


class Reader(ast.NodeVisitor):
    """Collects :class:`Uses` from one syntax tree; ``package`` resolves relative imports."""

    def __init__(self, known: Iterable[str], top: str, package: str = "") -> None:
        self.known, self.top, self.package = set(known), top, package
        self.uses = Uses()
        self.bound: dict[str, str] = {}

    def read(self, tree: ast.Module, *, every_string: bool) -> Uses:
        for node in runtime_nodes(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        self.visit(tree)
        constants = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        self.uses.words = {n.value for n in constants}
        self.uses.strings = self.uses.words if every_string else set(selecting_strings(tree))
        self.uses.registers = set(registered_names(tree))
        self._tables(tree)
        return self.uses

    def _module(self, dotted: str) -> str:
        """Longest known module at the start of ``dotted``; empty when it lies outside the package."""
        parts = dotted.split(".")
        while parts and ".".join(parts) not in self.known:
            parts.pop()
        return ".".join(parts)

    def _reach(self, dotted: str) -> None:
        module = self._module(dotted)
        if module == dotted:
            self.uses.modules.add(module)
        elif module:
            self.uses.names.add((module, dotted[len(module) + 1 :].split(".")[0]))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if self._module(alias.name):
                self.bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else self.top
                )
                self.uses.packages.add(self._module(alias.name))

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        if not self._module(base):
            return
        for alias in node.names:
            full = f"{base}.{alias.name}"
            if alias.name == "*":
                self.uses.modules.add(self._module(base))
            elif full in self.known:
                self.bound[alias.asname or alias.name] = full
                self.uses.packages.add(full)
                self.uses.exports[alias.asname or alias.name] = (full, None)
            else:
                self._reach(full)
                self.uses.exports[alias.asname or alias.name] = (base, alias.name)

    def _tables(self, tree: ast.Module) -> None:
        """Lazy exports, ``{"run": "nclib.experiment"}`` or ``{"run": (".experiment", "run")}``."""
        for node in ast.walk(tree):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                head = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
                if (
                    isinstance(key, ast.Constant)
                    and isinstance(head, ast.Constant)
                    and isinstance(head.value, str)
                ):
                    name = head.value
                    for full in (name, f"{self.package}.{name.lstrip('.')}"):
                        if full in self.known and isinstance(key.value, str):
                            self.uses.exports.setdefault(key.value, (full, key.value))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.uses.lists_all |= node.attr in {"available", "catalogue"}
        parts: list[str] = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute):
            parts.append(at.attr)
            at = at.value
        if isinstance(at, ast.Name) and at.id in self.bound:
            self._reach(".".join([self.bound[at.id], *reversed(parts)]))
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.lists_all |= node.id == "available"
        if node.id in self.bound:
            self._reach(self.bound[node.id])

    def visit_If(self, node: ast.If) -> None:
        for child in node.orelse if is_type_checking(node) else [node.test, *node.body, *node.orelse]:
            self.visit(child)


def is_type_checking(node: ast.If) -> bool:
    """True for ``if TYPE_CHECKING:``, whose body never runs."""
    return (getattr(node.test, "id", None) or getattr(node.test, "attr", None)) == "TYPE_CHECKING"


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, leaving out what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and is_type_checking(node):
            for child in node.orelse:
                yield child
                yield from runtime_nodes(child)
        else:
            yield node
            yield from runtime_nodes(node)


def selecting_strings(tree: ast.AST) -> Iterator[str]:
    """Strings that can choose a registered factory: defaults, field values and arguments of calls."""
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.arguments):
            values = [*node.defaults, *node.kw_defaults]
        elif isinstance(node, ast.Call):
            values = [*node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.AnnAssign):
            values = [node.value]
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def registered_names(tree: ast.AST) -> Iterator[str]:
    """Names given to a decorator ``@....register("name")``."""
    for node in ast.walk(tree):
        for call in getattr(node, "decorator_list", []):
            func = getattr(call, "func", None)
            name = getattr(func, "attr", None) or getattr(func, "id", "")
            if isinstance(call, ast.Call) and name.startswith("register") and call.args:
                first = call.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


@dataclass(frozen=True)
class Dependencies:
    """Digests of the modules that a notebook reaches and of the data files beside them."""

    modules: dict[str, str]
    files: dict[str, str]


class Walk:
    """Import walk over one package.

    Parameters
    ----------
    root : Path
        Folder that holds the package.
    top : str
        Name of the package.
    """

    def __init__(self, root: pathlib.Path, top: str = "nclib") -> None:
        self.root, self.top = root, top
        self.paths: dict[str, pathlib.Path] = {}
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def is_package(self, module: str) -> bool:
        return self.paths[module].name == "__init__.py"

    @functools.cache  # noqa: B019  (one Walk lives for one command)
    def tree(self, module: str) -> ast.Module:
        return without_docstrings(ast.parse(self.paths[module].read_text("utf8")))

    @functools.cache  # noqa: B019
    def uses(self, module: str) -> Uses:
        package = module if self.is_package(module) else module.rpartition(".")[0]
        return Reader(self.paths, self.top, package).read(self.tree(module), every_string=False)

    @functools.cache  # noqa: B019
    def module_digest(self, module: str) -> str:
        tree = self.tree(module)
        if self.is_package(module):  # a new export or a new method must not make every page stale
            tree = ast.Module([n for n in tree.body if not is_export(n)], [])
        return digest(canonical(tree))

    @functools.cache  # noqa: B019
    def file_digest(self, path: pathlib.Path) -> str:
        return digest(path.read_bytes())

    def origin(self, module: str, name: str) -> str:
        """Follow ``module.name`` through the exports of packages to the module that defines it."""
        seen: set[tuple[str, str]] = set()
        while self.is_package(module) and (module, name) not in seen:
            seen.add((module, name))
            if f"{module}.{name}" in self.paths:
                return f"{module}.{name}"
            target, attribute = self.uses(module).exports.get(name, (module, name))
            if target not in self.paths:
                return module
            if attribute is None:
                return target
            module, name = target, attribute
        return module

    def reach(self, code: str) -> set[str]:
        """Return every module of the package that ``code`` can reach."""
        first = Reader(self.paths, self.top).read(ast.parse(code), every_string=True)
        whole: set[str] = set()
        shallow: set[str] = set()
        strings = set(first.strings)
        todo = [first]
        while True:
            while todo:
                uses = todo.pop()
                wanted = uses.modules | {self.origin(m, n) for m, n in uses.names}
                wanted |= {m for m in uses.packages if not self.is_package(m)}
                shallow |= {m for m in uses.packages if self.is_package(m)}
                for module in sorted(wanted - whole):
                    whole.add(module)
                    strings |= self.uses(module).strings
                    todo.append(self._followed(module))
            for module in list(whole | shallow):  # importing a module runs the packages above it
                while "." in module:
                    module = module.rpartition(".")[0]
                    shallow.add(module)
            new = {
                m
                for m in self.paths
                if m not in whole
                and m.rpartition(".")[0] in whole | shallow
                and self.uses(m).registers
                and (first.lists_all or self.uses(m).registers & strings)
            }
            if not new:
                return whole | shallow
            todo.append(Uses(modules=new))

    def _followed(self, module: str) -> Uses:
        """What ``module`` leads to; a package does not lead to modules that only register themselves."""
        uses = self.uses(module)
        if not self.is_package(module):
            return uses

        def passive(target: str) -> bool:
            return bool(self.uses(target).registers)

        return Uses(
            modules={m for m in uses.modules if not passive(m)},
            packages={m for m in uses.packages if not passive(m)},
            names={(m, n) for m, n in uses.names if not passive(self.origin(m, n))},
        )

    def data_files(self, modules: set[str], words: set[str]) -> Iterator[pathlib.Path]:
        """Files that are not code, beside the reached packages; of the top package only those it names."""
        for path in sorted((self.root / self.top).rglob("*")):
            if not path.is_file() or path.suffix in IGNORED_FILES or "__pycache__" in path.parts:
                continue
            home = next(p for p in path.parents if (p / "__init__.py").exists())
            package = ".".join(home.relative_to(self.root).parts)
            inside = path.relative_to(home).parts
            if package in modules and (package != self.top or words & set(inside)):
                yield path

    def dependencies(self, code: str, extra: Iterable[pathlib.Path] = ()) -> Dependencies:
        """Return the digests of all that ``code`` depends on; ``extra`` are more files to count."""
        modules = self.reach(code)
        words = set().union(*(self.uses(m).words for m in modules)) if modules else set()
        files = [*self.data_files(modules, words), *extra]
        return Dependencies(
            {m: self.module_digest(m) for m in sorted(modules)},
            {p.relative_to(self.root).as_posix(): self.file_digest(p) for p in sorted(set(files))},
        )
