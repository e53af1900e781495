"""Command line of the book: ``ncbook table|claims|rerun|view|collect|keep|measured|verify``."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import ncbook
import nclib
from ncbook import verify as verifying
from ncbook.measurements import standing
from nclib.cli import exit_status
from nclib.runs import append


def table(options: argparse.Namespace) -> int:
    """Print a printed table beside the measured values."""
    make = ncbook.bundled_table if options.bundled else ncbook.printed_table
    sheet = make(options.paper, options.number, _runs(options.folder))
    if sheet is None:
        print(f"{options.paper}, Table {options.number} has no counterpart on the bundled data")
        return 1
    print(sheet.text())
    if not options.bundled:
        print(
            "\nWith --bundled: these rows measured on the bundled data, where they have a counterpart there."
        )
    _write(options.csv, sheet.file)
    return 0


def claims(options: argparse.Namespace) -> int:
    """Decide every claim of the papers from the records and print the verdicts."""
    runs = _runs(options.folder)
    ledger = ncbook.ledger(runs)
    shown = ledger[ledger["paper"] == options.paper] if options.paper else ledger
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000  # files keep their lines
    for row in shown.to_dict("records"):
        print(f"{row['id']}  {row['verdict']}: {row['claim']}")
        if row["test"]:
            print(f"     claimed: {row['test']}")
        for line in row["evidence"].splitlines():
            print(textwrap.fill(line, width, initial_indent="     ", subsequent_indent="     "))
    print(f"\n{len(shown)} claims, {len(runs)} recorded runs\n{ncbook.counts(ledger).to_string()}")
    _write(options.csv, ncbook.claims_table(ledger, options.paper or "").file)
    return 0


def rerun(options: argparse.Namespace) -> int:
    """Print the commands behind the cells of a printed table, or run them."""
    if options.seeds < 1:
        raise ValueError(f"seeds={options.seeds}: must be an integer, at least 1")
    runs, without = ncbook.reruns(
        options.paper, options.number, row=options.row, data=options.data, rate=options.rate
    )
    for one in runs:
        print(f"# {one.row}; {one.data}{f'; rate {one.rate}' if one.rate else ''}")
        for seed in range(options.seeds):
            print(one.command(str(options.root), seed))
            if options.run:
                made = [nclib.run(**part) for part in one.parts(str(options.root), seed)]
                if len(made) > 1:
                    nclib.combine(made)
    print(f"# {len(runs)} runs for each of {options.seeds} seeds; records go to the folder runs")
    for reason in without:
        print(f"# not here: {reason}")
    return 0


def view(options: argparse.Namespace) -> int:
    """Open a notebook that papermill executed as one page, built as those of the book are."""
    out = options.out or options.file.with_suffix(".html")
    ncbook.view(options.file, out, trust=options.trust)
    print(f"written: {out}")
    if not options.no_open:
        webbrowser.open(out.resolve().as_uri())
    return 0


def collect(options: argparse.Namespace) -> int:
    """Put records that stand in files of their own into the book's table of a grid."""
    table = ncbook.RECORDED / f"{options.grid}.csv"
    added = append(table, options.records, replace=options.replace)
    print(f"{added} records added to {table}")
    return 0


def keep(options: argparse.Namespace) -> int:
    """Put the result of a benchmark or a probe among the book's measurements."""
    print(ncbook.keep(options.file, options.name or options.file.stem))
    return 0


def measured(options: argparse.Namespace) -> int:
    """List the stored benchmarks, and what changed since each was made."""
    print("\n".join(standing()))
    return 0


def verify(options: argparse.Namespace) -> int:
    """Make recorded runs again and say which numbers differ, and by how much."""
    given = {name: getattr(options, name) for name in ("sample", "seed", "match", "root")}
    return int(not verifying.verify(options.folder, **given))


def _runs(folder: Path | None) -> ncbook.Runs:
    """Return the recorded runs below a folder; warn where there are none."""
    runs = ncbook.load_runs(folder)
    if folder and not len(runs):
        print(f"ncbook: no record of a run below {folder}", file=sys.stderr)
    return runs


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.write_text(text, "utf8")
        print(f"written: {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ncbook", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ncbook {nclib.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, do: object) -> argparse.ArgumentParser:
        summary = (do.__doc__ or "").partition("\n")[0]
        one = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        one.set_defaults(do=do)
        return one

    def add_records(one: argparse.ArgumentParser) -> None:
        one.add_argument("--folder", type=Path, help="folder of records; the book's own by default")
        one.add_argument("--csv", type=Path, help="also write the result to this file")

    one = add("table", table)
    one.add_argument("paper", choices=ncbook.PAPERS)
    one.add_argument("number", help="number of the table, such as 6 or IV")
    one.add_argument("--bundled", action="store_true", help="the same rows measured on the bundled data")
    add_records(one)
    one = add("claims", claims)
    one.add_argument("--paper", choices=ncbook.PAPERS, help="the claims of one paper")
    add_records(one)
    one = add("rerun", rerun)
    one.add_argument("paper", choices=ncbook.PAPERS)
    one.add_argument("number", help="number of the table, such as 6 or IV")
    one.add_argument("--row", default="", help="one row, as printed")
    one.add_argument("--data", default="", help="one data set, as printed")
    one.add_argument("--rate", default="", help="one rate")
    one.add_argument("--root", type=Path, default=Path("/data"), help="folder of the papers' data")
    one.add_argument("--seeds", type=int, default=1, help="number of seeds")
    one.add_argument("--run", action="store_true", help="make the runs, one after the other")
    one = add("view", view)
    one.add_argument("file", type=Path, help="an executed notebook, such as papermill writes")
    one.add_argument(
        "--out", type=Path, help="page to write, .html; or .ipynb: a notebook to read in Jupyter"
    )
    one.add_argument(
        "--trust", action="store_true", help="let scripts of the notebook's author run on the page"
    )
    one.add_argument("--no-open", action="store_true", help="do not open the browser")
    one = add("collect", collect)
    one.add_argument("grid", help="name of the grid, which is that of the table")
    one.add_argument("records", nargs="+", type=Path, help="files of records, or folders of them")
    one.add_argument("--replace", action="store_true", help="also runs that have other numbers there")
    one = add("keep", keep)
    one.add_argument("file", type=Path, help="the JSON file that the command wrote")
    one.add_argument("--name", default="", help="of the measurement, such as bench_map")
    add("measured", measured)
    one = add("verify", verify)
    one.add_argument(
        "folder", nargs="?", type=Path, default=Path("runs"), help="folder of records; by default runs"
    )
    one.add_argument("--sample", type=int, default=20, help="records to make again, at random; 0: all")
    one.add_argument("--seed", type=int, default=0, help="seed of the drawing")
    one.add_argument("--match", default="", help="only records with this text in their path")
    one.add_argument("--root", default="", help="folder of the data, for runs on files")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run one command of the book.

    Parameters
    ----------
    words : sequence of str, optional
        The words after ``ncbook``; those of the process by default.

    Returns
    -------
    int
        Exit status: 0 for success, 1 for a table without a counterpart, 2 for a wrong call.
    """
    words = sys.argv[1:] if words is None else list(words)
    options = _parser().parse_args(words)
    more = "; the same command continues from the last finished epoch" if "--run" in words else ""
    return exit_status("ncbook", lambda: options.do(options), more)
