"""What the commands of ``nclib`` share: parsers, checks of names, a table in plain text."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nclib.common.options import did_you_mean

Words = Sequence[str]
NUMBER = re.compile(r"[-+]?[\d.,]+|-")


def parser_of(name: str, does: Callable[..., Any], **more: Any) -> argparse.ArgumentParser:
    """Return the parser of a command, described by the docstring of its function."""
    about = (does.__doc__ or "").replace("``", "")
    return argparse.ArgumentParser(prog=f"nclib {name}", description=about, allow_abbrev=False, **more)


def one_of(known: Collection[str], otherwise: str = "") -> Callable[[str], str]:
    """Return the check of an argument that is one of some names; it suggests the nearest one.

    ``otherwise`` is what to do where none is near.
    """

    def check(word: str) -> str:
        if word not in known:
            said = f"{word!r}: must be one of {', '.join(known)}{did_you_mean(word, known) or otherwise}"
            raise argparse.ArgumentTypeError(said)
        return word

    return check


@contextmanager
def noted() -> Iterator[None]:
    """Print the warnings of the code within as notes, once it has ended."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in said:
        print(f"note: {warning.message}", file=sys.stderr)


def count(word: str) -> int:
    """Return an argument that is a whole number of at least 1."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r}: must be a whole number, at least 1")
    return int(word)


def importing() -> argparse.ArgumentParser:
    """Return the argument ``--import FILE``, as a parent of parsers; its values are in ``files``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--import",
        dest="files",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that registers a method, model or data set of your own",
    )
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


def flattened(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return settings with those of inner mappings under names with dots.

    Examples
    --------
    >>> flattened({"mrate": 0.4, "data_options": {"n_train": 64}})
    {'mrate': 0.4, 'data_options.n_train': 64}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        found |= flattened(value, f"{before}{name}.") if inner else {before + name: value}
    return found


def shown(value: object) -> str:
    """Return a setting as text; ``-`` for None and an empty text."""
    if value is None or value == "":
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as aligned lines; a column that holds numbers below its head is set to the right.

    Examples
    --------
    >>> print(table([("name", "rSum"), ("plain", "98.1"), ("l2rm", "283.0")]))
    name    rSum
    plain   98.1
    l2rm   283.0
    """
    columns = []
    for head, *cells in zip(*rows, strict=True):
        width = max(map(len, (head, *cells)))
        right = bool(cells) and all(NUMBER.fullmatch(cell) for cell in cells)
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in (head, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))
