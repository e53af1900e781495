"""Command line: ``nclib run|audit|data|list|doctor``.

``nclib COMMAND --help`` lists the options of a command. The exit status is 0 for success, 1 for a negative
answer (an incomplete folder, for example), 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from nclib import __version__
from nclib.common.extras import needed_by
from nclib.common.importing import import_own
from nclib.common.options import Rule, did_you_mean

Words = Sequence[str]
Command = Callable[[Words], int]  # takes the words after the command's name, and has a docstring

INTERRUPTED = 130  # exit status that a shell gives a command ended by Ctrl-C
UNREAD = 141  # and one whose output is no longer read, as in ``nclib list | head -1``


# ------------------------------------------------------------------------------------------------- one run


def run(words: Words) -> int:
    """Train one method, test it, leave a record.

    ``nclib run METHOD [--name value ...]``; ``nclib run METHOD --help`` lists its parameters. Options of the
    data and the model are written ``--data_options.root /data``. ``--import CODE`` loads methods, models or
    data sets first. The same command continues an interrupted run, and prints the results of a finished one.
    """
    from nclib import label_noise, methods
    from nclib.runs import experiment_of
    from nclib.runs.plan import parameters, plan, plan_text
    from nclib.runs.words import values_of

    own, words = _importing().parse_known_args(words)
    for what in own.code:
        import_own(what)
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
    settings = experiment.resolve(**values_of(others, experiment.parameters()))
    if asked.dry_run:
        planned = plan(settings)
        print(json.dumps(planned) if asked.json else plan_text(planned))
        return 0
    record = experiment.run(settings, progress=not (asked.quiet or asked.json))
    print(json.dumps(asdict(record)) if asked.json else Path(record.folder) / "record.json")
    return 0


# ------------------------------------------------------------------------------------------------ one audit


def audit(words: Words) -> int:
    """Find wrong pairs: a probability for each, their share, proposed partners, and a page to look at.

    PAIRS is a table (CSV, TSV, parquet, JSON lines) with the columns image and caption, COCO's captions, a
    folder of pictures with such a table, an .npz of embeddings, or a folder that the library datasets saved.
    Without --model and without embeddings a linear model is fitted to the pairs themselves. With --left and
    --right the pairs are two texts of a table. The same command continues where it was stopped.
    """
    import nclib
    from nclib.auditing import SCORES
    from nclib.auditing.embed import read_pairs
    from nclib.auditing.export import KINDS, check_keep
    from nclib.auditing.report import summary
    from nclib.common.lock import sole_writer
    from nclib.readers import list_pairs

    scores = ("auto", *SCORES)
    parser = _parser("audit", audit)
    parser.add_argument("pairs", metavar="PAIRS", help="the pairs: a file or a folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page and the files")
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of the pictures of a table")
    parser.add_argument("--image-column", metavar="NAME", help="column of pictures, if not a known name")
    parser.add_argument("--caption-column", metavar="NAME", help="column of captions, if not a known name")
    for side in ("left", "right"):
        about = f"column of the {side} one of two texts, in place of picture and caption"
        parser.add_argument(f"--{side}", metavar="NAME", help=about)
    parser.add_argument("--encoding", help="of a table of text, such as cp1252; UTF-8 by default")
    parser.add_argument("--follow", action="store_true", help="open pictures outside that folder too")
    about = "CLIP or SigLIP: a folder, or a name in the hub's cache; or use, which reads texts"
    parser.add_argument("--model", help=about)
    parser.add_argument("--image-emb", type=Path, metavar="NPY", help="a row per picture or per pair")
    parser.add_argument("--text-emb", type=Path, metavar="NPY", help="a row per pair")
    parser.add_argument("--split", help="split of a data set of the library datasets")
    rule, about = Rule(str, choices=scores), f"one of {', '.join(scores)}"
    parser.add_argument("--score", type=_by(rule), default="auto", metavar="SCORE", help=about)
    parser.add_argument("--labels", type=Path, metavar="CSV", help="checked pairs, as the page saves them")
    about = f"write what is kept, as {', '.join(KINDS)}"
    parser.add_argument("--keep", type=_by(Rule(str, choices=tuple(KINDS))), metavar="KIND", help=about)
    about = "column, such as a language, whose values have probabilities and a share of their own"
    parser.add_argument("--by", metavar="COLUMN", help=about)
    parser.add_argument("--one-to-one", action="store_true", help="a picture has one caption at most")
    parser.add_argument(
        "--seed", type=_by(Rule(int, low=0)), default=0, help="of training and of planted mismatches"
    )
    parser.add_argument("--device", default="cpu", help="where the --model runs: cpu, cuda, cuda:1, auto")
    parser.add_argument("--quiet", action="store_true", help="print the page's path only")
    o = parser.parse_args(words)
    if o.labels is not None and not o.labels.is_file():
        raise FileNotFoundError(f"--labels {o.labels}: there is no such file")
    if o.out.exists() and not o.out.is_dir():
        raise ValueError(f"--out {o.out} is a file; give a folder")
    with _warnings_as_notes(), sole_writer(o.out):
        read = ("image_emb", "text_emb", "split", "follow", "image_column", "caption_column", "encoding")
        options = {name: getattr(o, name) for name in (*read, "left", "right")}
        listing = list_pairs(o.pairs, folder=o.images, **options)
        check_keep(o.keep)
        how = {"seed": o.seed, "work": o.out / "work", "progress": not o.quiet}
        pairs = read_pairs(listing, model=o.model, device=o.device, **how)
        judge = {name: getattr(o, name) for name in ("score", "labels", "by", "one_to_one")}
        result = nclib.audit(pairs, **judge, **how)
        page = result.report(o.out, again=_with_labels(words))
        files = [] if o.keep is None else [result.keep(o.out, o.keep)]
    print(*([] if o.quiet else [f"{summary(result)}\n"]), *files, page, sep="\n")
    return 0


def _with_labels(words: Words) -> str:
    """Return the command of an audit with the labels that its page saves in place of its own."""
    own, skip = [], False
    for word in words:
        if not skip and word != "--labels" and not word.startswith("--labels="):
            own.append(word)
        skip = word == "--labels"
    return shlex.join(["nclib", "audit", *own, "--labels", "checked.csv"])


# --------------------------------------------------------------------------------- data, catalogues, doctor


def data(words: Words) -> int:
    """Make data sets of photographs.

    tools/data_check.py and data_convert.py are for the papers' data.
    """
    from nclib.data import prepare

    return _choose("data", data, words, {"prepare": prepare.main})


def catalogue(words: Words) -> int:
    """List the methods, models and data sets by name."""
    from nclib import data, label_noise, methods, models

    parser = _parser("list", catalogue, parents=[_importing()])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(words)
    for what in asked.code:
        import_own(what)
    listed = {
        "methods": ("Methods on mismatched pairs", methods.available()),
        "label_noise": ("Methods on wrong categories", label_noise.available()),
        "models": ("Models", models.available()),
        "data": ("Data", data.available("pairs")),
        "categories": ("Data with categories", data.available("categories")),
    }
    if asked.json:
        print(json.dumps({name: names for name, (_, names) in listed.items()}))
    else:
        print(*(f"{title}\n{names}" for title, names in listed.values()), sep="\n\n")
    return 0


def doctor(words: Words) -> int:
    """Check this machine: versions, device, disk, data."""
    from nclib.doctor import examine

    _parser("doctor", doctor).parse_args(words)
    return examine()


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


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print the warnings of the code within as notes, once it has ended."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in given:
        print(f"note: {warning.message}", file=sys.stderr)


def _importing() -> argparse.ArgumentParser:
    """Return the argument ``--import CODE``, as a parent of parsers; its values are in ``code``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    about = "a Python file, package or module that registers methods, models or data sets"
    how: dict[str, Any] = {"action": "append", "default": [], "metavar": "CODE", "help": about}
    parser.add_argument("--import", dest="code", **how)
    return parser


