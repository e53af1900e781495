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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_results import seconds_of, stored
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

STAGES = (
    "One seed of the tables that compare methods",
    "One seed of the tables that vary one method",
    "More seeds",
    "Runs that fill no printed cell: the sweeps behind figures",
)
"""The order of worth of the runs behind printed tables."""
NO_ROOT = "unknown"  # the folder of the papers' data, where none was given
NO_PRICE = "No run has a price: its steps were not measured on a GPU yet (make gpu does it)"


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


def key_of(settings: Mapping[str, Any]) -> str:
    """Return the settings that name a run as text; equal for a planned run and its record."""
    from nclib.runs.identity import naming

    return json.dumps(naming(json.loads(json.dumps(settings))), sort_keys=True)


def strangers(runs: Mapping[str, Planned], work: pathlib.Path) -> list[str]:
    """Return what is wrong with files that stand where records of planned runs belong, one line each."""
    from nclib.runs.record import Record

    said = []
    for target, run in runs.items():
        path = work / target
        if not path.exists():
            continue
        try:
            record = Record.load(path)
        except (ValueError, OSError) as error:
            said.append(str(error))
            continue
        want, found = (json.loads(key_of(s)) for s in (run.settings, record.settings))
        if other := [k for k in {**want, **found} if want.get(k) != found.get(k)]:
            said.append(
                f"{path} is the record of another run, {record.name}: it differs in {', '.join(other)}"
            )
    return said


def make(runs: Mapping[str, Planned], asked: argparse.Namespace) -> list[str]:
    """Hand the missing runs to Snakemake, in order, and return the files of the records that it made.

    The others are named with their last words and their commands.
    """
    from nclib.runs.words import words_of

    work = asked.work.absolute()
    if wrong := strangers(runs, work):
        raise GridError("\n".join([*wrong, "Move these files away; their runs are made again."]))
    order = {target: len(runs) - n for n, target in enumerate(runs)}
    described = {
        target: {"parts": arguments_of(run, asked), "priority": order[target]} for target, run in runs.items()
    }
    job = {"python": sys.executable, "job": str(pathlib.Path(__file__).with_name("grid_job.py"))}
    of_gpu = {"gpus": gpus(asked), "gpu": int(bool(asked.gpus)), "threads": asked.threads or 1}
    work.mkdir(parents=True, exist_ok=True)
    file = work / "plan.json"
    file.write_text(json.dumps({"runs": described, **job, **of_gpu}, indent=1), "utf8")
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(GRIDS / "Snakefile")]
    words += ["--directory", str(work), "--config", f"plan={file}"]
    words += [
        "--keep-going",
        "--rerun-incomplete",
        "--rerun-triggers",
        "mtime",
        "--nolock",
        "--quiet",
        "rules",
    ]
    if asked.profile:
        words += ["--profile", str(profile(asked.profile))]
    else:
        words += ["--cores", str(asked.cores)]
        words += ["--resources", f"gpu={len(gpus(asked))}"] if asked.gpus else []
    subprocess.call(words, env={**os.environ, "GRIDS": str(GRIDS)})
    for target, run in runs.items():
        if (work / target).exists():
            continue
        print(f"\n{run.label}: {last_line((work / target).with_suffix('.log'))}")
        for arguments in arguments_of(run, asked):
            print("  " + " ".join(["nclib", "run", arguments.pop("method"), *words_of(arguments)]))
    if wrong := strangers(runs, work):
        raise GridError("\n".join(wrong))
    return [target for target in runs if (work / target).exists()]


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
class Plan:
    """Where a run stands in the order of worth, and the printed cells that it fills."""

    run: Planned
    grid: str
    stage: int  # number in STAGES
    fills: str  # names the cells; runs of several seeds fill the same ones
    cells: int
    recorded: bool = False

    def hours(self, found: dict[str, Any] | None) -> float | None:
        """Return the hours of the run from measured steps; None where these were not measured."""
        import nclib

        if not found:
            return None
        settings = (nclib.resolve(**{"method": METHOD, **part}).flat() for part in self.run.parts)
        seconds = [seconds_of(each, found) for each in settings]
        n = self.run.arguments.get("networks", 1)
        return None if None in seconds else n * sum(s for s in seconds if s is not None) / 3600


