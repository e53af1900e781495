"""Make one run of a grid: ``python book/_ext/sweep_run.py runs/grids/quick LABEL``. Started by Snakemake.

The run is a papermill job of one notebook. Record and executed notebook appear under their names when they
are complete, the seal after them. A finished run is left alone; a run that was killed continues from its last
epoch. Runner and kernel hold the run's lock together: a process whose parent was killed and its successor
never write one folder at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

import nbformat
from nbstamp import failures
from sweep_page import write_page
from sweep_store import Store, gpu, lock, put, read_json, same_settings

ROOT = pathlib.Path(__file__).resolve().parents[2]
PASSED = ("method", "model", "dataset", "mrate", "noise_rate", "protocol", "noise", "seed", "preset")
MAPPINGS = ("model_options", "data_options")
RECORD_CELL = "record"  # id of the cell that prints the path of the record


class RunFailed(Exception):
    """The notebook did not come to its end; the message is the last line of its error."""


def parameters(arguments: dict[str, Any], **own: Any) -> dict[str, Any]:
    """Return the notebook's parameters for a call of ``nclib.run``; what it has no name for is an option."""
    named = (*PASSED, *MAPPINGS)
    options = {k: v for k, v in arguments.items() if k not in named}
    return {**{k: v for k, v in arguments.items() if k in named}, "options": options, **own}


def execute(
    source: str, target: pathlib.Path, values: dict[str, Any], log: pathlib.Path, locks: tuple[int, ...]
) -> Any:
    """Run the notebook ``source`` into ``target``; return it.

    Raises
    ------
    RunFailed
        When a cell failed or the kernel died.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # papermill's imports
        import papermill
        from jupyter_client.manager import AsyncKernelManager

    class Locked(AsyncKernelManager):  # type: ignore[misc]
        """Starts the kernel with the locks, so that they are held while it lives."""

        async def start_kernel(self, **more: Any) -> None:
            await super().start_kernel(pass_fds=locks, **more)

    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    with tempfile.TemporaryDirectory() as ipython, open(log, "a", encoding="utf8", buffering=1) as said:
        os.environ["IPYTHONDIR"] = ipython  # neither the user's start-up files nor their history
        try:
            papermill.execute_notebook(
                source,
                str(target),
                values,
                cwd=str(ROOT),
                kernel_name="python3",
                kernel_manager_class=Locked,
                progress_bar=False,
                stdout_file=said,
                stderr_file=said,
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
        except Exception as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip() or type(error).__name__
            said.write(f"\n{text}\n")
            raise RunFailed(text.splitlines()[-1]) from error
    nb = nbformat.read(target, 4)
    if wrong := failures(nb):
        raise RunFailed(", ".join(wrong))
    return nb


def record_of(nb: Any) -> pathlib.Path:
    """Return the path of the record that an executed notebook names."""
    cell = next((c for c in nb.cells if c.id == RECORD_CELL and c.cell_type == "code"), None)
    if cell is None:
        raise RunFailed(f"the notebook has no cell with the id {RECORD_CELL!r} that prints the record's path")
    return pathlib.Path("".join(o.text for o in cell.outputs if o.output_type == "stream").strip())


def drop_damaged(work: pathlib.Path) -> None:
    """Remove records in the run's own folder that cannot be read; the run makes them again."""
    for path in work.glob("*/record.json"):
        if not read_json(path):
            path.unlink()


def render(store: Store, label: str) -> None:
    """Write the notebook as a page beside it, where nbconvert is at hand; pages are a convenience."""
    python = store.plan.get("tools_python")
    if not python:
        return
    command = [python, "-W", "ignore", "-m", "nbconvert", "--to", "html", "--log-level=ERROR", "--stdout"]
    command += ["--HTMLExporter.mathjax_url=", "--HTMLExporter.require_js_url="]  # no request to anywhere
    command += ["--TagRemovePreprocessor.enabled=True"]
    command += [f"--TagRemovePreprocessor.remove_input_tags={tag}" for tag in ("hide-input", "hide-cell")]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([*command, str(store.notebook(label))], capture_output=True, timeout=120)
        if done.returncode == 0:
            put(store.html(label), done.stdout)


def figure_of(record: dict[str, Any]) -> tuple[str, float]:
    """Return name and value of the number that stands for a run."""
    test = record["metrics"]["test"]
    return ("rSum", test["rsum"]) if "rsum" in test else ("mAP", test["map_avg"])


def make(store: Store, label: str, locks: tuple[int, ...]) -> str:
    """Make the run and seal it; return a line on how it went."""
    run, begun = store.runs[label], time.monotonic()
    store.mark(label, "failed").unlink(missing_ok=True)
    store.work(label).mkdir(parents=True, exist_ok=True)
    drop_damaged(store.work(label))
    store.journal("started", label)
    write_page(store)
    part = store.part(label)
    own = {"out": str(store.work(label)), "device": store.plan.get("device", "auto")}
    values = parameters(run["arguments"], **own)
    nb = execute(store.plan["notebook"], part, values, store.log(label), locks)
    source = record_of(nb)
    record = read_json(source)
    if not same_settings(record.get("settings", {}), run["settings"]):
        raise RunFailed(f"{source} has other settings than the plan; was nclib changed meanwhile?")
    put(store.record(label), source.read_bytes())
    store.html(label).unlink(missing_ok=True)
    os.replace(part, store.notebook(label))
    render(store, label)
    name, value = figure_of(record)
    seconds = round(time.monotonic() - begun, 1)
    known = {"metric": name, "value": value, "seconds": seconds, "trained": record["cost"]["seconds"]}
    store.seal(label, **known, nclib=record["name"].rpartition("-")[2], finished=time.time())
    store.journal("finished", label, seconds=seconds)
    return f"done    {label}: {name} {value:.{1 if name == 'rSum' else 3}f}, {seconds:.0f} s"


def attempt(store: Store, label: str, session: str) -> int:
    """Make one run, or say why not; return the exit status."""
    path = store.mark(label, "lock")
    with lock(path, wait=False) as free:
        if free is None:
            print(f"waiting {label}: another process is still at it", flush=True)
    with lock(path) as held:
        if not store.problem(label):  # that process finished it
            print(f"kept    {label}", flush=True)
            return 0
        if session and read_json(store.mark(label, "failed")).get("session") == session:
            return 1  # Snakemake tries killed jobs again; an error of the notebook would only come again
        store.mark(label, "done").unlink(missing_ok=True)
        try:
            with gpu(store.plan.get("gpus", 0), store.plan.get("runs_per_gpu", 1)) as place:
                locks = tuple(fd for fd in (held, place) if fd is not None)
                print(make(store, label, locks), flush=True)
                return 0
        except Exception as error:  # told on the page and by the exit status; the other runs go on
            text = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}"
            print(f"failed  {label}: {text}", flush=True)
            failure = {"error": text, "session": session, "time": time.time()}
            with contextlib.suppress(OSError):  # a full disk, perhaps; it is said above all the same
                put(store.mark(label, "failed"), json.dumps(failure))
                store.journal("failed", label, error=text)
            return 1


def main(folder: str, label: str) -> int:
    """Make one run and renew the page of its grid; return the exit status."""
    store = Store(pathlib.Path(folder))
    status = attempt(store, label, os.environ.get("NCLIB_GRID_SESSION", ""))
    write_page(store)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
