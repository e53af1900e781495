"""Make the records of declared grids that are missing: ``make record GRID=robust``, LIST=1 to see the plan.

What was planned less what is recorded, compared by settings, is handed to Snakemake (book/grids/Snakefile).
It starts every run as a process of its own, here or on a cluster (PROFILE=slurm).
Then the records of the single runs are added to the table of their grid. Interrupted runs continue from their
last epoch, with the same numbers. Runs behind printed tables stand in an order of worth: see :data:`STAGES`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grid_plan import (
    GRIDS,
    METHOD,
    ROOT,
    GridError,
    Planned,
    check_place,
    chosen,
    file_of,
    lacking_data,
    plan,
    told,
)
from ncbook.gpu import seconds_of, stored

from nclib.common.files import digest, write_atomically

if TYPE_CHECKING:
    from nclib.runs.request import Request

STAGES = (
    "One seed of the tables that compare methods",
    "One seed of the tables that vary one method",
    "More seeds",
    "Runs that fill no printed cell: the sweeps behind figures",
)
"""The order of worth of the runs behind printed tables."""
NO_ROOT = "unknown"  # the folder of the papers' data, where none was given
NO_PRICE = "No run has a price: its steps were not measured on a GPU yet (make gpu does it)"


def whole(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)


def part(text: str) -> tuple[int, int]:
    """Parse ``2/8``, the second of eight parts."""
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be k/n with 1 <= k <= n, such as 2/8")
    return int(k), int(n)


def options(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    path = pathlib.Path
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("grid", nargs="+", help="names of grids, or paths of their files; a run of several is made once")
    add("--list", action="store_true", help="show the runs and which are recorded; run nothing")
    add("--match", default="", help="only runs whose name fits this regular expression")
    add("--part", type=part, default=(1, 1), help="k/n: every n-th run, from the k-th on")
    add("--root", default="", help="folder of the papers' data")
    add("--there", action="store_true", help="leave out runs whose data are not in the folder")
    add("--out", type=path, default=ROOT / "book" / "results", help="folder of the tables of records")
    add("--work", type=path, default=ROOT / "runs", help="folder of checkpoints and of single runs' records")
    add("--cores", type=whole, default=os.cpu_count() or 1, help="CPU cores to use")
    add("--threads", type=whole, help="CPU threads of a run; by default its preset decides")
    add("--device", default="auto", help="auto, cpu, cuda, ...; the parameter of the runs")
    add("--gpus", type=whole, help="GPUs to share among the runs")
    add("--runs-per-gpu", type=whole, default=1, help="runs at a time on one GPU")
    add("--profile", default="", help="profile of Snakemake: slurm, submit, or a folder")
    return parser.parse_args(words)


def arguments_of(run: Planned, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the arguments of ``nclib.run`` for a planned run on this machine; of each part if combined."""
    threads = {"threads": asked.threads} if asked.threads else {}
    here = {"device": asked.device, "out": str(asked.work.absolute()), **threads}
    return [{"method": METHOD, **part, **here} for part in run.parts]


def gpus(asked: argparse.Namespace) -> list[str]:
    """Return the names of the GPUs to share, each as often as runs may use it at a time."""
    if not asked.gpus:
        return []
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (visible or [str(i) for i in range(asked.gpus)])[: asked.gpus] * asked.runs_per_gpu


def strangers(jobs: Mapping[str, Job], work: pathlib.Path) -> list[str]:
    """Return what is wrong with files that stand where records of planned runs belong, one line each."""
    from nclib.runs.record import Record

    said = []
    for target, job in jobs.items():
        path = work / target
        if not path.exists():
            continue
        try:
            record = Record.load(path)
        except (ValueError, OSError) as error:
            said.append(str(error))
            continue
        if other := job.request.unlike(vars(record)):
            said.append(
                f"{path} is the record of another run, {record.name}: it differs in {', '.join(other)}"
            )
    return said


