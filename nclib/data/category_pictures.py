"""Pictures and texts with categories, as CLIP reads them: XMediaNet, and data of one's own.

A folder holds the pictures and one table, ``pairs.csv``, with the columns ``image`` (a file below the
folder), ``text``, ``category`` and ``split`` (``train``, ``val`` or ``test``), a row per pair. Pictures are
scaled at the shorter side, cut around the centre and kept as bytes in the cache: 0.15 MB each, 6 GB for
XMediaNet. Runs read them from there batch by batch. Texts are cut into CLIP's own pieces.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nclib.common.files import cache_folder, content_digest, digest
from nclib.data.captions_table import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    SPLIT_COLUMNS,
    SPLIT_WORDS,
    one_line,
    read_table,
)
from nclib.data.category_features import SETS
from nclib.data.dataset import CategoryData, CategorySplit
from nclib.data.pieces import Pieces
from nclib.data.registry import check_choice, check_count, register
from nclib.data.row_sources import some
from nclib.data.row_writer import ConvertError, write_rows
from nclib.data.rows import RowFile

PathLike = str | os.PathLike[str]
TABLE = "pairs.csv"
CATEGORY_COLUMNS = ("category", "class", "label")
ROLES = {"train": "train", "dev": "val", "test": "test"}
FORM = "crop224"
MAX_TOKENS = 77  # of CLIP's text tower
LICENCE = "as given by the publishers of the pictures and texts"
PUBLISHED = "xmedianet_pictures"


@dataclass(frozen=True)
class Listing:
    """The pairs of a table, by split: files below ``folder``, texts and categories."""

    folder: Path
    images: dict[str, list[str]]
    texts: dict[str, list[str]]
    categories: dict[str, list[str]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pairs for training, validation and test."""
        return tuple(len(self.images[split]) for split in ROLES.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The categories in alphabetical order, which number the classes."""
        return tuple(sorted(set(self.categories["train"])))


def read_listing(root: PathLike, below: str = "") -> Listing:
    """Read the table of a folder of pictures, and look for the pictures.

    Parameters
    ----------
    root : path
        The folder with ``pairs.csv``.
    below : str
        Name of a folder below ``root`` that may hold the table instead.

    Raises
    ------
    FileNotFoundError
        When there is no table.
    ConvertError
        When a row lacks something, a split is unknown or empty, a picture is missing, lies elsewhere or is in
        two splits, or a category has no training pair; the message names the first ones.
    """
    from nclib.data.readers.pictures import Files

    place = Path(root).expanduser()
    places = [place, *([place / below] if below else [])]
    folder = next((p for p in places if (p / TABLE).is_file()), None)
    if folder is None:
        looked = " nor ".join(str(p / TABLE) for p in places)
        raise FileNotFoundError(
            f"root={str(root)!r}: there is no {looked}; it is a table with the columns image, text, category "
            "and split, beside the pictures"
        )
    path = folder / TABLE
    table = read_table(path)
    if table.problems:
        raise ConvertError(f"{path}, {table.problems[min(table.problems)]}")
    columns = {
        what: [one_line(cell) for cell in table.column(known, f"{path} has no column of {what}")]
        for what, known in (
            ("pictures", IMAGE_COLUMNS),
            ("texts", CAPTION_COLUMNS),
            ("categories", CATEGORY_COLUMNS),
            ("splits", SPLIT_COLUMNS),
        )
    }
    empty: list[dict[str, list[str]]] = [{split: [] for split in ROLES.values()} for _ in range(3)]
    found = Listing(folder, *empty)
    split_of: dict[str, str] = {}
    for line, image, text, category, word in zip(table.lines, *columns.values(), strict=True):
        cells = {"pictures": image, "texts": text, "categories": category}
        if lacks := [what for what, cell in cells.items() if not cell]:
            raise ConvertError(f"{path}, line {line}: empty cell in the column of {lacks[0]}")
        if word.lower() not in SPLIT_WORDS:
            raise ConvertError(f"{path}, line {line}: split {word!r} is not one of {', '.join(SPLIT_WORDS)}")
        split = ROLES[SPLIT_WORDS[word.lower()]]
        if split_of.setdefault(image, split) != split:
            raise ConvertError(
                f"{path}, line {line}: {image} is in two splits, {split_of[image]} and {split}"
            )
        for part, cell in zip((found.images, found.texts, found.categories), cells.values(), strict=True):
            part[split].append(cell)
    if without := [split for split, pairs in found.images.items() if not pairs]:
        raise ConvertError(f"{path} has no pairs for {', '.join(without)}; train, val and test are needed")
    for split in ("val", "test"):
        if unknown := sorted(set(found.categories[split]) - set(found.names)):
            raise ConvertError(f"{path}: categories of {split} without a training pair: {some(unknown)}")
    inside = Files(folder, only=True)
    paths = {image: inside.path(image) for image in split_of}
    if elsewhere := [image for image, file in paths.items() if file is None]:
        raise ConvertError(f"{path} names pictures outside its folder: {some(elsewhere)}")
    if absent := [image for image, file in paths.items() if not os.path.isfile(str(file))]:
        raise ConvertError(f"{folder} lacks {len(absent):,} pictures that {TABLE} names: {some(absent)}")
    return found


def _load(name: str, root: PathLike, clip_folder: PathLike, max_tokens: int, sizes: str) -> CategoryData:
    # 1. read the table and compare it with the paper; 2. cut the texts, which needs CLIP's files; 3. make the
    # pictures, which takes longest.
    from filelock import FileLock

    from nclib.data.pixels import Pixels
    from nclib.models.pretrained import load

    check_count("max_tokens", max_tokens, low=3, high=MAX_TOKENS)
    check_choice("sizes", sizes, ("published", "any"))
    listing = read_listing(root, PUBLISHED if name == PUBLISHED else "")
    known = SETS["xmedianet"]
    if sizes == "published" and (listing.sizes, len(listing.names)) != (known.sizes, known.n_classes):
        raise ValueError(
            f"{listing.folder / TABLE}: holds {listing.sizes} training, validation and test pairs of "
            f"{len(listing.names)} categories, published are {known.sizes} of {known.n_classes}; "
            "sizes='any' accepts other numbers"
        )
    pieces = Pieces(clip_folder)
    tokens, cut = {}, 0
    for split, texts in listing.texts.items():
        tokens[split], n = pieces.rows(texts, max_tokens)
        cut += n
    if cut:
        warnings.warn(
            f"{name}: {cut:,} of {sum(listing.sizes):,} texts are cut to max_tokens={max_tokens}",
            UserWarning,
            stacklevel=4,
        )
    cache = _cache(listing)
    with FileLock(f"{cache}.lock"):
        made = {split: cache / f"{split}_ims.npy" for split in ROLES.values()}
        if not all(path.exists() for path in made.values()):
            load("clip", os.fspath(clip_folder), "clip_folder", finetune=False)  # errors come before the work
            for split, path in made.items():
                if not path.exists():
                    write_rows(path, Pixels(listing.folder, listing.images[split], FORM))
    number = {category: k for k, category in enumerate(listing.names)}
    content: list[str | np.ndarray] = [*listing.names]
    splits = {}
    for split, path in made.items():
        labels = np.array([number[category] for category in listing.categories[split]], np.int64)
        splits[split] = _split(split, path, tokens[split], labels, listing.texts[split])
        content += [split, content_digest(path), labels, *listing.texts[split]]
    return CategoryData(
        name=name,
        **splits,
        label_names=listing.names,
        checksum=digest(content),
        licence=LICENCE,
        details={"clip_folder": os.fspath(clip_folder)},
    )


def _cache(listing: Listing) -> Path:
    """Return the folder of prepared pictures, named after the files: their places, sizes and times."""
    parts = [FORM, str(listing.folder.resolve())]
    for split, images in listing.images.items():
        stats = ((image, (listing.folder / image).stat()) for image in images)
        parts += [split, *(f"{image} {stat.st_size} {stat.st_mtime_ns}" for image, stat in stats)]
    folder = cache_folder() / "category_pictures" / digest(parts)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _split(
    name: str, path: Path, tokens: np.ndarray, labels: np.ndarray, texts: Sequence[str]
) -> CategorySplit:
    rows = RowFile(path)

    def picture(row: int) -> np.ndarray:
        pixels: np.ndarray = rows[row]
        return pixels.reshape(len(pixels), -1, 3)

    return CategorySplit(name, rows, tokens, labels, picture_source=picture, text_source=texts.__getitem__)


@register(
    "category_pictures",
    task="categories",
    summary="pictures and texts of your own with categories; needs root=",
)
def category_pictures(*, root: PathLike, clip_folder: PathLike, max_tokens: int = MAX_TOKENS) -> CategoryData:
    """Load pictures and texts with categories, for CLIP.

    Parameters
    ----------
    root : path
        Folder with ``pairs.csv`` and the pictures; see this module's documentation. Classes are numbered in
        alphabetical order.
    clip_folder : path
        Folder of CLIP in the layout of ``transformers``, tokeniser included, or its name in the hub's cache.
        It cuts the texts, and its towers are the networks of a run.
    max_tokens : int
        Pieces of a text, those of its begin and end included, in 3..77. Longer texts are cut, with a warning.

    Raises
    ------
    FileNotFoundError, ConvertError
        As :func:`read_listing`; also when a picture cannot be read.
    ValueError
        When files of CLIP are missing or damaged.
    """
    return _load("category_pictures", root, clip_folder, max_tokens, "any")


@register(
    "xmedianet_pictures",
    task="categories",
    summary="XMediaNet's pictures and texts, 200 classes; needs root=",
    paper="UOT-RCL, Table III",
)
def xmedianet_pictures(
    *, root: PathLike, clip_folder: PathLike, max_tokens: int = MAX_TOKENS, sizes: str = "published"
) -> CategoryData:
    """Load XMediaNet's pictures and texts, for CLIP (32,000 / 4,000 / 4,000 pairs, 200 classes).

    Parameters and errors as for :func:`category_pictures`. Which pairs are in which split was drawn by the
    papers' authors and not published as a list; the table says it.

    Parameters
    ----------
    root : path
        The folder with ``pairs.csv``, or one that holds it as ``xmedianet_pictures``.
    sizes : {"published", "any"}
        Whether other numbers of pairs or classes than those of the papers are refused.
    """
    return _load("xmedianet_pictures", root, clip_folder, max_tokens, sizes)
