"""Make the runs of a grid as notebooks, side by side: ``make grid GRID=quick``.

A grid is a file of ``book/grids``, or the path of one. Every run becomes an executed copy of
``notebooks/one_run.ipynb`` and a record in ``runs/grids/<grid>``, whose ``index.html`` shows how all stand.
The same command continues after whatever stopped it: finished runs are left alone, an interrupted run goes on
from its last epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import make_env
import yaml
from grids import GridError, Planned, Refused, at_least, check_place, chosen, file_of, plan
from sweep_page import write_page
from sweep_store import SUBFOLDERS, Store, lock, put, read_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNNER = pathlib.Path(__file__).with_name("sweep_run.py")
NOTEBOOK = ROOT / "notebooks" / "one_run.ipynb"
OUT = ROOT / "runs" / "grids"
SNAKEFILE = ROOT / "book" / "grids" / "Snakefile"
PROFILES = ROOT / "book" / "grids" / "profiles"
# Snakemake gets an environment of its own: its pins and the book's need not agree, and who runs no grid does
# not install it. The jobs run in the environment of this program.
VENV, LOCK = ROOT / ".venv-grid", ROOT / "book" / "requirements-grid.lock"


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", help="name of a grid, or path of its file")
    parser.add_argument("--list", action="store_true", help="show the runs and how they stand; run nothing")
    parser.add_argument("--match", default="", help="only runs whose name fits this regular expression")
    parser.add_argument("--root", default="", help="folder of the papers' data")
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help="folder of all grids")
    parser.add_argument("--cores", type=at_least(1), default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--threads", type=at_least(1), default=1, help="cores that a run counts for")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda; the runs' parameter")
    parser.add_argument("--gpus", type=at_least(0), default=0, help="GPUs of this machine to share out")
    parser.add_argument("--runs-per-gpu", type=at_least(1), default=1, help="runs that share a GPU")
    parser.add_argument("--notebook", type=pathlib.Path, default=NOTEBOOK, help="another one to run")
    parser.add_argument("--no-html", action="store_true", help="no HTML copies of the notebooks")
    parser.add_argument("--profile", default="", help="slurm, or the folder of a Snakemake profile")
    parser.add_argument("--snakemake", type=pathlib.Path, help="a Snakemake to use; else one is installed")
    return parser.parse_args(argv)


def show(runs: list[Planned], folder: pathlib.Path) -> None:
    """Print the plan, block by block, and how every run stands."""
    store, about, needed = Store(folder), None, False
    for run in runs:
        if run.about != about and run.about:
            print(f"# {run.about}")
        about, needed = run.about, needed or not run.settings
        name = store.state(run.label).name if run.label in store.runs else "missing"
        print(f"{name:8}{run.label}")
    if store.runs:
        with contextlib.suppress(OSError):  # somebody else's folder can be looked at
            write_page(store)
    print(f"{len(runs)} runs in {folder}")
    if needed:
        print("Runs on the papers' data need their folder: ROOT=/data")


def prepare(folder: pathlib.Path) -> None:
    """Make the folder of a grid, or say why it cannot be written."""
    try:
        for name in SUBFOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        put(folder / "state" / "probe", b"")
    except OSError as error:
        raise Refused(f"OUT={folder.parent} cannot be written ({error}); choose another folder") from error


def reconcile(store: Store, labels: list[str]) -> list[str]:
    """Say for Snakemake which runs are finished; return those that are not.

    A run whose record or notebook is not what its seal says loses the seal, and is made again.
    """
    todo = []
    for label in labels:
        problem, flag = store.problem(label), store.mark(label, "flag")
        if not problem:
            flag.touch()
            continue
        todo.append(label)
        flag.unlink(missing_ok=True)
        if store.mark(label, "done").exists():
            print(f"again   {label}: {problem}")
            store.journal("distrusted", label, problem=problem)
            store.mark(label, "done").unlink(missing_ok=True)
    return todo


def snakemake_of(given: pathlib.Path | None) -> pathlib.Path:
    """Return the Snakemake to use; makes its environment on first use."""
    if given:
        if not given.is_file():
            raise Refused(f"SNAKEMAKE={given}: there is no such file")
        return given.absolute()
    make_env.make(VENV, LOCK, what="Snakemake, in an environment of its own (about half a minute)")
    return VENV / "bin" / "snakemake"


def profile_of(name: str) -> pathlib.Path:
    """Return the folder of a profile, one of the book's or the user's own."""
    for folder in (PROFILES / name, pathlib.Path(name).absolute()):
        if (folder / "config.yaml").is_file():
            return folder
    there = ", ".join(sorted(p.name for p in PROFILES.iterdir()))
    raise Refused(f"PROFILE={name}: there is no such folder with a config.yaml; there are: {there}")


def check_executor(snakemake: pathlib.Path, profile: pathlib.Path) -> None:
    """Say what is missing where a profile's executor cannot work here."""
    content = yaml.safe_load((profile / "config.yaml").read_text("utf8")) or {}
    name = str(content.get("executor", "local"))
    python, module = snakemake.parent / "python", f"snakemake_executor_plugin_{name.replace('-', '_')}"
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if name not in ("local", "dryrun", "touch") and subprocess.call([str(python), "-c", code]):
        raise Refused(
            f"PROFILE={profile.name}: Snakemake has no executor {name!r} yet. Once: "
            f"{python} -m pip install snakemake-executor-plugin-{name}"
        )
    if name == "slurm":
        check_slurm(profile, str(content.get("slurm-status-command", "sacct")))


