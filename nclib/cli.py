"""The command line: ``nclib run|table|claims|rerun|data|list|doctor``, thin over the package's functions.

``nclib COMMAND --help`` says what a command takes. The exit status is 0 when all went well, 1 when what was
asked for is not so (an incomplete folder, for example), 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from nclib.runs.words import options_of, words_of

if TYPE_CHECKING:
    from ncbook import Recorded

Words = Sequence[str]
INTERRUPTED = 130  # the shell's status of a command that Ctrl-C ended
UNREAD = 141  # and of one whose reader went away, as in ``nclib claims | head -1``


@dataclass(frozen=True)
class Command:
    """One command: a line on it, and a function of the words after its name that returns the exit status."""

    summary: str
    do: Callable[[Words], int]


def _parser(name: str, does: Callable[..., Any]) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"nclib {name}", description=does.__doc__, allow_abbrev=False)


# ------------------------------------------------------------------------------------------------- one run


def run(words: Words) -> int:
    """Train one method, test it, leave a record: ``nclib run METHOD [--name value ...]``.

    ``nclib run METHOD --help`` lists its parameters. Options of the data and the model are written
    ``--data_options.root /data``. The same command continues an interrupted run.
    """
    import nclib
    from nclib import label_noise, methods
    from nclib.runs.pairs import kind_of

    known = [*methods.available(), *label_noise.available()]
    parser = _parser("run", run)
    parser.add_argument("method", choices=known, metavar="METHOD", help=f"one of {', '.join(known)}")
    parser.add_argument("--quiet", action="store_true", help="print the record's path only")
    asked = [word for word in words if word in ("-h", "--help")]
    if asked and words[0] in known:
        print(_parameters(words[0]))
        return 0
    options, others = parser.parse_known_args(words)
    values = options_of(others, kind_of(options.method).parameters(options.method))
    record = nclib.run(options.method, progress=not options.quiet, **values)
    if os.environ.get("RANK", "0") == "0":  # the first of the processes that torchrun started
        print(Path(record.folder) / "record.json")
    return 0


def _parameters(method: str) -> str:
    """Return the parameters of a run with ``method`` as a table: name, value in the quick preset, meaning."""
    from nclib.runs.pairs import kind_of

    kind = kind_of(method)
    settings = kind.resolve(method)
    usual = {**settings, **settings["method_options"]}
    lines = [f"nclib run {method} [--name value ...], values in the preset quick:", ""]
    for name, rule in kind.parameters(method).items():
        lines.append(f"  --{name} {json.dumps(usual[name])}".ljust(34) + f"  {rule.help or rule.describe()}")
    for name in ("model_options", "data_options"):
        if name in settings:
            lines.append("  " + (" ".join(words_of({name: settings[name]})) or f"--{name}.NAME VALUE"))
    return "\n".join(lines)


# --------------------------------------------------------------------------------------- tables and claims


def table(words: Words) -> int:
    """Print a printed table beside what was measured: ``nclib table L2RM 6 [--bundled] [--csv FILE]``."""
    import ncbook as tables

    parser = _parser("table", table)
    parser.add_argument("paper", choices=tables.PAPERS)
    parser.add_argument("number", help="of the table, such as 6 or IV")
    parser.add_argument("--folder", type=Path, help="folder of records; those of the book by default")
    parser.add_argument("--bundled", action="store_true", help="the same rows measured on the bundled data")
    parser.add_argument("--csv", type=Path, help="also write it to this file")
    options = parser.parse_args(words)
    make = tables.bundled_sheet if options.bundled else tables.printed_sheet
    sheet = make(options.paper, options.number, _recorded(options.folder))
    if sheet is None:
        print(f"{options.paper}, Table {options.number} has no counterpart on the bundled data")
        return 1
    print(sheet.text())
    _write(options.csv, sheet.file)
    return 0


def claims(words: Words) -> int:
    """Decide every claim of the papers anew from the records and print the verdicts."""
    import ncbook as tables

    parser = _parser("claims", claims)
    parser.add_argument("--folder", type=Path, help="folder of records; those of the book by default")
    parser.add_argument("--paper", choices=tables.PAPERS, help="the claims of one paper")
    parser.add_argument("--csv", type=Path, help="also write the ledger to this file")
    options = parser.parse_args(words)
    runs = _recorded(options.folder)
    ledger = tables.ledger(runs)
    shown = ledger[ledger["paper"] == options.paper] if options.paper else ledger
    for row in shown.to_dict("records"):
        print(f"{row['id']}  {row['verdict']}: {row['claim']}\n     {row['evidence']}")
        if row["n"]:
            print(f"     {row['data']}; n = {row['n']}; {row['test']}")
    print(f"\n{len(shown)} claims, {len(runs)} recorded runs\n{tables.counts(ledger).to_string()}")
    _write(options.csv, tables.ledger_sheet(ledger, options.paper or "").file)
    return 0


def _recorded(folder: Path | None) -> Recorded:
    """Return the recorded runs below a folder; say so where there is none."""
    import ncbook as tables

    runs = tables.recorded(folder)
    if folder and not len(runs):
        print(f"nclib: no record of a run below {folder}", file=sys.stderr)
    return runs


def rerun(words: Words) -> int:
    """Print the commands behind the cells of a printed table, or run them: ``nclib rerun L2RM 6``."""
    import ncbook as tables

    import nclib

    parser = _parser("rerun", rerun)
    parser.add_argument("paper", choices=tables.PAPERS)
    parser.add_argument("table", help="number, such as 6 or IV")
    parser.add_argument("--row", default="", help="one row, as printed")
    parser.add_argument("--data", default="", help="one data set, as printed")
    parser.add_argument("--rate", default="", help="one rate")
    parser.add_argument("--root", type=Path, default=Path("/data"), help="folder of the papers' data")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--run", action="store_true", help="do the runs, one after the other")
    options = parser.parse_args(words)
    if options.seeds < 1:
        raise ValueError(f"seeds={options.seeds}: must be an integer, at least 1")
    runs, without = tables.reruns(
        options.paper, options.table, row=options.row, data=options.data, rate=options.rate
    )
    for one in runs:
        print(f"# {one.row}; {one.data}{f'; rate {one.rate}' if one.rate else ''}")
        for seed in range(options.seeds):
            print(one.command(str(options.root), seed))
            if options.run:
                nclib.run(**{**one.arguments, "seed": seed, "data_options": {"root": str(options.root)}})
    print(f"# {len(runs)} runs for each of {options.seeds} seeds; records go to the folder runs")
    if without:
        print(f"# not here: {'; '.join(without)}")
    return 0


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        from nclib.runs.checkpoint import write_atomically

        write_atomically(path, text.encode())
        print(f"written: {path}")


# --------------------------------------------------------------------------------- data, catalogues, doctor


def data(words: Words) -> int:
    """Check a folder of the papers' data, or bring other files into its layout."""
    from nclib.data import check, convert

    commands = {
        "check": Command("say what a folder holds and lacks", check.main),
        "convert": Command("gather features, make float16 copies or a vocabulary", convert.main),
    }
    return _choose("data", data, words, commands)


