"""Precomputed region features: Flickr30K, MS-COCO, Conceptual Captions 152K, and files of one's own.

Files in one folder, per split: ``{split}_ims.npy`` (or ``{split}_feat.npy``), float32 (rows, regions, 2048),
and ``{split}_caps.txt`` with one caption per line (``{split}_caps.tsv`` for CC152K: image id, tab, caption).
A feature file has **either one row per image or one row per caption**, and the public files mix both: the
training file of Flickr30K has a row per image, its validation file a row per caption. The counts of every
split tell its layout; a split holds every image once.

``{split}_boxes.npy``, read when asked for, has the boxes of the regions, a row for each row of features.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.files import content_digest, digest
from nclib.common.npy import read_npy
from nclib.data import tokeniser
from nclib.data.cache import cached
from nclib.data.dataset import Captions, Dataset, Split
from nclib.data.pieces import Pieces
from nclib.data.registry import check_choice, check_count, register
from nclib.data.rows import RowFile
from nclib.data.vocabulary import Vocabulary

MIN_COUNT = 4  # a word is known when it occurs this often in training and validation captions
VALIDATION_IMAGES = 1000
SAMPLED_ROWS = 64  # rows per split in which a float16 copy is compared with its original
HALF = ".f16.npy"  # end of a float16 copy's name, in place of .npy
MAX_WORDS = 200  # of captions of one's own
ENDLESS = 2000  # words of a caption that no published file holds
PER_IMAGE, PER_CAPTION = "row per image", "row per caption"
DEV_PROTOCOLS = ("full1000", "ncr200")
PathLike = str | os.PathLike[str]
SOURCE = "file layout of the official codes"


@dataclass(frozen=True)
class Layout:
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
    max_words: int | None = None  # longer captions are cut; None: as published
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
        Layout("f30k", "Flickr30K", "f30k_precomp", 5, "caps.txt", F30K, 8481),
        Layout("coco", "MS-COCO", "coco_precomp", 5, "caps.txt", COCO, 11353),
        Layout("cc152k", "CC152K", "cc152k_precomp", 1, "caps.tsv", CC152K),
        Layout(
            "f8k",
            "Flickr8K",
            "f8k_precomp",
            5,
            "caps.txt",
            F8K,
            row=(16, 256),
            marker="prepared.json",
            source="Make them with: nclib data prepare f8k",
        ),
    )
}


PIXELS = {"square224": 224, "square512": 512, "crop224": 224}
"""Forms of prepared pictures and their sides: scaled to a square, or scaled at the shorter side and cut."""


def pixel_layout(name: str, pixels: str) -> Layout:
    """Return the layout of the prepared pictures of ``f30k`` or ``coco`` in a form of :data:`PIXELS`."""
    check_choice("pixels", pixels, tuple(PIXELS))
    layout, side = LAYOUTS[name], PIXELS[pixels]
    return replace(
        layout,
        title=f"pictures of {layout.title}",
        stem=f"{name}_{pixels}",
        images={**layout.images, **({"dev": 5000} if name == "coco" else {})},
        words=None,
        row=(side, 3 * side),
        marker="prepared.json",
        source=f"Make them with: nclib data prepare {name} --pixels {pixels}",
        number=np.uint8,
    )


@dataclass
class Part:
    """One split as found on disk, with the problems of its files."""

    split: str  # as in the names of the files
    features: RowFile | None = None  # a row per image; None when the file is missing or wrong
    texts: list[str] = field(default_factory=list)  # all captions
    layout: str = ""  # PER_IMAGE or PER_CAPTION; empty when unknown
    problems: list[tuple[str, str]] = field(default_factory=list)  # file, message
    boxes: np.ndarray | None = None  # (images, regions, 4); None when they were not asked for, or are wrong


@register("f30k", summary="Flickr30K, precomputed regions; needs root=", paper=SOURCE)
def f30k(
    *,
    root: PathLike,
    dev_protocol: str = "full1000",
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = False,
    half: bool = False,
    pieces: PathLike | None = None,
    pixels: str = "",
    boxes: bool = False,
) -> Dataset:
    """Load Flickr30K from precomputed region features (29,000 / 1,000 / 1,000 images, 5 captions each).

    Parameters
    ----------
    root : path
        The folder with the files, or a folder that holds it as ``f30k_precomp`` or ``f30k/precomp``.
    dev_protocol : {"full1000", "ncr200"}
        Part of the validation split that selects a model: its first 1,000 images; or the 200 images that
        remain when loaders cut a row-per-caption file to 1,000 captions, as NCR and its successors do.
        Recalls on 200 images are far higher and must not be compared with others.
    vocabulary : path, optional
        The ``*_vocab.json`` file; by default looked for in and beside the folder, also under ``vocab``.
    build_vocabulary : bool
        When there is no vocabulary file, build one from training and validation captions (words that occur
        at least 4 times) and write it into the folder.
    half : bool
        Read the float16 copies ``{split}_ims.f16.npy`` of the features, which take half the disk and half
        the reading; ``nclib data convert half`` makes them. The numbers differ from the float32
        ones in the fourth digit, and so does the checksum of the data.
    pieces : path, optional
        Folder of a BERT or CLIP model (or its name in the hub's cache), whose own tokeniser cuts the captions
        in place of the field's words; for models with that text encoder.
    pixels : {"", "square224", "square512", "crop224"}
        Pictures in place of features, each row of a picture as red, green and blue of its pixels in turn, as
        ``nclib data prepare f30k --pixels`` leaves them in ``f30k_square224``: scaled to a square of this
        side, or scaled at the shorter side and cut around the centre, as CLIP prepares pictures.
    boxes : bool
        Append five numbers to the features of each region: its box x0, y0, x1, y1 in [0, 1], read from
        ``{split}_boxes.npy``, and the area of the box. The checksum of the data then covers the boxes.

    Returns
    -------
    Dataset
        Images stay on disk. ``details["layouts"]`` tells the row layout of each split.

    Raises
    ------
    FileNotFoundError, ValueError
        When files are missing or do not fit together; all of them are listed, with what to do.
    """
    layout = pixel_layout("f30k", pixels) if pixels else LAYOUTS["f30k"]
    return load_files(layout, root, "test", dev_protocol, vocabulary, build_vocabulary, half, pieces, boxes)


@register("coco", summary="MS-COCO, precomputed regions; needs root=", paper=SOURCE)
def coco(
    *,
    root: PathLike,
    test_split: str = "testall",
    dev_protocol: str = "full1000",
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = False,
    half: bool = False,
    pieces: PathLike | None = None,
    pixels: str = "",
    boxes: bool = False,
) -> Dataset:
    """Load MS-COCO from precomputed region features (113,287 / 1,000 / 5,000 images, 5 captions each).

    Parameters, result and errors as for :func:`f30k`; the folder is ``coco_precomp`` or ``coco/precomp``.

    Parameters
    ----------
    test_split : {"testall", "test"}
        All 5,000 test images, or the first 1,000; of pictures all.
    """
    check_choice("test_split", test_split, ("testall", "test"))
    layout = pixel_layout("coco", pixels) if pixels else LAYOUTS["coco"]
    return load_files(
        layout, root, test_split, dev_protocol, vocabulary, build_vocabulary, half, pieces, boxes
    )


@register("cc152k", summary="CC152K, precomputed regions; needs root=", paper=SOURCE)
def cc152k(
    *,
    root: PathLike,
    dev_protocol: str = "full1000",
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = False,
    half: bool = False,
) -> Dataset:
    """Load Conceptual Captions 152K (150,000 / 1,000 / 1,000 images, one caption each, noisy by nature).

    Parameters, result and errors as for :func:`f30k`; the folder is ``cc152k_precomp`` or
    ``cc152k/precomp``, captions are ``{split}_caps.tsv``. Both protocols keep 1,000 images here.
    """
    return load_files(LAYOUTS["cc152k"], root, "test", dev_protocol, vocabulary, build_vocabulary, half)


@register("region_files", summary="region features and captions of your own; needs root=")
def region_files(
    *,
    root: PathLike,
    captions_per_image: int | None = None,
    max_words: int = MAX_WORDS,
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = True,
    half: bool = False,
) -> Dataset:
    """Load region features and captions of one's own, in the layout of the benchmarks.

    ``nclib data prepare`` writes this layout from photographs, ``nclib data convert`` from other files. All
    validation images are used, and runs draw no wrong pairs unless asked: the pairs are taken as they are,
    right or wrong.

    Parameters
    ----------
    root : path
        Folder with ``{train,dev,test}_ims.npy``, float32 (rows, regions, features), and
        ``{train,dev,test}_caps.txt`` (or ``.tsv``: image id, tab, caption).
    captions_per_image : int, optional
        At least 1. By default that of ``prepared.json``, which ``nclib data prepare`` leaves in its folder,
        and 5 in other folders.
    max_words : int
        Longer captions are cut to their first words, with a warning: one caption of thousands of words makes
        every batch that holds it as long. At least 1.
    vocabulary, build_vocabulary, half
        As for :func:`f30k`, as are the errors; the vocabulary is built unless a file is given or found.
    """
    each = 5 if captions_per_image is None else check_count("captions_per_image", captions_per_image, low=1)
    cells = (Path(root).expanduser() / "train_caps.tsv").is_file()
    captions = "caps.tsv" if cells else "caps.txt"
    layout = Layout("region_files", "Region files", "region_files", each, captions)
    folder = find_folder(layout, Path(root).expanduser(), ("train", "dev", "test"))
    if (prepared := _prepared_each(folder)) is not None:
        if captions_per_image is not None and each != prepared:
            raise ValueError(
                f"captions_per_image={each}, but {folder} was prepared with {prepared} captions of each "
                f"picture; give captions_per_image={prepared}, or leave the option out"
            )
        layout = replace(layout, captions_per_image=prepared)
    check_count("max_words", max_words, low=1)
    layout = replace(layout, max_words=max_words)
    return load_files(layout, root, "test", "full1000", vocabulary, build_vocabulary, half)


def _prepared_each(folder: Path) -> int | None:
    """Return the captions per picture that ``nclib data prepare`` noted; None without its note."""
    from nclib.data.flickr8k import read_manifest  # which imports this module

    each = (read_manifest(folder) or {}).get("captions_per_image")
    return None if each is None else check_count(f"{folder}: captions_per_image", each, low=1)


def load_files(
    layout: Layout,
    root: PathLike,
    test_split: str = "test",
    dev_protocol: str = "full1000",
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = False,
    half: bool = False,
    pieces: PathLike | None = None,
    boxes: bool = False,
) -> Dataset:
    """Load the files of a layout; parameters, result and errors as for :func:`f30k` and :func:`coco`."""
    # 1. find folder, vocabulary and files, and list everything missing at once; 2. open the splits and list
    # every problem at once; 3. read or build the vocabulary; 4. cut the splits.
    check_choice("dev_protocol", dev_protocol, DEV_PROTOCOLS)
    names = {"train": "train", "val": "dev", "test": test_split}
    if half and layout.number is not np.float32:
        raise ValueError("half=True is for features; prepared pictures have one form")
    if boxes and layout.number is not np.float32:
        raise ValueError("boxes=True is for region features; prepared pictures have no regions")
    if pieces is not None and (vocabulary is not None or build_vocabulary):
        raise ValueError("pieces cuts captions by a tokeniser: give no vocabulary, and do not build one")
    folder = find_folder(layout, Path(root).expanduser(), tuple(names.values()))
    vocabulary_file = find_vocabulary(layout, folder, vocabulary)
    missing = missing_files(layout, folder, tuple(names.values()), half, boxes)
    if vocabulary_file is None and not build_vocabulary and pieces is None:
        missing.append(
            f"{layout.vocabulary_file} (the vocabulary; give vocabulary=PATH, or build_vocabulary=True "
            "to make one from the training and validation captions)"
        )
    if missing:
        raise FileNotFoundError(
            "\n  ".join([f"{layout.title}: {folder} lacks", *missing])
            + f"\n{layout.source}, or give their folder as root=."
        )
    parts = {role: read_split(layout, folder, split, half, boxes) for role, split in names.items()}
    problems = [f"{part.split}: {text}" for part in parts.values() for _, text in part.problems]
    shapes = {p.split: p.features.shape[1:] for p in parts.values() if p.features is not None}
    if len(set(shapes.values())) > 1:
        problems.append(f"splits differ in (regions, features): {shapes}")
    if problems:
        raise ValueError(
            "\n  ".join([f"{layout.title}: the files in {folder} do not fit together", *problems])
            + "\nGet the named files again, complete and from one package; where permission was denied, "
            "let your user read them (chmod u+r)."
        )
    if layout.max_words is not None:
        _cut(parts.values(), layout.max_words)
    else:
        _refuse_endless(parts.values(), layout.captions_file)
    words: Vocabulary
    if pieces is not None:
        words = Pieces(pieces)
    elif vocabulary_file is not None:
        words = Vocabulary.from_json(vocabulary_file, tokenise=tokeniser.tokenise)
    else:
        words, place = build_words(parts["train"].texts + parts["val"].texts), folder / layout.vocabulary_file
        try:
            words.to_json(place)
        except OSError as error:
            raise ValueError(
                f"build_vocabulary=True: {place} cannot be written ({error.strerror}); write it elsewhere "
                "with nclib data convert vocabulary NAME ROOT --out PATH, and give vocabulary=PATH"
            ) from error
    splits = {role: _split(layout, role, part, words, dev_protocol) for role, part in parts.items()}
    content: list[Any] = ["\n".join(words.words)]
    for role, split in splits.items():
        path = features_file(folder, names[role], half)
        assert path is not None  # looked for above
        content += [f"{role} {split.images.shape}", content_digest(path)]
        content += [split.captions.tokens, split.captions.offsets]
        content += [] if split.boxes is None else ["boxes", split.boxes]
    return Dataset(
        layout.name,
        splits["train"],
        splits["val"],
        splits["test"],
        words,
        checksum=digest(content),
        licence=f"{layout.title}: files supplied by the user; the terms of their publishers apply",
        details={
            "layouts": {role: part.layout for role, part in parts.items()},
            "dev_protocol": dev_protocol,
            "test_split": test_split,
            # of pairs from the web and from users some are wrong, and no list says which
            "pairs_as_found": layout.name == "cc152k" or not layout.images,
        },
    )


def _cut(parts: Iterable[Part], most: int) -> None:
    """Cut longer captions to ``most`` words, and tell how many there were."""
    n, longest = 0, 0
    for part in parts:
        for i, text in enumerate(part.texts):
            if len(words := text.split()) > most:
                part.texts[i] = " ".join(words[:most])
                n, longest = n + 1, max(longest, len(words))
    if n:
        warnings.warn(
            f"{n} captions have more than {most} words (up to {longest:,}) and are cut to the first {most}; "
            "data_options max_words sets the limit",
            UserWarning,
            stacklevel=3,
        )


def _refuse_endless(parts: Iterable[Part], file: str) -> None:
    """Raise a ValueError for a caption that would make its batches take minutes; no published one is so."""
    for part in parts:
        n, row = max(((len(text.split()), row) for row, text in enumerate(part.texts)), default=(0, 0))
        if n > ENDLESS:
            raise ValueError(
                f"{part.split}_{file}: caption {row} has {n:,} words; get the published file again, or load "
                "your own as region_files, which cuts captions to max_words"
            )


def find_folder(layout: Layout, root: Path, splits: Sequence[str]) -> Path:
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


def find_vocabulary(layout: Layout, folder: Path, given: PathLike | None = None) -> Path | None:
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


def boxes_file(split: str) -> str:
    """Return the name of the file with the boxes of a split."""
    return f"{split}_boxes.npy"


def missing_files(
    layout: Layout, folder: Path, splits: Sequence[str], half: bool = False, boxes: bool = False
) -> list[str]:
    """List the names of the missing files of some splits, with a hint behind a name where one helps."""
    missing = []
    for split in splits:
        if features_file(folder, split, half) is None and half:
            original = features_file(folder, split) or folder / f"{split}_ims.npy"
            how = f"(half=True; make it with: nclib data convert half {original})"
            missing.append(f"{split}_ims{HALF} {how}")
        elif features_file(folder, split, half) is None:
            missing.append(f"{split}_ims.npy")
        if not (folder / f"{split}_{layout.captions_file}").is_file():
            missing.append(f"{split}_{layout.captions_file}")
        if boxes and not (folder / boxes_file(split)).is_file():
            missing.append(f"{boxes_file(split)} (boxes=True; float32, a row for each row of features)")
    return missing


def read_split(layout: Layout, folder: Path, split: str, half: bool = False, boxes: bool = False) -> Part:
    """Open one split whose files exist, and tell its row layout; problems are listed, not raised."""
    part = Part(split)
    captions = f"{split}_{layout.captions_file}"
    try:
        part.texts = [text for _, text in read_named_captions(folder / captions)]
    except (OSError, ValueError) as error:
        part.problems.append((captions, f"{layout.captions_file} {error}"))
        return part
    path = features_file(folder, split, half)
    assert path is not None  # the caller has looked
    name, array = path.name, open_features(path, np.float16 if half else layout.number)
    if isinstance(array, str):
        part.problems.append((name, f"{name} {array}"))
        return part
    n, each = len(part.texts), layout.captions_per_image
    if len(array) == n and n % each == 0:
        part.layout = PER_CAPTION if each > 1 else PER_IMAGE
        part.features = array[::each]  # a view: still on disk
        last = len(part.features) - 1
        groups = (np.asarray(array[each * i : each * (i + 1)]) for i in {0, last // 2, last})
        if any((group != group[:1]).any() for group in groups):
            text = f"{name} has a row per caption, but the {each} rows of one image differ"
            part.problems.append((name, text))
    elif len(array) * each == n:
        part.layout, part.features = PER_IMAGE, array
    else:
        text = (
            f"{len(array)} feature rows and {n} captions; expected {each} captions per image, with a feature "
            f"row per image ({n // each}) or per caption ({n})"
        )
        part.problems.append((name, text))
    original = features_file(folder, split) if half else None
    if original is not None and part.features is not None and (text := not_its_copy(array, original)):
        part.problems.append((name, f"{name} {text}"))
    if boxes:
        found = read_boxes(folder / boxes_file(split), (*array.shape[:2], 4))
        if isinstance(found, str):
            part.problems.append((boxes_file(split), f"{boxes_file(split)} {found}"))
        else:
            part.boxes = found[::each] if part.layout == PER_CAPTION else found
    return part


def read_boxes(path: Path, shape: tuple[int, ...]) -> np.ndarray | str:
    """Read boxes x0, y0, x1, y1 in [0, 1], float32 of ``shape`` (rows, regions, 4).

    A damaged or other file gives a message, a str that completes a sentence beginning with the file's name.
    """
    try:
        boxes = read_npy(path)
    except ValueError as error:
        return str(error).removeprefix(f"{path} ")
    if boxes.shape != shape or boxes.dtype != np.float32:
        return f"must be float32 {shape}, a row for each row of features, got {boxes.dtype} {boxes.shape}"
    if not (boxes.min() >= 0 and boxes.max() <= 1):
        return (
            f"must lie in [0, 1], got {boxes.min():g} to {boxes.max():g}; divide x by the width and y by the "
            "height of each picture"
        )
    if (boxes[..., 2:] < boxes[..., :2]).any():
        row = int((boxes[..., 2:] < boxes[..., :2]).any((1, 2)).argmax())
        return f"must hold x0, y0, x1, y1 of each box, but in row {row} x1 < x0 or y1 < y0"
    return boxes


def read_named_captions(path: Path) -> list[tuple[str, str]]:
    """Read captions, one per line, with their image ids ('' but in ``.tsv`` files: image id, tab, caption).

    An OSError or ValueError completes a sentence that begins with the file's name.
    """
    try:
        # Not splitlines, which cuts at rare separators inside captions as well.
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    except OSError as error:
        raise OSError(f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from None
    if path.suffix.lower() == ".tsv":
        cells = [line.rstrip("\r").split("\t") for line in lines]
        bad = [number for number, cell in enumerate(cells, 1) if len(cell) < 2]
        if bad:
            raise ValueError(f"has {len(bad)} lines without a tab-separated caption, first line {bad[0]}")
        return [(name.strip(), text.strip()) for name, text, *_ in cells]
    return [("", line.strip()) for line in lines]


def open_features(path: Path, dtype: Any) -> RowFile | str:
    """Open a features file, (rows, regions, features), of a number type in native byte order.

    A damaged or other file gives a message, a str that completes a sentence beginning with the file's name.
    """
    try:
        array = RowFile(path)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if array.ndim != 3 or array.dtype != dtype or 0 in array.shape:
        return (
            f"must be {np.dtype(dtype)} (rows, regions, features), got {array.dtype.newbyteorder('=').name}"
            f"{'' if array.dtype.isnative else ' in foreign byte order'} {array.shape}"
        )
    return array


def not_its_copy(half: RowFile, original: Path) -> str:
    """Tell how a float16 copy, (rows, regions, features), differs from its float32 original in sampled rows.

    Empty when it does not, or when the original is not a features file.
    """
    again = f"make it again with: nclib data convert half {original} --replace"
    array = open_features(original, np.float32)
    if isinstance(array, str):
        return ""  # the original has its own line
    if array.shape != half.shape:
        return f"has shape {half.shape}, its original {original.name} {array.shape}; {again}"
    rows = sampled(len(half), SAMPLED_ROWS)
    with np.errstate(over="ignore", invalid="ignore"):
        same = (array[rows].astype(np.float16) == half[rows]).all(axis=(1, 2))
    if same.all():
        return ""
    return f"is not a copy of {original.name}: row {rows[int(np.argmin(same))]} differs; {again}"


def sampled(n: int, most: int) -> np.ndarray:
    """Return evenly spaced rows of ``n``, the first and last included, at most ``most`` of them, int64."""
    return np.unique(np.linspace(0, n - 1, most).astype(np.int64))


def _split(layout: Layout, role: str, part: Part, words: Vocabulary, dev_protocol: str) -> Split:
    assert part.features is not None
    each, n = layout.captions_per_image, len(part.features)
    if role == "val" and layout.images:  # the validation protocols of the papers
        cut_by_rows = dev_protocol == "ncr200" and part.layout == PER_CAPTION
        n = min(n, VALIDATION_IMAGES // each if cut_by_rows else VALIDATION_IMAGES)
    details: dict[str, Any] = {"layout": part.layout}
    captions, image_of = _captions(part.texts[: n * each], words), np.arange(n * each) // each
    return Split(
        role,
        part.features[:n],
        captions,
        image_of,
        each,
        details=details,
        boxes=None if part.boxes is None else part.boxes[:n],
        boxes_in_features=part.boxes is not None,
    )


def _captions(texts: list[str], words: Vocabulary) -> Captions:
    """Cut captions into word ids, and keep them in the cache: half a million captions take many seconds."""

    def build(folder: Path) -> dict[str, Any]:
        for name, array in zip(names, words.encode_all(texts), strict=True):
            np.save(folder / name, array)
        return {}

    names = ("tokens.npy", "offsets.npy")
    rules = words.rules if isinstance(words, Pieces) else f"rules {tokeniser.RULES}"
    folder, _ = cached("captions", digest([rules, *words.words, "\n".join(texts)]), build)
    tokens, offsets = (np.load(folder / name) for name in names)
    return Captions(tokens, offsets, words, texts)
