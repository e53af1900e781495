"""Pairs as found, before anything is embedded, and how rows of columns become them."""

from __future__ import annotations

import io
import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.common.files import digest
from nclib.common.options import did_you_mean
from nclib.readers.captions_table import CAPTION_COLUMNS, CAPTION_PATTERN, IMAGE_COLUMNS, one_line
from nclib.readers.pictures import Files, open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

SPLIT_COLUMNS = ("split", "subset")
ID_COLUMNS = ("id", "uid", "sample_id", "key", "__key__")
PICTURE_COLUMNS = (*IMAGE_COLUMNS, "image_path", "jpg", "png", "img", "url", "image_url")
#: Names of the embeddings of pictures and captions: columns of a table, arrays of an .npz file.
EMBEDDINGS = (
    ("images", "captions"),
    ("l14_img", "l14_txt"),  # DataComp
    ("b32_img", "b32_txt"),
    ("image_emb", "text_emb"),
    ("img_emb", "text_emb"),
    ("image_embedding", "text_embedding"),
    ("image_embeddings", "text_embeddings"),
    ("image_features", "text_features"),
    ("image_embedding", "caption_embedding"),
)
EMBEDDING_NAMES = frozenset(itertools.chain(*EMBEDDINGS))
#: How pictures are read, for digests of what was made of them.
READ = "upright, on white"
#: Cells that hold several values.
PARTS = (Mapping, list, tuple, set, np.ndarray)


@dataclass(frozen=True)
class Hints:
    """What a reader is told besides the source; parameters of :func:`nclib.readers.list_pairs`."""

    folder: Path | None = None
    text_emb: Any = None
    split: str | None = None
    every_split: bool = False
    follow: bool = False
    image_column: str | None = None
    caption_column: str | None = None
    encoding: str | None = None
    sentences: bool = False

    @property
    def named(self) -> tuple[str, ...]:
        """Names of columns that were told, as :func:`plain_name` writes them."""
        return tuple(plain_name(name) for name in (self.image_column, self.caption_column) if name)

    def files(self, home: Path) -> Files:
        """Return the pictures that a source names, by default relative to its own folder."""
        return Files(self.folder or home, only=self.folder is not None, follow=self.follow)


@dataclass(frozen=True)
class Listing:
    """Pairs as found, before anything is embedded.

    Parameters
    ----------
    ids : list of str, (M,)
        Unique, one per caption.
    image_of : ndarray, int64, (M,)
        Row in ``pictures`` of the picture that each caption claims.
    texts : list of str, (M,), optional
    pictures : list of str, (N,), optional
        Path, URL or another name of each picture.
    splits : list of str, (M,), optional
        Split of each pair, as the source calls it.
    problems : dict of int to str
        Reason by row of a pair that cannot be used.
    file : callable, int -> Path or BytesIO, optional
        Finds the file of the picture in a row of ``pictures``, or raises an
        :class:`~nclib.readers.UnreadableError`.
    images, captions : ndarray, (N, D) and (M, D), optional
        Embeddings, where given; ``images`` alone are features of the pictures.
    columns : DataFrame, optional
        The source's other columns of numbers or text, a row per pair.
    origin : str
        Digest of the files behind the pictures, where ``pictures`` are not files themselves.
    sentences : bool
        Whether ``pictures`` are texts themselves: the left side of pairs of two texts.
    """

    ids: list[str]
    image_of: NDArray[np.int64]
    texts: list[str] | None = None
    pictures: list[str] | None = None
    splits: list[str] | None = None
    problems: dict[int, str] = field(default_factory=dict)
    file: Callable[[int], Path | io.BytesIO] | None = None
    images: Array | None = None
    captions: Array | None = None
    columns: pd.DataFrame | None = None
    origin: str = ""
    sentences: bool = False

    def open(self, row: int) -> Image:
        """Open the picture in a row of ``pictures``, or raise an UnreadableError."""
        assert self.file is not None
        return open_picture(self.file(row))

    def stamp(self) -> str:
        """Return a digest that changes with the pictures: of their names, sizes and times."""
        return digest([READ, self.origin, *map(_state, self.pictures or ())])


def _state(name: str) -> str:
    """Return a picture's name with the size and time of its file, if it is one."""
    try:
        file = Path(name).stat()
    except (OSError, ValueError):  # a URL, or a name that no file can have
        return name
    return f"{name} {file.st_size} {file.st_mtime_ns}"