def catalogue(words: Words) -> int:
    """List the methods, models and data sets by name."""
    from nclib import data as pairs
    from nclib import label_noise, methods, models

    _parser("list", catalogue).parse_args(words)
    parts = {
        "Methods on mismatched pairs": methods.available(),
        "Methods on wrong categories": label_noise.available(),
        "Models": models.available(),
        "Data": pairs.available("pairs"),
        "Data with categories": pairs.available("categories"),
    }
    print("\n\n".join(f"{title}\n{entries}" for title, entries in parts.items()))
    return 0


def doctor(words: Words) -> int:
    """Say what this machine has and what is missing: versions, device, disk, data."""
    from nclib.doctor import examine

    parser = _parser("doctor", doctor)
    parser.add_argument("root", nargs="?", type=Path, help="folder of the papers' data, to be looked at too")
    return examine(parser.parse_args(words).root)


COMMANDS = {
    "run": Command("train one method, test it, leave a record", run),
    "table": Command("print a printed table beside what was measured", table),
    "claims": Command("recompute the verdict on every claim", claims),
    "rerun": Command("list or do the runs that fill a printed table's cells", rerun),
    "data": Command("check the papers' data, convert other files", data),
    "list": Command("list methods, models and data", catalogue),
    "doctor": Command("say what this machine has and lacks", doctor),
}


def _choose(name: str, does: Callable[..., Any], words: Words, commands: Mapping[str, Command]) -> int:
    """Call the command that the first word names with the words after it."""
    width = max(map(len, commands))
    parser = argparse.ArgumentParser(
        prog=f"nclib {name}".strip(),
        description=(does.__doc__ or "").splitlines()[0],
        epilog="commands:\n" + "\n".join(f"  {k:<{width}}  {c.summary}" for k, c in commands.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=commands, metavar="COMMAND", help="one of the commands below")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    return commands[parser.parse_args(words[:1]).command].do(words[1:])


def main(words: Words | None = None) -> int:
    """Image-text retrieval when part of the pairs is wrong: one run, the tables, the claims, the data.

    Parameters
    ----------
    words : sequence of str, optional
        The words after ``nclib``; those of the process by default.

    Returns
    -------
    int
        Exit status.
    """
    words = sys.argv[1:] if words is None else list(words)
    try:
        status = _choose("", main, words, COMMANDS)
        sys.stdout.flush()  # a reader that went away is noticed here, not when Python ends
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush, when Python ends
        return UNREAD
    except (ValueError, RuntimeError, OSError, ImportError) as error:  # ImportError: an optional package
        print(f"nclib: {error}", file=sys.stderr)
        return 2
    except (EOFError, BadZipFile, zlib.error) as error:
        print(f"nclib: a file is damaged or cut off ({error}); make or fetch it again", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        trains = words[:1] == ["run"] or "--run" in words
        more = "; the same command goes on from the last finished epoch" if trains else ""
        print(f"stopped{more}", file=sys.stderr)
        return INTERRUPTED
