"""Make the records of declared grids that are missing: ``make record GRID=robust``, LIST=1 to see the plan.

Every run has a process of its own. A failed or killed run does not stop the others; it is named at the end,
and the same command tries it again. Interrupted runs continue from their last epoch, with the same numbers.
Runs behind printed tables stand in an order of worth: see :data:`STAGES`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from gpu_results import seconds_of, stored
from grid_plan import METHOD, ROOT, GridError, Planned, check_place, chosen, file_of, lacking_data, plan
from tqdm import tqdm

STAGES = (
    "One seed of the tables that compare methods",
    "One seed of the tables that vary one method",
    "More seeds",
    "Runs that fill no printed cell: the sweeps behind figures",
)
"""The order of worth of the runs behind printed tables."""
NO_PRICE = "No run has a price: nothing was measured on a GPU yet (make gpu does it)"

# The thread ends the run when its standard input closes: no run survives the driver, whatever killed it.
RUN = """
import json, os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
import nclib
parts = json.loads(sys.argv[1])
records = [nclib.run(**part, progress=False) for part in parts]
record = records[0] if len(parts) == 1 else nclib.combine(records, parts[0]["out"], parts[0]["device"])
record.save(sys.argv[2])
"""


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers for argparse."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least {least}")
        return int(text)

    return number


def part(text: str) -> tuple[int, int]:
    """Parse ``2/8``, the second of eight parts."""
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be k/n with 1 <= k <= n, such as 2/8")
    return int(k), int(n)


def options(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    whole, path = at_least(1), pathlib.Path
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("grid", nargs="+", help="names of grids, or paths of their files; a run of several is made once")
    add("--list", action="store_true", help="show the runs and which are recorded; run nothing")
    add("--match", default="", help="only runs whose name fits this regular expression")
    add("--part", type=part, default=(1, 1), help="k/n: every n-th run, from the k-th on")
    add("--root", default="", help="folder of the papers' data")
    add("--there", action="store_true", help="leave out runs whose data are not in the folder")
    add("--out", type=path, default=ROOT / "book" / "results", help="folder of the tables of records")
    add("--work", type=path, default=ROOT / "runs", help="folder of checkpoints")
    add("--cores", type=whole, default=os.cpu_count() or 1, help="CPU cores to use")
    add("--threads", type=whole, help="CPU threads of a run; by default its preset decides")
    add("--device", default="auto", help="auto, cpu, cuda, ...; the parameter of the runs")
    add("--gpus", type=whole, help="GPUs to share among the runs")
    add("--runs-per-gpu", type=whole, default=1, help="runs at a time on one GPU")
    return parser.parse_args(words)


def places(asked: argparse.Namespace) -> list[str | None]:
    """Return an entry for each run at a time: the GPU that it gets, None without ``--gpus``."""
    at_once = max(1, asked.cores // (asked.threads or 1))
    if not asked.gpus:
        return [None] * at_once
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = (visible or [str(i) for i in range(asked.gpus)])[: asked.gpus]
    return (names * asked.runs_per_gpu)[:at_once]


def arguments_of(run: Planned, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the arguments of ``nclib.run`` for a planned run on this machine; of each part if combined."""
    threads = {"threads": asked.threads} if asked.threads else {}
    here = {"device": asked.device, "out": str(asked.work), **threads}
    return [{"method": METHOD, **part, **here} for part in run.parts]


@dataclass
class Job:
    """A run, the file of its record, and its process; ``place`` is the one GPU that it sees, if any."""

    run: Planned
    target: pathlib.Path
    place: str | None
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begun: float

    @classmethod
    def start(cls, run: Planned, target: pathlib.Path, place: str | None, asked: argparse.Namespace) -> Job:
        """Start the process."""
        threads = str(asked.threads or os.environ.get("OMP_NUM_THREADS", 1))
        gpu = {} if place is None else {"CUDA_VISIBLE_DEVICES": place}
        output = tempfile.TemporaryFile()  # noqa: SIM115  (read when the process has ended)
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, json.dumps(arguments_of(run, asked)), str(target)],
            env={**os.environ, "OMP_NUM_THREADS": threads, **gpu},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
        return cls(run, target, place, process, output, time.monotonic())

    def end(self) -> str:
        """Close the ended process; return its signal or last line of output if it failed, else nothing."""
        with self.process, self.output:
            self.output.seek(0)
            lines = self.output.read().decode(errors="replace").strip().splitlines()
        status = self.process.returncode
        if status < 0:
            hint = " (out of memory?)" if status == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-status).name}{hint}"
        return (lines or ["no message"])[-1] if status else ""

    def result(self) -> str:
        """Return the test result and the seconds of a run that succeeded."""
        from nclib.runs.record import Record

        test = Record.load(self.target).metrics["test"]
        value = f"rSum {test['rsum']:.1f}" if "rsum" in test else f"mAP {test['map_avg']:.3f}"
        return f"{value}, {time.monotonic() - self.begun:.0f} s"


