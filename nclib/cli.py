"""Command line: ``nclib run|combine|show|compare|pairs|search|audit|data|records|list|doctor``.

``nclib COMMAND --help`` lists the options of a command. The exit status is 0 for success, 1 for a negative
answer (an incomplete folder, for example), 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from nclib import __version__
from nclib.common.arguments import Words, import_files, importing, noted, one_of, parser_of
from nclib.finished import as_json, compare, pairs, record_of, search, show
from nclib.names import catalogues

if TYPE_CHECKING:
    from nclib.runs import Experiment

OF_THE_BOOK = ("table", "claims", "rerun")  # commands of ncbook
INTERRUPTED = 130  # exit status that a shell gives a command ended by Ctrl-C
UNREAD = 141  # and one whose output is no longer read, as in ``nclib list | head -1``


@dataclass(frozen=True)
class Command:
    """A command: its summary, and a function from the words after its name to the exit status."""

    summary: str
    do: Callable[[Words], int]


# ------------------------------------------------------------------------------------------------- one run


def run(words: Words) -> int:
    """Train one method, test it, leave a record: ``nclib run METHOD [--name value ...]``.

    ``nclib run METHOD --help`` lists its parameters. Options of the data and the model are written
    ``--data_options.root /data``. ``--import FILE`` loads a method, model or data set of your own first.
    The same command continues an interrupted run, and prints the results of a finished one.
    """
    import nclib
    from nclib import label_noise, methods
    from nclib.runs import IMPORT_FIRST, experiment_of
    from nclib.runs.plan import plan
    from nclib.runs.words import options_of

    files = importing()
    own, words = files.parse_known_args(words)
    import_files(own.files)
    known = [*methods.available(), *label_noise.available()]
    parser = parser_of("run", run, parents=[files])
    parser.add_argument(
        "method", type=one_of(known, IMPORT_FIRST), metavar="METHOD", help=f"one of {', '.join(known)}"
    )
    parser.add_argument("--quiet", action="store_true", help="print the record's path only")
    parser.add_argument(
        "--json", action="store_true", help="print the record, or the plan, as a JSON object only"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what the run would do, and how long it takes"
    )
    if words and words[0] in known and {"-h", "--help"} & set(words):
        print(_parameters(experiment_of(words[0])))
        return 0
    options, others = parser.parse_known_args(words)
    experiment = experiment_of(options.method)
    values = options_of(others, experiment.parameters())
    if options.dry_run:
        values.pop("tracker", None)
        planned = plan(experiment.resolve(**values))
        print(json.dumps(asdict(planned)) if options.json else planned)
        return 0
    record = nclib.run(options.method, progress=not (options.quiet or options.json), **values)
    if os.environ.get("RANK", "0") == "0":  # the first of the processes that torchrun started
        path = Path(record.folder) / "record.json"
        print(as_json(record_of(path)) if options.json else path)
    return 0


def combine(words: Words) -> int:
    """Test the mean similarity of finished runs as one model: ``nclib combine RUN RUN``.

    The runs share data, noise and settings, and differ in their model: SGRAF is a run of sgr and one of saf.
    """
    import nclib

    parser = parser_of("combine", combine)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the record")
    parser.add_argument("--device", default="cpu", help="where the networks run")
    asked = parser.parse_args(words)
    record = nclib.combine(asked.runs, asked.out, asked.device)
    print(record)
    print(Path(record.folder) / "record.json")
    return 0


def _parameters(experiment: Experiment) -> str:
    """Return the parameters of a run as a table: name, value in the quick preset, meaning."""
    from nclib.runs.words import words_of

    settings = experiment.resolve().flat()
    usual = {**settings, **settings["method_options"]}
    lines = [f"nclib run {experiment.method} [--name value ...], values in the preset quick:", ""]
    for name, rule in experiment.parameters().items():
        lines.append(f"  --{name} {json.dumps(usual[name])}".ljust(34) + f"  {rule.about()}")
    for name in experiment.mappings:
        lines.append("  " + (" ".join(words_of({name: settings[name]})) or f"--{name}.NAME VALUE"))
    lines += ["", "nclib run --help says what --dry-run, --json, --quiet and --import do."]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ one audit


def audit(words: Words) -> int:
    """Find wrong pairs: a probability for each, their share, proposed partners, and a page to look at.

    PAIRS is a table (CSV, TSV, parquet) with the columns image and caption, a folder of pictures with such a
    table, WebDataset tars or their folder, an .npz of embeddings, or a data set of the library datasets (a
    saved folder, or a name in its cache). Without --model and without embeddings a small model is trained on
    the pairs themselves. The same command continues where it was stopped.
    """
    import nclib
    from nclib.audit import SCORES
    from nclib.audit.embed import embed
    from nclib.audit.show import extract, summary
    from nclib.data.readers import list_pairs

    scores = ("auto", *SCORES)
    parser = parser_of("audit", audit)
    parser.add_argument("pairs", metavar="PAIRS", help="the pairs: a file, a folder, or a name")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page and the files")
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="folder of the pictures that a table names"
    )
    parser.add_argument("--model", help="CLIP or SigLIP: a folder, or a name in the hub's cache")
    parser.add_argument("--image-emb", type=Path, metavar="NPY", help="a row per picture or per pair")
    parser.add_argument("--text-emb", type=Path, metavar="NPY", help="a row per pair")
    parser.add_argument("--split", help="split of a data set of the library datasets")
    parser.add_argument(
        "--score", type=one_of(scores), default="auto", metavar="SCORE", help=f"one of {', '.join(scores)}"
    )
    parser.add_argument("--labels", type=Path, metavar="CSV", help="checked pairs, as the page saves them")
    parser.add_argument("--one-to-one", action="store_true", help="a picture has one caption at most")
    parser.add_argument("--seed", type=int, default=0, help="of training and of planted mismatches")
    parser.add_argument("--device", default="cpu", help="where networks run: cpu, cuda, cuda:1, auto")
    parser.add_argument("--quiet", action="store_true", help="print the page's path only")
    o = parser.parse_args(words)
    if o.labels is not None and not o.labels.is_file():
        raise FileNotFoundError(f"--labels {o.labels}: there is no such file")
    if o.seed < 0:
        raise ValueError(f"--seed {o.seed}: must be at least 0")
    if o.out.exists() and not o.out.is_dir():
        raise ValueError(f"--out {o.out} is a file; give a folder")
    with noted():
        listing = list_pairs(
            o.pairs, folder=o.images, image_emb=o.image_emb, text_emb=o.text_emb, split=o.split
        )
        work, progress = o.out / "work", not o.quiet
        pairs = embed(listing, model=o.model, work=work, seed=o.seed, device=o.device, progress=progress)
        found = nclib.audit(
            pairs,
            score=o.score,
            seed=o.seed,
            labels=o.labels,
            one_to_one=o.one_to_one,
            work=work,
            progress=progress,
        )
        extract(found, listing, o.out / "pictures")
        page = found.report(o.out)
    print(page if o.quiet else f"{summary(found)}\n\n{page}")
    return 0


# --------------------------------------------------------------------------------- data, catalogues, doctor


def data(words: Words) -> int:
    """Check a folder of data, prepare photographs, or bring other files into the layout of the papers' data.

    Parameters
    ----------
    words : sequence of str
        The words after ``nclib data``.

    Returns
    -------
    int
        Exit status.
    """
    from nclib.data import check, convert, pictures

    commands = {
        "check": Command("report the files that a folder holds and lacks", check.main),
        "prepare": Command("make features of photographs, and a data set of them", pictures.main),
        "convert": Command("gather features, make float16 copies or a vocabulary", convert.main),
    }
    return _choose("data", data, words, commands)


def records(words: Words) -> int:
    """Make recorded runs again and compare them with their records."""
    from nclib.runs import verify

    commands = {
        "verify": Command("make some records again and say which differ, and by how much", verify.main)
    }
    return _choose("records", records, words, commands)


def catalogue(words: Words) -> int:
    """List the methods, models and data sets by name."""
    parser = parser_of("list", catalogue)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked, found = parser.parse_args(words), catalogues()
    titles = ("Methods on mismatched pairs", "Methods on wrong categories", "Models", "Data")
    parts = zip((*titles, "Data with categories"), found.values(), strict=True)
    print(json.dumps(found) if asked.json else "\n\n".join(f"{title}\n{names}" for title, names in parts))
    return 0


def doctor(words: Words) -> int:
    """Check this machine: versions, device, disk, data."""
    from nclib.doctor import examine

    parser = parser_of("doctor", doctor)
    parser.add_argument("root", nargs="?", type=Path, help="folder of the papers' data to check as well")
    return examine(parser.parse_args(words).root)


COMMANDS = {
    "run": Command("train one method, test it, leave a record", run),
    "combine": Command("test finished runs as one model", combine),
    "show": Command("show a finished run: results, noise, time, settings", show),
    "compare": Command("show the settings and results in which finished runs differ", compare),
    "pairs": Command("list the training pairs of a run, the least likely matched first", pairs),
    "search": Command("search the test pictures of a run for a sentence", search),
    "audit": Command("find the wrong pairs among pictures with captions", audit),
    "data": Command("check or convert the papers' data, prepare photographs", data),
    "records": Command("make recorded runs again and compare", records),
    "list": Command("list methods, models and data", catalogue),
    "doctor": Command("check versions, device, disk and data of this machine", doctor),
}


def _choose(name: str, does: Callable[..., Any], words: Words, commands: Mapping[str, Command]) -> int:
    """Call the command that the first word names with the words after it."""
    width, listed = max(map(len, commands)), one_of(commands)

    def one(word: str) -> str:
        if not name and word in OF_THE_BOOK:
            raise argparse.ArgumentTypeError(f"{word!r} is a command of the book: ncbook {word}")
        return listed(word)

    parser = argparse.ArgumentParser(
        prog=f"nclib {name}".strip(),
        description=(does.__doc__ or "").splitlines()[0],
        epilog="commands:\n" + "\n".join(f"  {k:<{width}}  {c.summary}" for k, c in commands.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if not name:
        parser.add_argument("--version", action="version", version=f"nclib {__version__}")
    parser.add_argument("command", type=one, metavar="COMMAND", help="one of the commands below")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    return commands[parser.parse_args(words[:1]).command].do(words[1:])


def main(words: Words | None = None) -> int:
    """Image-text retrieval with wrong pairs or wrong labels: run a method, check data, list names.

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
        sys.stdout.flush()  # a closed pipe is noticed here, not when Python ends
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
        continued = {"run": " from the last finished epoch", "audit": ""}
        more = continued.get(words[0]) if words else None
        said = "" if more is None else f"; the same command continues{more}"
        print(f"stopped{said}", file=sys.stderr)
        return INTERRUPTED
