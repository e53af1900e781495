"""Make one run of a plan and its record: ``grid_job.py PLAN TARGET``; the Snakefile of the grids calls it.

A run that another process is making, a part of two combined runs for example or one that outlived the command
that started it, is waited for: its record answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from filelock import FileLock, Timeout

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAUSE = 0.5  # seconds between two looks at what another process holds
SCHEDULED = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")  # a cluster's scheduler gives the GPU


@contextlib.contextmanager
def slot(gpus: list[str], folder: pathlib.Path) -> Iterator[str]:
    """Hold one of the GPUs, named as often as runs may share it; the lock ends with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        for number, name in enumerate(gpus):
            with contextlib.suppress(Timeout), FileLock(folder / f"gpu{number}.lock", timeout=0):
                yield name
                return
        time.sleep(PAUSE)


def make(run: dict[str, Any], target: pathlib.Path) -> None:
    """Make a run, or the parts of a combined one, and write the record."""
    import nclib
    from nclib.common.importing import import_own
    from nclib.common.lock import BusyError

    for code in (
        "book/baselines/fashion.py",
        run["import"],
    ):  # sets for judging, and a block's own code
        if code:
            import_own(code, ROOT)

    records, said = [], set()
    for part in run["parts"]:
        while True:
            try:
                records.append(nclib.run(**part, progress=False))
                break
            except BusyError as busy:
                if str(busy) not in said:
                    print(f"waiting: {busy}", flush=True)
                said.add(str(busy))
                time.sleep(10 * PAUSE)
    first = run["parts"][0]
    record = records[0] if len(records) == 1 else nclib.combine(records, first["out"], first["device"])
    record.save(target)
    test = record.metrics["test"]
    print(f"rSum {test['rsum']:.1f}" if "rsum" in test else f"mAP {test['map_avg']:.3f}")


def main(plan: str, target: str) -> None:
    """Read the plan, take a GPU where the plan names some, and make the run behind ``target``."""
    asked = json.loads(pathlib.Path(plan).read_text("utf8"))
    os.environ["OMP_NUM_THREADS"] = str(asked["threads"])
    with contextlib.ExitStack() as held:
        if asked["gpus"] and not any(name in os.environ for name in SCHEDULED):
            os.environ["CUDA_VISIBLE_DEVICES"] = held.enter_context(slot(asked["gpus"], pathlib.Path("gpus")))
        make(asked["runs"][target], pathlib.Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
