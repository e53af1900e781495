"""The import walk behind the stamps: it reaches what a notebook uses, and no more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from nbdeps import Walk, canonical

FILES = {
    "__init__.py": """
        from importlib import import_module
        _MODULES = ("data", "methods")
        _NAMES = {"run": "experiment"}
        def __getattr__(name): return import_module(name)
    """,
    "experiment.py": """
        from typing import TYPE_CHECKING
        from nclib import methods
        if TYPE_CHECKING:
            from nclib.plots import Figure
        def run(method="gentle"):
            from nclib.lazy import help_me
            return methods.build(method), help_me
    """,
    "lazy.py": "def help_me(): pass",
    "plots.py": "class Figure: pass",
    "other.py": "X = 1",
    "data/__init__.py": """
        from nclib.data.shapes import Shape
        from nclib.data.load import load
        from . import extra
    """,
    "data/shapes.py": "class Shape: pass",
    "data/load.py": "from nclib.data.shapes import Shape\ndef load(): return Shape()",
    "data/extra.py": "Y = 2",
    "data/sprites.png": "not really a picture",
    "data/README.md": "words",
    "methods/__init__.py": """
        from pathlib import Path
        from nclib.methods.registry import METHODS
        def build(name): return METHODS[name]
        def available(): return METHODS
    """,
    "methods/_registry.py": "METHODS = {}",
    "methods/gentle.py": """
        from nclib.methods.registry import METHODS
        @METHODS.register("gentle")
        class Gentle: pass
    """,
    "methods/strong.py": """
        from nclib import ot
        from nclib.methods.registry import METHODS
        @METHODS.register("strong")
        class Strong:
            def step(self): return ot.solve()
    """,
    "ot/__init__.py": "from nclib.ot._solve import solve\nfrom nclib.ot._slow import slow",
    "ot/_solve.py": "def solve(): pass",
    "ot/_slow.py": "def slow(): pass",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "nclib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.splitlines()
        path.write_text("\n".join(line.removeprefix("        ") for line in lines), "utf8")
    return tmp_path


def reached(tree: Path, code: str) -> set[str]:
    return {m.removeprefix("nclib.") for m in Walk(tree).reach(code)} - {"nclib"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import numpy as np\nprint(np.pi)", set()),
        ("import nclib.other", {"other"}),
        ("from nclib import other", {"other"}),
        ("import nclib\nnclib.data.load()", {"data", "data.load", "data.shapes"}),
        ("from nclib.data import Shape", {"data", "data.shapes"}),
        ("from nclib.data import load as fetch", {"data", "data.load", "data.shapes"}),
        ("import nclib.data as d\nd.Shape", {"data", "data.shapes"}),
        ("def f():\n    from nclib.ot import slow", {"ot", "ot._slow"}),
        ("from nclib.data import *", {"data", "data.load", "data.shapes", "data.extra"}),
    ],
)
def test_follows_names_not_packages(tree: Path, code: str, expected: set[str]) -> None:
    assert reached(tree, code) == expected


def test_a_module_alias_that_is_passed_around_counts_whole(tree: Path) -> None:
    assert reached(tree, "from nclib import data\nhelp(data)") >= {"data.load", "data.extra"}


def test_a_registered_method_counts_when_it_is_named(tree: Path) -> None:
    default = reached(tree, "import nclib\nnclib.run()")
    assert default == {"experiment", "lazy", "methods", "methods._registry", "methods.gentle"}
    strong = {"methods.strong", "ot", "ot._solve"}
    for code in ("nclib.run(method='strong')", "nclib.run('strong')"):
        assert reached(tree, f"import nclib\n{code}") == default - {"methods.gentle"} | strong
    # one call leaves the method to the default
    assert reached(tree, "import nclib\nnclib.run('strong')\nnclib.run()") == default | strong


def test_a_catalogue_counts_every_method(tree: Path) -> None:
    assert reached(tree, "from nclib import methods\nprint(methods.available())") >= {
        "methods.gentle",
        "methods.strong",
        "ot._solve",
    }


def test_imports_for_type_checkers_do_not_count(tree: Path) -> None:
    assert "plots" not in reached(tree, "import nclib\nnclib.run()")


def test_data_files_count_with_their_package(tree: Path) -> None:
    walk = Walk(tree)
    assert list(walk.dependencies("from nclib.data import load").files) == ["nclib/data/sprites.png"]
    assert walk.dependencies("import nclib.other").files == {}


def edited(tree: Path, name: str, text: str, code: str) -> bool:
    """Return whether the digests of ``code`` change when ``text`` is added to a file."""
    before = Walk(tree).dependencies(code)
    path = tree / "nclib" / name
    path.write_text(path.read_text("utf8") + text, "utf8")
    return Walk(tree).dependencies(code) != before


@pytest.mark.parametrize(
    ("name", "text", "matters"),
    [
        ("data/shapes.py", "\nZ = 3\n", True),
        ("data/sprites.png", "x", True),
        ("data/shapes.py", "\n# a remark\n\n\n", False),
        ("data/extra.py", "\nZ = 3\n", False),
        ("methods/strong.py", "\nZ = 3\n", False),
        ("data/__init__.py", "\nfrom nclib.data.extra import Y\n__all__ = ['Y', 'load']\n", False),
        ("data/__init__.py", "\nSCALE = 2\n", True),
        ("data/README.md", "more words", False),
    ],
)
def test_only_what_is_reached_changes_the_digest(tree: Path, name: str, text: str, matters: bool) -> None:
    assert edited(tree, name, text, "from nclib.data import load") is matters


def test_docstrings_do_not_count(tree: Path) -> None:
    code = "import nclib.lazy"
    before = Walk(tree).dependencies(code)
    (tree / "nclib" / "lazy.py").write_text(
        '"""Words."""\ndef help_me():\n    """More."""\n    pass\n', "utf8"
    )
    assert Walk(tree).dependencies(code) == before


def test_canonical_text_ignores_layout_only() -> None:
    assert canonical(ast.parse("f( 1,\n 2 )  # why")) == canonical(ast.parse("f(1, 2)"))
    assert canonical(ast.parse("f(1, 2)")) != canonical(ast.parse("f(1, 2.0)"))


def test_the_real_package_is_narrow() -> None:
    root = Path(__file__).resolve().parents[2]
    walk = Walk(root)
    loss_only = walk.reach("from nclib import losses\nlosses.triplet(S, 0.2)")
    assert {"nclib", "nclib.losses", "nclib.losses._ranking"} <= loss_only
    assert all(name == "nclib" or name.startswith("nclib.losses") for name in loss_only)
    plain = walk.reach("import nclib\nnclib.run(method='plain', model='vse', dataset='planted')")
    assert {"nclib.runs.experiment", "nclib.methods.plain", "nclib.models.vse", "nclib.data.planted"} <= plain
    assert not {"nclib.methods.l2rm", "nclib.plots"} & plain
