"""Command line: ``nclib run|combine|show|compare|pairs|search|audit|data|records|list|doctor``.

``nclib COMMAND --help`` lists the options of a command. The exit status is 0 for success, 1 for a negative
answer (an incomplete folder, for example), 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from nclib import __version__
from nclib.common.extras import needed_by
from nclib.common.options import Rule, did_you_mean

if TYPE_CHECKING:
    from nclib.runs import Record, TrainedModel

Words = Sequence[str]
Command = tuple[str, Callable[[Words], int]]  # a summary, and what takes the words after the command's name

OF_THE_BOOK = ("table", "claims", "rerun", "view", "collect", "keep")  # commands of ncbook
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of the runs that are compared
INTERRUPTED = 130  # exit status that a shell gives a command ended by Ctrl-C
UNREAD = 141  # and one whose output is no longer read, as in ``nclib list | head -1``


# ------------------------------------------------------------------------------------------------- one run


def run(words: Words) -> int:
    """Train one method, test it, leave a record: ``nclib run METHOD [--name value ...]``.

    ``nclib run METHOD --help`` lists its parameters. Options of the data and the model are written
    ``--data_options.root /data``. ``--import FILE`` loads a method, model or data set of your own first.
    The same command continues an interrupted run, and prints the results of a finished one.
    """
    from nclib import label_noise, methods
    from nclib.runs import experiment_of
    from nclib.runs.plan import described, parameters, plan
    from nclib.runs.words import options_of

    own, words = _importing().parse_known_args(words)
    import_files(own.files)
    parser = _parser("run", run, parents=[_importing()])
    known = ", ".join([*methods.available(), *label_noise.available()])
    parser.add_argument("method", metavar="METHOD", help=f"one of {known}")
    parser.add_argument("--quiet", action="store_true", help="print the record's path only")
    parser.add_argument("--json", action="store_true", help="print the record, or the plan, as a JSON object")
    parser.add_argument("--dry-run", action="store_true", help="say what the run would do, and how long")
    if words and not words[0].startswith("-") and {"-h", "--help"} & set(words):
        print(parameters(experiment_of(words[0])))
        return 0
    asked, others = parser.parse_known_args(words)
    experiment = experiment_of(asked.method)
    settings = experiment.resolve(**options_of(others, experiment.parameters()))
    if asked.dry_run:
        planned = plan(settings)
        print(json.dumps(planned) if asked.json else described(planned))
        return 0
    record = experiment.run(settings, progress=not (asked.quiet or asked.json))
    print(json.dumps(asdict(record)) if asked.json else Path(record.folder) / "record.json")
    return 0


# ------------------------------------------------------------------------------------------- finished runs


def combine(words: Words) -> int:
    """Test the mean similarity of finished runs as one model: ``nclib combine RUN RUN``.

    The runs share data, noise and settings, and differ in their model: SGRAF is a run of sgr and one of saf.
    """
    import nclib

    parser = _parser("combine", combine)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the record")
    parser.add_argument("--device", default="cpu", help="where the networks run")
    asked = parser.parse_args(words)
    record = nclib.combine(asked.runs, asked.out, asked.device)
    print(f"{record}\n{Path(record.folder) / 'record.json'}")
    return 0


def show(words: Words) -> int:
    """Show a finished run: results, noise, epochs, seconds, settings and warnings."""
    from nclib.runs.words import listed, table

    parser = _parser("show", show)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run, or its record")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON object")
    asked = parser.parse_args(words)
    record = _record_of(asked.run)
    if asked.json:
        print(json.dumps(asdict(record)))
        return 0
    facts = [
        ("noise", record.noise.get("description", "-")),
        ("epochs", f"{len(record.curves)}, tested: {record.best_epoch}, selected on validation"),
        ("seconds", f"{record.cost['seconds']:g} of training on {record.environment['device']}"),
        ("folder", record.folder),
        ("warnings", "\n          ".join(record.warnings) or "none"),
    ]
    print(f"{record}\n\n{table(facts)}\n\nsettings\n{listed(record.settings)}")
    return 0


def compare(words: Words) -> int:
    """Compare finished runs: the settings that differ, the results side by side, and their differences.

    Differences are to the first run. Runs on pairs and runs on labels have no result in common.
    """
    from nclib.runs.record import MAPS, RECALLS
    from nclib.runs.words import shown, table

    parser = _parser("compare", compare)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(words)
    if not 2 <= len(asked.runs) <= len(LETTERS):
        raise ValueError(f"{len(asked.runs)} runs: give 2 to {len(LETTERS)} of them")
    records = [_record_of(run) for run in asked.runs]
    if len({record.task for record in records}) > 1:
        raise ValueError(f"{asked.runs[0]} and the others are not all runs on pairs, or all on labels")
    facts = [_facts(record) for record in records]
    named = {name: [fact.get(name) for fact in facts] for name in {k: None for f in facts for k in f}}
    settings = {name: values for name, values in named.items() if any(v != values[0] for v in values)}
    tests = [record.metrics["test"] for record in records]
    numbers = [k for k in tests[0] if all(isinstance(test.get(k), (int, float)) for test in tests)]
    results = {name: [test[name] for test in tests] for name in numbers}
    gains = {name: [value - values[0] for value in values[1:]] for name, values in results.items()}
    if asked.json:
        runs = [{"name": record.name, "folder": record.folder} for record in records]
        found = {k: {"values": values, "differences": gains[k]} for k, values in results.items()}
        print(json.dumps({"runs": runs, "settings": settings, "test": found}))
        return 0
    letters = LETTERS[: len(records)]
    print("\n".join(f"{x}  {record.name}" for x, record in zip(letters, records, strict=True)), end="\n\n")
    print(table([("setting", *letters), *((name, *map(shown, values)) for name, values in settings.items())]))
    main, digits = ((*RECALLS, "rsum"), 1) if records[0].task == "pairs" else ((*MAPS, "map_avg"), 3)
    rows = [("test", *letters, *(f"{x} - A" for x in letters[1:]))]
    for name in main:
        values = [f"{value:.{digits}f}" for value in results[name]]
        rows.append((name, *values, *(f"{gain:+.{digits}f}" for gain in gains[name])))
    print("\n" + table(rows))
    if "data" in settings:
        print("\nThe runs have different data; their results cannot be compared.")
    return 0


def pairs(words: Words) -> int:
    """List the training pairs of a run with the probability that each is matched, the least likely first.

    The columns caption and image are row numbers of the training split, p_clean is the probability after the
    last epoch (the mean of both networks where there are two), picture its name where the data set knows
    it, and text is the caption.
    """
    parser = _parser("pairs", pairs, parents=[_of_a_model()])
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all pairs, or the worst N")
    parser.add_argument("--worst", type=_COUNT, metavar="N", help="how many to list; 10 by default")
    asked = parser.parse_args(words)
    found = _model(asked).pairs()
    worst = found.sort_values("p_clean", kind="stable").head(asked.worst or 10)
    if asked.csv is not None:
        chosen = worst if asked.worst else found
        chosen.to_csv(asked.csv, index=False)
        print(f"{len(chosen):,} pairs: {asked.csv}")
        return 0
    said = f"{len(found):,} training pairs, {(found['p_clean'] < 0.5).sum():,} of them with p_clean below 0.5"
    print(f"{said}; the {len(worst)} lowest:\n\n{_rows(worst, p_clean='{:.3f}')}")
    return 0


def search(words: Words) -> int:
    """Search the test pictures of a run for those that fit a sentence best.

    The column image is the picture's row number in the test split, picture its name where the data set
    knows it, caption the first of its own captions.
    """
    parser = _parser("search", search, parents=[_of_a_model()])
    parser.add_argument("text", metavar="TEXT", help='a sentence, in quotes: "a dog on a beach"')
    parser.add_argument("--top", type=_COUNT, default=5, metavar="N", help="how many pictures; 5 by default")
    asked = parser.parse_args(words)
    with _noted():
        print(_rows(_model(asked).search(asked.text, k=asked.top), score="{:.3f}"))
    return 0


def _record_of(run: Path) -> Record:
    """Return the record of a run: of a folder, or of a file."""
    from nclib.runs import Record

    path = _existing(run) / "record.json" if run.is_dir() else _existing(run)
    if not path.is_file():
        raise ValueError(f"{run} holds no record.json; give the folder of one run")
    return Record.load(path)


def _existing(run: Path) -> Path:
    """Return a folder that holds a record or a saved model, or a file; else say what is wrong."""
    if not run.exists():
        siblings = [path.name for path in run.parent.iterdir()] if run.parent.is_dir() else []
        raise FileNotFoundError(f"{run}: there is no such run{did_you_mean(run.name, siblings)}")
    if run.is_dir() and (run / "checkpoint.safetensors").is_file() and not (run / "record.json").is_file():
        raise ValueError(f"{run}: the run has not finished; the command that started it continues it")
    return run


def _facts(record: Record) -> dict[str, Any]:
    """Return the settings of a run, and what else decides its numbers, by names with dots."""
    from nclib.runs.identity import FREE, naming
    from nclib.runs.words import flattened

    named = {k: v for k, v in naming(record.settings).items() if k not in FREE}
    more = {"data": record.data.get("checksum", "")[:12], "own_code": record.environment.get("own_code")}
    return {**flattened(named), **more, "device": record.environment["device"]}


def _rows(found: Any, **formats: str) -> str:
    """Return a DataFrame as a table in plain text."""
    from nclib.runs.words import table

    rows = [[formats.get(k, "{}").format(v) for k, v in row.items()] for row in found.to_dict("records")]
    return table([list(found.columns), *rows])


def _of_a_model() -> argparse.ArgumentParser:
    """Return the arguments of commands that load the networks of a run."""
    parser = argparse.ArgumentParser(add_help=False, parents=[_importing()])
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run, or of a saved model")
    parser.add_argument("--device", default="cpu", help="where the networks run")
    return parser


def _model(asked: argparse.Namespace) -> TrainedModel:
    import nclib

    import_files(asked.files)
    run = _existing(asked.run)
    return nclib.load(run.parent if run.name == "record.json" else run, asked.device)


# ------------------------------------------------------------------------------------------------ one audit


def audit(words: Words) -> int:
    """Find wrong pairs: a probability for each, their share, proposed partners, and a page to look at.

    PAIRS is a table (CSV, TSV, parquet, JSON lines) with the columns image and caption, COCO's captions, a
    folder of pictures with such a table, WebDataset tars or their folder, an .npz of embeddings, or a data
    set of the library datasets (a saved folder, or a name in its cache). Without --model and without
    embeddings a small model is trained on the pairs themselves. The same command continues where it was
    stopped.
    """
    import nclib
    from nclib.auditing import SCORES
    from nclib.auditing.embed import read_pairs
    from nclib.auditing.export import KINDS, check_keep
    from nclib.auditing.report import summary
    from nclib.common.lock import sole_writer
    from nclib.data.readers import list_pairs

    scores = ("auto", *SCORES)
    score, seed = _by(Rule(str, choices=scores)), _by(Rule(int, low=0))
    parser = _parser("audit", audit)
    parser.add_argument("pairs", metavar="PAIRS", help="the pairs: a file, a folder, or a name")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page and the files")
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of the pictures of a table")
    parser.add_argument("--image-column", metavar="NAME", help="column of pictures, if not a known name")
    parser.add_argument("--caption-column", metavar="NAME", help="column of captions, if not a known name")
    parser.add_argument("--encoding", help="of a table of text, such as cp1252; UTF-8 by default")
    parser.add_argument("--follow", action="store_true", help="open pictures outside that folder too")
    parser.add_argument("--model", help="CLIP or SigLIP: a folder, or a name in the hub's cache")
    parser.add_argument("--image-emb", type=Path, metavar="NPY", help="a row per picture or per pair")
    parser.add_argument("--text-emb", type=Path, metavar="NPY", help="a row per pair")
    parser.add_argument("--split", help="split of a data set of the library datasets")
    about = f"one of {', '.join(scores)}"
    parser.add_argument("--score", type=score, default="auto", metavar="SCORE", help=about)
    parser.add_argument("--labels", type=Path, metavar="CSV", help="checked pairs, as the page saves them")
    about = "write the data without the pairs judged wrong: parquet or tars"
    parser.add_argument("--keep", type=_by(Rule(str, choices=KINDS)), metavar="KIND", help=about)
    about = "column, such as a language, whose values have probabilities and a share of their own"
    parser.add_argument("--by", metavar="COLUMN", help=about)
    parser.add_argument("--one-to-one", action="store_true", help="a picture has one caption at most")
    parser.add_argument("--seed", type=seed, default=0, help="of training and of planted mismatches")
    parser.add_argument("--device", default="cpu", help="where networks run: cpu, cuda, cuda:1, auto")
    parser.add_argument("--quiet", action="store_true", help="print the page's path only")
    o = parser.parse_args(words)
    if o.labels is not None and not o.labels.is_file():
        raise FileNotFoundError(f"--labels {o.labels}: there is no such file")
    if o.out.exists() and not o.out.is_dir():
        raise ValueError(f"--out {o.out} is a file; give a folder")
    with _noted(), sole_writer(o.out):
        read = ("image_emb", "text_emb", "split", "follow", "image_column", "caption_column", "encoding")
        listing = list_pairs(o.pairs, folder=o.images, **{name: getattr(o, name) for name in read})
        check_keep(o.keep, listing)
        made = {"seed": o.seed, "work": o.out / "work", "progress": not o.quiet}
        pairs = read_pairs(listing, model=o.model, device=o.device, **made)
        judged = {name: getattr(o, name) for name in ("score", "labels", "by", "one_to_one")}
        found = nclib.audit(pairs, **judged, **made)
        page = found.report(o.out)
        kept = [] if o.keep is None else [found.keep(o.out, o.keep)]
    print(*([] if o.quiet else [f"{summary(found)}\n"]), *kept, page, sep="\n")
    return 0


# --------------------------------------------------------------------------------- data, catalogues, doctor


def data(words: Words) -> int:
    """Make data sets of photographs; tools/data_check.py and data_convert.py are for the papers' data."""
    from nclib.data import prepare

    return _choose("data", data, words, {"prepare": ("make features of photographs", prepare.main)})


