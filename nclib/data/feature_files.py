"""Files of region features: their layouts, how they are found, opened and checked.

Files in one folder, per split: ``{split}_ims.npy`` (or ``{split}_feat.npy``), float32 (rows, regions, 2048),
and ``{split}_caps.txt`` with one caption per line (``{split}_caps.tsv`` for CC152K: image id, tab, caption).
A feature file has **either one row per image or one row per caption**, and the public files mix both: the
training file of Flickr30K has a row per image, its validation file a row per caption. The counts of every
split tell its layout; a split holds every image once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.checks import check_array, check_choice
from nclib.data import tokeniser
from nclib.data.rows import RowFile
from nclib.data.vocabulary import Vocabulary

MIN_COUNT = 4  # a word is known when it occurs this often in training and validation captions
HALF = ".f16.npy"  # end of a float16 copy's name, in place of .npy
PER_IMAGE, PER_CAPTION = "row per image", "row per caption"
DEV_PROTOCOLS = ("full1000", "ncr200")
MANIFEST = "prepared.json"  # what a preparation of pictures notes about its folder
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class FileLayout:
    """Names and counts of a package of region features."""

    name: str  # in the catalogue
    title: str  # in messages
    stem: str  # folder of the package, and beginning of its vocabulary's name
    captions_per_image: int
    captions_file: str  # name of a captions file behind {split}_
    # as published, where papers report results on it: images per split, words, and shape of a row
    images: Mapping[str, int] = field(default_factory=dict)
    words: int | None = None
    row: tuple[int, int] | None = (36, 2048)
    marker: str = ""  # file that tells the folder from those of other packages with the same file names
    source: str = "Put the published precomputed features there"  # what to do when files are missing
    number: Any = np.float32  # type of the features; uint8 for pictures, in a folder of their own

    @property
    def vocabulary_file(self) -> str:
        """Name of the file with the words."""
        return f"{self.stem}_vocab.json"


F30K = {"train": 29000, "dev": 1014, "test": 1000}
COCO = {"train": 113287, "dev": 1000, "testall": 5000}
F8K = {"train": 6000, "dev": 1000, "test": 1000}
CC152K = {"train": 150000, "dev": 1000, "test": 1000}
LAYOUTS = {
    layout.name: layout
    for layout in (
        FileLayout("f30k", "Flickr30K", "f30k_precomp", 5, "caps.txt", F30K, 8481),
        FileLayout("coco", "MS-COCO", "coco_precomp", 5, "caps.txt", COCO, 11353),
        FileLayout("cc152k", "CC152K", "cc152k_precomp", 1, "caps.tsv", CC152K),
        FileLayout(
            "f8k",
            "Flickr8K",
            "f8k_precomp",
            5,
            "caps.txt",
            F8K,
            row=(16, 256),
            marker=MANIFEST,
            source="Make them with: nclib data prepare f8k",
        ),
    )
}


@dataclass(frozen=True)
class Reading:
    """How the files of a layout are read: the options that the data sets of region features share.

    Parameters
    ----------
    dev_protocol, vocabulary, build_vocabulary, half
        As for :func:`nclib.data.region_features.f30k`.
    test_split : str
        As for :func:`nclib.data.region_features.coco`.
    max_words : int, optional
        Longer captions are cut to their first words. None: as published, and an endless one is an error.

    Raises
    ------
    ValueError
        When options contradict each other, or ``dev_protocol`` is not known.
    """

    dev_protocol: str = "full1000"
    vocabulary: PathLike | None = None
    build_vocabulary: bool = False
    half: bool = False
    test_split: str = "test"
    max_words: int | None = None

    def __post_init__(self) -> None:
        check_choice("dev_protocol", self.dev_protocol, DEV_PROTOCOLS)

    @property
    def splits(self) -> dict[str, str]:
        """Names of the splits in the files, by role."""
        return {"train": "train", "val": "dev", "test": self.test_split}


@dataclass
class Part:
    """One split as found on disk, with the problems of its files."""

    split: str  # as in the names of the files
    path: Path  # of the features
    features: RowFile | None = None  # a row per image; None when the file is missing or wrong
    texts: list[str] = field(default_factory=list)  # all captions
    layout: str = ""  # PER_IMAGE or PER_CAPTION; empty when unknown
    problems: list[tuple[str, str]] = field(default_factory=list)  # file, message

    @contextmanager
    def noting(self, file: str) -> Iterator[None]:
        """List an error as a problem of a file."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.problems.append((file, f"{file} {sentence(error)}"))


