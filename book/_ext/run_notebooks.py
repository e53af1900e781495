"""Execute the notebooks for the pages of the book, several at a time.

    python book/_ext/run_notebooks.py                those whose code, data or source changed
    python book/_ext/run_notebooks.py l2rm ncr       of these only some
    python book/_ext/run_notebooks.py --live l2rm    besides, train on this machine for "Quick start"
    python book/_ext/run_notebooks.py --paper /data  train in the preset paper, where the data are there
    python book/_ext/run_notebooks.py --demo         train what the chapters show, and store it in book/demo

Chapters that train take their runs from the store (``source="recorded"``). Outputs lie below ``_build``, free
of clocks, paths and progress bars; date, seconds and hardware in ``runs.json`` beside them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from multiprocessing.forkserver import ensure_running
from typing import Any

import nbformat
import yaml
from executed import (
    CODE,
    INJECTED,
    ROOT,
    SOURCE,
    failures,
    folder_of,
    is_done,
    notebooks_of,
    runs_of,
    source_digest,
    state,
    tags,
    title_of,
)
from forked_kernel import ForkedKernel

from nclib.common.files import write_atomically

LIVE = "book/live"
PAPERS_DATA = {  # counterparts of the bundled data sets; of several, the first whose files are there
    "emoji": ("f30k", "coco"),
    "emoji_category": ("wikipedia", "xmedianet", "nuswide"),
}


def machine(seconds: float, title: str) -> dict[str, Any]:
    """Return title, date, duration and environment of a notebook's run."""
    from nclib.runs.machine import choose_device, environment

    return {
        "title": title,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "seconds": round(seconds, 1),
        **environment(choose_device("auto")),
    }


def tidy(nb: Any, keep_parameters: bool = True) -> Any:
    """Remove in place what differs between two equal runs: clocks, progress bars, addresses."""
    nb.metadata.pop("papermill", None)
    nb.metadata.pop("widgets", None)
    if not keep_parameters:
        nb.cells = [c for c in nb.cells if INJECTED not in tags(c)]
    for number, cell in enumerate(nb.cells):
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if INJECTED in tags(cell):
            cell.id = f"injected-{number}"  # papermill draws a new one each time
        if cell.cell_type != "code":
            continue
        cell.outputs = [o for o in cell.outputs if not (o.output_type == "stream" and o.name == "stderr")]
        for output in cell.outputs:
            data = output.get("data", {})
            if "text/html" in data and " at 0x" in str(data.get("text/plain")):
                data["text/plain"] = "(see the HTML output)"
    return nb