def make(missing: Sequence[Job], asked: argparse.Namespace) -> list[str]:
    """Hand the missing runs to Snakemake, in order, and return the files of the records that it made.

    The others are named with their last words and their commands. The names of the plan and of the records
    hold digests of what is asked: drivers that share a folder do not read or answer each other's.
    """
    from nclib.runs.words import words_of

    work = asked.work.absolute()
    jobs = {job.target: job for job in missing}
    if wrong := strangers(jobs, work):
        raise GridError("\n".join([*wrong, "Move these files away; their runs are made again."]))
    described = {
        target: {"parts": arguments_of(job.run, asked), "import": job.run.code, "priority": len(jobs) - n}
        for n, (target, job) in enumerate(jobs.items())
    }
    job = {"python": sys.executable, "job": str(pathlib.Path(__file__).with_name("grid_job.py"))}
    of_gpu = {"gpus": gpus(asked), "gpu": int(bool(asked.gpus)), "threads": asked.threads or 1}
    work.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"runs": described, **job, **of_gpu}, indent=1)
    file = work / f"plan-{digest(content)[:16]}.json"
    write_atomically(file, content)
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(GRIDS / "Snakefile")]
    words += ["--directory", str(work), "--config", f"plan={file}"]
    words += ["--keep-going", "--rerun-incomplete", "--rerun-triggers", "mtime"]
    words += ["--nolock", "--quiet", "rules"]
    if asked.profile:
        words += ["--profile", str(profile(asked.profile))]
    else:
        words += ["--cores", str(asked.cores)]
        words += ["--resources", f"gpu={len(gpus(asked))}"] if asked.gpus else []
    subprocess.call(words, env={**os.environ, "GRIDS": str(GRIDS)})
    for target, each in jobs.items():
        if (work / target).exists():
            continue
        print(f"\n{each.run.label}: {last_line((work / target).with_suffix('.log'))}")
        for arguments in arguments_of(each.run, asked):
            code = ["--import", each.run.code] if each.run.code else []
            print("  " + " ".join(["nclib", "run", arguments.pop("method"), *code, *words_of(arguments)]))
    if wrong := strangers(jobs, work):
        raise GridError("\n".join(wrong))
    return [target for target in jobs if (work / target).exists()]


def collect(targets: Collection[str], asked: argparse.Namespace) -> None:
    """Add the records of single runs to the tables of their grids."""
    from nclib.runs import append

    for grid in dict.fromkeys(pathlib.Path(target).parent.name for target in targets):
        own = [asked.work / target for target in targets if pathlib.Path(target).parent.name == grid]
        try:
            append(asked.out / f"{grid}.csv", own)
        except ValueError as error:
            raise GridError(str(error)) from error