def check_slurm(profile: pathlib.Path, asks: str) -> None:
    """Say what is wrong where jobs could not be submitted, or their ends would never be noticed."""
    missing = [word for word in ("sbatch", asks) if shutil.which(word) is None]
    if missing:
        raise Refused(
            f"PROFILE={profile.name}: there is no {missing[0]} here; start on a machine of the cluster"
        )
    if asks == "sacct":
        answer = subprocess.run(["sacct", "--noheader"], capture_output=True, text=True, check=False)
        if answer.returncode:  # without accounts the executor would wait for its jobs for ever
            raise Refused(
                f"PROFILE={profile.name}: this cluster keeps no accounts of its jobs "
                f"({answer.stderr.strip()}). Add to {profile / 'config.yaml'}: slurm-status-command: squeue"
            )


def command(snakemake: pathlib.Path, folder: pathlib.Path, asked: argparse.Namespace) -> list[str]:
    """Return the call of Snakemake."""
    words = [str(snakemake), "--snakefile", str(SNAKEFILE), "--directory", str(folder), "--keep-going"]
    # The lock of sweep.py stands for Snakemake's, which a killed driver would leave behind; seals stand for
    # its notes on incomplete files; a newer notebook or clock does not undo finished work.
    words += ["--nolock", "--ignore-incomplete", "--drop-metadata", "--rerun-triggers", "mtime"]
    words += ["--runtime-source-cache-path", str(folder / ".snakemake" / "sources"), "--quiet", "all"]
    if asked.profile:
        return [*words, "--profile", str(profile_of(asked.profile))]
    words += ["--cores", str(asked.cores), "--scheduler", "greedy"]
    return [*words, "--resources", f"gpu={asked.gpus * asked.runs_per_gpu}"] if asked.gpus else words


def take(fd: int | None, folder: pathlib.Path) -> int:
    """Return the descriptor of the lock, fit to be handed to Snakemake, or say who holds it."""
    note = folder / "state" / "driver.json"
    if fd is None:
        other = read_json(note)
        where = (
            f"process {other.get('pid', '?')} on {other.get('host', '?')}, since {other.get('since', '?')}"
        )
        raise Refused(
            f"{folder} is at work already ({where}). Let it finish, or stop it: kill {other.get('pid', '')}\n"
            f"{folder / 'index.html'} shows how far it is."
        )
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    put(note, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}))
    os.set_inheritable(fd, True)  # Snakemake takes this process over, and the lock with it
    return fd


def finish(folder: pathlib.Path) -> int:
    """Print how the grid stands after Snakemake; return the exit status."""
    store = Store(folder)
    todo = json.loads((store.folder / "state" / "todo.json").read_text("utf8"))
    write_page(store)
    states = {label: store.state(label) for label in store.runs}
    done = sum(state.name == "done" for state in states.values())
    for label in (label for label in todo if states[label].name == "failed"):
        print(f"failed  {label}: see {store.log(label)}")
    print(
        f"{store.plan['grid']}: {done} of {len(states)} runs finished; {store.folder / 'index.html'}",
        flush=True,
    )
    return int(any(states[label].name != "done" for label in todo))


def main(argv: list[str] | None = None) -> int:
    asked = options(argv)
    path = file_of(asked.grid)
    every = plan(path, asked.root and str(pathlib.Path(asked.root).absolute()))
    runs = chosen(every, asked.match)
    folder = asked.out.absolute() / path.stem
    if asked.list:
        show(runs, folder)
        return 0
    if any(not run.settings for run in every):
        raise Refused(f"{path.name} has runs on the papers' data; say where they lie: ROOT=/data")
    profile = profile_of(asked.profile) if asked.profile else None
    if not asked.notebook.is_file():
        raise Refused(f"NOTEBOOK={asked.notebook}: there is no such file")
    known = Store(folder)
    unfinished = [run for run in runs if not known.mark(run.label, "done").exists()]
    check_place(unfinished, asked.root, "" if profile else asked.device)
    prepare(folder)
    with lock(folder / "state" / "driver.lock", wait=False) as fd:
        take(fd, folder)
        snakemake = snakemake_of(asked.snakemake)
        if profile:
            check_executor(snakemake, profile)
        content = {
            "grid": path.stem,
            "notebook": str(asked.notebook.absolute()),
            "python": sys.executable,
            "runner": str(RUNNER),
            "driver": str(pathlib.Path(__file__).resolve()),
            "tools_python": "" if asked.no_html else str(snakemake.parent / "python"),
            "threads": asked.threads,
            "device": asked.device,
            "gpus": 0 if asked.profile else asked.gpus,  # a cluster says itself which GPU a job gets
            "runs_per_gpu": asked.runs_per_gpu,
            "use_gpu": asked.gpus > 0,
            "runs": [vars(run) for run in every],
        }
        store = Store.create(folder, content)
        todo = reconcile(store, [run.label for run in runs])
        put(folder / "state" / "todo.json", json.dumps(todo))
        store.journal("driver", todo=len(todo))
        write_page(store)
        if not todo:
            return finish(folder)
        print(
            f"{path.stem}: {len(runs) - len(todo)} runs finished, {len(todo)} to do; {folder / 'index.html'}"
        )
        sys.stdout.flush()
        words = command(snakemake, folder, asked)
        os.environ["NCLIB_GRID_SESSION"] = f"{os.getpid()}-{time.time()}"
        # One process and one lock: whatever ends this command ends Snakemake, and nothing is left to unlock.
        os.execv(words[0], words)


if __name__ == "__main__":
    try:
        sys.exit(finish(pathlib.Path(sys.argv[2])) if sys.argv[1:2] == ["--finish"] else main())
    except (GridError, Refused) as error:
        sys.exit(str(error))
