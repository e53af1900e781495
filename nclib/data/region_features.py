"""Precomputed region features: Flickr30K, MS-COCO, Conceptual Captions 152K, and files of one's own.

The files are those of the official codes; see :mod:`nclib.data.feature_files`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.checks import check_choice, check_count
from nclib.common.files import content_digest, digest
from nclib.data import feature_files as files
from nclib.data import tokeniser
from nclib.data.cache import from_cache
from nclib.data.dataset import Captions, Dataset, Split
from nclib.data.feature_files import LAYOUTS, MANIFEST, PER_CAPTION, FileLayout, Part, PathLike, Reading
from nclib.data.registry import register
from nclib.data.vocabulary import Vocabulary

VALIDATION_IMAGES = 1000
MAX_WORDS = 200  # of captions of one's own
ENDLESS = 2000  # words of a caption that no published file holds
# Shares of unknown words in a split from which loading warns and refuses. A vocabulary of its own lacks 2 %
# of Flickr8K, 16 % of a thousand of its captions, 40 % of a hundred; that of other data 34 to 86 %, that of
# another language 76 % or more.
MANY, MOST = 1 / 3, 2 / 3
SOURCE = "file layout of the official codes"


@register("f30k", summary="Flickr30K, precomputed regions; needs root=", paper=SOURCE)
def f30k(
    *,
    root: PathLike,
    dev_protocol: str = "full1000",
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = False,
    half: bool = False,
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
        the reading; ``tools/data_convert.py half`` makes them. The numbers differ from the float32
        ones in the fourth digit, and so does the checksum of the data.

    Returns
    -------
    Dataset
        Images stay on disk. ``details["layout"]`` of a split tells its row layout.

    Raises
    ------
    FileNotFoundError, ValueError
        When files are missing or do not fit together; all of them are listed, with what to do.
    """
    return _load("f30k", **locals())


@register("coco", summary="MS-COCO, precomputed regions; needs root=", paper=SOURCE)
def coco(
    *,
    root: PathLike,
    test_split: str = "testall",
    dev_protocol: str = "full1000",
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = False,
    half: bool = False,
) -> Dataset:
    """Load MS-COCO from precomputed region features (113,287 / 1,000 / 5,000 images, 5 captions each).

    Parameters, result and errors as for :func:`f30k`; the folder is ``coco_precomp`` or ``coco/precomp``.

    Parameters
    ----------
    test_split : {"testall", "test"}
        All 5,000 test images, or the first 1,000.
    """
    check_choice("test_split", test_split, ("testall", "test"))
    return _load("coco", **locals())


@register("cc152k", summary="CC152K, precomputed regions; needs root=", paper=SOURCE)
def cc152k(
    *,
    root: PathLike,
    vocabulary: PathLike | None = None,
    build_vocabulary: bool = False,
    half: bool = False,
) -> Dataset:
    """Load Conceptual Captions 152K (150,000 / 1,000 / 1,000 images, one caption each, noisy by nature).

    Parameters, result and errors as for :func:`f30k`; the folder is ``cc152k_precomp`` or
    ``cc152k/precomp``, captions are ``{split}_caps.tsv``.
    """
    return _load("cc152k", **locals())


