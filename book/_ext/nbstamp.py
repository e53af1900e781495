"""Freshness of stored outputs: the code and the records that an execution of a notebook rested on.

A stamp in the metadata of an executed notebook holds digests of

* its own code cells, without comments, layout and docstrings;
* the definitions of nclib and ncbook that the cells reach by name (:mod:`nclib.common.code`), with the
  methods, models and data sets that a string in the cells names or that a run of the execution used;
* the recorded runs and benchmarks that the reached code asks for.

Outputs are stale when one of these digests differs. Definitions that are reached in addition make nothing
stale by themselves: an old one has changed as well, or a new method, model or data set was registered.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import pathlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import nbformat
from nclib.common.code import LOOSE, Code, Definition, Module, Reading

from nclib.common.files import digest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {"nclib": "nclib", "ncbook": "book/ncbook"}
INJECTED = "injected-parameters"
PARAMETERS = "parameters"
STAMP = "nclib_stamp"
RESULTS = "book/results"
READERS, READERS_AT = {"recorded", "load_runs"}, "ncbook.runs"
FOLDER = "RECORDED"  # ncbook.RECORDED, which is the folder RESULTS
CHOSEN = ("method", "model", "dataset")  # settings that name an entry of a catalogue
DIGITS = 12


def tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def code_cells(nb: Any) -> list[Any]:
    """Return the code cells of the source notebook, without those that papermill injects."""
    return [c for c in nb.cells if c.cell_type == "code" and INJECTED not in tags(c)]


def python(source: str) -> str:
    """Return a cell's source with empty lines in the place of IPython's magic lines."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())


def cell_key(source: str) -> str:
    """Return a text that two cells share when they run the same code."""
    magics = [line.strip() for line in source.splitlines() if line.lstrip().startswith(("%", "!"))]
    try:
        return Reading("").add(ast.parse(textwrap.dedent(python(source))).body).text + "".join(magics)
    except SyntaxError:
        return source


def cell_keys(nb: Any) -> list[str]:
    return [cell_key(c.source) for c in code_cells(nb) if c.source.strip()]


class Book:
    """The code and the recorded runs below a folder that holds ``nclib`` and ``book``, each read once."""

    def __init__(self, root: pathlib.Path = ROOT) -> None:
        self.root = root
        found = {name: root / place for name, place in PACKAGES.items()}
        self.code = Code({name: folder for name, folder in found.items() if folder.is_dir()})
        self.digest = functools.cache(digest)

    @functools.cached_property
    def records(self) -> list[dict[str, Any]]:
        """Every record of the book."""
        return records_in(self.root / RESULTS)


def first_definitions(cells: Module, code: Code, chosen: Iterable[str]) -> set[Definition]:
    """Return the definitions that code cells mention, as (module, name).

    The entries of a catalogue count that are ``chosen`` (methods, models and data sets that the runs used),
    that a string in the cells names, or that the cells list (``models.available()``).
    """
    readings = [cells.read(name) for name in [LOOSE, *cells.names()]]
    origins = [*cells.imported.values(), *(o for r in readings for o in r.imports.values())]
    found = {(module, LOOSE) for o in origins if (module := o.partition(":")[0]) in code.paths}
    found |= {definition for reading in readings for definition in code.follow(cells, reading)}
    words = {*chosen, *(word for reading in readings for word in reading.strings)}
    listed = [".".join(module.split(".")[:2]) for module, name in found if name == "available"]
    for word, entries in code.entries.items():
        for _, (module, name) in entries:
            if word in words or any(module.startswith(f"{catalogue}.") for catalogue in listed):
                found.add((module, name))
    return found