def records(words: Words) -> int:
    """Make recorded runs again and compare them with their records."""
    from nclib.runs import verify

    about = "make some records again and say which differ, and by how much"
    return _choose("records", records, words, {"verify": (about, verify.main)})


def catalogue(words: Words) -> int:
    """List the methods, models and data sets by name."""
    from nclib import data, label_noise, methods, models

    parser = _parser("list", catalogue)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    listed = {
        "methods": ("Methods on mismatched pairs", methods.available()),
        "label_noise": ("Methods on wrong categories", label_noise.available()),
        "models": ("Models", models.available()),
        "data": ("Data", data.available("pairs")),
        "categories": ("Data with categories", data.available("categories")),
    }
    as_json = json.dumps({name: names for name, (_, names) in listed.items()})
    plain = "\n\n".join(f"{title}\n{names}" for title, names in listed.values())
    print(as_json if parser.parse_args(words).json else plain)
    return 0


def doctor(words: Words) -> int:
    """Check this machine: versions, device, disk, data."""
    from nclib.doctor import examine

    parser = _parser("doctor", doctor)
    parser.add_argument("root", nargs="?", type=Path, help="folder of the papers' data to check as well")
    return examine(parser.parse_args(words).root)


# ---------------------------------------------------------------------------------- what the commands share