def _load(name: str, *, root: PathLike, **options: Any) -> Dataset:
    return load_files(LAYOUTS[name], root, Reading(**options))


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

    ``tools/data_convert.py`` writes this layout from other files.
    All validation images are used, and runs draw no wrong pairs unless asked: the pairs are taken as they
    are, right or wrong. ``details["pictures"]`` of a split has the names of its pictures, the lines of
    ``{split}_ids.txt``, where there is such a file.

    Parameters
    ----------
    root : path
        Folder with ``{train,dev,test}_ims.npy``, float32 (rows, regions, features), and
        ``{train,dev,test}_caps.txt`` (or ``.tsv``: image id, tab, caption).
    captions_per_image : int, optional
        At least 1. By default that of ``prepared.json``, where the folder holds one, and 5 in other folders.
    max_words : int
        Longer captions are cut to their first words, with a warning: one caption of thousands of words makes
        every batch that holds it as long. At least 1.
    vocabulary, build_vocabulary, half
        As for :func:`f30k`, as are the errors; the vocabulary is built unless a file is given or found.
    """
    if captions_per_image is not None:
        check_count("captions_per_image", captions_per_image, low=1)
    check_count("max_words", max_words, low=1)
    reading = Reading(
        vocabulary=vocabulary, build_vocabulary=build_vocabulary, half=half, max_words=max_words
    )
    place = Path(root).expanduser()
    captions = "caps.tsv" if (place / "train_caps.tsv").is_file() else "caps.txt"
    layout = FileLayout("region_files", "Region files", "region_files", 5, captions)
    folder = files.find_folder(layout, place, reading.splits.values())
    noted = (files.read_manifest(folder) or {}).get("captions_per_image")
    if noted is not None and captions_per_image not in (None, noted):
        raise ValueError(
            f"captions_per_image={captions_per_image}, but {folder} was prepared with {noted} captions of "
            f"each picture; give captions_per_image={noted}, or leave the option out"
        )
    layout = replace(layout, captions_per_image=captions_per_image or noted or 5)
    return load_files(layout, root, reading)


def load_files(
    layout: FileLayout, root: PathLike, reading: Reading, words: Vocabulary | None = None
) -> Dataset:
    """Load the files of a layout; result and errors as for :func:`f30k`.

    ``words`` is a vocabulary in place of the layout's own.
    """
    # 1. find folder, vocabulary and files, and list everything missing at once; 2. open the splits and list
    # every problem at once; 3. read or build the vocabulary; 4. cut the splits.
    folder = files.find_folder(layout, Path(root).expanduser(), reading.splits.values())
    vocabulary_file = files.find_vocabulary(layout, folder, reading.vocabulary)
    missing = files.missing_files(layout, folder, reading.splits.values(), reading)
    if vocabulary_file is None and not reading.build_vocabulary and words is None:
        missing.append(
            f"{layout.vocabulary_file} (the vocabulary; give vocabulary=PATH, or build_vocabulary=True "
            "to make one from the training and validation captions)"
        )
    if missing:
        raise FileNotFoundError(
            "\n  ".join([f"{layout.title}: {folder} lacks", *missing])
            + f"\n{layout.source}, or give their folder as root=."
        )
    parts = {role: files.read_split(layout, folder, split, reading) for role, split in reading.splits.items()}
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
    for file, sha256 in (files.read_manifest(folder) or {"files": {}})["files"].items():
        if (folder / file).is_file() and content_digest(folder / file) != sha256:
            raise ValueError(
                f"{folder / file} was changed after its preparation; prepare it again in another folder, or "
                f"delete {MANIFEST} where the change is meant"
            )
    _cut(parts.values(), reading.max_words, layout.captions_file)
    if words is None and vocabulary_file is not None:
        words = Vocabulary.from_json(vocabulary_file, tokenise=tokeniser.tokenise)
    elif words is None:
        words = _write_words(files.build_words(parts["train"].texts + parts["val"].texts), folder, layout)
    splits = {role: _split(layout, role, part, words, reading) for role, part in parts.items()}
    places = {role: folder / f"{part.split}_{layout.captions_file}" for role, part in parts.items()}
    _check_words(splits, places, vocabulary_file)
    content: list[Any] = ["\n".join(words.words)]
    for role, split in splits.items():
        content += [f"{role} {split.images.shape}", content_digest(parts[role].path)]
        content += [split.captions.tokens, split.captions.offsets]
    return Dataset(
        layout.name,
        splits["train"],
        splits["val"],
        splits["test"],
        words,
        checksum=digest(content),
        # of pairs from the web and from users some are wrong, and no list says which
        details={"pairs_as_found": layout.name == "cc152k" or not layout.images},
    )


def _write_words(words: Vocabulary, folder: Path, layout: FileLayout) -> Vocabulary:
    """Write a vocabulary beside the captions that it was built from, and return it."""
    place = folder / layout.vocabulary_file
    try:
        words.to_json(place)
    except OSError as error:
        raise ValueError(
            f"build_vocabulary=True: {place} cannot be written ({error.strerror}); write it elsewhere "
            "with tools/data_convert.py vocabulary NAME ROOT --out PATH, and give vocabulary=PATH"
        ) from error
    return words


def _cut(parts: Iterable[Part], most: int | None, file: str) -> None:
    """Cut longer captions to ``most`` words, with a warning; without a limit, refuse endless ones.

    A caption of thousands of words makes its batches take minutes, and no published one is so.
    """
    n, longest = 0, 0
    for part in parts:
        for i, words in enumerate(text.split() for text in part.texts):
            if most is not None and len(words) > most:
                part.texts[i] = " ".join(words[:most])
                n, longest = n + 1, max(longest, len(words))
            elif most is None and len(words) > ENDLESS:
                raise ValueError(
                    f"{part.split}_{file}: caption {i} has {len(words):,} words; get the published file "
                    "again, or load your own as region_files, which cuts captions to max_words"
                )
    if n:
        warnings.warn(
            f"{n} captions have more than {most} words (up to {longest:,}) and are cut to the first {most}; "
            "data_options max_words sets the limit",
            UserWarning,
            stacklevel=3,
        )


def _check_words(splits: Mapping[str, Split], places: Mapping[str, Path], vocabulary: Path | None) -> None:
    """Refuse captions that the vocabulary does not know; warn where it lacks many words or whole captions."""
    said, worst = [], 0.0
    train = splits["train"].captions
    taught = np.bincount(train.tokens, minlength=train.vocabulary.size) > 0  # others are never learned
    for role, split in splits.items():
        known, words = split.captions.coverage(taught)
        missing, n = int((words - known).sum()), int(words.sum())
        share = missing / n if n else 1.0  # nothing but blanks and marks
        unread = int((known == 0).sum())
        if share <= MANY and not unread:
            continue
        worst = max(worst, share, unread / len(words))
        row = int(np.argmax(known == 0 if unread else known < words))
        said.append(
            f"split {role!r}: {missing:,} of {n:,} words ({share:.0%}), and all "
            f"words of {unread:,} of {len(words):,} captions; {places[role]}, line {row + 1}: "
            f"{split.captions.text(row)!r:.80}"
        )
    if not said:
        return
    where = "of training and validation captions" if vocabulary is None else str(vocabulary)
    text = "\n  ".join([f"the vocabulary {where}, or the training captions, lack", *said])
    if worst > MOST:
        raise ValueError(
            f"{text}\nGive captions with their own vocabulary. One that is built from training and "
            "validation captions holds the words that occur in them 4 times or more"
        )
    warnings.warn(f"{text}\nAll unknown words are read as one", UserWarning, stacklevel=3)


def _split(layout: FileLayout, role: str, part: Part, words: Vocabulary, reading: Reading) -> Split:
    assert part.features is not None
    each, n = layout.captions_per_image, len(part.features)
    if role == "val" and layout.images:  # the validation protocols of the papers
        cut_by_rows = reading.dev_protocol == "ncr200" and part.layout == PER_CAPTION
        n = min(n, VALIDATION_IMAGES // each if cut_by_rows else VALIDATION_IMAGES)
    details: dict[str, Any] = {"layout": part.layout}
    if not layout.images and (ids := part.path.with_name(f"{part.split}_ids.txt")).is_file():
        details["pictures"] = ids.read_text("utf8").removesuffix("\n").split("\n")
    return Split(
        role,
        part.features[:n],
        _captions(part.texts[: n * each], words),
        np.arange(n * each) // each,
        each,
        details=details,
    )


def _captions(texts: list[str], words: Vocabulary) -> Captions:
    """Cut captions into word ids, and keep them in the cache: half a million captions take many seconds."""

    def build(folder: Path) -> dict[str, Any]:
        for name, array in zip(names, words.encode_all(texts), strict=True):
            np.save(folder / name, array)
        return {}

    names = ("tokens.npy", "offsets.npy")
    key = digest([words.rules or f"rules {tokeniser.RULES}", *words.words, "\n".join(texts)])
    folder, _ = from_cache("captions", key, build)
    tokens, offsets = (np.load(folder / name) for name in names)
    return Captions(tokens, offsets, words, texts)
