"""The stamp of an executed notebook: digests of its code, the modules of nclib it reaches, and their data.

Stored outputs are shown only while their stamp agrees with the tree; comments, layout and docstrings do not
count.
"""

from __future__ import annotations

import ast
import itertools
import json
import pathlib
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import nbformat
from nbdeps import Walk, canonical, digest, without_docstrings

ROOT = pathlib.Path(__file__).resolve().parents[2]
INJECTED = "injected-parameters"
PARAMETERS = "parameters"
STAMP = "nclib_stamp"
RESULTS = "book/results"
READERS = {"recorded", "load_runs"}  # of ncbook
FOLDER = "RECORDED"  # ncbook.RECORDED, which is the folder RESULTS


def tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def code_cells(nb: Any) -> list[Any]:
    """Return the code cells that stand in the source notebook (not those that papermill injects)."""
    return [c for c in nb.cells if c.cell_type == "code" and INJECTED not in tags(c)]


def python(source: str) -> str:
    """Return a cell's source with IPython's magic lines turned into nothing."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())


def cell_key(source: str) -> str:
    """Return a text that two cells share when they run the same code."""
    try:
        magics = [line.strip() for line in source.splitlines() if line.lstrip().startswith(("%", "!"))]
        return canonical(ast.parse(textwrap.dedent(python(source)))) + "".join(magics)
    except SyntaxError:
        return source


def cell_keys(nb: Any) -> list[str]:
    return [cell_key(c.source) for c in code_cells(nb) if c.source.strip()]


def named_results(code: str, root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the recorded runs that the code reads.

    They are named by a string, ``"book/results"`` or a file below it, by a path such as ``RECORDED / "bench"
    / "map.json"``, or read through ``recorded``. Where every such call asks for a method, only the records of
    methods that the code mentions count.
    """
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    named = {value[value.index(RESULTS) :] for value in strings if RESULTS in value}
    for value in named | {"/".join((RESULTS, *parts)) for parts in paths_from(tree, FOLDER)}:
        target = root / value
        found = target.rglob("*") if target.is_dir() else target.parent.glob(target.name)
        yield from (p for p in found if p.is_file())
    reads = [n for n in nodes if READERS & {getattr(n, "attr", None), getattr(n, "id", None)}]
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.func in reads]
    narrow = len(calls) == len(reads) and all("method" in {k.arg for k in c.keywords} for c in calls)
    if reads:
        for record in records_in(root / RESULTS):
            if not narrow or record["settings"].get("method") in strings:
                yield record["path"]


def paths_from(tree: ast.AST, folder: str) -> Iterator[tuple[str, ...]]:
    """Yield the parts of every path that starts at ``folder``, as far as they stand in the code as strings.

    ``folder / "bench" / f"{name}.json"`` gives ``("bench",)``, and ``folder`` by itself ``()``.
    """
    if folder in (getattr(tree, "attr", None), getattr(tree, "id", None)):
        yield ()
        return
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        parts: list[ast.expr] = []
        base: ast.expr = tree
        while isinstance(base, ast.BinOp) and isinstance(base.op, ast.Div):
            parts.insert(0, base.right)
            base = base.left
        if folder in (getattr(base, "attr", None), getattr(base, "id", None)):
            known = (p.value if isinstance(p, ast.Constant) else None for p in parts)
            yield tuple(itertools.takewhile(lambda part: isinstance(part, str), known))
            return
    for child in ast.iter_child_nodes(tree):
        yield from paths_from(child, folder)


def records_in(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return every record of a run below ``folder``, with its ``path``; other JSON files are passed over.

    A file that is no JSON at all is a ValueError that names it.
    """
    found = []
    for path in sorted(folder.rglob("*.json")):
        try:
            content = json.loads(path.read_text("utf8"))
        except ValueError as error:  # no JSON, or no UTF-8
            raise ValueError(f"{path} is damaged ({error}); restore it, or delete it") from error
        if isinstance(content, dict) and {"settings", "metrics", "cost", "environment"} <= content.keys():
            found.append({**content, "path": path})
    return found


def stamp(source: pathlib.Path, root: pathlib.Path = ROOT, walk: Walk | None = None) -> dict[str, Any]:
    """Return what an execution of ``source`` depends on, as digests.

    Parameters
    ----------
    source : Path
        Notebook without outputs.
    root : Path
        Folder that holds ``nclib`` and ``book``.
    walk : Walk, optional
        Shared between calls, so that each module is read once.

    Returns
    -------
    dict
        ``cells`` (str), ``modules`` (name -> digest), ``files`` (path -> digest).
    """
    nb = nbformat.read(source, 4)
    keys = cell_keys(nb)
    code = "\n".join(python(c.source) for c in code_cells(nb))
    try:
        without_docstrings(ast.parse(code))
    except SyntaxError as error:
        raise ValueError(f"{source.name}: a code cell is not Python: {error}") from error
    walk = walk or Walk(root)
    found = walk.dependencies(code, named_results(code, root))
    return {"cells": digest("\n".join(keys)), "modules": found.modules, "files": found.files}


def changes(have: Mapping[str, Any], want: Mapping[str, Any]) -> list[str]:
    """Say what differs between two stamps, one phrase each."""
    said = ["the code cells changed"] if have.get("cells") != want["cells"] else []
    for kind in ("modules", "files"):
        old, new = have.get(kind, {}), want[kind]
        said += [f"{k} changed" for k in new if k in old and old[k] != new[k]]
        said += [f"{k} is a new dependency" for k in new if k not in old]
        said += [f"{k} is no longer a dependency" for k in old if k not in new]
    return said


def failures(nb: Any) -> list[str]:
    """Say why an executed notebook cannot be trusted; its metadata alone tell too little."""
    said = []
    code = [c for c in nb.cells if c.cell_type == "code"]
    if any(c.source.strip() and c.execution_count is None for c in code):
        said.append("not every code cell ran")
    if any(o.output_type == "error" for c in code for o in c.outputs):
        said.append("a cell failed")
    return said


def problems(
    source: pathlib.Path, stored: pathlib.Path, root: pathlib.Path = ROOT, walk: Walk | None = None
) -> list[str]:
    """Return the reasons not to show the outputs in ``stored`` with ``source``; empty when they are fresh."""
    if not stored.exists():
        return ["never executed"]
    nb = nbformat.read(stored, 4)
    return failures(nb) + changes(nb.metadata.get(STAMP, {}), stamp(source, root, walk))
