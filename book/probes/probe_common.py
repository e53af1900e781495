"""What the probes of claims share: runs under named conditions, and a JSON file that grows by them."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from ncbook.measurements import MEASURED, unpacked, write
from torch import Tensor

import nclib
from nclib import Record
from nclib.runs.machine import environment

PLACES = {"emoji": {"model": "vse", "preset": "quick"}, "f8k": {"model": "bow", "preset": "standard"}}
SETTINGS = ("batch_size", "warmup_epochs", "epochs", "lr", "method_options", "model_options")
DIGITS = 5
FLOOR = 1e-10  # smallest entry of a target, as in L2RM's loss

Case = dict[str, Any]
Run = Callable[..., Record]
Measure = Callable[[Run, Case], Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """A part of a probe: ``measure(made, case)``, with ``made`` from :func:`run_in`, returns what it finds.

    ``shared`` are conditions that are not given on the command line, over those of the data; each of ``each``
    are further ones, a row each at every rate and seed.
    """

    measure: Measure
    shared: Mapping[str, Any]
    each: Sequence[Mapping[str, Any]] = ({},)


def sym_kl(log_p: Tensor, target: Tensor) -> Tensor:
    """Return the symmetric divergence, (B,), of targets and predictions; 0 for an empty row of targets."""
    r = target.clamp_min(FLOOR)
    r = r / r.sum(1, keepdim=True)
    return ((r - log_p.exp()) * (r.log() - log_p)).sum(1) * (target.sum(1) > 0)


def run_in(case: Case, root: str, folder: str, notes: dict[str, Any]) -> Run:
    """Return a function that makes a run under the conditions of a case and notes its settings.

    ``made(label, method, **values)`` is :func:`nclib.run`; ``values`` win over those of the case.
    """
    place = {} if case["dataset"] in ("emoji", "planted") else {"data_options": {"root": root}}

    def made(label: str, /, method: str, **values: Any) -> Record:
        usual = {**place, "out": folder, "device": "cpu", "threads": 1, "progress": False}
        record = nclib.run(method, **{**case, **usual, **values})
        said = {"method": method, **{name: record.settings[name] for name in SETTINGS}}
        said |= {"noise": record.noise["checksum"], "data": record.data["checksum"]}
        notes[label] = {**said, "test_rsum": round(record.metrics["test"]["rsum"], 2)}
        return record

    return made


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Return the rows that a file has; none without the file."""
    return json.loads(path.read_text("utf8"), object_hook=unpacked)["rows"] if path.is_file() else []


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with at most :data:`DIGITS` decimals."""
    return {k: round(v, DIGITS) if isinstance(v, float) else v for k, v in values.items()}


@cache
def machine() -> dict[str, Any]:
    """Return hardware and versions, with the commit whose code is in memory."""
    return environment(torch.device("cpu"))


def save(path: Path, rows: Sequence[Mapping[str, Any]], **settings: Any) -> None:
    """Write the file of a part: when and where its last rows were made, and all rows."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write(path, {"measured": now, **settings, "environment": machine(), "rows": rows})


def fill(path: Path, cases: Sequence[Case], measure: Measure, root: str = "data") -> None:
    """Measure the cases that a file lacks, and write the file after each.

    Parameters
    ----------
    path : Path
        JSON file; a row is the case, ``commit``, ``runs`` (settings of each run) and the measured values.
    cases : sequence of dict
        Conditions of the runs; a row that has all of them stands.
    measure : callable
        Returns the values, see :class:`Part`.
    root : str
        Folder of data that are not bundled; it is not written.
    """
    commit = machine()["commit"]
    for case in cases:
        if any(case.items() <= row.items() for row in map(_plain, rows_in(path))):
            continue
        notes: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            values = measure(run_in(case, root, folder, notes), case)
        row = {**case, "commit": commit, **rounded(values), "runs": notes}
        save(path, [*rows_in(path), row])
        print(json.dumps({k: v for k, v in row.items() if k != "runs"}), flush=True)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row that can be compared with those of a case."""
    return {k: v for k, v in row.items() if not isinstance(v, dict | list)}


def main(doc: str | None, **parts: Part) -> None:
    """Read the command line of a probe and fill the file of one part, which is named as the part is."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("part", choices=tuple(parts))
    parser.add_argument("--dataset", choices=tuple(PLACES), default="emoji")
    parser.add_argument("--root", default="data", help="folder of the prepared photographs")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.4], help="mismatch rates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=MEASURED, help="folder of the JSON files")
    given = parser.parse_args()
    part = parts[given.part]
    at = {"dataset": given.dataset, **PLACES[given.dataset], **part.shared}
    rates = [at["mrate"]] if "mrate" in at else given.rates
    places = itertools.product(rates, given.seeds, part.each)
    cases = [{**at, "mrate": rate, "seed": seed, **one} for rate, seed, one in places]
    fill(given.out / f"probe_{given.part}.json", cases, part.measure, given.root)
