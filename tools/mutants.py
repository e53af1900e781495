"""Mutants: one changed operator or constant of a file, and the imported functions that take its new code."""

from __future__ import annotations

import ast
import cProfile
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parents[1]
# Files to change, and the tests that ought to notice, the quick ones first.
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ot": (
        ("nclib/ot/[!_]*.py",),
        ("tests/ot/test_gradients.py", "tests/ot/test_small.py", "tests/ot/test_partial.py", "tests/ot"),
    ),
    "kernels": (("nclib/ot/_triton.py", "nclib/ot/_fused.py"), ("tests/kernels",)),
    "noise": (("nclib/noise/*.py",), ("tests/noise", "tests/label_noise/test_category_noise.py")),
    "losses": (("nclib/losses/*.py",), ("tests/test_losses.py", "tests/methods/test_rcl.py")),
    "evaluation": (("nclib/evaluation/*.py",), ("tests/test_evaluation.py",)),
    "loop": (
        ("nclib/runs/loop.py", "nclib/runs/pair_trainer.py"),
        ("tests/runs/test_loop.py", "tests/runs/test_selection.py", "tests/runs/test_training.py"),
    ),
    "l2rm": (("nclib/methods/l2rm.py",), ("tests/methods/test_l2rm.py",)),
    "repair": (("nclib/methods/repair.py",), ("tests/methods/test_repair.py",)),
}
# What the matrix changes: all but methods and models, whose tests state the papers' formulas.
WHOLE = "whole"
ROOMS = ("nclib/**/*.py", "book/ncbook/**/*.py", "book/_ext/*.py")
APART = ("nclib/methods", "nclib/label_noise", "nclib/models", "nclib/plots")
# Arguments that guard against mistakes or save time.
GUARDS = ("strict", "frozen", "non_blocking", "copy", "flush", "allow_pickle", "set_to_none")
# Sizes of the parts that an array is worked through in: the same numbers at another speed.
SIZES = ("ENTRIES", "BLOCK", "CHUNK", "ROWS", "SORTED")
# Exponents at which a kernel over- or underflows, far from what is computed.
EXPONENTS = ("DEEPEST", "DIRECT", "SPAN")
# Tolerances. What is computed never equals one: < and <= are the same. The check 0 < tol is changed.
TOLERANCES = ("tol", "goal", "noise", "rounding", "TOL", "HONEST", "RANGE", "SOLVED")
# Calls that take an axis. In an array of known dimensions -1 names the same axis as 1 or 2, so that a changed
# sign often means nothing, as in shape[-1]; the number of the axis is changed nevertheless.
WITH_AXIS = (
    "all", "amax", "amin", "any", "argmax", "argsort", "cat", "cumsum", "flip", "gather", "index_select",
    "logcumsumexp", "logsumexp", "log_softmax", "max", "mean", "min", "norm", "normalize", "softmax",
    "squeeze", "stack", "sum", "topk", "unsqueeze", "vector_norm",
)  # fmt: skip
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed place of one file."""

    area: str
    path: Path
    line: int
    change: str
    place: int  # of the node in ast.walk

    def tree(self) -> ast.Module:
        """Return the changed file."""
        tree = ast.parse((ROOT / self.path).read_text("utf8"))
        edit = _change(next(n for k, n in enumerate(ast.walk(tree)) if k == self.place))
        assert edit is not None  # as when it was found
        edit[1]()
        return ast.fix_missing_locations(tree)

    def changes(self) -> dict[CodeType, CodeType]:
        """Return the new code of every function that changes, the innermost last."""
        old, new = ast.parse((ROOT / self.path).read_text("utf8")), self.tree()
        pairs = zip(*(_codes(compile(tree, self.path, "exec")) for tree in (old, new)), strict=True)
        return {a: b for a, b in pairs if a != b}

    def function(self) -> str:
        """Return the name of the innermost function that changes."""
        return _name(self.path, list(self.changes())[-1])

    def apply(self, imported: Iterable[FunctionType]) -> bool:
        """Give the imported functions of the file their new code; return whether there are any."""
        changed = self.changes()
        functions = [f for f in imported if f.__code__.co_filename.endswith(str(self.path))]
        functions = [f for f in functions if f.__code__ in changed]
        for function in functions:
            function.__code__ = changed[function.__code__]
        return bool(functions)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _name(path: Path, code: CodeType) -> str:
    """Name a code object by the place where it begins."""
    return f"{path}:{code.co_firstlineno}"


def imported_from(folder: Path) -> list[FunctionType]:
    """Return the functions that were imported from a folder."""
    found = [f for f in gc.get_objects() if type(f) is FunctionType]  # isinstance asks f.__class__
    return [f for f in found if f.__code__.co_filename.startswith(str(folder))]


def called(profile: cProfile.Profile, folder: Path, rooms: tuple[str, ...] = ("nclib", "book")) -> list[str]:
    """Return the names of the functions in rooms of a folder that were called."""
    codes = [entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)]
    own = [code for code in codes if code.co_filename.startswith(tuple(f"{folder}/{r}/" for r in rooms))]
    return [_name(Path(code.co_filename).relative_to(folder), code) for code in own]


def files(area: str) -> Iterator[Path]:
    """Yield the files of an area."""
    if area == WHOLE:
        paths = sorted(path for room in ROOMS for path in ROOT.glob(room))
        yield from (path for path in paths if not str(path.relative_to(ROOT)).startswith(APART))
    else:
        yield from (path for pattern in AREAS[area][0] for path in sorted(ROOT.glob(pattern)))


def mutants(area: str) -> Iterator[Mutant]:
    """Yield every change of an area's files."""
    for path in files(area):
        tree = ast.parse(path.read_text("utf8"))
        silent = _silent(tree)
        for place, node in enumerate(ast.walk(tree)):
            if id(node) in silent:
                continue
            if edit := _change(node):
                yield Mutant(area, path.relative_to(ROOT), getattr(node, "lineno", 0), edit[0], place)


def _silent(tree: ast.Module) -> set[int]:
    """Return the nodes whose change nobody could notice: texts, annotations, messages of errors, guards."""
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
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "round":
            parts = [*node.args[1:]]  # digits of what is shown
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in WITH_AXIS:
            found |= {id(n) for n in _axes(node)}
        elif isinstance(node, ast.Compare) and _measures(node):
            found.add(id(node))
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(".shape"):
            found |= {id(node.slice)} if isinstance(node.slice, ast.UnaryOp) else set()
        elif (isinstance(node, ast.keyword) and node.arg in GUARDS) or (
            isinstance(node, ast.Assign)
            and all(name.endswith(SIZES + EXPONENTS) for name in _names(node.targets))
        ):
            parts = [node.value]
        for part in parts:
            found |= {id(n) for n in ast.walk(part)} if part is not None else set()
    return found


def _measures(node: ast.Compare) -> bool:
    """Whether a tolerance is compared with something computed, neither a constant nor another tolerance."""
    sides = [node.left, *node.comparators]
    names = [[ast.unparse(n) for n in ast.walk(side) if hasattr(n, "ctx")] for side in sides]
    named = [any(name.endswith(TOLERANCES) for name in side) for side in names]
    return sum(named) == 1 and not any(isinstance(side, ast.Constant) for side in sides)


def _names(targets: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the texts of what an assignment gives a value."""
    for target in targets:
        yield from _names(target.elts) if isinstance(target, ast.Tuple) else [ast.unparse(target)]


def _axes(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call that are negative whole numbers, in tuples too."""
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for value in argument.elts if isinstance(argument, ast.Tuple) else [argument]:
            if isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant):
                yield value


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
