"""The search for the code that some definitions reach: what it follows, and what changes a digest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nclib.common.code import Code, Module, Reading

FILES = {
    "__init__.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from pack.run import run
        def __getattr__(name): pass
    """,
    "run.py": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from pack import ot, shapes
        from pack.shapes import Shape, Other
        if TYPE_CHECKING:
            from pack.plots import Figure
        LIMIT = 3
        UNUSED = 4
        def run(other: Other = None) -> Figure:
            from pack.lazy import help_me
            return ot.solve(LIMIT), help_me
        def passes_a_module_on(): return print(ot)
        def hides(ot): return ot.slow()
        def hides_too():
            ot = 1
            return [shapes for shapes in ot]
        def uses_both(x):
            def inner(ot): return ot
            return inner(ot.slow)
    """,
    "lazy.py": "def help_me(): pass\ndef other(): pass",
    "plots.py": "class Figure: pass",
    "shapes.py": 'class Shape: pass\nclass Other: pass\nTABLE = {}\nTABLE["a"] = Shape',
    "ot/__init__.py": """
        from pack.ot.solver import solve
        from .slow import slow
        __all__ = ["solve", "slow"]
    """,
    "ot/solver.py": """
        from pack.registry import ROUTES
        def solve(n): return ROUTES[n], open("table.csv")
    """,
    "ot/slow.py": "def slow(): pass",
    "ot/table.csv": "1",
    "ot/unread.csv": "1",
    "registry.py": "ROUTES = {}",
    "routes.py": """
        from pack.registry import ROUTES
        @ROUTES.register("fast", summary="quick")
        class Fast: pass
    """,
    "methods/registry.py": "METHODS = {}\ndef build(name): return METHODS[name]",
    "methods/one.py": """
        from pack.methods.registry import METHODS
        @METHODS.register("one")
        class One: pass
    """,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix("        ") for line in text.splitlines()), "utf8")
    return tmp_path


def reached(tree: Path, module: str, name: str) -> dict[str, dict[str, str]]:
    return Code({"pack": tree / "pack"}).reach([(f"pack.{module}", name)])


def names(tree: Path, module: str, name: str) -> set[str]:
    found = reached(tree, module, name)
    return {f"{m.removeprefix('pack.')}.{n}" for m, every in found.items() for n in every if n}


SOLVED = {"ot.solve", "ot.solver.solve", "ot.solver.ROUTES", "registry.ROUTES", "ot.solver.file:table.csv"}
SOLVED |= {"routes.Fast"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("run", {"run.run", "run.ot", "run.LIMIT", "lazy.help_me", *SOLVED}),
        (
            "passes_a_module_on",
            {"run.passes_a_module_on", "run.ot", "ot.slow", "ot.slow.slow", *SOLVED},
        ),
        ("hides", {"run.hides"}),
        ("hides_too", {"run.hides_too"}),
        ("uses_both", {"run.uses_both", "run.ot", "ot.slow", "ot.slow.slow"}),
    ],
)
def test_follows_the_names_that_a_definition_mentions(tree: Path, name: str, expected: set[str]) -> None:
    assert names(tree, "run", name) == expected


def test_entries_of_a_registry_count_together_but_methods_do_not(tree: Path) -> None:
    assert "routes.Fast" in names(tree, "ot.solver", "solve")
    assert names(tree, "methods.registry", "build") == {"methods.registry.METHODS", "methods.registry.build"}
    assert names(tree, "methods.one", "One") == {"methods.one.One"}


def test_late_exports_are_found_where_type_checkers_find_them(tree: Path) -> None:
    (tree / "pack" / "user.py").write_text("import pack\ndef f(): return pack.help_me\n", "utf8")
    (tree / "pack" / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.lazy import help_me\n"
        "def __getattr__(name): pass\n",
        "utf8",
    )
    assert names(tree, "user", "f") == {"user.f", "user.pack", "pack.help_me", "lazy.help_me"}


@pytest.mark.parametrize(
    ("file", "text", "matters"),
    [
        ("ot/solver.py", "\n# a remark\n\n\n", False),
        ("ot/solver.py", "\nUNUSED = 1\n", False),
        ("ot/solver.py", "\ntorch.set_default_dtype('float64')\n", True),
        ("ot/solver.py", "\ndef solve(n): return 2\n", True),
        ("ot/__init__.py", "\nfrom pack.lazy import other\n", False),
        ("ot/__init__.py", "\nfrom pack.lazy import other as solve\n", True),
        ("ot/slow.py", "\ndef slow(): return 1\n", False),
        ("ot/table.csv", "2", True),
        ("ot/unread.csv", "2", False),
        ("shapes.py", "\nTABLE['b'] = 1\n", False),
        ("__init__.py", "\nimport os\nos.environ['X'] = '1'\n", True),
    ],
)
def test_only_what_is_reached_changes_the_digests(tree: Path, file: str, text: str, matters: bool) -> None:
    before = reached(tree, "run", "run")
    path = tree / "pack" / file
    path.write_text(path.read_text("utf8") + text, "utf8")
    assert (reached(tree, "run", "run") != before) is matters


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("f( 1,\n 2 )  # why", "f(1, 2)", True),
        ("f(1, 2)", "f(1, 2.0)", False),
        ("def f(a: int) -> int:\n    'Words.'\n    return a", "def f(a):\n    return (a)", True),
        ("class A:\n    x: int = 1\n    'Words.'", "class A:\n    x: int = 1", True),
        ("class A:\n    x: int = 1", "class A:\n    x: float = 1", False),
        ("x = 'words'", "x = 'other words'", False),
        ("f'{a:<{b}}'", "f'{a:>{b}}'", False),
        ("a.b.c", "a.b.d", False),
        ("del x", "x", False),
    ],
)
def test_layout_and_words_do_not_count(one: str, other: str, equal: bool) -> None:
    def text(source: str) -> str:
        module = Module(source)
        return " ".join(module.read(name).text for name in ["", *sorted(module.names())])

    assert (text(one) == text(other)) is equal


def test_names_of_comprehensions_and_handlers_stay_inside() -> None:
    source = """
def f(data):
    try:
        return [losses.triplet(x) for x in data for losses.y in other(x)]
    except ValueError as error:
        print(error, [known for known in known])
"""
    reading = Module(source).read("f")
    assert isinstance(reading, Reading)
    assert reading.names == {"losses.triplet", "losses.y", "other", "ValueError", "print", "known"}


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, nclib.common.code; print({'torch', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