def _parser(name: str, does: Callable[..., Any], **more: Any) -> argparse.ArgumentParser:
    """Return the parser of a command, described by the docstring of its function."""
    about = (does.__doc__ or "").replace("``", "")
    return argparse.ArgumentParser(prog=f"nclib {name}", description=about, allow_abbrev=False, **more)


def _by(rule: Rule) -> Callable[[str], Any]:
    """Return the check of an argument by a rule; it suggests the nearest choice."""

    def check(word: str) -> Any:
        value = int(word) if rule.kind is int and word.lstrip("-").isdecimal() else word
        if not rule.accepts(value):
            hint = did_you_mean(word, rule.choices or ())
            raise argparse.ArgumentTypeError(f"{word!r}: {rule.describe()}{hint}")
        return value

    return check


_COUNT = _by(Rule(int, low=1))


@contextmanager
def _noted() -> Iterator[None]:
    """Print the warnings of the code within as notes, once it has ended."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in said:
        print(f"note: {warning.message}", file=sys.stderr)


def _importing() -> argparse.ArgumentParser:
    """Return the argument ``--import FILE``, as a parent of parsers; its values are in ``files``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    about = "a Python file that registers a method, model or data set of your own"
    how: dict[str, Any] = {"type": Path, "action": "append", "default": [], "metavar": "FILE", "help": about}
    parser.add_argument("--import", dest="files", **how)
    return parser


