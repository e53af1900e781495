"""Processes of ``gpu.py``: parts that compile ahead, parts that are measured alone, runs that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_common import Bench, Result, planted, relative
from torch import Tensor

from nclib.runs import checkpoint
from nclib.runs.loop import CHECKPOINT

#: Memory of a process in GB, by the start of its part's name; those that are not named compile nothing.
MEMORY_GB = {
    "step/sgr": 7.0, "step/saf": 7.0, "step/imram": 5.0, "step/omit": 2.0, "step/": 3.0, "method/": 9.0,
    "score/": 3.0, "transport/partial": 1.0, "launches": 9.0,
}  # fmt: skip
OWN = ("launches", "transport/partial 256")  # has the graphs of others; has no kernel
SPARE_GB = 2.0  # of the free memory, for what the figures above leave out


def memory_of(part: str) -> float:
    """Return the memory in GB that a part takes while it compiles; 0 where it compiles nothing of its own."""
    if part in OWN or part.startswith("step/vse"):
        return 0.0
    return next((gb for start, gb in MEMORY_GB.items() if part.startswith(start)), 0.0)


def compile_ahead(
    parts: list[str], call: list[str], free: float, workers: int, limit: float, folder: Path
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
    folder : Path
        For what the processes say.

    Returns
    -------
    dict
        By part: the seconds it took; what went wrong; or that it was stopped.
    """
    waiting = [part for part in parts if memory_of(part)]
    free -= SPARE_GB
    running: dict[str, tuple[subprocess.Popen[str], Path, float]] = {}
    report: dict[str, Any] = {}
    began = time.monotonic()
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    while (waiting or running) and time.monotonic() - began < limit:
        for part, (process, said, start) in list(running.items()):
            if process.poll() is None:
                continue
            del running[part]
            free += memory_of(part)
            report[part] = round(time.monotonic() - start, 1)
            if process.returncode:
                report[part] = f"failed: {said.read_text('utf8').strip().splitlines()[-1:]}"
            print(f"ahead  {report[part]} {part}", flush=True)
        for part in list(waiting):
            if len(running) < workers and memory_of(part) <= free:
                said = folder / f"ahead{len(waiting)}.txt"
                with said.open("w", encoding="utf8") as to:
                    words = [*call, "--ahead", part]
                    process = subprocess.Popen(words, env=env, stdout=to, stderr=to, text=True)
                running[part] = process, said, time.monotonic()
                waiting.remove(part)
                free -= memory_of(part)
        time.sleep(0.1)
    for part, (process, *_) in running.items():
        process.kill()
        process.wait()
        report[part] = "stopped at the limit"
    return report


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