def in_order(grids: Sequence[pathlib.Path], out: pathlib.Path, root: str) -> dict[str, Plan]:
    """Return the runs of grids by the file that each writes, each once, in the order of :data:`STAGES`.

    Within a stage low seeds come first, then the order of the grids and of their blocks.
    """
    from nclib.runs.store import find_all

    printed: dict[str, Any] = {}
    if any(path.stem.startswith("paper_") for path in grids):
        from dry_run import worths

        printed = worths()
    every: dict[str, tuple[str, Plan]] = {}
    for path in grids:
        for run in plan(path, root):
            fills = told(run.arguments)
            worth, later = printed.get(fills), run.arguments.get("seed", 0) > 0
            stage = 3 if worth is None else 2 if later else 0 if worth.compares else 1
            key = key_of(run.settings or run.arguments)
            each = Plan(run, path.stem, stage, fills, worth.cells if worth else 0)
            every.setdefault(key, (f"records/{path.stem}/{run.label}.json", each))
    planned = [each for _, each in every.values()]
    try:
        found = find_all(out, [each.run.settings for each in planned]) if out.is_dir() else []
    except ValueError as error:  # a table that was changed
        raise GridError(str(error)) from error
    for each, record in zip(planned, found, strict=False):
        each.recorded = record is not None
    return dict(
        sorted(every.values(), key=lambda item: (item[1].stage, item[1].run.arguments.get("seed", 0)))
    )


def show(plans: dict[str, Plan], found: dict[str, Any] | None) -> None:
    """Print the plan by stage and block; with hours and cells where runs are behind printed tables."""
    hours = {target: each.hours(found) for target, each in plans.items()}
    known = any(price is not None for price in hours.values())
    priced = known or any(each.grid.startswith("paper_") for each in plans.values())
    stage = about = None
    for target, each in plans.items():
        if priced and each.stage != stage:
            print(f"\n{_heading(each.stage, plans, hours)}")
        if each.run.about and (each.stage, each.grid, each.run.about) != (stage, *(about or ())):
            print(f"# {each.grid}: {each.run.about}" if priced else f"# {each.run.about}")
        stage, about = each.stage, (each.grid, each.run.about)
        own = hours[target]
        price = f"{'?' if own is None else f'{own:.1f}':>7} h {each.cells:4d} cells  " if priced else ""
        print("recorded" if each.recorded else "missing ", f"{price}{each.run.label}")
    if priced:
        print()
        for state, there in (("recorded", True), ("missing", False)):
            if of := [hours[target] for target, each in plans.items() if each.recorded == there]:
                print(f"{state}: {_sum(of)}")
        print(f"Hours: one run at a time on {found['device']['name']}" if found and known else NO_PRICE)


def _heading(stage: int, plans: dict[str, Plan], hours: dict[str, float | None]) -> str:
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
    plans = in_order(paths, asked.out, root or NO_ROOT)
    kept = {id(run) for run in chosen([each.run for each in plans.values()], asked.match, asked.part)}
    plans = {target: each for target, each in plans.items() if id(each.run) in kept}
    missing = {target: each.run for target, each in plans.items() if not each.recorded}
    placeless = not root and any(
        run.settings["data_options"].get("root") == NO_ROOT for run in missing.values()
    )
    if placeless and not asked.list:
        names = ", ".join(path.name for path in paths)
        raise GridError(f"{names} has runs on the papers' data; give their folder: ROOT=/data")
    if asked.there and root:
        lacking = lacking_data(missing.values())
        left_out = {target: lacking[run.label] for target, run in missing.items() if run.label in lacking}
        for what, n in Counter(left_out.values()).items():
            print(f"{n} runs left out: {what}")
        plans, missing = ({k: v for k, v in part.items() if k not in left_out} for part in (plans, missing))
    done = Counter(each.grid for each in plans.values() if each.recorded)
    if asked.list:
        show(plans, stored(ROOT))
    elif missing:
        check_place(missing.values(), asked.root, asked.device)
        made = make(missing, asked)
        collect(made, asked)
        done += Counter(plans[target].grid for target in made)
    every = Counter(each.grid for each in plans.values())
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