def last_line(log: pathlib.Path) -> str:
    """Return the last line that a run printed."""
    lines = log.read_text("utf8", "replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "no message; killed, or never started"


def profile(name: str) -> pathlib.Path:
    """Return the folder of a profile of Snakemake, given by its name or as a path."""
    folder = GRIDS / "profiles" / name
    if folder.is_dir() or (folder := pathlib.Path(name)).is_dir():
        return folder.absolute()
    known = ", ".join(sorted(p.name for p in (GRIDS / "profiles").iterdir()))
    raise GridError(f"profile={name!r}: must be one of {known}, or a folder that holds a config.yaml")


@dataclass
class Job:
    """A planned run: its place in the order of worth, the printed cells it fills, and what is recorded."""

    run: Planned
    request: Request
    grid: str
    stage: int  # number in STAGES
    fills: str  # names the cells; runs of several seeds fill the same ones
    cells: int
    recorded: bool = False
    why: str = ""  # a record of the run does not answer

    @property
    def target(self) -> str:
        """The file of the record of the single run, below the folder of work; the data are loaded for it."""
        return f"records/{self.grid}/{self.run.label}-{self.request.digest[:8]}.json"

    def hours(self, found: dict[str, Any] | None) -> float | None:
        """Return the hours of the run from measured steps; None where these were not measured."""
        import nclib

        if not found:
            return None
        settings = (nclib.resolve(**{"method": METHOD, **part}).flat() for part in self.run.parts)
        seconds = [seconds_of(each, found) for each in settings]
        n = self.run.arguments.get("networks", 1)
        return None if None in seconds else n * sum(s for s in seconds if s is not None) / 3600


def in_order(grids: Sequence[pathlib.Path], out: pathlib.Path, root: str) -> list[Job]:
    """Return the runs of grids, each once, in the order of :data:`STAGES`, and which are recorded.

    Within a stage low seeds come first, then the order of the grids and of their blocks.
    """
    from ncbook.nearest import requests

    printed: dict[str, Any] = {}
    if any(path.stem.startswith("paper_") for path in grids):
        from dry_run import worths

        printed = worths()
    every: dict[str, Job] = {}
    planned = [(path.stem, run) for path in grids for run in plan(path, root)]
    for (grid, run), request in zip(planned, requests([run.settings for _, run in planned]), strict=True):
        fills = told(run.arguments)
        worth, later = printed.get(fills), run.arguments.get("seed", 0) > 0
        stage = 3 if worth is None else 2 if later else 0 if worth.compares else 1
        key = json.dumps([request.naming, run.settings["data_options"]], sort_keys=True)
        every.setdefault(key, Job(run, request, grid, stage, fills, worth.cells if worth else 0))
    compare(list(every.values()), out)
    return sorted(every.values(), key=lambda job: (job.stage, job.run.arguments.get("seed", 0)))


def compare(jobs: Sequence[Job], out: pathlib.Path) -> None:
    """Note of each run whether a folder of tables has its record, or why the one there does not answer."""
    from ncbook.nearest import nearest

    from nclib.runs.request import CODE_PART, DATA_PART

    try:
        found = nearest(out, [job.request for job in jobs]) if out.is_dir() else []
    except ValueError as error:  # a table that was changed
        raise GridError(str(error)) from error
    for job, (record, unlike) in zip(jobs, found, strict=False):
        job.recorded = record is not None and not unlike
        reasons = {CODE_PART: "recorded with other code", DATA_PART: "recorded on other data"}
        close = len(unlike) == 1 and (unlike[0] in reasons or unlike[0].startswith("numerics"))
        job.why = reasons.get(unlike[0], unlike[0]) if close else ""


def show(jobs: Sequence[Job], found: dict[str, Any] | None) -> None:
    """Print the plan by stage and block; with hours and cells where runs are behind printed tables."""
    hours = [job.hours(found) for job in jobs]
    known = any(price is not None for price in hours)
    priced = known or any(job.grid.startswith("paper_") for job in jobs)
    stage = about = None
    for job, own in zip(jobs, hours, strict=True):
        if priced and job.stage != stage:
            print(f"\n{_heading([(j, h) for j, h in zip(jobs, hours, strict=True) if j.stage == job.stage])}")
        if job.run.about and (job.stage, job.grid, job.run.about) != (stage, *(about or ())):
            print(f"# {job.grid}: {job.run.about}" if priced else f"# {job.run.about}")
        stage, about = job.stage, (job.grid, job.run.about)
        price = f"{'?' if own is None else f'{own:.1f}':>7} h {job.cells:4d} cells  " if priced else ""
        why = f"  ({job.why})" if job.why else ""
        print("recorded" if job.recorded else "missing ", f"{price}{job.run.label}{why}")
    if priced:
        print()
        for state, there in (("recorded", True), ("missing", False)):
            if of := [own for job, own in zip(jobs, hours, strict=True) if job.recorded == there]:
                print(f"{state}: {_sum(of)}")
        print(f"Hours: one run at a time on {found['device']['name']}" if found and known else NO_PRICE)


def _heading(priced: Sequence[tuple[Job, float | None]]) -> str:
    stage = priced[0][0].stage
    cells = sum({job.fills: job.cells for job, _ in priced}.values())
    return f"{stage + 1}. {STAGES[stage]}: {_sum([own for _, own in priced])}, {cells:,} printed cells"


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
    jobs = in_order(paths, asked.out, root or NO_ROOT)
    kept = {id(run) for run in chosen([job.run for job in jobs], asked.match, asked.part)}
    jobs = [job for job in jobs if id(job.run) in kept]
    missing = [job for job in jobs if not job.recorded]
    placeless = not root and any(job.run.settings["data_options"].get("root") == NO_ROOT for job in missing)
    if placeless and not asked.list:
        names = ", ".join(path.name for path in paths)
        raise GridError(f"{names} has runs on the papers' data; give their folder: ROOT=/data")
    if asked.there and root:
        lacking = lacking_data([job.run for job in missing])
        left_out = [job for job in missing if job.run.label in lacking]
        for what, n in Counter(lacking[job.run.label] for job in left_out).items():
            print(f"{n} runs left out: {what}")
        jobs, missing = ([job for job in part if job not in left_out] for part in (jobs, missing))
    if asked.list:
        show(jobs, stored())
    elif missing:
        check_place([job.run for job in missing], asked.root, asked.device)
        collect(make(missing, asked), asked)
        compare(missing, asked.out)  # what stands in the tables now
    done, every = Counter(job.grid for job in jobs if job.recorded), Counter(job.grid for job in jobs)
    for name in (path.stem for path in paths):
        print(f"{name}: {done[name]} of {every[name]} runs recorded in {asked.out / name}.csv")
    if placeless:
        print("Runs on the papers' data need their folder: ROOT=/data")
    return int(not asked.list and done.total() < every.total())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GridError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")