COMMANDS: dict[str, Command] = {
    "run": run, "audit": audit, "data": data, "list": catalogue, "doctor": doctor,
}  # fmt: skip


def _summary(does: Callable[..., Any]) -> str:
    """Return the first line of a docstring, as plain text."""
    return (does.__doc__ or "").partition("\n")[0].replace("``", "").rstrip(".")


def _choose(name: str, does: Callable[..., Any], words: Words, commands: Mapping[str, Command]) -> int:
    """Call the command that the first word names with the words after it."""
    width, listed = max(map(len, commands)), _by(Rule(str, choices=tuple(commands)))
    about = [f"  {k:<{width}}  {_summary(command)}" for k, command in commands.items()]
    parser = argparse.ArgumentParser(
        prog=f"nclib {name}".strip(),
        description=_summary(does),
        epilog="\n".join(["commands:", *about]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if not name:
        parser.add_argument("--version", action="version", version=f"nclib {__version__}")
    parser.add_argument("command", type=listed, metavar="COMMAND", help="one of the commands below")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    chosen = parser.parse_args(words[:1]).command
    with needed_by(parser.prog + f" {chosen}"):
        return commands[chosen](words[1:])


def main(words: Words | None = None) -> int:
    """Image-text retrieval with wrong pairs or wrong labels: run a method, check data, list names.

    ``words`` are those after ``nclib``, by default those of the process; returned is the exit status.
    """
    words = sys.argv[1:] if words is None else list(words)
    again = "; the same command continues"
    more = {"run": f"{again} from the last finished epoch", "audit": again, "data": again}.get(
        words[0] if words else "", ""
    )
    return exit_status("nclib", lambda: _choose("", main, words, COMMANDS), more)


def exit_status(name: str, do: Callable[[], int], continues: str = "") -> int:
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
