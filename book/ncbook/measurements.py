"""Measurements beside the runs: of the benchmarks, the probes and the audit, a file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from nclib.common.files import write_atomically
from nclib.runs.digests import check_digest, note_digests

MEASURED = Path(__file__).resolve().parents[1] / "measured"


def measurement(name: str) -> dict[str, Any]:
    """Return a measurement of ``book/measured``, such as ``"bench_map"``.

    Raises
    ------
    ValueError
        When the file was changed, or has no digest in ``SHA256SUMS`` beside it.
    """
    path = MEASURED / f"{name}.json"
    data = path.read_bytes()
    check_digest(path, data)
    found: dict[str, Any] = json.loads(data)
    return found


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


def write(path: Path, content: object) -> None:
    """Write a measurement as JSON, and note its digest beside it."""
    data = (json.dumps(content, indent=1) + "\n").encode("utf8")
    note_digests({path: data}, keep=True)
    write_atomically(path, data)
    note_digests({path: data})


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