@dataclass(frozen=True)
class Rows:
    """Rows of a source, one per caption; every part has a row per caption, embeddings as well.

    ``pictures`` are names, equal for the captions of one picture; of ``sentences``, texts.
    """

    texts: Sequence[Any]
    pictures: Sequence[Any] | None = None
    ids: Sequence[Any] | None = None
    splits: Sequence[Any] | None = None
    images: Array | None = None
    captions: Array | None = None
    columns: pd.DataFrame | None = None
    problems: Mapping[int, str] = field(default_factory=dict)
    sentences: bool = False

    def listing(
        self,
        file: Callable[[str], Path | io.BytesIO],
        origin: str = "",
        show: Callable[[str], str] = lambda name: name,
    ) -> Listing:
        """Return the rows as a listing.

        ``file`` finds a picture by name or raises an :class:`~nclib.readers.UnreadableError`; ``show``
        gives its path, URL or another name for tables.
        """
        problems = dict(self.problems)
        lines = [text_of(text) for text in self.texts]
        named, numbers = self.pictures is not None, range(len(lines))
        names = [text_of(name) for name in (numbers if self.pictures is None else self.pictures)]
        for row, (text, line, name) in enumerate(zip(self.texts, lines, names, strict=True)):
            if isinstance(text, PARTS):
                problems.setdefault(row, f"the caption is a {type(text).__name__}, not text")
            elif not line:
                problems.setdefault(row, "the caption is empty")
            elif not name:
                problems.setdefault(
                    row, "the left text is empty" if self.sentences else "no picture is named"
                )
        # "a.jpg" and "./a.jpg" are one picture.
        shown = [show(name) for name in names] if named and not self.sentences else names
        codes, unique = pd.factorize(np.array(shown, object))
        images, image_of = self.images, codes.astype(np.int64)
        first = np.unique(image_of, return_index=True)[1]
        if images is not None and len(first) < len(images):
            images = images[first]
        return Listing(
            unique_ids(numbers if self.sentences and self.ids is None else self.ids, names),
            image_of,
            lines,
            unique.tolist() if named else None,
            None if self.splits is None else [text_of(split) for split in self.splits],
            problems,
            (lambda row: file(names[first[row]])) if named and not self.sentences else None,
            images,
            self.captions,
            self.columns,
            origin,
            self.sentences,
        )


def rows_of(
    columns: Mapping[str, Any], where: Path | str, hints: Hints, problems: Mapping[int, str] | None = None
) -> Rows:
    """Find ids, pictures, captions, splits and embeddings among columns; ``problems`` are by their row."""
    names = list(columns)
    captions = columns_asked_for(names, hints.caption_column, where) or caption_columns(names)
    picture = picture_column(names, hints, where)
    both = embeddings_in({plain_name(name): values for name, values in columns.items()})
    if not captions or (picture is None and both is None):
        what, name = ("pictures", "image") if captions else ("captions", "caption")
        raise ValueError(
            f"{where} has no column of {what}: call it {name!r}, or give its name as --{name}-column "
            f"(columns: {', '.join(names)})"
        )
    if picture is not None and not _is_plain(columns[picture]):
        raise ValueError(
            f"{where}, column {picture!r}: holds pictures or lists in place of paths; the library datasets "
            "reads such files: nclib.audit(datasets.load_dataset('parquet', data_files=..., split='train'))"
        )
    rows, texts = one_per_caption(zip(*(columns[name] for name in captions), strict=True))
    images, given = (stack_embeddings(values, where) for values in both) if both else (None, None)
    if len(rows) != len(columns[captions[0]]):
        if given is not None:
            raise ValueError(
                f"{where} has several captions in a row, so that one text embedding a row belongs to none"
            )
        problems = {i: problems[row] for i, row in enumerate(rows) if row in problems} if problems else {}

    def per_caption(column: str | None) -> list[Any] | None:
        return None if column is None else [columns[column][row] for row in rows]

    id_column = find_column(names, ID_COLUMNS)
    used = {*captions, picture, id_column}
    own = {
        name: values
        for name, values in columns.items()
        if name not in used and plain_name(name) not in EMBEDDING_NAMES and _is_plain(values)
    }
    others = pd.DataFrame(own, index=range(len(columns[captions[0]]))).iloc[rows].reset_index(drop=True)
    splits = per_caption(split_column(names))
    names_of, ids = per_caption(picture), per_caption(id_column)
    return Rows(texts, names_of, ids, splits, images, given, others, problems or {}, hints.sentences)


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether a column holds numbers or text, by its first value."""
    first = next((value for value in values if value is not None), None)
    return not isinstance(first, (bytes, *PARTS)) and not hasattr(first, "save")


def columns_asked_for(names: Sequence[str], column: str | None, where: Path | str) -> list[str]:
    """Return the column that was named, in a list; an empty one where none was."""
    if column is None:
        return []
    if (found := find_column(names, (plain_name(column),))) is None:
        hint = did_you_mean(column, names)
        raise ValueError(f"{where} has no column {column!r}{hint} (columns: {', '.join(names)})")
    return [found]


def picture_column(names: Sequence[str], hints: Hints, where: Path | str) -> str | None:
    """Return the column of pictures: the one that was named, else the first with a known name."""
    asked_for = columns_asked_for(names, hints.image_column, where)
    return asked_for[0] if asked_for else find_column(names, PICTURE_COLUMNS)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several files one after the other; what only some of them have is left out."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.texts) for part in parts[:-1])]).tolist()

    def every(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if any(f is None for f in values):
            return None
        if name == "columns":
            return pd.concat(values, ignore_index=True)
        return np.concatenate(values) if name in ("images", "captions") else [x for f in values for x in f]

    names = [f.name for f in fields(Rows) if f.name not in ("problems", "sentences")]
    problems = {s + row: text for s, p in zip(starts, parts, strict=True) for row, text in p.problems.items()}
    whole = {name: every(name) for name in names}
    return Rows(**whole, problems=problems, sentences=parts[0].sentences)


def is_missing(value: Any) -> bool:
    """Whether a cell is None, NaN or another mark of a missing value."""
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def text_of(value: Any) -> str:
    """Return a cell as one line of text that can be written; what is missing is empty."""
    if is_missing(value):
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf8", "replace")
    line = one_line(str(value))
    # JSON can hold half characters.
    return line if line.isascii() else line.encode("utf8", "replace").decode("utf8")


def unique_ids(ids: Sequence[Any] | None, names: Sequence[str]) -> list[str]:
    """Return unique ids: those given, else the pictures' names, with ``#0``, ``#1``, ... where they agree."""
    plain = names if ids is None else [text_of(name) for name in ids]
    given = pd.Series([name or f"row {row}" for row, name in enumerate(plain)], dtype=object)
    of = pd.Series(names, dtype=object).groupby(given).transform("nunique")
    if ids is not None and (shared := given[of > 1].unique().tolist()):
        warnings.warn(
            f"{len(shared):,} ids belong to several pictures, such as {shared[0]!r}; they became "
            f"{shared[0]}#0, #1, ...",
            UserWarning,
            stacklevel=2,
        )
    while (twice := given.duplicated(keep=False)).any():
        given[twice] += "#" + given.groupby(given).cumcount()[twice].astype(str)
    return list(given)


