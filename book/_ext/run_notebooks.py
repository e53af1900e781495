"""Run the notebooks and keep their outputs beside the book.

    python book/_ext/run_notebooks.py            run those whose stored outputs are stale
    python book/_ext/run_notebooks.py --all      run every one
    python book/_ext/run_notebooks.py --check    run nothing; exit 1 when one is stale
    python book/_ext/run_notebooks.py --live l2rm    run on this machine, for the page "Your machine"
    python book/_ext/run_notebooks.py --paper /data  run every one in the preset paper on the papers' data

Stored outputs go to ``book/executed``, free of clocks, paths and progress bars, so that two runs on one
platform give the same bytes; date, seconds and hardware go to ``runs.json`` beside them.
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
from collections.abc import Iterable, Mapping
from typing import Any

import nbformat
from filelock import FileLock
from grid_plan import GridError, lacking_files
from nbstamp import CHOSEN, INJECTED, ROOT, STAMP, Book, failures, packed, problems, records_in, stamp, tags

from nclib.common.files import write_atomically

LIVE_PARAMETERS = {"preset": "quick"}
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


def title_of(nb: Any, name: str) -> str:
    """Return the first top heading of a notebook."""
    for cell in nb.cells:
        found = re.search(r"^# +(.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if found:
            return found[1].strip()
    return name


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


def enter(path: pathlib.Path, name: str, value: object) -> None:
    """Set one entry of a JSON object in a file, while others may set theirs."""
    with FileLock(path.with_suffix(".lock")):
        every = json.loads(path.read_text("utf8")) if path.exists() else {}
        text = json.dumps({**every, name: value}, indent=1, sort_keys=True, ensure_ascii=False)
        write_atomically(path, text + "\n")


def execute(
    source: pathlib.Path,
    folder: pathlib.Path,
    out: str,
    parameters: Mapping[str, Any],
    book: Book,
) -> dict[str, Any]:
    """Run one notebook and store it, stamped, in ``folder``, with an entry in ``runs.json``; return it.

    ``out`` is the notebook's own output folder, relative to the book's root; emptied first, so nothing is
    resumed. Of ``parameters`` those that the notebook does not know are left out. A RuntimeError when a cell
    failed or did not run; the half-done notebook stays as ``*.part.ipynb`` for inspection.
    """
    import papermill

    known = papermill.inspect_notebook(str(source))
    given = {k: v for k, v in {**parameters, "out": out}.items() if k in known}
    shutil.rmtree(book.root / out, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{source.stem}.part.ipynb"
    before = stamp(source, book)  # what changes during the run must count as stale
    begun = time.monotonic()
    bar = sys.stderr.isatty()
    with tempfile.TemporaryDirectory() as ipython:
        os.environ["IPYTHONDIR"] = ipython  # neither the reader's start-up files nor their history
        os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
        try:
            papermill.execute_notebook(
                str(source),
                str(part),
                given,
                cwd=str(book.root),
                kernel_name="python3",
                progress_bar=bar,
                stdout_file=None if bar else sys.stdout,
                extra_arguments=["--IPKernelApp.log_level=40"],
            )
        except Exception as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
            raise RuntimeError(f"{source.name} failed; as far as it came: {part}\n{text[-3000:]}") from error
    seconds = time.monotonic() - begun
    nb = nbformat.read(part, 4)
    said = failures(nb)
    if said:
        raise RuntimeError(f"{source.name}: {', '.join(said)}; as far as it came: {part}")
    tidy(nb, keep_parameters=set(given) > {"out"})
    chosen = {r["settings"].get(k, "") for r in records_in(book.root / out) for k in CHOSEN} - {""}
    nb.metadata[STAMP] = packed({**stamp(source, book, chosen), "cells": before["cells"]})
    nbformat.write(nb, part)
    os.replace(part, folder / source.name)
    entry = machine(seconds, title_of(nb, source.stem))
    enter(folder / "runs.json", source.stem, entry)
    print(f"{source.name}: {seconds:.0f} s", flush=True)
    return entry


def chosen(names: Iterable[str], root: pathlib.Path) -> list[pathlib.Path]:
    """Return the notebooks called ``names`` (all when empty), or stop with the names that exist."""
    every = {p.stem: p for p in sorted((root / "notebooks").glob("*.ipynb"))}
    wrong = [n for n in names if n not in every]
    if wrong:
        raise SystemExit(f"no notebook {', '.join(map(repr, wrong))}; there are: {', '.join(every)}")
    return [every[n] for n in names] or list(every.values())


def live(names: Iterable[str], root: pathlib.Path, again: bool) -> None:
    """Run notebooks for the page "Your machine", unless a live run of the same code is there."""
    book = Book(root)
    for source in chosen(names, root):
        folder = root / "book" / "live"
        if not again and not problems(source, folder / source.name, book):
            print(f"{source.name}: this machine's run is up to date (make live runs it again)", flush=True)
            continue
        print(f"{source.name}: live run on this machine ...", flush=True)
        execute(source, folder, f"book/live/{source.stem}", LIVE_PARAMETERS, book)


def on_papers_data(source: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Return the parameters that run a chapter in the preset paper; none where it trains nothing.

    A :class:`GridError` names what its data lack when none of them are in the folder.
    """
    import papermill

    known = papermill.inspect_notebook(str(source))
    names = PAPERS_DATA.get(known.get("dataset", {}).get("default", "").strip("\"'"), ())
    if not names or "data_options" not in known:
        return {}
    options = {"root": str(folder)}
    lacking = {name: lacking_files(name, options) for name in names}
    there = [name for name, lines in lacking.items() if not lines]
    if not there:
        raise GridError("\n".join(lacking.values()))
    given = {"dataset": there[0], "data_options": options}
    return {**given, "preset": "paper"} if "preset" in known else given


def main(argv: list[str] | None = None, root: pathlib.Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="notebooks by name; all when none is named")
    parser.add_argument("--all", action="store_true", help="run fresh ones too")
    parser.add_argument("--check", action="store_true", help="run nothing, exit 1 when one is stale")
    parser.add_argument("--live", action="store_true", help='run for the page "Your machine"')
    parser.add_argument(
        "--paper", type=pathlib.Path, metavar="ROOT", help="run in the preset paper, with the data there"
    )
    args = parser.parse_args(argv)
    if args.paper and not args.paper.is_dir():
        raise SystemExit(f"--paper {args.paper}: there is no such folder")
    if args.live:
        live(args.names, root, args.all)
        return 0
    book, folder = Book(root), root / "book" / "executed"
    notebooks = chosen(args.names, root)
    found = {p: problems(p, folder / p.name, book) for p in notebooks}
    stale = {p: why for p, why in found.items() if why}
    for path, why in stale.items():
        more = f" and {len(why) - 4} more" if len(why) > 4 else ""
        print(f"{path.name}: stale: {'; '.join(why[:4])}{more}", flush=True)
    print(f"notebooks: {len(notebooks) - len(stale)} fresh, {len(stale)} stale", flush=True)
    if args.check:
        if stale:
            print("stored outputs must be renewed and committed: make notebooks", file=sys.stderr)
        return 1 if stale else 0
    for path in notebooks if args.all or args.paper else stale:
        try:
            given = on_papers_data(path, args.paper.resolve()) if args.paper else {}
        except GridError as error:
            print(f"{path.name}: left out: {error}", flush=True)
        else:
            execute(path, folder, f"runs/book/{path.stem}", given, book)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(str(error))