def finished(runs: dict[pathlib.Path, Planned], asked: argparse.Namespace) -> Iterator[Job]:
    """Make the runs in order, one in each place at a time, and yield each when its process has ended.

    Two runs with a part in common are not made at the same time.
    """
    waiting, parts = list(runs.items()), {target: _parts(run) for target, run in runs.items()}
    free, running = places(asked), list[Job]()
    while waiting or running:
        busy = {part for job in running for part in parts[job.target]}
        while free and (item := next((i for i in waiting if not busy & parts[i[0]]), None)):
            waiting.remove(item)
            busy |= parts[item[0]]
            running.append(Job.start(item[1], item[0], free.pop(0), asked))
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            free.append(job.place)
            yield job
        time.sleep(0.05)


def _parts(run: Planned) -> set[str]:
    return {json.dumps(part, sort_keys=True) for part in run.parts}


def make(runs: dict[pathlib.Path, Planned], asked: argparse.Namespace) -> None:
    """Make the runs, report each result, and name the failures with their commands at the end."""
    from nclib.runs.words import words_of

    failed = []
    with tqdm(total=len(runs), unit="run", disable=None) as bar:
        for number, job in enumerate(finished(runs, asked), 1):
            if why := job.end():
                failed.append((job, why))
            bar.update()
            bar.write(
                f"{'failed' if why else 'done  '}  {number} of {len(runs)}  {job.run.label}: "
                f"{why or job.result()}"
            )
            sys.stdout.flush()
    for job, why in failed:
        print(f"\n{job.run.label}: {why}")
        for arguments in arguments_of(job.run, asked):
            print("  " + " ".join(["nclib", "run", arguments.pop("method"), *words_of(arguments)]))


@dataclass(frozen=True)
class Plan:
    """Where a run stands in the order of worth, and the printed cells that it fills."""

    run: Planned
    grid: str
    stage: int  # number in STAGES
    fills: str  # names the cells; runs of several seeds fill the same ones
    cells: int

    def hours(self, found: dict[str, Any] | None) -> float | None:
        """Return the hours of the run from measured steps; None where these were not measured."""
        import nclib

        if not found:
            return None
        settings = (nclib.resolve(**{"method": METHOD, **part}).flat() for part in self.run.parts)
        seconds = [seconds_of(each, found) for each in settings]
        return None if None in seconds else sum(s for s in seconds if s is not None) / 3600


def in_order(grids: Sequence[pathlib.Path], out: pathlib.Path, root: str) -> dict[pathlib.Path, Plan]:
    """Return the runs of grids by the file of their record, each once, in the order of :data:`STAGES`.

    Within a stage low seeds come first, then the order of the grids and of their blocks.
    """
    from dry_run import told, worths

    printed = worths() if any(path.stem.startswith("paper_") for path in grids) else {}
    every: list[tuple[pathlib.Path, Plan]] = []
    for path in grids:
        for run in plan(path, root):
            fills = told(run.arguments)
            worth, later = printed.get(fills), run.arguments.get("seed", 0) > 0
            stage = 3 if worth is None else 2 if later else 0 if worth.compares else 1
            target = out / path.stem / f"{run.label}.json"
            every.append((target, Plan(run, path.stem, stage, fills, worth.cells if worth else 0)))
    every.sort(key=lambda item: (item[1].stage, item[1].run.arguments.get("seed", 0)))
    found: dict[str, tuple[pathlib.Path, Plan]] = {}
    for target, each in every:
        key = json.dumps(each.run.settings or each.run.arguments, sort_keys=True)
        found.setdefault(key, (target, each))
    return dict(found.values())


def collect(out: pathlib.Path, grids: Sequence[pathlib.Path]) -> None:
    """Put the records that runs of these grids left in files of their own into the grids' tables."""
    from nclib.runs import append

    for folder in (out / path.stem for path in grids):
        if folder.is_dir() and any(folder.glob("*.json")):
            append(folder.with_suffix(".csv"), folder)
            shutil.rmtree(folder)


