"""Make the records of a declared grid that are missing: ``make record GRID=robust``, LIST=1 to see the plan.

Every run has a process of its own. A failed or killed run does not stop the others; it is named at the end,
and the same command tries it again. Interrupted runs continue from their last epoch, with the same numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import IO, Any

from gpu_results import seconds_of, stored
from grid_plan import METHOD, ROOT, GridError, Planned, check_place, chosen, file_of, lacking_data, plan
from tqdm import tqdm

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
    add("grid", help="name of a grid, or path of its file")
    add("--list", action="store_true", help="show the runs and which are recorded; run nothing")
    add("--match", default="", help="only runs whose name fits this regular expression")
    add("--part", type=part, default=(1, 1), help="k/n: every n-th run, from the k-th on")
    add("--root", default="", help="folder of the papers' data")
    add("--there", action="store_true", help="leave out runs whose data are not in the folder")
    add("--out", type=path, default=ROOT / "book" / "results", help="folder of the records")
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
    """Make the runs, one in each place at a time, and yield each when its process has ended.

    Combinations come after all others, whose runs may be parts of them.
    """
    waiting = sorted(runs.items(), key=lambda item: len(item[1].parts) > 1)
    free, running = places(asked), list[Job]()
    while waiting or running:
        while waiting and free:
            alone = any(len(job.run.parts) == 1 for job in running)
            if alone and len(waiting[0][1].parts) > 1:
                break
            target, run = waiting.pop(0)
            running.append(Job.start(run, target, free.pop(0), asked))
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            free.append(job.place)
            yield job
        time.sleep(0.05)


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
class Cost:
    """What a run costs on the device that ``make gpu`` measured, and the printed cells that it fills."""

    hours: float | None  # None: its steps were not measured
    cells: int

    def __str__(self) -> str:
        hours = "      ?" if self.hours is None else f"{self.hours:7.1f}"
        return f"{hours} h {self.cells:4d} cells  "


def costs(path: pathlib.Path, labels: Collection[str], root: str, found: dict[str, Any]) -> dict[str, Cost]:
    """Return the costs of runs by label, from measured steps."""
    from dry_run import cells_of, told

    import nclib

    cells, result = cells_of(path.stem), {}
    for run in plan(path, root or "unknown"):
        if run.label in labels:
            settings = [nclib.resolve(**{"method": METHOD, **part}).flat() for part in run.parts]
            seconds = [seconds_of(each, found) for each in settings]
            known = [s for s in seconds if s is not None]
            hours = sum(known) / 3600 if len(known) == len(seconds) else None
            result[run.label] = Cost(hours, cells[told(run.arguments)])
    return result


def show(runs: dict[pathlib.Path, Planned], found: dict[str, Cost], device: str) -> None:
    """Print the plan, block by block; with hours, cells and their sum where steps were measured."""
    about = ""
    for target, run in runs.items():
        if run.about and run.about != about:
            print(f"# {run.about}")
        about = run.about
        print("recorded" if target.exists() else "missing ", f"{found.get(run.label, '')}{run.label}")
    if not found:
        return
    for state, there in (("recorded", True), ("missing", False)):
        of = [found[run.label].hours for target, run in runs.items() if target.exists() == there]
        known = [hours for hours in of if hours is not None]
        if of:
            unknown = f"; {len(of) - len(known)} more without measured steps" if len(known) < len(of) else ""
            print(f"{state}: {sum(known):,.1f} h for {len(known)} runs, one at a time on {device}{unknown}")


def main(words: list[str] | None = None) -> int:
    """Make the missing records of a grid; return 0 when every record that was asked for exists."""
    asked = options(words)
    path = file_of(asked.grid)
    every = plan(path, asked.root and str(pathlib.Path(asked.root).absolute()))
    folder = asked.out / path.stem
    runs = {folder / f"{run.label}.json": run for run in chosen(every, asked.match, asked.part)}
    missing = {target: run for target, run in runs.items() if not target.exists()}
    needs_root = any(not run.settings for run in missing.values())
    if asked.list:
        measured = stored(ROOT)
        labels = {run.label for run in runs.values()}
        found = costs(path, labels, asked.root, measured) if measured else {}
        show(runs, found, measured["device"]["name"] if measured else "")
    elif needs_root:
        raise GridError(f"{path.name} has runs on the papers' data; give their folder: ROOT=/data")
    else:
        if asked.there:
            lacking = lacking_data(missing.values())
            left_out = {target: lacking[run.label] for target, run in missing.items() if run.label in lacking}
            for what, n in Counter(left_out.values()).items():
                print(f"{n} runs left out: {what}")
            runs, missing = ({k: v for k, v in part.items() if k not in left_out} for part in (runs, missing))
        check_place(missing.values(), asked.root, asked.device)
        make(missing, asked)
    there = sum(target.exists() for target in runs)
    print(f"{path.stem}: {there} of {len(runs)} runs recorded in {folder}")
    if asked.list and needs_root:
        print("Runs on the papers' data need their folder: ROOT=/data")
    return int(not asked.list and there < len(runs))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GridError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")