def find_column(columns: Iterable[str], known: Sequence[str]) -> str | None:
    """Return the first known name among columns, whose case and blanks do not matter."""
    plain = {plain_name(name): name for name in columns}
    return next((plain[name] for name in known if name in plain), None)


def plain_name(name: str) -> str:
    """Return the name of a column in lower case with ``_`` for blanks."""
    return name.strip().lower().replace(" ", "_")


def split_column(columns: Iterable[str]) -> str | None:
    """Return the column that names the split of each pair, if there is one."""
    return find_column(columns, SPLIT_COLUMNS)


def caption_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of captions: the best known name, or all that count: caption_0, caption_1, ..."""
    best = find_column(columns, (*CAPTION_COLUMNS, *(f"{name}s" for name in CAPTION_COLUMNS)))
    return [best] if best else [name for name in columns if CAPTION_PATTERN.fullmatch(plain_name(name))]


def known_columns(columns: Sequence[str], hints: Hints) -> list[str]:
    """Return the columns that readers look at; others are carried along."""
    known = {*PICTURE_COLUMNS, *ID_COLUMNS, *SPLIT_COLUMNS, *EMBEDDING_NAMES, *hints.named}
    captions = caption_columns(columns)
    return [name for name in columns if plain_name(name) in known or name in captions]


def one_per_caption(values: Iterable[Sequence[Any]]) -> tuple[list[int], list[Any]]:
    """Return row and caption of every caption; a cell can hold a list of them."""
    rows, texts = [], []
    for row, cells in enumerate(values):
        for cell in cells:
            several = list(cell) if isinstance(cell, (list, tuple, np.ndarray)) else [cell]
            for text in several or [""]:
                rows.append(row)
                texts.append(text)
    return rows, texts


def embeddings_in(arrays: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the embeddings of pictures and captions by their known names; None without both."""
    return next(((arrays[i], arrays[c]) for i, c in EMBEDDINGS if i in arrays and c in arrays), None)


def stack_embeddings(values: Sequence[Any] | Array, where: Path | str) -> Array:
    """Return a column of embeddings as float32 (rows, D); a missing one is a row of NaN."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return values
    parsed = [json.loads(v) if isinstance(v, str) and v.strip() else v for v in values]
    width = next((len(v) for v in parsed if v is not None and len(v)), 0)
    result = np.full((len(parsed), width), np.nan, np.float32)
    for row, value in enumerate(parsed):
        if value is not None and len(value):
            if len(value) != width:
                raise ValueError(f"{where}, row {row + 1}: {len(value)} numbers, the first row has {width}")
            try:
                with np.errstate(over="ignore"):
                    result[row] = value
            except OverflowError:  # a whole number beyond floating ones
                result[row] = np.inf
    return result