def sentence(error: OSError | ValueError) -> str:
    """Return the end of a sentence that begins with the name of a file, from an error of reading it."""
    return f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def find_folder(layout: FileLayout, root: Path, splits: Iterable[str]) -> Path:
    """Return the folder with the captions of any of the splits: ``root``, one below it, or where it would be.

    A ``root`` that is not a folder is a FileNotFoundError.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"root={str(root)!r} is not a folder; give the one that holds {layout.stem}")
    if layout.number is not np.float32:  # region features have files of the same names
        return root if root.resolve().name == layout.stem else root / layout.stem
    places = [root, root / layout.stem, root / layout.name / "precomp"]
    files = [f"{split}_{layout.captions_file}" for split in splits]
    found = [place for place in places if any((place / name).is_file() for name in files)]
    return found[0] if found else next((place for place in places[1:] if place.is_dir()), root)


def find_vocabulary(layout: FileLayout, folder: Path, given: PathLike | None = None) -> Path | None:
    """Return the vocabulary file: the given one, or one in, below or beside the folder; None without any.

    A given one that is missing is a FileNotFoundError.
    """
    if given is not None:
        if not Path(given).is_file():
            raise FileNotFoundError(f"vocabulary={str(given)!r} is not a file")
        return Path(given)
    name = layout.vocabulary_file
    near = [folder, folder / "vocab", folder.parent, folder.parent / "vocab", folder.parent.parent / "vocab"]
    return next((place / name for place in near if (place / name).is_file()), None)


def build_words(texts: Iterable[str]) -> Vocabulary:
    """Build the field's vocabulary from captions: words that occur at least 4 times."""
    return Vocabulary.from_texts(texts, min_count=MIN_COUNT, tokenise=tokeniser.tokenise)


def features_file(folder: Path, split: str, half: bool = False) -> Path | None:
    """Return the features file of a split, or its float16 copy; None when missing."""
    names = [f"{split}_{kind}{HALF if half else '.npy'}" for kind in ("ims", "feat")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def missing_files(layout: FileLayout, folder: Path, splits: Iterable[str], reading: Reading) -> list[str]:
    """List the names of the missing files of some splits, with a hint behind a name where one helps."""
    missing = []
    for split in splits:
        if features_file(folder, split, reading.half) is None and reading.half:
            original = features_file(folder, split) or folder / f"{split}_ims.npy"
            how = f"(half=True; make it with: python tools/data_convert.py half {original})"
            missing.append(f"{split}_ims{HALF} {how}")
        elif features_file(folder, split, reading.half) is None:
            missing.append(f"{split}_ims.npy")
        if not (folder / f"{split}_{layout.captions_file}").is_file():
            missing.append(f"{split}_{layout.captions_file}")
    return missing


def read_split(layout: FileLayout, folder: Path, split: str, reading: Reading) -> Part:
    """Open one split whose files exist, and tell its row layout; problems are listed, not raised."""
    path, captions = features_file(folder, split, reading.half), f"{split}_{layout.captions_file}"
    assert path is not None  # the caller has looked
    part, array = Part(split, path), None
    with part.noting(captions):
        part.texts = [text for _, text in read_named_captions(folder / captions)]
        with part.noting(path.name):
            array = open_features(path, np.float16 if reading.half else layout.number)
    if array is None:
        return part
    n, each = len(part.texts), layout.captions_per_image
    if len(array) * each == n:
        part.layout, part.features = PER_IMAGE, array
    elif len(array) == n and n % each == 0:
        part.layout, part.features = PER_CAPTION, array[::each]  # a view: still on disk
    with part.noting(path.name):
        if part.features is None:
            raise ValueError(
                f"has {len(array)} feature rows and {n} captions; expected {each} captions per image, with a "
                f"feature row per image ({n // each}) or per caption ({n})"
            )
        if part.layout == PER_CAPTION:
            last = len(part.features) - 1
            groups = (np.asarray(array[each * i : each * (i + 1)]) for i in {0, last // 2, last})
            if any((group != group[:1]).any() for group in groups):
                raise ValueError(f"has a row per caption, but the {each} rows of one image differ")
    return part


def read_named_captions(path: Path) -> list[tuple[str, str]]:
    """Read captions, one per line, with their image ids ('' but in ``.tsv`` files: image id, tab, caption).

    The message of a ValueError completes a sentence that begins with the file's name.
    """
    try:
        # Not splitlines, which cuts at rare separators inside captions as well.
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from None
    if path.suffix.lower() == ".tsv":
        cells = [line.rstrip("\r").split("\t") for line in lines]
        bad = [number for number, cell in enumerate(cells, 1) if len(cell) < 2]
        if bad:
            raise ValueError(f"has {len(bad)} lines without a tab-separated caption, first line {bad[0]}")
        return [(name.strip(), text.strip()) for name, text, *_ in cells]
    return [("", line.strip()) for line in lines]


def open_features(path: Path, dtype: Any) -> RowFile:
    """Open a features file, (rows, regions, features), of a number type in native byte order.

    The message of an OSError or ValueError completes a sentence that begins with the file's name.
    """
    array = RowFile(path)
    check_array("", array, np.dtype(dtype).name, "rows", "regions", "features")
    return array


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what ``nclib data prepare`` noted about a folder; None without a finished preparation."""
    try:
        facts = json.loads((folder / MANIFEST).read_text("utf8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and facts.get("finished") and facts.get("files") else None
