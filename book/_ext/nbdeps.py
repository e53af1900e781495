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
from dataclasses import dataclass

from nbuses import Call, Reader, Uses, longest_module

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
        return Reader(self.paths, self.top, module, package).read(self.tree(module), every_string=False)

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
        todo = [first]
        while True:
            while todo:
                uses = todo.pop()
                wanted = uses.modules | {self.origin(m, n) for m, n in uses.names}
                wanted |= {m for m in uses.packages if not self.is_package(m)}
                shallow |= {m for m in uses.packages if self.is_package(m)}
                for module in sorted(wanted - whole):
                    whole.add(module)
                    todo.append(self._followed(module))
            for module in list(whole | shallow):  # importing a module runs the packages above it
                while "." in module:
                    module = module.rpartition(".")[0]
                    shallow.add(module)
            parts = [first, *map(self.uses, whole)]
            strings = self._defaults_in_force(first, whole).union(*(p.strings for p in parts))
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

    def _defaults_in_force(self, first: Uses, whole: set[str]) -> set[str]:
        """Default strings that some call, in the first code or in the modules, leaves to the function."""
        calls: dict[tuple[str, str], list[Call]] = {}
        for call in (c for uses in (first, *map(self.uses, whole)) for c in uses.calls):
            module = longest_module(call.target, self.paths)
            name = call.target[len(module) + 1 :]
            if module and name:
                calls.setdefault((self.origin(module, name), name), []).append(call)
        return {
            default.string
            for module in whole
            for default in self.uses(module).defaults
            if any(c.leaves_out(default) for c in calls.get((module, default.function), []))
        }

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
