"""Measurements beside the runs: of the benchmarks, the probes and the audit, a file each.

A measurement of speed holds, under ``timed``, a digest of each file of the code that it times. What a page
says of its date names the files that changed since.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ncbook.marks import OUTDATED
from nclib.common.files import digest, write_atomically
from nclib.runs.digests import lock_of, read_checked, together

MEASURED = Path(__file__).resolve().parents[1] / "measured"
ROOT = MEASURED.parents[1]
DIGITS = 12
MISSING = "-"  # in a stored table, of what a row does not have


def measurement(name: str) -> dict[str, Any]:
    """Return a measurement of ``book/measured``, such as ``"bench_map"``.

    Raises
    ------
    ValueError
        When the file was changed, or has no digest in ``SHA256SUMS`` beside it.
    """
    path = MEASURED / f"{name}.json"
    content: dict[str, Any] = json.loads(read_checked(path), object_hook=unpacked)
    return content


def code_digest(path: Path) -> str:
    """Return a digest of a module's syntax tree, without comments and docstrings, the same in every Python.

    Raises
    ------
    OSError, SyntaxError
        When the file cannot be read or parsed.
    """
    return digest(_canonical(ast.parse(path.read_bytes())))[:DIGITS]


def _canonical(node: object) -> str:
    """Write a syntax tree; what some versions of Python leave out, empty lists and None, is left out."""
    if isinstance(node, list):
        return f"[{','.join(_canonical(part) for part in node if not _is_text(part))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.JoinedStr):  # Python 3.12 puts an empty text behind a nested format
        node.values = [part for part in node.values if getattr(part, "value", None) != ""]
    fields = (f"{k}={_canonical(v)}" for k, v in ast.iter_fields(node) if v is not None and v != [])
    return f"{type(node).__name__}({','.join(fields)})"


def _is_text(node: object) -> bool:
    """Tell a docstring, also one behind a variable."""
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def sources(places: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Return the digest of every module at some places, by its path.

    Parameters
    ----------
    places : iterable of str
        Files, and folders for all modules in them, relative to ``root``.
    root : Path
        Folder of the repository.

    Raises
    ------
    ValueError
        For a place without a module.
    """
    timed: dict[str, str] = {}
    for place in places:
        path = root / place
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []
        if not files:
            raise ValueError(f"there is no module at {path}")
        timed.update({file.relative_to(root).as_posix(): code_digest(file) for file in files})
    return timed


def changed(stored: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Return the files of the code that a measurement timed that are other ones now, or gone.

    Parameters
    ----------
    stored : mapping
        A measurement. Nothing is known of one that does not say what it timed; :func:`made` marks it.
    root : Path
        Folder of the repository.
    """
    stated: dict[str, str] = stored.get("timed", {})
    files = {name: root / name for name in stated}
    return [k for k, file in files.items() if not file.is_file() or code_digest(file) != stated[k]]


def made(stored: Mapping[str, Any]) -> str:
    """Return the day and the commit of a measurement, marked where the code that it timed changed since."""
    text = f"{stored.get('when', 'undated')[:10]}, commit {stored.get('commit', 'unknown')}"
    if "timed" not in stored:
        return f"{text} {OUTDATED} which code it timed is not known"
    since = changed(stored)
    return f"{text} {OUTDATED} outdated: {', '.join(since)} changed since" if since else text


def standing() -> list[str]:
    """Return a line for every stored benchmark: when it was made, and what changed since."""
    names = sorted(path.stem for path in MEASURED.glob("bench_*.json"))
    return [f"{name}: {made(measurement(name))}" for name in names]


def probed(part: str) -> pd.DataFrame:
    """Return what a probe (``book/probes``) measured, one row per seed and condition.

    Parameters
    ----------
    part : str
        Of the probe: ``"plans"``, ``"labels"``, ...

    Returns
    -------
    DataFrame
        Columns ``dataset``, ``preset``, ``model``, ``mrate``, ``protocol``, ``seed``, ``commit`` and the
        measured values.
    """
    return pd.DataFrame(measurement(f"probe_{part}")["rows"]).drop(columns="runs")


def packed(value: Any) -> Any:
    """Return a value of JSON with the names of the columns of a table once, and floats of seven digits.

    A list of mappings becomes ``{"columns": names, "table": rows}``, with :data:`MISSING` for what a row does
    not have.
    """
    if isinstance(value, Mapping):
        return {name: packed(part) for name, part in value.items()}
    if not isinstance(value, list):
        return float(f"{value:.7g}") if isinstance(value, float) else value
    if len(value) < 2 or not all(isinstance(row, Mapping) and MISSING not in row.values() for row in value):
        return [packed(part) for part in value]
    names = list(dict.fromkeys(name for row in value for name in row))
    return {"columns": names, "table": [[packed(row.get(name, MISSING)) for name in names] for row in value]}


def unpacked(part: dict[str, Any]) -> Any:
    """Return a mapping in a file, or the list of mappings that :func:`packed` made it of."""
    if part.keys() != {"columns", "table"}:
        return part
    rows = (zip(part["columns"], row, strict=True) for row in part["table"])
    return [{name: value for name, value in row if value != MISSING} for row in rows]


def lines(value: Any, depth: int = 0) -> str:
    """Return JSON with a line for each part of a mapping, and for each row of a table."""
    if isinstance(value, Mapping) and depth < 3 and any(isinstance(v, list | dict) for v in value.values()):
        parts = [f"{json.dumps(name)}: {lines(part, depth + 1)}" for name, part in value.items()]
        return "{\n" + ",\n".join(parts) + "\n}"
    if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
        return "[\n" + ",\n".join(lines(row, 3) for row in value) + "\n]"
    return json.dumps(value, separators=(",", ":"))


def write(path: Path, content: object) -> None:
    """Write a measurement as JSON, with its tables :func:`packed`, and note its digest beside it."""
    with lock_of(path.parent), together(path.parent) as new:
        write_atomically(new / path.name, lines(packed(content)) + "\n")


def keep(file: Path, name: str) -> Path:
    """Copy the file that a benchmark or a probe wrote to the book's measurements; return its place.

    Raises
    ------
    ValueError
        When it is not JSON.
    """
    path = MEASURED / f"{name}.json"
    try:
        write(path, json.loads(file.read_text("utf8")))
    except ValueError as error:
        raise ValueError(f"{file} is not a measurement in JSON: {error}") from error
    return path
