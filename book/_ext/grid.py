"""Make the recorded runs that the book shows: ``python book/_ext/grid.py robust [--workers 2] [--list]``.

Finished records of a grid (``grids.py`` says what that is) go to ``book/results/<grid>``. Runs whose record
is there already are left out, an interrupted run continues where it stopped. One pool of processes makes them
all, without notebooks.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from grids import GRIDS, ROOT, GridError, Refused, at_least, check_place, chosen, file_of, plan

RESULTS = ROOT / "book" / "results"


def make(run: dict[str, Any], target: pathlib.Path, work: pathlib.Path) -> str:
    """Do one run and store its record; return a line on how it went."""
    import nclib
    from nclib.runs.checkpoint import write_atomically
    from nclib.runs.record import Record

    try:
        folder = nclib.run(**run, out=str(work), progress=False).folder
        source = pathlib.Path(folder) / "record.json"
        record = Record.load(source)
        write_atomically(target, source.read_bytes())
    except Exception as error:  # the other runs go on
        return f"failed  {target.stem}: {type(error).__name__}: {error}"
    test = record.metrics["test"]
    found = f"rSum {test['rsum']:.1f}" if "rsum" in test else f"mAP {test.get('map_avg', float('nan')):.3f}"
    return f"done    {target.stem}: {found}  {record.cost['seconds']:.0f} s  (nclib {nclib.__version__})"


def main() -> None:
    """Parse the command line and make the records that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("grid", help="name of a grid, or path of its file")
    parser.add_argument("--workers", type=at_least(1), default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "runs", help="folder of unfinished runs")
    parser.add_argument("--match", default="", help="only runs whose name fits this regular expression")
    parser.add_argument("--root", default="", help="folder of the papers' data")
    parser.add_argument("--list", action="store_true", help="show the runs, and whether they are recorded")
    options = parser.parse_args()
    path = file_of(options.grid, GRIDS)
    runs = plan(path, options.root and str(pathlib.Path(options.root).absolute()))
    targets = [(run, RESULTS / path.stem / f"{run.label}.json") for run in chosen(runs, options.match)]
    missing = [(run, target) for run, target in targets if not target.exists()]
    if options.list:
        for _, target in targets:
            print("recorded" if target.exists() else "missing ", target.stem)
    elif any(not run.settings for run, _ in missing):
        raise GridError(f"{path.name} has runs on the papers' data; say where they lie: --root /data")
    else:
        check_place([run for run, _ in missing], options.root)
        os.environ["OMP_NUM_THREADS"] = "1"  # before the workers load torch
        # A worker does many runs: a short one takes less time than starting Python and torch.
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            jobs = [pool.submit(make, run.arguments, target, options.work) for run, target in missing]
            for job in jobs:
                print(job.result(), flush=True)
    print(f"{path.stem}: {sum(t.exists() for _, t in targets)} of {len(targets)} runs recorded")
    sys.exit(not (options.list or all(target.exists() for _, target in targets)))


if __name__ == "__main__":
    try:
        main()
    except (GridError, Refused) as error:
        sys.exit(str(error))
