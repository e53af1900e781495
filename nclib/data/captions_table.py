"""Tables of captions: which caption belongs to which picture, and which picture to which split."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from nclib.data.row_writer import ConvertError

SPLITS = ("train", "dev", "test")
# Names of columns that published tables use, in lower case without spaces.
IMAGE_COLUMNS = ("image", "image_name", "image_id", "filename", "file_name", "file", "path", "photo")
CAPTION_COLUMNS = ("caption", "comment", "text", "sentence", "raw", "description")
SPLIT_COLUMNS = ("split", "subset")
SPLIT_WORDS = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("dev", "val", "valid", "validation"), "dev"),
}
SHARE = 0.1  # of the pictures for validation and for test, where no split is given
LARGEST = 1000  # pictures of a drawn validation or test split


@dataclass(frozen=True)
class CaptionTable:
    """Captions of pictures.

    Parameters
    ----------
    captions : dict of str to list of str
        By picture, in order of the table.
    split_of : dict of str to {"train", "dev", "test"}
        By picture; empty when the table has no such column.
    """

    captions: dict[str, list[str]]
    split_of: dict[str, str]


def read_captions(path: Path) -> CaptionTable:
    """Read a table of captions.

    Parameters
    ----------
    path : Path
        A table with a header whose columns are named ``image`` and ``caption`` (or alike), and ``split`` if
        there is one, separated by comma, tab or ``|``; or, without header, lines ``picture<TAB>caption``,
        where a picture may end in ``#0``, ``#1``, ... as in the published ``Flickr8k.token.txt``.

    Returns
    -------
    CaptionTable
        White space in captions is one blank.

    Raises
    ------
    ConvertError
        When the file is not such a table; the message tells the line.
    """
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path} is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ConvertError(f"{path} cannot be read ({error.strerror})") from error
    header = text.split("\n", 1)[0].lower()
    separator = next((mark for mark in "\t|," if mark in header), "\t")
    names = [name.strip().strip('"').replace(" ", "_") for name in header.split(separator)]
    has_header = not {*CAPTION_COLUMNS}.isdisjoint(names)
    if not has_header and _is_header(names, separator):
        raise ConvertError(
            f"{path} has no column of captions: call it {CAPTION_COLUMNS[0]!r} (columns in the first line: "
            f"{', '.join(names)}); a table without header has lines 'picture<TAB>caption'"
        )
    rows = _with_header(path, separator) if has_header else _without_header(path, text)
    captions: dict[str, list[str]] = {}
    split_of: dict[str, str] = {}
    first_row: dict[str, int] = {}
    for line, picture, caption, split in rows:
        if not picture or not caption:
            raise ConvertError(f"{path}, row {line}: the {'caption' if picture else 'picture'} is empty")
        captions.setdefault(picture, []).append(caption)
        first_row.setdefault(picture, line)
        if split and split_of.setdefault(picture, split) != split:
            raise ConvertError(
                f"{path}, row {line}: {picture} is in two splits, {split_of[picture]} and {split}"
            )
    if not captions:
        raise ConvertError(f"{path} holds no captions")
    if split_of and len(split_of) < len(captions):
        missing = next(name for name in captions if name not in split_of)
        raise ConvertError(
            f"{path}, row {first_row[missing]}: {missing} has no split; give one for every picture, or no "
            "column split"
        )
    return CaptionTable(captions, split_of)


def _is_header(names: list[str], separator: str) -> bool:
    """Whether a first line without caption column names columns, in place of a picture and its caption."""
    if separator != "\t":
        return True  # a table without header is separated by tabs
    return not {*IMAGE_COLUMNS}.isdisjoint(names) and all(re.fullmatch(r"\w+", name) for name in names)


def _with_header(path: Path, separator: str) -> Iterable[tuple[int, str, str, str]]:
    # "|" tables of the field quote nothing, and their captions hold quotation marks.
    quoting = csv.QUOTE_NONE if separator == "|" else csv.QUOTE_MINIMAL
    try:
        table = pd.read_csv(
            path,
            sep=separator,
            dtype=str,
            keep_default_na=False,
            quoting=quoting,
            skipinitialspace=True,
            encoding="utf-8-sig",
        )
    except ValueError as error:
        raise ConvertError(f"{path} is not a table: {error}") from error
    table.columns = [str(name).strip().lower().replace(" ", "_") for name in table.columns]

    def column(known: tuple[str, ...], what: str) -> str:
        found = [name for name in known if name in table.columns]
        if not found:
            raise ConvertError(
                f"{path} has no column of {what}: call it {known[0]!r} (columns: {', '.join(table.columns)})"
            )
        return found[0]

    pictures = table[column(IMAGE_COLUMNS, "picture names")].str.strip()
    texts = table[column(CAPTION_COLUMNS, "captions")].map(_one_line)
    found = next((name for name in SPLIT_COLUMNS if name in table.columns), None)
    words = table[found].str.strip().str.lower() if found else pd.Series("", index=table.index)
    # Row 1 is the header.
    for row, word in enumerate(words, 2):
        if word and word not in SPLIT_WORDS:
            raise ConvertError(f"{path}, row {row}: split {word!r} is not one of {', '.join(SPLIT_WORDS)}")
    splits = [SPLIT_WORDS.get(word, "") for word in words]
    return zip(range(2, len(table) + 2), pictures, texts, splits, strict=True)


def _without_header(path: Path, text: str) -> Iterable[tuple[int, str, str, str]]:
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        picture, tab, caption = line.rstrip("\r").partition("\t")
        if not tab:
            raise ConvertError(
                f"{path}, line {number}: expected 'picture<TAB>caption', or a header with the columns "
                "image and caption"
            )
        yield number, re.sub(r"#\d+$", "", picture.strip()), _one_line(caption), ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def read_lists(files: Mapping[str, Path]) -> dict[str, str]:
    """Read the pictures of each split, one name per line.

    Parameters
    ----------
    files : mapping of {"train", "dev", "test"} to Path

    Returns
    -------
    dict of str to str
        Split by picture, in order of the files.

    Raises
    ------
    ConvertError
        When a file cannot be read, or a picture is in two splits.
    """
    split_of: dict[str, str] = {}
    for split, path in files.items():
        try:
            names = path.read_text("utf8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise ConvertError(f"{path} cannot be read ({error})") from error
        for name in names:
            if split_of.setdefault(name, split) != split:
                raise ConvertError(f"{name} is in two splits, {split_of[name]} and {split} ({path})")
    return split_of


def draw_splits(pictures: Iterable[str], seed: int) -> dict[str, str]:
    """Draw a validation and a test split: a tenth of the pictures each, at most 1,000.

    Parameters
    ----------
    pictures : iterable of str
    seed : int

    Returns
    -------
    dict of str to str
        Split by picture, in the given order.

    Raises
    ------
    ConvertError
        With fewer than ten pictures.
    """
    names = list(pictures)
    if len(names) < 1 / SHARE:
        raise ConvertError(f"{len(names)} pictures are too few to draw splits from; give a column split")
    n = min(int(len(names) * SHARE), LARGEST)
    order = np.random.default_rng(seed).permutation(len(names))
    kind = {int(i): "dev" for i in order[:n]} | {int(i): "test" for i in order[n : 2 * n]}
    return {name: kind.get(i, "train") for i, name in enumerate(names)}
