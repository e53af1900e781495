"""Mutation testing: change one operator or constant at a time, and see whether the fast tests notice.

    python tools/mutate.py --sample 60 --jobs 2            # of all areas
    python tools/mutate.py --area ot --sample 30 --list    # show the changes, run nothing

A mutant that no test notices (it *survives*) is a missing test, or a change without effect. Each mutant runs
the tests of its own area in a copy of the package, so that the working tree is never touched.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
# Files to change, and the tests that ought to notice.
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ot": (("nclib/ot/*.py", "nclib/ot/backends/*.py"), ("tests/ot",)),
    "noise": (("nclib/noise/*.py",), ("tests/noise",)),
    "losses": (("nclib/losses/*.py",), ("tests/test_losses.py",)),
    "evaluation": (
        ("nclib/evaluation/*.py",),
        ("tests/test_evaluation.py", "tests/test_category_map.py"),
    ),
    "loop": (
        ("nclib/runs/loop.py", "nclib/runs/pair_trainer.py"),
        ("tests/runs/test_loop.py", "tests/runs/test_training.py", "tests/runs/test_selection.py"),
    ),
    "l2rm": (("nclib/methods/l2rm.py",), ("tests/methods/test_l2rm.py",)),
    "repair": (("nclib/methods/repair.py",), ("tests/methods/test_repair.py",)),
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
TIMEOUT = 300.0  # seconds; a mutant that hangs is noticed


@dataclass(frozen=True)
class Mutant:
    """One changed place of one file."""

    area: str
    path: Path
    line: int
    change: str
    place: int  # of the node in ast.walk

    def source(self) -> str:
        """Return the changed file."""
        tree = ast.parse((ROOT / self.path).read_text("utf8"))
        node = next(n for k, n in enumerate(ast.walk(tree)) if k == self.place)
        edit = _change(node)
        assert edit is not None  # as when it was found
        edit[1]()
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(area: str) -> Iterator[Mutant]:
    """Yield every change of an area's files."""
    for pattern in AREAS[area][0]:
        for path in sorted(ROOT.glob(pattern)):
            tree = ast.parse(path.read_text("utf8"))
            silent = _silent(tree)
            for place, node in enumerate(ast.walk(tree)):
                if id(node) in silent:
                    continue
                if edit := _change(node):
                    yield Mutant(area, path.relative_to(ROOT), getattr(node, "lineno", 0), edit[0], place)


def _silent(tree: ast.Module) -> set[int]:
    """Return the nodes whose change nobody could notice: texts, annotations, messages of errors."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Raise | ast.JoinedStr):
            parts = [node]
        elif isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("warn", "option", "keep")):
            parts = [node]
        for part in parts:
            found |= {id(n) for n in ast.walk(part)} if part is not None else set()
    return found


def _change(node: ast.AST) -> tuple[str, Callable[[], None]] | None:
    """Return a change of a node in words, and what makes it; None where there is nothing to change."""

    def put(name: str, value: object) -> Callable[[], None]:
        return lambda: setattr(node, name, value)

    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        new = SWAPS[type(node.op)]
        return f"{type(node.op).__name__} -> {new.__name__}", put("op", new())
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        new = SWAPS[type(node.ops[0])]
        return f"{type(node.ops[0]).__name__} -> {new.__name__}", put("ops", [new()])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return "-x -> x", put("op", ast.UAdd())
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return f"{node.value} -> {not node.value}", put("value", not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return f"{node.value} -> {node.value + 1}", put("value", node.value + 1)
    return None


def run(mutant: Mutant, folder: Path) -> str:
    """Run the tests of a mutant in a copy of the repository; return "killed", "survived" or "timed out"."""
    target, original = folder / mutant.path, (ROOT / mutant.path).read_text("utf8")
    target.write_text(mutant.source(), "utf8")
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", "--rootdir", str(folder), *AREAS[mutant.area][1]]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT, check=False
        )
        return "killed" if done.returncode else "survived"
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        target.write_text(original, "utf8")


def main() -> None:
    """Parse the command line, run a sample of the mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--area", choices=AREAS, action="append", help="all areas by default")
    parser.add_argument("--sample", type=int, default=60, help="mutants, drawn evenly from the areas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    options = parser.parse_args()
    areas, draw = options.area or list(AREAS), random.Random(options.seed)
    chosen: list[Mutant] = []
    for area in areas:
        found = list(mutants(area))
        chosen += draw.sample(found, min(len(found), max(1, options.sample // len(areas))))
    if options.list:
        print("\n".join(f"{m.path}:{m.line}  {m.change}" for m in chosen))
        return
    with tempfile.TemporaryDirectory() as scratch:
        copies: Queue[Path] = Queue()
        for k in range(options.jobs):
            folder = Path(scratch) / str(k)
            for part in ("nclib", "tests", "book/ncbook", "book/_ext"):
                shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", folder)
            copies.put(folder)

        def judge(mutant: Mutant) -> str:
            folder = copies.get()
            try:
                return run(mutant, folder)
            finally:
                copies.put(folder)

        with ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(judge, chosen))
    for mutant, result in zip(chosen, results, strict=True):
        if result == "survived":
            print(f"survived  {mutant.path}:{mutant.line}  {mutant.change}")
    caught = sum(result != "survived" for result in results)
    print(f"{caught} of {len(results)} mutants were noticed ({100 * caught / max(1, len(results)):.0f} %)")


if __name__ == "__main__":
    main()
