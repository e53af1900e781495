"""What one piece of code asks of nclib: modules and names that it uses, strings that choose among them."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

KEYWORD_ONLY = 1000  # place of a parameter that no argument reaches by place


@dataclass(frozen=True)
class Default:
    """A string default: ``def function(..., parameter="string")``, ``place`` counted from 0."""

    function: str
    parameter: str
    place: int
    string: str


@dataclass(frozen=True)
class Call:
    """A call of ``target`` (dotted): how many arguments it gives by place, and which by keyword."""

    target: str
    by_place: int
    keywords: frozenset[str]

    def leaves_out(self, default: Default) -> bool:
        return self.by_place <= default.place and default.parameter not in self.keywords


@dataclass
class Uses:
    """What one piece of code asks for."""

    modules: set[str] = field(default_factory=set)  # used whole
    packages: set[str] = field(default_factory=set)  # only imported, to reach something below
    names: set[tuple[str, str]] = field(default_factory=set)  # (module, attribute)
    strings: set[str] = field(default_factory=set)  # constants that may select a registered factory
    defaults: set[Default] = field(default_factory=set)  # strings that functions take for granted
    calls: list[Call] = field(default_factory=list)  # calls of functions known by name
    words: set[str] = field(default_factory=set)  # every string constant
    exports: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # local name -> its origin
    registers: set[str] = field(default_factory=set)  # names that this code registers
    lists_all: bool = False  # asks a registry for everything it knows


class Reader(ast.NodeVisitor):
    """Collects :class:`Uses` from one syntax tree.

    Parameters
    ----------
    known : iterable of str
        Every module of the package.
    top : str
        Name of the package.
    module, package : str
        Name of the code itself, and the package that its relative imports start from; empty for a notebook.
    """

    def __init__(self, known: Iterable[str], top: str, module: str = "", package: str = "") -> None:
        self.known, self.top, self.module, self.package = set(known), top, module, package
        self.uses = Uses()
        self.bound: dict[str, str] = {}

    def read(self, tree: ast.Module, *, every_string: bool) -> Uses:
        for node in runtime_nodes(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        self.visit(tree)
        values = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
        self.uses.words = {value for value in values if isinstance(value, str)}
        self.uses.strings = self.uses.words if every_string else set(selecting_strings(tree))
        self.uses.defaults = set(string_defaults(tree))
        self.uses.registers = set(registered_names(tree))
        self._tables(tree)
        return self.uses

    def _reach(self, dotted: str) -> None:
        module = longest_module(dotted, self.known)
        if module == dotted:
            self.uses.modules.add(module)
        elif module:
            self.uses.names.add((module, dotted[len(module) + 1 :].split(".")[0]))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if longest_module(alias.name, self.known):
                self.bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else self.top
                )
                self.uses.packages.add(longest_module(alias.name, self.known))

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        if not longest_module(base, self.known):
            return
        for alias in node.names:
            full = f"{base}.{alias.name}"
            if alias.name == "*":
                self.uses.modules.add(longest_module(base, self.known))
            elif full in self.known:
                self.bound[alias.asname or alias.name] = full
                self.uses.packages.add(full)
                self.uses.exports[alias.asname or alias.name] = (full, None)
            else:
                self._reach(full)
                self.uses.exports[alias.asname or alias.name] = (base, alias.name)

    def _tables(self, tree: ast.Module) -> None:
        """Lazy exports, ``{"run": "nclib.runs.pairs"}`` or ``{"run": (".experiment", "run")}``."""
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

    def _dotted(self, node: ast.expr) -> str:
        """Full name of what an expression such as ``ot.solve`` names; empty when it lies elsewhere."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        origin = self.uses.exports.get(node.id)
        if node.id in self.bound:
            root = self.bound[node.id]
        elif origin:
            root = ".".join(filter(None, origin))
        else:
            return "" if parts or not self.module else f"{self.module}.{node.id}"
        return ".".join([root, *reversed(parts)])

    def visit_Call(self, node: ast.Call) -> None:
        target = self._dotted(node.func)
        if target:
            keywords = frozenset(k.arg for k in node.keywords if k.arg)
            self.uses.calls.append(Call(target, len(node.args), keywords))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.uses.lists_all |= node.attr in {"available", "catalogue"}
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.bound:
            self._reach(self._dotted(node))
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.lists_all |= node.id == "available"
        if node.id in self.bound:
            self._reach(self.bound[node.id])

    def visit_If(self, node: ast.If) -> None:
        for child in node.orelse if is_type_checking(node) else [node.test, *node.body, *node.orelse]:
            self.visit(child)


def longest_module(dotted: str, known: Container[str]) -> str:
    """Longest known module at the start of ``dotted``; empty when it lies outside the package."""
    parts = dotted.split(".")
    while parts and ".".join(parts) not in known:
        parts.pop()
    return ".".join(parts)


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
    """Strings that can choose a registered factory: field values and arguments of calls."""
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            values = [*node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.AnnAssign):
            values = [node.value]
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def string_defaults(tree: ast.Module) -> Iterator[Default]:
    """String defaults of the functions of a module."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        by_place = [*node.args.posonlyargs, *node.args.args]
        late = len(by_place) - len(node.args.defaults)
        found = [(by_place[late + i], late + i, d) for i, d in enumerate(node.args.defaults)]
        keyword_only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        found += [(a, KEYWORD_ONLY, d) for a, d in keyword_only if d]
        for argument, place, value in found:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Default(node.name, argument.arg, place, value.value)


def registered_names(tree: ast.AST) -> Iterator[str]:
    """Names given to a decorator ``@....register("name")``."""
    for node in ast.walk(tree):
        for call in getattr(node, "decorator_list", []):
            func = getattr(call, "func", None)
            name = getattr(func, "attr", None) or getattr(func, "id", None) or ""
            if isinstance(call, ast.Call) and name.startswith("register") and call.args:
                first = call.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value
