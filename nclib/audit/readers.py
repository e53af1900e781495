"""Pairs from what people have: arrays, tables, folders of pictures, WebDataset tars, ``datasets`` objects.

==========  =========================================================================================
``arrays``  ``.npz`` with both embeddings, or ``.npy`` of the pictures with ``text_emb``
``table``   CSV, TSV, parquet or a DataFrame with the columns image, caption and, if there, id and
            embeddings; the metadata of LAION, img2dataset and DataComp; a folder of parquet files
``laion``   a folder with ``img_emb``, ``text_emb`` and ``metadata``, as clip-retrieval writes it
``tars``    WebDataset: ``.tar`` files with ``.jpg`` or ``.png`` beside ``.txt`` or ``.json``
``folder``  a folder of pictures with a table, or with a ``.txt`` beside each picture
``hub``     an object of the library ``datasets``, a folder that it saved, or a name in its cache
==========  =========================================================================================

Every reader returns a :class:`Listing`. What is wrong with single rows is kept in ``problems``; nothing is
downloaded, unpacked or left out in silence.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import posixpath
import re
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.audit.pairs import Pairs
from nclib.common.files import digest
from nclib.data.captions_table import CAPTION_COLUMNS, CAPTION_PATTERN, IMAGE_COLUMNS, one_line, read_table

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]
Source = Any

ID_COLUMNS = ("id", "uid", "sample_id", "key")
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
TABLES = (".csv", ".tsv", ".txt", ".parquet")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LONGEST_FILE = 1 << 20  # bytes of a caption or its .json in a tar; longer ones are left out
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # of a data set on the hub


class UnreadableError(ValueError):
    """A picture that cannot be read; the message is the reason."""


@dataclass(frozen=True)
class Hints:
    """What a reader is told besides the source; parameters of :func:`read_pairs`."""

    folder: Path | None = None
    image_emb: Any = None
    text_emb: Any = None
    split: str | None = None


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
    problems : dict of int to str
        Reason by row of a pair that cannot be judged.
    open : callable, int -> Image, optional
        Opens the picture in a row of ``pictures``, or raises an :class:`UnreadableError`.
    images, captions : ndarray, (N, D) and (M, D), optional
        Embeddings, where given; ``images`` alone are features of the pictures.
    origin : str
        Digest of the files behind the pictures, where ``pictures`` are not files themselves.
    """

    ids: list[str]
    image_of: NDArray[np.int64]
    texts: list[str] | None = None
    pictures: list[str] | None = None
    problems: dict[int, str] = field(default_factory=dict)
    open: Callable[[int], Image] | None = None
    images: Array | None = None
    captions: Array | None = None
    origin: str = ""


@dataclass(frozen=True)
class Reader:
    """Reader of one layout: which sources it takes, and how it lists their pairs."""

    name: str
    takes: Callable[[Source], bool]
    read: Callable[[Source, Hints], Listing]


