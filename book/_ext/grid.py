"""Make the recorded runs that the book shows: ``python book/_ext/grid.py robust [--workers 2] [--list]``.

A grid is a YAML file in ``book/grids``: a list of blocks. A block names parameters of ``nclib.run``; where it
gives a list, every value is taken, in every combination. Finished records go to ``book/results/<grid>``. Runs
whose record is there already are left out, an interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRIDS, RESULTS = ROOT / "book" / "grids", ROOT / "book" / "results"
NAMED = ("method", "model", "dataset", "mrate", "noise_rate", "protocol", "noise", "seed")


def combinations(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return every run of a block, seeds outermost, so that an unfinished grid is balanced."""
    lists = {k: v if isinstance(v, list) else [v] for k, v in block.items()}
    names = sorted(lists, key=lambda name: name != "seed")
    for values in itertools.product(*(lists[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def runs_of(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of a grid, the lowest seeds of all blocks first; each once."""
    found: dict[str, dict[str, Any]] = {}
    for block in blocks:
        for run in combinations(block):
            found.setdefault(json.dumps(run, sort_keys=True), run)
    return sorted(found.values(), key=lambda run: run.get("seed", 0))


def label(run: dict[str, Any]) -> str:
    """Return a file name for a run's record: what it is, then what is unusual about it."""
    usual = [str(run[k]) for k in ("method", "model", "dataset") if k in run]
    for key, sign in (("mrate", "m"), ("noise_rate", "n"), ("protocol", ""), ("noise", ""), ("seed", "s")):
        usual += [f"{sign}{run[key]}"] if key in run else []
    extra: list[str] = []
    for key, value in sorted(run.items()):
        parts = value.items() if isinstance(value, dict) else [(key, value)]
        extra += [] if key in NAMED else [f"{k}={v}" for k, v in parts]
    return "-".join(usual + extra)


def make(run: dict[str, Any], target: pathlib.Path, work: pathlib.Path) -> str:
    """Do one run and store its record; return a line on how it went."""
    import nclib
    from nclib.records import Record

    try:
        folder = nclib.run(**run, out=str(work), progress=False).folder
    except Exception as error:  # the other runs go on
        return f"failed  {target.stem}: {type(error).__name__}: {error}"
    source = pathlib.Path(folder) / "record.json"
    record = Record.load(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    shutil.copyfile(source, part)
    os.replace(part, target)
    test = record.metrics["test"]
    found = f"rSum {test['rsum']:.1f}" if "rsum" in test else f"mAP {test.get('map_avg', float('nan')):.3f}"
    return f"done    {target.stem}: {found}  {record.cost['seconds']:.0f} s  (nclib {nclib.__version__})"


def main() -> None:
    """Parse the command line and make the records that are missing."""
    import yaml

    grids = sorted(path.stem for path in GRIDS.glob("*.yml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("grid", choices=grids)
    parser.add_argument("--workers", type=int, default=max(1, os.cpu_count() or 1), help="runs at a time")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "runs", help="folder of unfinished runs")
    parser.add_argument("--match", default="", help="only runs whose name fits this regular expression")
    parser.add_argument("--list", action="store_true", help="show the runs, and whether they are recorded")
    options = parser.parse_args()
    runs = runs_of(yaml.safe_load((GRIDS / f"{options.grid}.yml").read_text("utf8")))
    targets = [(run, RESULTS / options.grid / f"{label(run)}.json") for run in runs]
    targets = [pair for pair in targets if re.search(options.match, pair[1].stem)]
    missing = [(run, target) for run, target in targets if not target.exists()]
    if options.list:
        for _, target in targets:
            print("recorded" if target.exists() else "missing ", target.stem)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # before the workers load torch
        # A worker does many runs: a short one takes less time than starting Python and torch.
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            jobs = [pool.submit(make, run, target, options.work) for run, target in missing]
            for job in jobs:
                print(job.result(), flush=True)
    print(f"{options.grid}: {sum(t.exists() for _, t in targets)} of {len(targets)} runs recorded")
    sys.exit(not (options.list or all(target.exists() for _, target in targets)))


if __name__ == "__main__":
    main()
