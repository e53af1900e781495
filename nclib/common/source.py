"""Code of the user's by its source: that of a class or function, and of what it uses.

Of a file counts what was imported, of a notebook what its cells held when they ran.
"""

from __future__ import annotations

import ast
import functools
import secrets
import symtable
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NamedTuple

from nclib.common.files import digest

KEPT = "_nclib_source"
"""Attribute of a module's specification, which a reload replaces: the text of its file; of a class without
any: a token."""


class Statement(NamedTuple):
    """A statement: its text without comments, the names that it binds and uses, the modules it imports."""

    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    imports: tuple[str, ...]  # with a dot for each level of a relative one


def own_code(parts: Iterable[Any]) -> str:
    """Return a digest of classes and functions that are defined outside this package; empty for none.

    What counts is the text of each, of its bases, and of the statements that bind the names it uses, in turn;
    of files of the user's from which it imports the whole text. Comments, layout, and calls on which nothing
    of this depends do not count. A class with an attribute ``version`` counts by that alone. Not seen is what
    is set after a definition, such as an attribute. Code of nclib, of packages with ``GOLDEN_RUNS = True``,
    and of installed packages that define none of the ``parts`` does not count. What was typed into Python
    without a file or a notebook is new code in every process.
    """
    # 1. The places at which the parts and their bases are defined. 2. The statements there, and those that
    # bind what these use, until nothing is new. A class made by a function counts with the calls of it.
    lines, seen, ahead = set[str](), set[tuple[str, str]](), list[tuple[str, str]]()
    for part in (part for part in parts if not _is_guarded(_package(part))):
        one = getattr(part, "func", part)  # of functools.partial
        lines |= {f"{part.args} {part.keywords}"} if one is not part else set()
        one = one if hasattr(one, "__qualname__") else type(one)
        for each in getattr(one, "__mro__", (one, object))[:-1]:  # without object
            if each.__module__.split(".")[0] != _package(part) and _is_installed(each.__module__):
                continue
            if version := vars(each).get("version"):
                lines.add(f"{each.__qualname__} {version}")
            elif _text(each.__module__):
                ahead.append((each.__module__, each.__qualname__))
            else:
                if KEPT not in vars(each):
                    setattr(each, KEPT, secrets.token_hex())
                lines.add(vars(each)[KEPT])
    parts_at = set(ahead)
    while ahead:
        place = home, name = ahead.pop()
        if place in seen or _is_guarded(home):
            continue
        seen.add(place)
        every, top = _statements(_text(home)), name.split(".")[0]
        statements = list(_binding(every, top)) if top else every
        if "<locals>" in name:
            statements += [one for one in every if top in one.uses]
        if not statements and place in parts_at:  # made by type(), for example
            statements = every
        for one in statements:
            lines.add(one.text)
            ahead += [(home, used) for used in one.uses]
            parent = getattr(sys.modules[home], "__package__", None) or home  # of relative imports
            inside = (resolve_name(name, parent) for name in one.imports)
            ahead += [(each, "") for each in inside if each in sys.modules and not _is_installed(each)]
    return digest("\n".join(sorted(lines)))[:16] if lines else ""


def _binding(statements: list[Statement], name: str) -> Iterator[Statement]:
    """Yield the last statement that binds a name, and those before it that it changes."""
    for one in reversed(statements):
        if name in one.binds:
            yield one
            if name not in one.uses:
                return


@functools.lru_cache(maxsize=64)
def _statements(text: str) -> list[Statement]:
    """Return the statements of a module, in order; of several names that one imports, a statement each."""
    statements = []
    for node in (each for one in ast.parse(text).body for each in _apart(one)):
        line = ast.unparse(node)
        top = symtable.symtable(line, "", "exec")
        here, inner = top.get_symbols(), list(top.get_children())
        binds = {one.get_name() for one in here if one.is_assigned() or one.is_imported()}
        uses = {one.get_name() for one in here if one.is_referenced()}
        for table in inner:  # grows by the functions and classes in each
            inner += table.get_children()
            uses |= {one.get_name() for one in table.get_symbols() if one.is_global()}
        inside = [each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)]
        binds |= {alias.name for each in inside for alias in each.names if alias.name == "*"}
        imports = tuple(one for each in inside for one in _imports(each))
        statements.append(Statement(line, frozenset(binds), frozenset(uses), imports))
    return statements


def _apart(node: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(node, ast.Import):
        yield from (ast.Import([alias]) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (ast.ImportFrom(node.module, [alias], node.level) for alias in node.names)
    else:
        yield node


def _imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that a statement may import."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return names
    dots, name = "." * node.level, node.module
    return [f"{dots}{name or ''}", *(dots + ".".join(filter(None, (name, one))) for one in names)]


def _text(home: str) -> str:
    """Return the text of a module: of its file as it was imported, of a notebook its cells; or ``""``."""
    if (module := sys.modules.get(home)) is None:
        return ""
    if cells := vars(module).get("In"):
        return "\n".join(filter(_is_code, cells))
    kept = vars(module.__spec__ or module)
    if KEPT not in kept:
        file = Path(getattr(module, "__file__", None) or "")
        kept[KEPT] = file.read_text("utf8") if file.suffix == ".py" and file.is_file() else ""
    return str(kept[KEPT])


def _is_code(cell: str) -> bool:
    try:
        ast.parse(cell)
    except SyntaxError:
        return False
    return True


def _is_guarded(home: str) -> bool:
    """Return whether golden runs hold the numbers of a module: of nclib or a package that declares it."""
    package = home.split(".")[0]
    return package == "nclib" or bool(getattr(sys.modules.get(package), "GOLDEN_RUNS", False))


def _package(part: Any) -> str:
    """Return the package that defines a function, a class, or the class of an object."""
    part = getattr(part, "func", part)
    return str(getattr(part, "__module__", None) or type(part).__module__).split(".")[0]


@functools.cache
def _is_installed(module: str) -> bool:
    """Return whether a module comes with Python, is nclib's or is installed; a record holds some versions."""
    package = module.split(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    if package in sys.stdlib_module_names or package in ("builtins", "nclib"):
        return True
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return file is not None and any(Path(one) in Path(file).resolve().parents for one in folders)
