"""What the benchmarks share: turns, memory, tables, and a JSON file that says where it was made."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from nclib.common.files import write_atomically
from nclib.runs.machine import device_name, environment

#: A turn lasts at least this many seconds.
SHORTEST = 0.005

#: Options of models without dropout, so that all candidates and devices see the same weights and inputs.
NO_DROPOUT: dict[str, dict[str, Any]] = {
    "vse_inf": {"drop": 0.0},
    "omit": {"mask_ratio": 0.0, "augment_captions": False},
    **{name: {"dropout": 0.0} for name in ("sgr", "saf", "sgraf")},
}


def command(doc: str | None) -> argparse.ArgumentParser:
    """Return the command line of a benchmark, whose process works on one thread from now on."""
    torch.set_num_threads(1)
    threadpool_limits(1)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser


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


def random_captions(n: int, words: tuple[int, int], vocabulary: int = 2000) -> Any:
    """Return captions of random words; the shortest and longest have ``words`` tokens."""
    from nclib.data import Captions, Vocabulary  # not in the timed part: data take memory
    from nclib.data.vocabulary import SPECIAL

    rng = np.random.default_rng(0)
    offsets = np.append(0, rng.integers(words[0], words[1] + 1, n).cumsum())
    known = Vocabulary((*SPECIAL, *(f"w{i}" for i in range(vocabulary - len(SPECIAL)))))
    tokens = rng.integers(len(SPECIAL), vocabulary, offsets[-1]).astype(np.int32)
    return Captions(tokens, offsets, known)


def print_rows(rows: Sequence[dict[str, Any]], keys: Sequence[str] = ()) -> None:
    """Print rows; with ``keys`` medians over those that share them.

    Of ratios the least and the largest as well, of errors the largest.
    """
    frame = pd.json_normalize(list(rows))
    if keys:
        each = {"ms": ("ms", "median"), "ratio": ("ratio", "median"), "least": ("ratio", "min")}
        each |= {"most": ("ratio", "max")} | {k: (k, "max") for k in ("plan_error", "mass_error")}
        frame = frame.groupby(list(keys), sort=False).agg(**each).reset_index()
    print(frame.to_string(index=False, float_format="{:.3g}".format, na_rep=""), flush=True)


def resident(field: str = "VmHWM") -> int:
    """Return the largest resident set of this process so far in bytes; ``VmRSS``: the present one."""
    status = Path("/proc/self/status")
    if status.exists():  # the portable number below is inherited from the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024
    import resource  # not on Windows

    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def in_own_process(file: str, *words: str) -> Any:
    """Run a benchmark's file with these words in a fresh process; return the JSON that it prints."""
    return json.loads(
        subprocess.run([sys.executable, file, *words], check=True, stdout=subprocess.PIPE).stdout
    )


def machine() -> dict[str, Any]:
    """Hardware and versions that a record's environment does not state."""
    versions = {}
    for name in ("nclib", "geomloss", "mdot-tnt", "ott-jax", "jax"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "cpu": device_name(torch.device("cpu")).removeprefix("CPU, "),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "load": os.getloadavg()[0],  # processes that wanted a core in the last minute
        "versions": versions,
    }


def write_json(path: Path, times: Sequence[str] = (), **content: Any) -> None:
    """Write results, rows as dictionaries or dataclasses, and where they were made, atomically.

    Parameters
    ----------
    path : Path
        File to write.
    times : sequence of str
        Files and folders of what is timed, relative to the repository. The digests of its modules are
        written under ``timed``, so that a page can say what changed since.
    **content
        The results.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    here = environment(torch.device("cpu"))
    data = {"when": now, "commit": here["commit"], "environment": here, "machine": machine(), **content}
    if times:
        from ncbook.measurements import sources  # not in the timed part: the book's package takes memory

        data["timed"] = sources(times)
    write_atomically(path, json.dumps(data, indent=1, default=asdict) + "\n")
