"""Processes of ``gpu.py``: parts that compile ahead, parts that are measured alone, runs that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_common import Bench, Result, planted, relative
from torch import Tensor

from nclib.runs import checkpoint
from nclib.runs.loop import CHECKPOINT

COMPILING = ("step/", "method/", "score/", "transport/partial")  # starts of names of parts that compile
NOT = ("step/vse", "transport/partial 256")  # but these do not
GB = 9.0  # memory of a process that compiles, at most


def compile_ahead(
    parts: list[str], call: list[str], free: float, workers: int, limit: float
) -> dict[str, Any]:
    """Compute parts once, each in a process, as many at once as workers and memory allow, until the limit.

    Parameters
    ----------
    parts : list of str
        The most valuable first.
    call : list of str
        Command that takes ``--ahead PART``.
    free, workers, limit : float, int, float
        Free memory of the card in GB; most processes at once; seconds.

    Returns
    -------
    dict
        By part: the seconds it took; what went wrong; or that it was stopped.
    """
    end, env = time.monotonic() + limit, {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}

    def compute(part: str) -> float | str | None:
        began = time.monotonic()
        if began >= end:
            return None
        try:
            subprocess.run(
                [*call, "--ahead", part],
                env=env,
                capture_output=True,
                text=True,
                timeout=end - began,
                check=True,
            )
            report: float | str = round(time.monotonic() - began, 1)
        except subprocess.CalledProcessError as error:
            report = f"failed: {error.stderr.strip().splitlines()[-1:]}"
        except subprocess.TimeoutExpired:
            report = "stopped at the limit"
        print(f"ahead  {report} {part}", flush=True)
        return report

    waiting = [part for part in parts if part.startswith(COMPILING) and not part.startswith(NOT)]
    with ThreadPoolExecutor(max(1, min(workers, int(free / GB)))) as pool:
        reports = dict(zip(waiting, pool.map(compute, waiting), strict=True))
    return {part: report for part, report in reports.items() if report is not None}


def measured_alone(part: str, call: list[str], seconds: float) -> dict[str, Any]:
    """Return what a part measures in a process of its own, which ends after ``seconds``."""
    words = [*call, "--alone", part]
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"{part}: {done.stderr.strip()[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


RUN = "import json, sys, nclib; nclib.run('l2rm', **json.loads(sys.argv[1]), progress=False)"


def resumed(bench: Bench) -> Result:
    """A run of L2RM with SAF, killed after its first epoch and continued, beside one that was not killed."""

    def start(name: str) -> subprocess.Popen[str]:
        out = bench.folder / name
        given = {**planted("saf", bench.size), "epochs": 2, "device": str(bench.device), "out": str(out)}
        with out.with_suffix(".txt").open("w", encoding="utf8") as said:
            return subprocess.Popen([sys.executable, "-c", RUN, json.dumps(given)], stderr=said, text=True)

    def end(name: str) -> None:
        if start(name).wait():
            raise RuntimeError((bench.folder / f"{name}.txt").read_text("utf8").strip()[-1000:])

    end("whole")
    process, killed = start("killed"), bench.folder / "killed"
    while process.poll() is None and not list(killed.rglob(CHECKPOINT)):
        time.sleep(0.01)
    process.kill()
    process.wait()
    epochs = len(_saved(killed)["history"])
    end("killed")
    found, wanted = (_tensors(_saved(folder)) for folder in (killed, bench.folder / "whole"))
    return {"rows": [{"killed after epoch": epochs, "of": 3, "difference": relative(found, wanted)}]}


def _saved(folder: Path) -> dict[str, Any]:
    """Return the checkpoint of the run in a folder."""
    (path,) = folder.rglob(CHECKPOINT)
    return checkpoint.load(path)


def _tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    """Return the tensors in nested dicts and lists, by their path."""
    if isinstance(value, Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {k: x for key, part in items for k, x in _tensors(part, f"{name}.{key}").items()}