def read_pairs(
    source: Source,
    *,
    folder: str | PathLike[str] | None = None,
    model: str | PathLike[str] | None = None,
    image_emb: Any = None,
    text_emb: Any = None,
    split: str | None = None,
    work: str | PathLike[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: bool = True,
) -> Pairs:
    """Read pairs, and embed them where they have no embeddings.

    Parameters
    ----------
    source : path, str or object
        One of the layouts above.
    folder : path, optional
        Folder of the pictures that a table names; by default the table's own.
    model : path or str, optional
        CLIP or SigLIP in the layout of ``transformers``: a folder, or a name in the hub's cache. It replaces
        embeddings that the source has.
    image_emb, text_emb : path or ndarray, optional
        ``.npy`` of embeddings, a row per picture (in order of first mention) or per pair, and a row per pair.
        ``image_emb`` alone are features on which a small model is trained.
    split : str, optional
        Split of a ``datasets`` object; needed when it has several.
    work : path, optional
        Folder for embeddings, from which a stopped command continues; by default in nclib's cache.
    seed : int
        Of training, where a model is trained.
    device : str
        Where networks run.
    progress : bool
        Print what is done.

    Returns
    -------
    Pairs

    Raises
    ------
    ValueError, OSError
        When the source is not there, no reader takes it, or none of its pairs can be used.
    ImportError
        When an optional package is missing; the message names it.
    """
    from nclib.audit.embed import embed

    listing = list_pairs(source, folder=folder, image_emb=image_emb, text_emb=text_emb, split=split)
    return embed(listing, model=model, work=work, seed=seed, device=device, progress=progress)


def list_pairs(
    source: Source,
    *,
    folder: str | PathLike[str] | None = None,
    image_emb: Any = None,
    text_emb: Any = None,
    split: str | None = None,
) -> Listing:
    """List the pairs of a source; parameters and errors as of :func:`read_pairs`."""
    if folder is not None and not Path(folder).expanduser().is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give the one that holds the pictures")
    source = Path(source).expanduser() if isinstance(source, (str, PathLike)) else source
    hints = Hints(None if folder is None else Path(folder).expanduser(), image_emb, text_emb, split)
    for reader in READERS:
        if reader.takes(source):
            found = _with_embeddings(reader.read(source, hints), hints)
            break
    else:
        raise _no_reader(source)
    if not found.ids:
        raise ValueError(f"{source if isinstance(source, Path) else 'the source'} holds no pairs")
    if len(found.problems) == len(found.ids):
        (reason, n), *_ = Counter(found.problems.values()).most_common(1)
        where = source if isinstance(source, Path) else "the source"
        raise ValueError(
            f"{where}: none of the {len(found.ids):,} pairs can be used; most frequent reason ({n:,}): "
            f"{reason}"
        )
    return found


def _no_reader(source: Source) -> Exception:
    takes = "a .npy, .npz, .csv, .tsv, .parquet or .tar file, a folder, a DataFrame or a data set object"
    if isinstance(source, Path) and not source.exists():
        return FileNotFoundError(f"there is no file or folder {source}; give {takes}")
    return ValueError(f"{source} holds no pairs that can be read; give {takes}")


# -- from columns to a listing ------------------------------------------------------------------------------


def _listing(
    texts: Sequence[Any],
    pictures: Sequence[Any] | None,
    *,
    ids: Sequence[Any] | None = None,
    problems: Mapping[int, str] | None = None,
    open: Callable[[str], Image] | None = None,
    show: Callable[[str], str] = str,
    images: Array | None = None,
    captions: Array | None = None,
    origin: str = "",
) -> Listing:
    """Make a listing of rows, one per caption.

    ``pictures`` are names, equal for the captions of one picture; ``open`` and ``show`` open a picture by its
    name and say how it is called in the table. ``images`` has a row per pair.
    """
    found = dict(problems or {})
    lines = [_text(text) for text in texts]
    names = [_text(name) for name in pictures] if pictures is not None else list(map(str, range(len(lines))))
    for row, (line, name) in enumerate(zip(lines, names, strict=True)):
        if not line:
            found.setdefault(row, "the caption is empty")
        elif not name:
            found.setdefault(row, "no picture is named")
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    image_of = np.fromiter((number[name] for name in names), np.int64, len(names))
    unique = list(number)
    if images is not None and len(unique) < len(images):
        _, first = np.unique(image_of, return_index=True)
        images = images[first]
    opener = open
    return Listing(
        _unique(ids, names),
        image_of,
        lines,
        None if pictures is None else [show(name) for name in unique],
        found,
        None if opener is None else lambda row: opener(unique[row]),
        images,
        captions,
        origin,
    )


def _text(value: Any) -> str:
    """Return a cell as one line of text that can be written; what is missing is empty."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf8", "replace")
    return one_line(str(value)).encode("utf8", "replace").decode("utf8")  # JSON can hold half characters


def _unique(ids: Sequence[Any] | None, names: Sequence[str]) -> list[str]:
    """Return unique ids: those given, else the pictures' names, with ``#0``, ``#1``, ... where they agree."""
    given = [_text(name) or f"row {row}" for row, name in enumerate(names if ids is None else ids)]
    count = Counter(given)
    at = dict.fromkeys((name for name, n in count.items() if n > 1), 0)
    taken = count.keys() - at.keys()
    for row, name in enumerate(given):
        if name in at:
            while (new := f"{name}#{at[name]}") in taken:
                at[name] += 1
            taken.add(new)
            given[row] = new
    pictures_of: dict[str, set[str]] = {name: set() for name in at}
    if ids is not None:
        for name, picture in zip(map(_text, ids), names, strict=True):
            if name in at:
                pictures_of[name].add(picture)
    if shared := [name for name, pictures in pictures_of.items() if len(pictures) > 1]:
        warnings.warn(
            f"{len(shared):,} ids belong to several pictures, such as {shared[0]!r}; they became "
            f"{shared[0]}#0, #1, ...",
            UserWarning,
            stacklevel=2,
        )
    return given


def _find(columns: Iterable[str], known: Sequence[str]) -> str | None:
    """Return the first known name among columns, whose case and blanks do not matter."""
    plain = {_plain(name): name for name in columns}
    return next((plain[name] for name in known if name in plain), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _caption_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of captions: the best known name, or all that count: caption_0, caption_1, ..."""
    best = _find(columns, (*CAPTION_COLUMNS, *(f"{name}s" for name in CAPTION_COLUMNS)))
    return [best] if best else [name for name in columns if CAPTION_PATTERN.fullmatch(_plain(name))]


def _spread(values: Iterable[Sequence[Any]]) -> tuple[list[int], list[Any]]:
    """Return row and caption of every caption; a cell can hold a list of them."""
    rows, texts = [], []
    for row, cells in enumerate(values):
        for cell in cells:
            several = list(cell) if isinstance(cell, (list, tuple, np.ndarray)) else [cell]
            for text in several or [""]:
                rows.append(row)
                texts.append(text)
    return rows, texts


def _with_embeddings(found: Listing, hints: Hints) -> Listing:
    """Return the listing with the embeddings that were given apart."""
    images, captions = _array(hints.image_emb, "image_emb"), _array(hints.text_emb, "text_emb")
    n, m = len(set(found.image_of.tolist())), len(found.ids)
    if images is not None:
        if len(images) not in (n, m):
            raise ValueError(
                f"image_emb has {len(images):,} rows; the source has {n:,} pictures and {m:,} pairs"
            )
        if len(images) != n:
            images = images[np.unique(found.image_of, return_index=True)[1]]
        found = replace(found, images=images, captions=None)
    if captions is not None:
        if len(captions) != m:
            raise ValueError(f"text_emb has {len(captions):,} rows, the source has {m:,} captions")
        if found.images is None:
            raise ValueError("text_emb needs image_emb: embeddings of pictures by the same model")
        found = replace(found, captions=captions)
    return found


# -- pictures -----------------------------------------------------------------------------------------------


def open_picture(file: Path | io.BytesIO) -> Image:
    """Return a picture in red, green and blue.

    Raises
    ------
    UnreadableError
        When it is missing, damaged, cut off or so large that it may be an attack.
    """
    from PIL import Image, UnidentifiedImageError

    if isinstance(file, Path) and not file.is_file():
        raise UnreadableError("the picture is missing")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as picture:
                return picture.convert("RGB")
    except UnidentifiedImageError:
        raise UnreadableError("the file is not a picture") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise UnreadableError(f"the picture has more than {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise UnreadableError(f"the picture cannot be read ({one_line(str(error))[:80]})") from error


class _Files:
    """Pictures of a table by name; a relative one never leads out of their folder."""

    def __init__(self, folder: Path, *, only: bool) -> None:
        self.folder, self.only = folder, only

    def path(self, name: str) -> Path | None:
        """Return where a picture should be; None for one outside the folder."""
        if Path(name).is_absolute():
            if not self.only:
                return Path(name)
            name = posixpath.relpath(name, self.folder.absolute().as_posix())
        whole = posixpath.normpath(name.replace("\\", "/"))
        return None if whole == ".." or whole.startswith("../") else self.folder / whole

    def open(self, name: str) -> Image:
        """Open a picture; URLs are not downloaded."""
        if URL.match(name):
            raise UnreadableError("a URL: pictures are not downloaded; give embeddings, or the pictures")
        path = self.path(name)
        if path is None:
            raise UnreadableError("the picture lies outside the folder of the pictures")
        return open_picture(path)

    def show(self, name: str) -> str:
        """Return the path or the URL of a picture, for the table."""
        path = None if URL.match(name) or not name else self.path(name)
        return name if path is None else str(path)


# -- arrays -------------------------------------------------------------------------------------------------


def _array(value: Any, name: str) -> Array | None:
    if value is None or isinstance(value, np.ndarray):
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{name}: there is no file {path}")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{name}: {path} is not a readable .npy file ({error})") from error


def _mapped(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file; those that are not compressed stay on disk."""
    arrays: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as whole, np.load(path, allow_pickle=False) as loaded:
            for info in whole.infolist():
                name = info.filename.removesuffix(".npy")
                found = _in_place(path, info) if info.compress_type == zipfile.ZIP_STORED else None
                arrays[name] = loaded[name] if found is None else found
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable .npz file ({error})") from error
    return arrays


def _in_place(path: Path, info: zipfile.ZipInfo) -> Array | None:
    """Map an array that lies in an archive without compression; None for one of an unusual kind."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)  # lengths of the entry's name and extra field, which follow
        file.seek(sum(np.frombuffer(file.read(4), "<u2").tolist()), io.SEEK_CUR)
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if fortran or dtype.hasobject or 0 in shape or not shape:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape)


def _embeddings(arrays: Mapping[str, Any]) -> tuple[Any, Any] | None:
    return next(((arrays[i], arrays[c]) for i, c in EMBEDDINGS if i in arrays and c in arrays), None)


def _is_array(source: Source) -> bool:
    return isinstance(source, Path) and source.suffix in (".npy", ".npz") and source.is_file()


def _read_arrays(source: Path, hints: Hints) -> Listing:
    if source.suffix == ".npy":
        images, captions, more = _array(source, "images"), _array(hints.text_emb, "text_emb"), {}
        if captions is None:
            raise ValueError(f"{source} holds one array; give the embeddings of the captions as text_emb")
    else:
        more = _mapped(source)
        both = _embeddings(more)
        if both is None:
            known = "; ".join(f"{i}, {c}" for i, c in EMBEDDINGS)
            raise ValueError(
                f"{source} holds {', '.join(more) or 'nothing'}; two arrays must be called {known}"
            )
        images, captions = both
    assert images is not None
    m = len(captions)
    image_of = more.get("image_of")
    if image_of is None and len(images) != m:
        raise ValueError(
            f"{source}: {len(images):,} pictures and {m:,} captions, so rows do not say what belongs "
            "together; add an array image_of, the picture row of every caption"
        )
    of = np.arange(m) if image_of is None else np.asarray(image_of, np.int64)
    ids = [str(i) for i in more.get("ids", range(m))]
    texts = [_text(text) for text in more["texts"]] if "texts" in more else None
    return Listing(_unique(ids, ids), of, texts, images=images, captions=captions)


# -- tables -------------------------------------------------------------------------------------------------


def _is_table(source: Source) -> bool:
    if not isinstance(source, Path):
        return isinstance(source, pd.DataFrame)
    if source.is_dir():
        return any(source.glob("*.parquet")) and not any(source.glob("*.tar"))
    return source.suffix.lower() in TABLES and source.is_file()


def _read_table(source: Source, hints: Hints) -> Listing:
    if isinstance(source, pd.DataFrame):
        whole, at_home = _rows({str(n): source[n].tolist() for n in source}, "the table"), Path()
    else:
        paths = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
        at_home = source if source.is_dir() else source.parent
        parts = [(_read_parquet if p.suffix.lower() == ".parquet" else _read_text)(p) for p in paths]
        whole = parts[0] if len(parts) == 1 else _joined(parts)
    files = _Files(hints.folder or at_home, only=hints.folder is not None)
    return _listing(
        whole.texts,
        whole.pictures,
        ids=whole.ids,
        problems=whole.problems,
        open=files.open if whole.pictures is not None else None,
        show=files.show,
        images=whole.images,
        captions=whole.captions,
    )


@dataclass(frozen=True)
class _Rows:
    """Rows of a table, one per caption; embeddings have a row per caption as well."""

    texts: list[Any]
    pictures: list[Any] | None = None
    ids: list[Any] | None = None
    problems: dict[int, str] = field(default_factory=dict)
    images: Array | None = None
    captions: Array | None = None


def _rows(
    columns: Mapping[str, Sequence[Any]], where: Path | str, problems: Mapping[int, str] | None = None
) -> _Rows:
    """Find ids, pictures, captions and embeddings among columns."""
    names = list(columns)
    captions = _caption_columns(names)
    picture, name = _find(names, PICTURE_COLUMNS), _find(names, ID_COLUMNS)
    both = _embeddings({_plain(n): values for n, values in columns.items()})
    if not captions:
        raise ValueError(
            f"{where} has no column of captions: call it 'caption' (columns: {', '.join(names)})"
        )
    if picture is None and both is None:
        raise ValueError(f"{where} has no column of pictures: call it 'image' (columns: {', '.join(names)})")
    rows, texts = _spread(zip(*(columns[name] for name in captions), strict=True))
    several = len(rows) != len(columns[captions[0]])
    images, given = (_stacked(values, where) for values in both) if both else (None, None)
    if several and given is not None:
        raise ValueError(
            f"{where} has several captions in a row, so that one text embedding a row belongs to none of them"
        )

    def per_caption(column: str | None) -> list[Any] | None:
        return None if column is None else [columns[column][row] for row in rows]

    bad = {i: problems[row] for i, row in enumerate(rows) if row in problems} if problems else {}
    return _Rows(texts, per_caption(picture), per_caption(name), bad, images, given)


def _stacked(values: Sequence[Any], where: Path | str) -> Array:
    """Return a column of embeddings as float32 (rows, D); a missing one is a row of NaN."""
    parsed = [json.loads(v) if isinstance(v, str) and v.strip() else v for v in values]
    width = next((len(v) for v in parsed if v is not None and len(v)), 0)
    result = np.full((len(parsed), width), np.nan, np.float32)
    for row, value in enumerate(parsed):
        if value is not None and len(value):
            if len(value) != width:
                raise ValueError(f"{where}, row {row + 1}: {len(value)} numbers, the first row has {width}")
            result[row] = value
    return result


def _read_text(path: Path) -> _Rows:
    table = read_table(path)
    if not table.lines:
        raise ValueError(f"{path} holds no pairs")
    return _rows(table.columns, path, table.problems)


def _read_parquet(path: Path) -> _Rows:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(f"{path} needs the package pyarrow: pip install 'nclib[audit]'") from error
    import pyarrow

    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        known = {*PICTURE_COLUMNS, *ID_COLUMNS, *itertools.chain(*EMBEDDINGS)}
        wanted = [n for n in names if _plain(n) in known] + _caption_columns(names)
        table = file.read(columns=list(dict.fromkeys(wanted)))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file ({error})") from error
    vectors = {*itertools.chain(*EMBEDDINGS)}
    columns = {
        name: _vectors(table[name]) if _plain(name) in vectors else table[name].to_pylist()
        for name in table.column_names
    }
    rows = _rows(columns, path)
    beside = path.with_suffix(".npz")
    if rows.images is None and beside.is_file() and (both := _embeddings(_mapped(beside))) is not None:
        if len(both[0]) != len(rows.texts) or len(both[1]) != len(rows.texts):
            raise ValueError(
                f"{beside} has {len(both[0]):,} and {len(both[1]):,} rows, {path.name} {len(rows.texts):,}"
            )
        rows = _Rows(rows.texts, rows.pictures, rows.ids, rows.problems, *both)
    return rows


def _vectors(column: Any) -> Sequence[Any]:
    """Return a column of lists of numbers as rows, without a Python object per number."""
    return [None if cell is None else np.asarray(cell, np.float32) for cell in column.to_numpy()]


def _joined(parts: Sequence[_Rows]) -> _Rows:
    """Return the rows of several files one after the other; what only some of them have is left out."""
    starts = np.cumsum([0, *(len(part.texts) for part in parts)])

    def lists(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        return None if any(f is None for f in found) else [*itertools.chain(*found)]

    def arrays(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        return None if any(f is None for f in found) else np.concatenate(found)

    problems = {
        int(start) + row: text
        for start, p in zip(starts, parts, strict=False)
        for row, text in p.problems.items()
    }
    return _Rows(
        lists("texts"), lists("pictures"), lists("ids"), problems, arrays("images"), arrays("captions")
    )


# -- LAION's embeddings -------------------------------------------------------------------------------------


def _is_laion(source: Source) -> bool:
    return isinstance(source, Path) and (source / "img_emb").is_dir() and (source / "text_emb").is_dir()


def _read_laion(source: Path, hints: Hints) -> Listing:
    parts = {kind: _numbered(source / kind) for kind in ("img_emb", "text_emb", "metadata")}
    numbers = {kind: [*found] for kind, found in parts.items()}
    if (
        numbers["img_emb"] != numbers["text_emb"]
        or (numbers["metadata"] or numbers["img_emb"]) != numbers["img_emb"]
    ):
        raise ValueError(f"{source}: img_emb, text_emb and metadata hold other parts: {numbers}")
    images, captions = (_one([_array(p, p.name) for p in parts[k].values()]) for k in ("img_emb", "text_emb"))
    if not parts["metadata"]:
        return Listing(
            [str(i) for i in range(len(captions))], np.arange(len(captions)), images=images, captions=captions
        )
    rows = _joined([_read_parquet(path) for path in parts["metadata"].values()])
    if len(images) != len(captions) or len(images) != len(rows.texts):
        raise ValueError(
            f"{source}: {len(images):,} rows in img_emb, {len(captions):,} in text_emb and "
            f"{len(rows.texts):,} in metadata; they must agree"
        )
    files = _Files(hints.folder or source, only=hints.folder is not None)
    return _listing(
        rows.texts,
        rows.pictures,
        ids=rows.ids,
        open=files.open,
        show=files.show,
        images=images,
        captions=captions,
    )


def _numbered(folder: Path) -> dict[int, Path]:
    """Return the parts in a folder by their number, in its order."""
    found = [p for p in folder.glob("*") if p.suffix in (".npy", ".parquet") and re.search(r"\d+$", p.stem)]
    return dict(sorted((int(re.findall(r"\d+$", p.stem)[0]), p) for p in found))


def _one(arrays: Sequence[Any]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


# -- WebDataset ---------------------------------------------------------------------------------------------


def _is_tars(source: Source) -> bool:
    if not isinstance(source, Path):
        return False
    return any(source.glob("*.tar")) if source.is_dir() else source.suffix == ".tar" and source.is_file()


@dataclass
class _Sample:
    """Files of one key in a tar: where its picture lies, and its captions."""

    key: str
    picture: tuple[int, int] | None = None  # first byte and bytes
    texts: list[Any] = field(default_factory=list)
    id: Any = None
    problem: str = ""


def _read_tars(source: Path, hints: Hints) -> Listing:
    paths = sorted(source.glob("*.tar")) if source.is_dir() else [source]
    texts: list[Any] = []
    names: list[str] = []
    ids: list[Any] = []
    problems: dict[int, str] = {}
    places: dict[str, tuple[Path, tuple[int, int] | None]] = {}
    for path in paths:
        for sample in _samples(path):
            name = f"{path}/{sample.key}"
            while name in places:  # a key that occurs again
                name += "'"
            places[name] = path, sample.picture
            for text in sample.texts or [""]:
                if sample.problem or sample.picture is None:
                    problems[len(texts)] = sample.problem or "no picture has this key"
                texts.append(text)
                names.append(name)
                ids.append(sample.id or sample.key)

    def open_member(name: str) -> Image:
        path, place = places[name]
        if place is None:
            raise UnreadableError("no picture has this key")
        with path.open("rb") as file:
            file.seek(place[0])
            return open_picture(io.BytesIO(file.read(place[1])))

    origin = digest(repr([(p.stat().st_size, p.stat().st_mtime_ns) for p in paths]))
    return _listing(texts, names, ids=ids, problems=problems, open=open_member, origin=origin)


def _samples(path: Path) -> Iterator[_Sample]:
    """Yield the samples of a tar: neighbouring files whose names agree up to the first dot."""
    # Only headers and captions are read, and no name of a member is ever used as a path.
    now: _Sample | None = None
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                head, _, name = member.name.rpartition("/")
                stem, dot, kind = name.partition(".")
                if not (member.isreg() and stem and dot) or member.issparse():
                    continue
                key = f"{head}/{stem}" if head else stem
                if now is None or now.key != key:
                    if now is not None:
                        yield now
                    now = _Sample(key)
                _add(now, tar, member, f".{kind.lower()}")
            # The library takes the first header that it cannot read for the end.
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError(f"no end is marked at byte {tar.offset:,}")
    except tarfile.ReadError as error:
        if now is None:
            raise ValueError(
                f"{path} cannot be read as a tar file; unpack a compressed one first ({error})"
            ) from error
        warnings.warn(
            f"{path} is damaged or cut off ({error}); the pairs before are read", UserWarning, stacklevel=2
        )
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error})") from error
    if now is not None:
        yield now


def _add(sample: _Sample, tar: tarfile.TarFile, member: tarfile.TarInfo, kind: str) -> None:
    """Note a file of a sample."""
    if kind in SUFFIXES:
        sample.picture = member.offset_data, member.size
    elif kind in (".txt", ".json"):
        if member.size > LONGEST_FILE:
            sample.problem = f"{kind} has {member.size:,} bytes, too many for a caption"
            return
        content = tar.extractfile(member)
        assert content is not None  # a regular file
        _add_text(sample, content.read(), kind)


def _add_text(sample: _Sample, content: bytes, kind: str) -> None:
    if kind == ".txt":
        try:
            sample.texts = [content.decode("utf-8-sig")]  # goes before a caption in the .json
        except UnicodeDecodeError:
            sample.problem = "the caption is not UTF-8"
        return
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError):
        sample.problem = sample.problem or ("" if sample.texts else "the .json is damaged")
        return
    if isinstance(facts, dict):
        name = _find(facts, ID_COLUMNS)
        sample.id = facts[name] if name else None
        if not sample.texts and (columns := _caption_columns(list(facts))):
            sample.texts = _spread([[facts[column] for column in columns]])[1]


# -- a folder of pictures -----------------------------------------------------------------------------------


def _is_folder(source: Source) -> bool:
    return isinstance(source, Path) and source.is_dir()


def _read_folder(source: Path, hints: Hints) -> Listing:
    tables = sorted(
        p for p in source.iterdir() if p.suffix.lower() in (".csv", ".tsv", ".parquet") and p.is_file()
    )
    chosen = [p for p in tables if p.stem.lower() in ("captions", "metadata")] or tables
    if len(chosen) > 1:
        raise ValueError(
            f"{source} holds several tables, {', '.join(p.name for p in chosen)}; give one of them"
        )
    if chosen:
        return _read_table(chosen[0], Hints(hints.folder or source))
    pictures = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not pictures:
        raise ValueError(f"{source} holds neither a table of captions nor pictures")
    texts: list[str] = []
    problems: dict[int, str] = {}
    for row, picture in enumerate(pictures):
        beside = picture.with_suffix(".txt")
        try:
            texts.append(beside.read_text("utf-8-sig") if beside.is_file() else "")
        except (OSError, UnicodeDecodeError):
            texts.append("")
            problems[row] = "the caption is not UTF-8"
    if not any(texts):
        raise ValueError(
            f"{source} holds {len(pictures):,} pictures and no captions: neither a table (captions.csv with "
            "the columns image and caption) nor a .txt beside each picture; give the table, and the folder "
            "as --images"
        )
    names = [p.relative_to(source).as_posix() for p in pictures]
    files = _Files(source, only=True)
    return _listing(texts, names, problems=problems, open=files.open, show=files.show)


# -- the library datasets -----------------------------------------------------------------------------------


def _is_hub(source: Source) -> bool:
    if not isinstance(source, Path):
        return hasattr(source, "column_names")
    if source.exists():
        return (source / "dataset_info.json").is_file() or (source / "dataset_dict.json").is_file()
    return NAME.fullmatch(source.as_posix()) is not None and source.suffix.lower() not in (
        *TABLES,
        ".npy",
        ".npz",
        ".tar",
    )


def _read_hub(source: Any, hints: Hints) -> Listing:
    found = _load(source, hints.split) if isinstance(source, Path) else source
    if isinstance(found, Mapping):  # splits by name
        if hints.split is None and len(found) > 1:
            raise ValueError(f"the data set has the splits {', '.join(found)}; choose one as split")
        if hints.split is not None and hints.split not in found:
            raise ValueError(f"split={hints.split!r}: must be one of {', '.join(found)}")
        found = found[hints.split or next(iter(found))]
    names = list(found.column_names)
    picture = _find(names, PICTURE_COLUMNS)
    known = {*ID_COLUMNS, *itertools.chain(*EMBEDDINGS)}
    columns = {n: list(found[n]) for n in names if _plain(n) in known or n in _caption_columns(names)}

    def cell(row: int) -> Any:
        try:
            return found[row][picture]
        except Exception as error:  # the library decodes the picture here
            raise UnreadableError(f"the picture cannot be read ({one_line(str(error))[:80]})") from error

    def open_row(name: str) -> Image:
        value = cell(int(name))
        if isinstance(value, Mapping):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, (bytes, str)):
            return open_picture(io.BytesIO(value) if isinstance(value, bytes) else Path(value))
        if not hasattr(value, "convert"):
            raise UnreadableError("the picture is missing")
        result: Image = value.convert("RGB")
        return result

    files, named = _Files(hints.folder or Path(), only=hints.folder is not None), False
    if picture is not None and len(found):
        with contextlib.suppress(UnreadableError):
            named = isinstance(cell(0), str)  # paths or URLs in place of pictures
        columns[picture] = list(found[picture]) if named else [str(row) for row in range(len(found))]
    rows = _rows(columns, "the data set")
    return _listing(
        rows.texts,
        rows.pictures,
        ids=rows.ids,
        open=files.open if named else open_row,
        show=files.show if named else str,
        origin=str(getattr(found, "_fingerprint", "")),
        images=rows.images,
        captions=rows.captions,
    )


def _load(source: Path, split: str | None) -> Any:
    """Load a data set from a folder that the library saved, or by name from its cache."""
    try:
        import datasets
    except ImportError as error:
        if source.exists():
            raise ImportError(f"{source} needs the package datasets: pip install datasets") from error
        raise _no_reader(source) from error
    if source.exists():
        return datasets.load_from_disk(str(source))
    online = datasets.DownloadConfig(local_files_only=True)
    try:
        return datasets.load_dataset(source.as_posix(), split=split, download_config=online)
    except Exception as error:  # the library has many of its own
        raise FileNotFoundError(
            f"{source} is neither a file or folder nor a data set in the cache of the library datasets "
            f"({one_line(str(error))[:120]}); nothing is downloaded here"
        ) from error


READERS = (
    Reader("hub", _is_hub, _read_hub),
    Reader("arrays", _is_array, _read_arrays),
    Reader("laion", _is_laion, _read_laion),
    Reader("table", _is_table, _read_table),
    Reader("tars", _is_tars, _read_tars),
    Reader("folder", _is_folder, _read_folder),
)
