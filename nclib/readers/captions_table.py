"""Tables of captions: which caption belongs to which picture, and which picture to which split."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import re
import warnings
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nclib.common.row_writer import ConvertError

# Names of columns that published tables use, in lower case without spaces.
IMAGE_COLUMNS = (
    *("image", "image_name", "image_id", "filename", "file_name", "filepath", "file", "path", "photo"),
)
CAPTION_COLUMNS = (
    *("caption", "comment", "text", "sentence", "raw", "description", "title", "alt_text", "alt", "prompt"),
    *("txt", "label"),
)
# Several captions of a row stand in columns that count: caption_0, caption_1, ...
CAPTION_PATTERN = re.compile(rf"({'|'.join(CAPTION_COLUMNS)})s?([_-]?\d+)?")
#: Encodings of scripts without Latin letters, and what most of their text consists of.
SCRIPTS = (
    ("shift_jis", "[\u3040-\u30ff]"),
    ("euc_kr", "[\uac00-\ud7a3]"),
    ("cp1251", "[А-яЁё]"),
    ("gb18030", "[\u4e00-\u9fff]"),
    ("big5", "[\u4e00-\u9fff]"),
)
LONGEST_CELL = 131_072  # characters; a row with a longer cell is refused
LARGEST_TEXT = 1 << 30  # bytes that a packed table may have when it is unpacked
FIRST = 50  # lines by which a header is told from a pair
REPLACED = "\N{REPLACEMENT CHARACTER}"  # of bytes that are not UTF-8
#: First bytes of files that are not text, and what to do with them.
NO_TEXT = {
    b"PK\3\4": "a zip archive or a workbook of Excel; save its sheet as CSV",
    b"\x1f\x8b": "packed by gzip; let its name end in .gz",
    b"PAR1": "a parquet file; let its name end in .parquet",
}


@dataclass(frozen=True)
class CaptionTable:
    """Cells of a table, and what is wrong with single rows.

    Parameters
    ----------
    columns : dict of str to list of str
        By name, in lower case with ``_`` for blanks.
    lines : list of int
        Line of the file where each row begins, from 1.
    problems : dict of int to str
        Reason by row that cannot be trusted: its cells do not fit the header, or were not UTF-8.
    """

    columns: dict[str, list[str]]
    lines: list[int]
    problems: dict[int, str]


def read_table(path: Path, encoding: str | None = None, named: Sequence[str] = ()) -> CaptionTable:
    """Read the rows of a table of captions, sound or not.

    Parameters
    ----------
    path : Path
        A table with a header, separated by comma, tab, ``|`` or ``;``; or, without header, lines
        ``picture<TAB>caption``, where a picture may end in ``#0``, ``#1``, ... as in the published
        ``Flickr8k.token.txt``: its columns are ``id`` (with ``#0``), ``image`` and ``caption``. Also
        compressed as ``.gz``, and in UTF-16 with its mark.
    encoding : str, optional
        Of the file; by default UTF-8, or UTF-16 with its mark.
    named : sequence of str
        Names of columns, in lower case with ``_`` for blanks, that tell the header besides those of captions.

    Returns
    -------
    CaptionTable

    Raises
    ------
    ConvertError
        When the file cannot be read, has no header that names captions, or a quotation mark is left open.
    """
    text, hint = read_text(path, encoding)
    if not text.strip():
        raise ConvertError(f"{path} is empty")
    header = text.split("\n", 1)[0].lower()
    separator = next((mark for mark in "\t|,;" if mark in header), "\t")
    names = [name.strip().strip('"').strip().replace(" ", "_") for name in header.split(separator)]
    has_header = any(CAPTION_PATTERN.fullmatch(name) or name in named for name in names)
    check_columns(names, path)
    if not has_header and named:
        raise ConvertError(
            f"{path} has no column {named[0]!r} (columns in the first line: {', '.join(names)})"
        )
    if not has_header and _is_header(names, separator, text):
        raise ConvertError(
            f"{path} has no column of captions: call it {CAPTION_COLUMNS[0]!r}, or give its name as "
            f"--caption-column (columns in the first line: {', '.join(names)}); a table without header has "
            f"lines 'picture<TAB>caption'{f'; some lines have {hint}' if hint else ''}"
        )
    if not has_header and _pictures(text, 1) > max(0.5, _pictures(text, 0)):
        raise ConvertError(
            f"{path} has lines 'caption<TAB>picture', and no header; begin it with a line 'caption<TAB>image'"
        )
    if not has_header and all(re.fullmatch(r"\w+", name) for name in names):
        warnings.warn(
            f"{path}: the first line, {header.strip()!r}, is taken for a pair; if it names columns, give "
            "--image-column and --caption-column",
            UserWarning,
            stacklevel=2,
        )
    table = _with_header(path, text, names, separator) if has_header else _without_header(text)
    if hint:
        for row, cells in enumerate(zip(*table.columns.values(), strict=True)):
            if REPLACED in "".join(cells):
                table.problems.setdefault(row, f"line {table.lines[row]}: {hint}")
    return table


def read_text(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """Return the text of a file, and what is wrong with bytes of it that are not text, or "".

    Raises
    ------
    ConvertError
        When the file cannot be read, or is UTF-16 without its mark.
    """
    try:
        packed = path.suffix.lower() == ".gz"
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(LARGEST_TEXT + 1 if packed else -1)
        if packed and len(content) > LARGEST_TEXT:
            raise ConvertError(f"{path} has more than {LARGEST_TEXT:,} bytes when unpacked; unpack it first")
        if kind := next((kind for mark, kind in NO_TEXT.items() if content.startswith(mark)), ""):
            raise ConvertError(f"{path} is {kind}")
        usual = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
        text = content.decode(encoding or usual)
    except (OSError, EOFError, zlib.error) as error:
        raise ConvertError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except UnicodeDecodeError:
        hint = f"bytes that are not {encoding or usual.upper().removesuffix('-SIG')}"
        if encoding is None:
            hint += f"; it looks like {likely_encoding(content)}, give that as --encoding"
        return content.decode(encoding or usual, "replace"), hint
    likely = likely_encoding(content) if encoding is None and "\0" in text[:1000] else ""
    if likely.startswith("utf-16"):
        raise ConvertError(f"{path} is not UTF-8; it looks like {likely}, give that as --encoding")
    return (text if "\n" in text else text.replace("\r", "\n")), ""


def likely_encoding(content: bytes) -> str:
    """Return the likely encoding of text that is not UTF-8, by its bytes and the letters that they make.

    Examples
    --------
    >>> [likely_encoding("a café".encode(name)) for name in ("cp1252", "utf-16-le")]
    ['cp1252', 'utf-16-le']
    """
    zeros = [content[start::2].count(0) for start in (0, 1)]
    if max(zeros) > len(content) // 8:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    high = re.findall(rb"[\x80-\xff]+", content)
    if high and sum(map(len, high)) >= 2 * len(high):  # not single letters with accents between plain ones
        for name, letters in SCRIPTS:
            with contextlib.suppress(UnicodeDecodeError):
                strange = re.sub(r"[\x00-\x7f]", "", content.decode(name))
                if len(re.findall(letters, strange)) > len(strange) / 2:
                    return name
    return "cp1252"


def _with_header(path: Path, text: str, names: list[str], separator: str) -> CaptionTable:
    # "|" tables of the field quote nothing, and their captions hold quotation marks.
    quotes = separator != "|"
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
        skipinitialspace=True,
        strict=True,
    )
    n = len(names)
    rows: list[list[str]] = []
    lines: list[int] = []
    problems: dict[int, str] = {}
    limit = csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # of the whole process
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            if "end of data" in str(error):
                csv.field_size_limit(limit)
                raise ConvertError(f"{path}, line {line}: a quotation mark is left open") from error
            problems[len(rows)], cells = f"line {line}: misplaced quotation mark", [""]
        if line == 1:
            problems.clear()
        elif cells:
            if len(cells) > n:
                problems[len(rows)] = (
                    f"line {line}: {len(cells)} cells in {n} columns; put captions that contain "
                    f"{separator!r} into quotation marks"
                )
            if max(map(len, cells)) > LONGEST_CELL:
                problems[len(rows)] = f"line {line}: a cell of more than {LONGEST_CELL:,} characters"
                cells = [cell[:LONGEST_CELL] for cell in cells]
            rows.append([*cells, *[""] * n][:n])
            lines.append(line)
    csv.field_size_limit(limit)
    columns: Iterable[Iterable[str]] = zip(*rows, strict=True) if rows else [()] * n
    return CaptionTable(dict(zip(names, map(list, columns), strict=True)), lines, problems)


def _without_header(text: str) -> CaptionTable:
    ids, pictures, captions, problems = [], [], [], {}
    for row, line in enumerate(text.removesuffix("\n").split("\n")):
        name, tab, caption = line.rstrip("\r").partition("\t")
        if not tab or "\t" in caption:
            problems[row] = (
                f"line {row + 1}: expected 'picture<TAB>caption', or a header with the columns "
                "image and caption"
            )
        ids.append(name.strip())
        pictures.append(re.sub(r"#\d+$", "", name.strip()))
        captions.append(caption)
    lines = list(range(1, len(ids) + 1))
    return CaptionTable({"id": ids, "image": pictures, "caption": captions}, lines, problems)


def check_columns(names: Iterable[str], where: Path | str) -> None:
    """Raise a ConvertError where two columns have one name, so that one of them would be lost."""
    counts = Counter(name for name in names if name)
    if twice := [name for name, n in counts.items() if n > 1]:
        raise ConvertError(
            f"{where} has several columns {twice[0]!r}; rename all but one (columns: {', '.join(counts)})"
        )


def _is_header(names: list[str], separator: str, text: str) -> bool:
    """Whether a first line without caption column names columns, in place of a picture and its caption."""
    if separator != "\t":
        return True  # a table without header is separated by tabs
    if not all(re.fullmatch(r"\w+", name) for name in names):
        return False
    return not {*IMAGE_COLUMNS}.isdisjoint(names) or _pictures(text, 0) > 0.5


def _pictures(text: str, column: int) -> float:
    """Return the part of the lines after the first whose cell in a column names a picture, or is a URL."""
    # Pictures have a suffix or a number (#0), names of columns have none.
    rows = (line.rstrip("\r").split("\t") for line in text.split("\n")[1:FIRST])
    cells = [cell.strip() for row in rows for cell in row[column : column + 1]]
    named = sum(bool(re.search(r"^\w+://\S+$|\.\w{2,5}(#\d+)?$", cell)) for cell in cells)
    return named / max(len(cells), 1)


def one_line(text: str) -> str:
    """Return a text with every white space as one blank."""
    return " ".join(text.split())
