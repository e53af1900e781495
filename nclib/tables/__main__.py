"""The tables on the command line: ``python -m nclib.tables claims`` and ``... rerun``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nclib import tables
from nclib.tables._rerun import reruns


def claims(options: argparse.Namespace) -> int:
    """Decide every claim anew from the records and print it."""
    runs = tables.recorded(options.folder)
    table = tables.ledger(runs)
    shown = table[table["paper"] == options.paper] if options.paper else table
    for row in shown.to_dict("records"):
        print(f"{row['id']}  {row['verdict']}: {row['claim']}\n     {row['evidence']}")
        if row["n"]:
            print(f"     {row['data']}; n = {row['n']}; {row['test']}")
    print(f"\n{len(shown)} claims, {len(runs)} recorded runs\n{tables.counts(table).to_string()}")
    if options.csv:
        options.csv.write_text(tables.ledger_sheet(table, options.paper or "").file, "utf8")
        print(f"written: {options.csv}")
    return 0


def rerun(options: argparse.Namespace) -> int:
    """Print the commands behind the cells of a printed table, or run them."""
    runs, without = reruns(
        options.paper, options.table, row=options.row, data=options.data, rate=options.rate
    )
    for run in runs:
        print(f"# {run.row}; {run.data}{f'; rate {run.rate}' if run.rate else ''}")
        for seed in range(options.seeds):
            print(run.command(str(options.root), seed))
            if options.run:
                import nclib

                arguments = {**run.arguments, "seed": seed, "data_options": {"root": str(options.root)}}
                nclib.run(**arguments)
    print(f"# {len(runs)} runs for each of {options.seeds} seeds; records go to the folder runs")
    if without:
        print(f"# not here: {'; '.join(without)}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m nclib.tables", description=__doc__)
    parts = parser.add_subparsers(required=True, metavar="claims|rerun")
    one = parts.add_parser("claims", help="recompute the verdict on every claim")
    one.add_argument("--folder", type=Path, help="folder of records; those of the book by default")
    one.add_argument("--paper", choices=tables.PAPERS, help="print the claims of one paper")
    one.add_argument("--csv", type=Path, help="write the ledger to this file")
    one.set_defaults(do=claims)
    two = parts.add_parser("rerun", help="list the runs that fill a printed table's cells")
    two.add_argument("paper", choices=tables.PAPERS)
    two.add_argument("table", help="number, such as 6 or IV")
    two.add_argument("--row", default="", help="one row, as printed")
    two.add_argument("--data", default="", help="one data set, as printed")
    two.add_argument("--rate", default="", help="one rate")
    two.add_argument("--root", type=Path, default=Path("/data"), help="folder of the papers' data")
    two.add_argument("--seeds", type=int, default=1, help="number of seeds")
    two.add_argument("--run", action="store_true", help="do the runs, one after the other")
    two.set_defaults(do=rerun)
    options = parser.parse_args(arguments)
    do: Callable[[argparse.Namespace], int] = options.do
    try:
        return do(options)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