def execute(
    source: pathlib.Path,
    folder: pathlib.Path,
    parameters: Mapping[str, Any],
    root: pathlib.Path = ROOT,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Execute one notebook into ``folder``, and return where and how long it ran.

    Of ``parameters`` those that the notebook does not know are left out, and so are the cells ``without``. A
    RuntimeError that names cell and message when it failed; the notebook as far as it came stays as
    ``*.part.ipynb``.
    """
    import papermill

    ensure_running()  # here, before papermill goes to the folder, where other packages may lie
    known = papermill.inspect_notebook(str(source))
    given = {k: v for k, v in parameters.items() if k in known}
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{source.stem}.part.ipynb"
    own = source_digest(source)
    chapter = nbformat.read(source, 4)
    chapter.cells = [cell for cell in chapter.cells if cell.id not in without]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as ipython:
        os.environ["IPYTHONDIR"] = ipython  # neither the reader's start-up files nor their history
        os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
        try:
            papermill.execute_notebook(
                chapter,
                str(part),
                given,
                cwd=str(root),
                kernel_name="python3",
                progress_bar=False,
                extra_arguments=["--IPKernelApp.log_level=40"],
                kernel_manager_class=ForkedKernel,
            )
        except papermill.PapermillExecutionError as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback)).strip()
            cells = nbformat.read(part, 4).cells
            (cell, *_) = (c.id for c in cells if "error" in [o.output_type for o in c.get("outputs", [])])
            raise RuntimeError(
                f"{source.name}, cell {cell!r}: {error.ename}: {error.evalue}\n{text[-2000:]}\n"
                f"As far as it came: {part}"
            ) from None
        except Exception as error:  # the kernel died, or did not start
            raise RuntimeError(f"{source.name}: {error}; as far as it came: {part}") from error
    seconds = time.monotonic() - begun
    nb = nbformat.read(part, 4)
    if said := failures(nb):
        raise RuntimeError(f"{source.name}: {', '.join(said)}; as far as it came: {part}")
    tidy(nb, keep_parameters=bool(set(given) - {"out", "source"}))
    nb.metadata[SOURCE] = own
    nbformat.write(nb, part)
    os.replace(part, folder / source.name)
    print(f"{source.name}: {seconds:.0f} s", flush=True)
    return machine(seconds, title_of(nb, source.stem))


def enter(folder: pathlib.Path, entries: Mapping[str, Any]) -> None:
    """Add entries to ``runs.json`` of a folder."""
    every = {**runs_of(folder), **entries}
    text = json.dumps(every, indent=1, sort_keys=True, ensure_ascii=False)
    write_atomically(folder / "runs.json", f"{text}\n")


def execute_all(
    jobs: Mapping[pathlib.Path, Mapping[str, Any]], root: pathlib.Path, training: pathlib.Path | None = None
) -> None:
    """Execute notebooks with their parameters, one process per core, the largest files first.

    The live run of the notebook ``training`` goes on beside them, from the start: it takes longest. When one
    fails, those that have not begun are left out; a RuntimeError then names all that failed.
    """
    folder = folder_of(root)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    entries, failed = {}, []
    with ProcessPoolExecutor(min(cores, len(jobs) + 1), get_context("spawn")) as pool:
        first = [pool.submit(live, training, root)] if training else []
        order = sorted(jobs, key=lambda source: -source.stat().st_size)
        waiting = {pool.submit(execute, source, folder, jobs[source], root): source for source in order}
        for job in as_completed([*first, *waiting]):
            if job.cancelled():
                continue
            try:
                entry = job.result()
                if job in waiting:
                    entries[waiting[job].stem] = entry
            except RuntimeError as error:
                failed.append(str(error))
                pool.shutdown(wait=False, cancel_futures=True)
    enter(folder, entries)
    if failed:
        raise RuntimeError("\n\n".join(failed))
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other)


def chosen(names: Iterable[str], root: pathlib.Path) -> list[pathlib.Path]:
    """Return the notebooks called ``names`` (the pages when empty), or stop with those that exist."""
    every = {p.stem: p for p in sorted((root / "notebooks").glob("*.ipynb"))}
    wrong = [n for n in names if n not in every]
    if wrong:
        raise SystemExit(f"no notebook {', '.join(map(repr, wrong))}; there are: {', '.join(every)}")
    return [every[n] for n in names or notebooks_of(root)]


def live_state(source: pathlib.Path, root: pathlib.Path) -> str:
    """Return what a live run depends on."""
    return f"{state(root, CODE)} {source_digest(source)}"


def is_live(source: pathlib.Path, root: pathlib.Path) -> bool:
    """Tell whether this code has trained a notebook's run on this machine."""
    mark = root / LIVE / f"{source.stem}.state"
    known = mark.exists() and mark.read_text("utf8") == live_state(source, root)
    return known and is_done(source, root / LIVE)


def live(source: pathlib.Path, root: pathlib.Path) -> None:
    """Train a notebook's run for the page "Quick start", without the cell to change."""
    folder, now = root / LIVE, live_state(source, root)
    print(f"{source.name}: live run on this machine ...", flush=True)
    out = f"{LIVE}/{source.stem}"
    shutil.rmtree(root / out, ignore_errors=True)  # nothing is resumed
    given = {"preset": "quick", "out": out}
    entry = execute(source, folder, given, root, ("change-text", "change"))
    enter(folder, {source.stem: entry})
    write_atomically(folder / f"{source.stem}.state", now)


def on_papers_data(source: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Return the parameters that train a chapter in the preset paper; none where it trains nothing.

    None, too, when the folder holds no data of it; then what they lack is printed.
    """
    import papermill
    from grid_plan import lacking_files

    known = papermill.inspect_notebook(str(source))
    names = PAPERS_DATA.get(known.get("dataset", {}).get("default", "").strip("\"'"), ())
    if not names or "data_options" not in known:
        return {}
    options = {"root": str(folder)}
    lacking = {name: lacking_files(name, options) for name in names}
    there = [name for name, lines in lacking.items() if not lines]
    if not there:
        print("\n".join([f"{source.name}: shows stored runs:", *lacking.values()]), flush=True)
        return {}
    given = {"dataset": there[0], "data_options": options, "source": "train"}
    return {**given, "preset": "paper"} if "preset" in known else given


def make_demo(names: Sequence[str], root: pathlib.Path, out: pathlib.Path) -> None:
    """Train what chapters show, in ``out``, and store it in ``book/demo``; finished runs are not repeated."""
    from ncbook.demo import declared, store

    from nclib.runs import Record

    kept = yaml.safe_load((root / "book/demo/demo.yml").read_text("utf8"))
    if wrong := sorted(set(names) - set(kept)):
        raise SystemExit(f"{', '.join(wrong)}: not in book/demo/demo.yml; there are: {', '.join(kept)}")
    for name in names or kept:
        page = kept[name].get("page")
        (source,) = chosen([page or name], root)
        execute(
            source, out / "notebooks", {"out": str(out / name)} | ({"method": name} if page else {}), root
        )
        folder = root / "book/demo" / name
        made = sorted((out / name).glob("*/record.json"))
        for path in made:
            store(Record.load(path), folder / path.parent.name, declared(name))
        for former in {one.name for one in folder.glob("*")} - {path.parent.name for path in made}:
            shutil.rmtree(folder / former)


def main(argv: list[str] | None = None, root: pathlib.Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="notebooks by name; those of the book when none is named")
    parser.add_argument("--live", metavar="NAME", help='train this one for the page "Quick start"')
    parser.add_argument("--again", action="store_true", help="with --live: even where the run is up to date")
    parser.add_argument("--demo", action="store_true", help="train for the store book/demo")
    parser.add_argument("--out", type=pathlib.Path, default="runs/demo", help="with --demo: folder of runs")
    parser.add_argument(
        "--paper", type=pathlib.Path, metavar="ROOT", help="train in the preset paper, with the data there"
    )
    args = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.paper and not args.paper.is_dir():
        raise SystemExit(f"--paper {args.paper}: there is no such folder")
    if args.demo:
        make_demo(args.names, root, args.out.resolve())
        return 0
    folder = folder_of(root)
    jobs: dict[pathlib.Path, dict[str, Any]] = {}
    for source in chosen(args.names, root):
        usual = {"source": "recorded", "out": f"runs/book/{source.stem}"}
        given = on_papers_data(source, args.paper.resolve()) if args.paper else {}
        if given or not is_done(source, folder):
            jobs[source] = {**usual, **given}
    training = chosen([args.live], root)[0] if args.live else None
    if training and not args.again and is_live(training, root):
        print(f"{training.name}: this machine's run is up to date (make live runs it again)", flush=True)
        training = None
    if jobs or training:
        print(f"executing {len(jobs)} notebooks ...", flush=True)
        execute_all(jobs, root, training)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(str(error))