def records_in(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return every record of a run below ``folder``, with its ``path``; other JSON files are passed over.

    A damaged file is a ValueError that names it.
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


def results_read(trees: Iterable[ast.AST], book: Book) -> dict[str, list[pathlib.Path]]:
    """Return the files below ``book/results`` that code reads, by what it asks for.

    It asks by a string (``"book/results/x*.json"``), by a path (``RECORDED / "bench" / "map.json"``), or by a
    call such as ``recorded(model="saf", mrate=rate)``: all records whose settings have the constants in it.
    """
    found: dict[str, list[pathlib.Path]] = {}
    for tree in trees:
        for parts in paths_from(tree, FOLDER):
            found["/".join((RESULTS, *parts))] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and RESULTS in node.value:
                found[node.value[node.value.index(RESULTS) :]] = []
            elif isinstance(node, ast.Call) and READERS & {getattr(node.func, k, "") for k in ("id", "attr")}:
                asked, records = records_asked(node, book.records)
                found[asked] = [record["path"] for record in records]
    for place in (place for place in found if place.startswith(RESULTS)):
        target = book.root / place
        files = target.rglob("*") if target.is_dir() else target.parent.glob(target.name)
        found[place] = [p for p in files if p.is_file()]
    return found


def records_asked(call: ast.Call, records: Iterable[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return a call of a reader in words, and the records that it may return."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    where = {k.arg: k.value.value for k in call.keywords if k.arg and isinstance(k.value, ast.Constant)}
    if name == "load_runs":  # both tasks; the preset may be chosen later
        return "load_runs()", list(records)
    task = next((a.value for a in call.args if isinstance(a, ast.Constant)), "pairs")
    words = ", ".join([repr(task), *(f"{k}={v!r}" for k, v in sorted(where.items()))])
    return f"{name}({words})", [
        record
        for record in records
        if ("model" in record["settings"]) == (task == "pairs")
        and all(record["settings"].get(k, v) == v for k, v in where.items())
    ]


def paths_from(tree: ast.AST, folder: str) -> Iterator[tuple[str, ...]]:
    """Yield the parts of every path that starts at ``folder``, up to the first that is not a constant.

    ``folder / "bench" / f"{name}.json"`` gives ``("bench",)``, and ``folder`` by itself ``()``.
    """
    if folder in (getattr(tree, "attr", None), getattr(tree, "id", None)):
        yield ()
        return
    parts: list[ast.expr] = []
    base = tree
    while isinstance(base, ast.BinOp) and isinstance(base.op, ast.Div):
        parts.insert(0, base.right)
        base = base.left
    if parts and folder in (getattr(base, "attr", None), getattr(base, "id", None)):
        known = (p.value if isinstance(p, ast.Constant) else None for p in parts)
        yield tuple(itertools.takewhile(lambda part: isinstance(part, str), known))
        return
    for child in ast.iter_child_nodes(tree):
        yield from paths_from(child, folder)


def stamp(source: pathlib.Path, book: Book, chosen: Iterable[str] = ()) -> dict[str, Any]:
    """Return what an execution of a notebook without outputs rests on.

    A dict: ``cells``, a digest; ``code``, digests by module and name; ``results``, digests by what is asked
    for; ``chosen``, the methods, models and data sets that its runs used. A ValueError when a code cell is
    not Python.
    """
    nb = nbformat.read(source, 4)
    text = "\n".join(python(c.source) for c in code_cells(nb))
    try:
        cells = Module(text)
    except SyntaxError as error:
        raise ValueError(f"{source.name}: a code cell is not Python: {error}") from error
    code = book.code.reach(first_definitions(cells, book.code, chosen))
    trees: list[ast.AST] = [ast.parse(text)]
    for module in (m for m in code if m.startswith("ncbook.") and m != READERS_AT):
        trees += (node for name in code[module] for node in book.code.module(module).defined.get(name, []))
    results = {
        asked: digest(f"{path.relative_to(book.root)} {book.digest(path)}" for path in sorted(files))
        for asked, files in results_read(trees, book).items()
    }
    return {
        "cells": digest("\n".join(cell_keys(nb)))[:DIGITS],
        "code": code,
        "results": {asked: value[:DIGITS] for asked, value in sorted(results.items())},
        "chosen": sorted(chosen),
    }


def packed(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stamp as it is stored: one digest per module, with the names that it covers."""
    return {**whole, "code": {m: [together(names), *names] for m, names in whole["code"].items()}}


def together(digests: Mapping[str, str]) -> str:
    """Return one digest of several definitions."""
    return digest(f"{name} {value}" for name, value in sorted(digests.items()))[:DIGITS]


def changes(have: Mapping[str, Any], want: Mapping[str, Any]) -> list[str]:
    """Return what differs between a stored stamp and the present one, one phrase each."""
    said = ["the code cells changed"] if have.get("cells") != want["cells"] else []
    for module, (value, *names) in have.get("code", {}).items():
        now = want["code"].get(module, {})
        if together({name: now[name] for name in names if name in now}) != value:
            said.append(f"{module} changed" if now else f"{module} is no longer reached")
    old, new = have.get("results", {}), want["results"]
    return said + [f"{asked} changed" for asked in sorted({*old, *new}) if old.get(asked) != new.get(asked)]


def failures(nb: Any) -> list[str]:
    """Return why an executed notebook is not to be trusted, whatever its stamp."""
    said = []
    code = [c for c in nb.cells if c.cell_type == "code"]
    if any(c.source.strip() and c.execution_count is None for c in code):
        said.append("not every code cell ran")
    if any(o.output_type == "error" for c in code for o in c.outputs):
        said.append("a cell failed")
    return said


def problems(source: pathlib.Path, stored: pathlib.Path, book: Book) -> list[str]:
    """Return the reasons not to show the outputs in ``stored`` with ``source``; empty when they are fresh."""
    if not stored.exists():
        return ["never executed"]
    nb = nbformat.read(stored, 4)
    have = nb.metadata.get(STAMP, {})
    return failures(nb) + changes(have, stamp(source, book, have.get("chosen", ())))