def recorded(plans: dict[pathlib.Path, Plan], out: pathlib.Path) -> set[pathlib.Path]:
    """Return the targets of the runs whose settings a record below ``out`` has."""
    from nclib.runs.store import find_all

    if not out.is_dir():
        return set()
    known = {target: each.run.settings for target, each in plans.items() if each.run.settings}
    return {target for target, there in zip(known, find_all(out, known.values()), strict=True) if there}


def show(plans: dict[pathlib.Path, Plan], done: set[pathlib.Path], found: dict[str, Any] | None) -> None:
    """Print the plan by stage and block; with hours and cells where runs are behind printed tables."""
    hours = {target: each.hours(found) for target, each in plans.items()}
    priced = bool(found) or any(each.grid.startswith("paper_") for each in plans.values())
    stage = about = None
    for target, each in plans.items():
        if priced and each.stage != stage:
            print(f"\n{_heading(each.stage, plans, hours)}")
        if each.run.about and (each.stage, each.grid, each.run.about) != (stage, *(about or ())):
            print(f"# {each.grid}: {each.run.about}" if priced else f"# {each.run.about}")
        stage, about = each.stage, (each.grid, each.run.about)
        known = hours[target]
        price = f"{'?' if known is None else f'{known:.1f}':>7} h {each.cells:4d} cells  " if priced else ""
        print("recorded" if target in done else "missing ", f"{price}{each.run.label}")
    if priced:
        print()
        for state, there in (("recorded", True), ("missing", False)):
            if of := [hours[target] for target in plans if (target in done) == there]:
                print(f"{state}: {_sum(of)}")
        print(f"Hours: one run at a time on {found['device']['name']}" if found else NO_PRICE)


def _heading(stage: int, plans: dict[pathlib.Path, Plan], hours: dict[pathlib.Path, float | None]) -> str:
    own = {target: each for target, each in plans.items() if each.stage == stage}
    cells = sum({each.fills: each.cells for each in own.values()}.values())
    return f"{stage + 1}. {STAGES[stage]}: {_sum([hours[t] for t in own])}, {cells:,} printed cells"


def _sum(hours: Sequence[float | None]) -> str:
    """Return the number of runs with the sum of their hours, and how many have none."""
    known = [h for h in hours if h is not None]
    unknown = len(hours) - len(known)
    said = [f"{sum(known):,.1f} h"] if known else []
    said += [f"{unknown:,} of unknown hours" if known else "hours unknown"] if unknown else []
    return f"{len(hours):,} runs ({', '.join(said)})"


def main(words: list[str] | None = None) -> int:
    """Make the missing records of grids; return 0 when every record that was asked for exists."""
    asked = options(words)
    paths = [file_of(name) for name in asked.grid]
    root = asked.root and str(pathlib.Path(asked.root).absolute())
    if not asked.list:
        collect(asked.out, paths)  # of a driver that was killed
    plans = in_order(paths, asked.out, root or ("unknown" if asked.list else ""))
    kept = {id(run) for run in chosen([each.run for each in plans.values()], asked.match, asked.part)}
    plans = {target: each for target, each in plans.items() if id(each.run) in kept}
    there = recorded(plans, asked.out)
    missing = {target: each.run for target, each in plans.items() if target not in there}
    if not asked.list and any(not run.settings for run in missing.values()):
        names = ", ".join(path.name for path in paths)
        raise GridError(f"{names} has runs on the papers' data; give their folder: ROOT=/data")
    if asked.there and root:
        lacking = lacking_data(missing.values())
        left_out = {target: lacking[run.label] for target, run in missing.items() if run.label in lacking}
        for what, n in Counter(left_out.values()).items():
            print(f"{n} runs left out: {what}")
        plans, missing = ({k: v for k, v in part.items() if k not in left_out} for part in (plans, missing))
    if asked.list:
        show(plans, there, stored(ROOT))
    else:
        check_place(missing.values(), asked.root, asked.device)
        make(missing, asked)
        collect(asked.out, paths)
        there = recorded(plans, asked.out)
    done = Counter(each.grid for target, each in plans.items() if target in there)
    every = Counter(each.grid for each in plans.values())
    for name in (path.stem for path in paths):
        print(f"{name}: {done[name]} of {every[name]} runs recorded in {asked.out / name}.csv")
    if asked.list and not root and any("root" in run.settings["data_options"] for run in missing.values()):
        print("Runs on the papers' data need their folder: ROOT=/data")
    return int(not asked.list and done.total() < every.total())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GridError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")
