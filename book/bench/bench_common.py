"""What the transport benchmarks share: turns, tables, and a JSON file that says where it was made."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from nclib.runs.machine import environment

#: A turn lasts at least this many seconds.
SHORTEST = 0.005


@dataclass(frozen=True)
class Row:
    """One solver on one problem: process times, and ratios to the first solver.

    ``ms`` and ``ratio`` are medians over the turns, ``best_ms`` and ``best_ratio`` the least times: on a
    machine with other work they are nearer to what an idle one would show.
    """

    formulation: str
    size: int
    cost: str
    reg: float
    mass: float
    solver: str
    ms: float
    ratio: float
    best_ms: float
    best_ratio: float
    plan_error: float | None
    mass_error: float | None


def take_turns(
    solvers: dict[str, Callable[[], Any]], turns: int, patience: float = 1.0
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Let the solvers take turns; process times of each in seconds, and its last result.

    The first turn warms up and is not counted. Within a turn a solver repeats for a few milliseconds, so
    that a short one is not charged for the caches its predecessor emptied. A solver slower than
    ``patience`` seconds gets one turn.
    """
    times: dict[str, list[float]] = {name: [] for name in solvers}
    results: dict[str, Any] = {}
    for turn in range(turns + 1):
        for name, solve in solvers.items():
            if times[name] and max(times[name]) > patience:
                continue
            spent, repeats = 0.0, 0
            while spent < SHORTEST:
                start = time.process_time()
                results[name] = solve()
                spent += time.process_time() - start
                repeats += 1
            if turn > 0 or spent > patience:
                times[name].append(spent / repeats)
    return times, results


def interleave(
    solvers: dict[str, Callable[[], Any]], turns: int, patience: float = 1.0
) -> tuple[dict[str, float], dict[str, Any]]:
    """Medians and last results of :func:`take_turns`."""
    times, results = take_turns(solvers, turns, patience)
    return {name: median(spent) for name, spent in times.items()}, results


def print_table(rows: Sequence[Any], keys: tuple[str, ...]) -> None:
    """Print medians over the problems that share ``keys``."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, key) for key in keys), []).append(row)
    width = max(len(str(group[-1])) for group in groups)
    print(*(f"{key:>11}" for key in keys[:-1]), f"{keys[-1]:<{width}}", end="")
    print("         ms  ratio: median (min-max)   plan error  mass error")
    for group, members in groups.items():
        ratios = [row.ratio for row in members]
        line = " ".join(f"{value!s:>11}" for value in group[:-1])
        line += f" {group[-1]:<{width}} {median(row.ms for row in members):10.3f}"
        line += f"  {median(ratios):7.2f} ({min(ratios):.2f}-{max(ratios):.2f})".ljust(27)
        for field in ("plan_error", "mass_error"):
            errors = [getattr(row, field) for row in members]
            line += "          NaN" if None in errors else f"  {max(errors):11.1e}"
        print(line)


def machine() -> dict[str, Any]:
    """Hardware and versions, so that a number can be read years later."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        cpu = names[0] if names else cpu
    versions = {}
    for name in ("nclib", "torch", "numpy", "scipy", "pot", "geomloss", "ott-jax", "jax"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],  # processes that wanted a core in the last minute
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": versions,
    }


def write_json(path: Path, rows: Sequence[Any], extra: dict[str, Any]) -> None:
    """Write rows and provenance, atomically."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    commit = environment(torch.device("cpu"))["commit"]
    data = {"when": now, "commit": commit, "machine": machine(), **extra}
    data["rows"] = [asdict(row) for row in rows]
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(part, path)