def import_files(paths: Iterable[Path]) -> None:
    """Import files outside the package under their own names, as ``import`` would beside them."""
    for path in paths:
        if not path.is_file() or path.suffix != ".py":
            raise ValueError(f"--import {path}: must be a Python file")
        if path.stem in sys.modules:
            raise ValueError(f"--import {path}: {path.stem!r} is the name of another module; rename the file")
        sys.path.insert(0, str(path.resolve().parent))
        importlib.import_module(path.stem)


COMMANDS: dict[str, Command] = {
    "run": ("train one method, test it, leave a record", run),
    "combine": ("test finished runs as one model", combine),
    "show": ("show a finished run: results, noise, time, settings", show),
    "compare": ("show the settings and results in which finished runs differ", compare),
    "pairs": ("list the training pairs of a run, the least likely matched first", pairs),
    "search": ("search the test pictures of a run for a sentence", search),
    "audit": ("find the wrong pairs among pictures with captions", audit),
    "data": ("make data sets of photographs", data),
    "records": ("make recorded runs again and compare", records),
    "list": ("list methods, models and data", catalogue),
    "doctor": ("check versions, device, disk and data of this machine", doctor),
}


def _choose(name: str, does: Callable[..., Any], words: Words, commands: Mapping[str, Command]) -> int:
    """Call the command that the first word names with the words after it."""
    width, listed = max(map(len, commands)), _by(Rule(str, choices=tuple(commands)))

    def one(word: str) -> Any:
        if not name and word in OF_THE_BOOK:
            raise argparse.ArgumentTypeError(f"{word!r} is a command of the book: ncbook {word}")
        return listed(word)

    parser = argparse.ArgumentParser(
        prog=f"nclib {name}".strip(),
        description=(does.__doc__ or "").partition("\n")[0],
        epilog="commands:\n" + "\n".join(f"  {k:<{width}}  {about}" for k, (about, _) in commands.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if not name:
        parser.add_argument("--version", action="version", version=f"nclib {__version__}")
    parser.add_argument("command", type=one, metavar="COMMAND", help="one of the commands below")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    chosen = parser.parse_args(words[:1]).command
    with needed_by(parser.prog + f" {chosen}"):
        return commands[chosen][1](words[1:])


def main(words: Words | None = None) -> int:
    """Image-text retrieval with wrong pairs or wrong labels: run a method, check data, list names.

    ``words`` are those after ``nclib``, by default those of the process; returned is the exit status.
    """
    words = sys.argv[1:] if words is None else list(words)
    again = "; the same command continues"
    more = {"run": f"{again} from the last finished epoch", "audit": again}.get(words[0] if words else "", "")
    return guarded("nclib", lambda: _choose("", main, words, COMMANDS), more)


def guarded(name: str, do: Callable[[], int], continues: str = "") -> int:
    """Return the exit status of a command; its errors, and the end of its reader, end it as one line.

    Parameters
    ----------
    name : str
        Of the program.
    do : callable
        Runs the command.
    continues : str
        What the line of a command ended by Ctrl-C adds.
    """
    try:
        status = do()
        sys.stdout.flush()  # a closed pipe is noticed here, not when Python ends
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush, when Python ends
        return UNREAD
    except (ValueError, RuntimeError, OSError, ImportError, MemoryError) as error:  # ImportError: of an extra
        print(f"{name}: {error or 'there is not enough memory'}", file=sys.stderr)
        return 2
    except (EOFError, BadZipFile, zlib.error) as error:
        print(f"{name}: a file is damaged or cut off ({error}); make or fetch it again", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped{continues}", file=sys.stderr)
        return INTERRUPTED
