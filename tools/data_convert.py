"""Convert other files to the layout of the benchmarks: ``python tools/data_convert.py KIND ...``.

``folder`` takes a file per image, ``bottom-up`` the TSV files of bottom-up attention, ``half`` makes float16
copies of features, ``vocabulary`` the word list, ``vectors`` the vectors of its words. Files are written in
bounded memory and appear whole or not at all. A conversion that was stopped, even by SIGKILL or a full disk,
continues when the command is given again; only ``vectors`` begins again. Rows of pixels are made by
``book/baselines/omit/picture_rows.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from row_sources import bottom_up_rows, check_copy, folder_rows, half_rows, read_ids
from word_vectors import read_vectors

from nclib.common.files import replacing
from nclib.common.row_writer import ConvertError, RowSource, holds, some, write_rows
from nclib.data import feature_files as files
from nclib.data.feature_files import HALF, LAYOUTS, MIN_COUNT, FileLayout
from nclib.data.vocabulary import UNKNOWN, Vocabulary

CAPTIONS = (".txt", ".tsv")
SPLITS = ("train", "dev", "test", "testall")


def gather(
    name: str,
    split: str,
    *,
    source: Callable[..., RowSource],
    features: Any,
    ids: Path,
    captions: Path,
    out: Path,
    replace: bool,
    **options: Any,
) -> Path:
    """Gather features of single images into the file of a split, with captions and ids; return its path.

    Parameters
    ----------
    name : {"f30k", "coco", "cc152k", "f8k"}
        Layout of the files to write.
    split : {"train", "dev", "test", "testall"}
    source, features, **options
        :func:`row_sources.folder_rows` or :func:`row_sources.bottom_up_rows`, and what it is given.
    ids : path
        Text file with an image id per line; their order becomes the order of the rows. Other images are left
        out.
    captions : path
        ``.txt``: the captions of each image one after the other, in the order of ``ids``. ``.tsv``: image id,
        tab, caption, in any order; where an image has more than the layout holds (five, or one), the first
        are taken.
    out : path
        Folder for ``{split}_ims.npy``, ``{split}_caps.txt`` (or ``.tsv``) and ``{split}_ids.txt``.
    replace : bool
        Allow existing files to be replaced.

    Raises
    ------
    ConvertError
        When images are missing, double, misshapen, of the wrong type or not finite (the message names the
        first few), or when a file exists already, is being written by another process, or does not fit on
        the disk.
    """
    layout, names = LAYOUTS[name], read_ids(ids)
    texts, rows = _captions(layout, captions, names), source(features, names, **options)
    if layout.captions_file.endswith(".tsv"):
        texts = [f"{name}\t{text}" for name, text in zip(names, texts, strict=True)]
    small = {out / f"{split}_{layout.captions_file}": texts, out / f"{split}_ids.txt": names}
    content = {path: "".join(f"{line}\n" for line in lines) for path, lines in small.items()}
    other = [path for path, text in content.items() if path.exists() and not holds(path, text)]
    if other and not replace:
        raise ConvertError(
            f"there already, with other content: {some(other)}; remove them, or give --replace"
        )
    path = out / f"{split}_ims.npy"
    write_rows(path, rows, beside=content, replace=replace)
    return path


def half(path: Path, *, replace: bool = False) -> Path:
    """Write the float16 copy ``NAME.f16.npy`` of a features file, which ``load(..., half=True)`` reads.

    Its numbers have 11 binary digits: they differ by at most 1 part in 2,048 where not below 0.00006.
    Returns the path of the copy.

    Parameters
    ----------
    path : path
        ``NAME.npy``, float32 (rows, regions, features).
    replace : bool
        Allow an existing file to be replaced. Without it an existing copy, judged by some rows, is left as
        it is, and another file is an error.

    Raises
    ------
    ConvertError
        When the file is of another kind, holds numbers that are not finite or beyond 65,504, or as
        :func:`gather`.
    """
    if path.suffix != ".npy" or path.name.endswith(HALF):
        raise ConvertError(f"{path} must be a float32 features file NAME.npy")
    copy = path.with_name(path.name.removesuffix(".npy") + HALF)
    try:
        check_copy(files.open_features(copy, np.float16), path)
        is_copy = True
    except (OSError, ValueError):
        is_copy = False
    if replace or not is_copy:
        write_rows(copy, half_rows(path), replace=replace)
    return copy


def vocabulary(name: str, root: Path, *, out: Path | None, replace: bool) -> Path:
    """Write the words that occur 4 times in training and validation captions; return the path.

    The file is the one that ``load(..., build_vocabulary=True)`` writes.

    Parameters
    ----------
    name, replace
        As for :func:`gather`.
    root : path
        Folder of the captions, or one that holds it, as for :func:`nclib.data.load`.
    out : path, optional
        The file; default: ``{name}_precomp_vocab.json`` in the folder of the captions.

    Raises
    ------
    ConvertError
        When captions are missing or cannot be read, or other words are there already.
    """
    layout = LAYOUTS[name]
    place = files.find_folder(layout, root, ("train", "dev"))
    texts = {
        split: [text for _, text in _named_captions(place / f"{split}_{layout.captions_file}")]
        for split in ("train", "dev")
    }
    words = files.build_words(texts["train"] + texts["dev"])
    target = out or place / layout.vocabulary_file
    if target.exists() and not replace and not _same(target, words):
        raise ConvertError(f"{target} is there already with other words; remove it, or give --replace")
    words.to_json(target)
    print(f"{target}: {words.size:,} words that occur {MIN_COUNT} times or more, 4 special ones included")
    for split, lines in texts.items():
        ids, _ = words.encode_all(lines)
        n = len(ids) - 2 * len(lines)
        known = 1 - int((ids == UNKNOWN).sum()) / max(1, n)
        print(f"  {split}: {len(lines):,} captions, {n:,} words, {known:.2%} of them known")
    return target


def vectors(name: str, root: Path, *, given: Path, out: Path, replace: bool) -> Path:
    """Write the vectors of a data set's words, a row per id, for ``model_options={"word_vectors": out}``.

    Rows of words without a vector are NaN: a model draws theirs.

    Parameters
    ----------
    name, replace
        As for :func:`gather`.
    root : path
        Folder of the captions or of the vocabulary file, as for :func:`nclib.data.load`.
    given : path
        Text file of word vectors, for example ``glove.840B.300d.txt``; see
        :func:`word_vectors.read_vectors`.
    out : path
        The ``.npy`` file; its folder is made.

    Returns
    -------
    Path

    Raises
    ------
    ConvertError
        When a file is missing or of another kind, ``out`` is there already.
    """
    layout, target = LAYOUTS[name], out
    if target.suffix != ".npy":
        raise ConvertError(f"--out {target}: must end in .npy")
    if target.exists() and not replace:
        raise ConvertError(f"{target} is there already; remove it, or give --replace")
    listed = files.find_vocabulary(layout, files.find_folder(layout, root, ("train", "dev")))
    if listed is None:
        raise ConvertError(
            f"{root} holds no {layout.vocabulary_file}; make it with: python tools/data_convert.py "
            f"vocabulary {name} {root}"
        )
    words = Vocabulary.from_json(listed).words
    found = read_vectors(given, words, progress=True)
    with replacing(target) as file:
        np.save(file, found)
    without = [word for word, row in zip(words, found, strict=True) if np.isnan(row).any()]
    print(
        f"{target}: {len(words) - len(without):,} of {len(words):,} words have a vector of "
        f"{found.shape[1]} numbers; without one: {some(without) or 'none'}"
    )
    return target


def _same(path: Path, words: Vocabulary) -> bool:
    try:
        return Vocabulary.from_json(path) == words
    except ValueError:
        return False


def _named_captions(path: Path) -> list[tuple[str, str]]:
    try:
        return files.read_named_captions(path)
    except (OSError, ValueError) as error:
        raise ConvertError(f"{path} {files.sentence(error)}") from error


def _captions(layout: FileLayout, path: Path, ids: Sequence[str]) -> list[str]:
    """Return the captions in the order of the images, ``captions_per_image`` of each."""
    kind = path.suffix.lower()
    if kind not in CAPTIONS:
        raise ConvertError(f"{path}: captions must end in {' or '.join(CAPTIONS)}, not {path.suffix!r}")
    each, named = layout.captions_per_image, _named_captions(path)
    texts = [text for _, text in named]
    if kind == ".tsv":
        of: dict[str, list[str]] = {name: [] for name in ids}
        for name, text in named:
            if name in of:
                of[name].append(text)
        few = [f"{name}: {len(found)}" for name, found in of.items() if len(found) < each]
        if few:
            raise ConvertError(f"{path}: {layout.title} has {each} captions per image; fewer for {some(few)}")
        texts = [text for name in ids for text in of[name][:each]]
    elif len(texts) != each * len(ids):
        raise ConvertError(
            f"{path} has {len(texts):,} lines; {len(ids):,} images with {each} captions each need "
            f"{each * len(ids):,}"
        )
    elif all("\t" in text for text in texts):
        raise ConvertError(f"{path} has a tab in every line; if image ids stand before them, call it .tsv")
    empty = [f"caption {i % each + 1} of {ids[i // each]}" for i, text in enumerate(texts) if not text]
    if empty:
        raise ConvertError(f"{path}: empty captions: {some(empty)}")
    return texts


def _halves(files: Sequence[Path], replace: bool) -> None:
    for given in files:
        paths = [given]
        if given.is_dir():
            there = sorted(given.iterdir())
            paths = [p for kind in ("ims", "feat") for p in there if p.match(f"*_{kind}.npy") and p.is_file()]
        if not paths:
            raise ConvertError(f"{given} holds no *_ims.npy or *_feat.npy")
        for path in paths:
            print(half(path, replace=replace))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Bring other files into the field's layout.")
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    for kind, text, source in (
        ("folder", "a .npy or .npz file per image", folder_rows),
        ("bottom-up", "TSV files of bottom-up attention", bottom_up_rows),
    ):
        one = kinds.add_parser(kind, help=text, description=f"Gather {text}.")
        one.add_argument("name", choices=tuple(LAYOUTS), help="whose layout to write")
        one.add_argument("split", choices=SPLITS)
        if kind == "folder":
            one.add_argument("--features", type=Path, required=True, help="folder with the files")
            one.add_argument("--key", default="features", help="name of the array in .npz files")
        else:
            one.add_argument("--features", type=Path, required=True, nargs="+", help="the TSV files")
            one.add_argument("--regions", type=int, default=36, help="boxes of every image")
            one.add_argument("--take-first", action="store_true", help="of several lines of an image")
        one.add_argument("--ids", type=Path, required=True, help="text file, an image id per line")
        one.add_argument("--captions", type=Path, required=True, help=".txt in the order of ids, or .tsv")
        one.add_argument("--out", type=Path, required=True, help="folder to write into")
        one.set_defaults(command=gather, source=source)
    one = kinds.add_parser("half", help="float16 copies", description="Copy features as float16.")
    one.add_argument("files", type=Path, nargs="+", metavar="FILE", help="features files, or their folders")
    one.set_defaults(command=_halves)
    one = kinds.add_parser("vocabulary", help="the word list", description="Write the word list of captions.")
    one.add_argument("name", choices=tuple(LAYOUTS))
    one.add_argument("root", type=Path, help="folder of the captions")
    one.add_argument("--out", type=Path, help="the file; default: beside the captions")
    one.set_defaults(command=vocabulary)
    one = kinds.add_parser("vectors", help="word vectors", description="Write the vectors of the word list.")
    one.add_argument("name", choices=tuple(LAYOUTS))
    one.add_argument("root", type=Path, help="folder of the captions")
    one.add_argument("--given", type=Path, required=True, help="text file of word vectors, such as GloVe's")
    one.add_argument("--out", type=Path, required=True, help="the .npy file")
    one.set_defaults(command=vectors)
    for one in kinds.choices.values():
        one.add_argument("--replace", action="store_true", help="replace files that are there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert files; return 0, 1 after an error, or 130 after Ctrl-C."""
    values = vars(_parser().parse_args(arguments))  # named as the parameters of the functions
    command = values.pop("command")
    try:
        path = command(**values)
        if command is gather:
            print(path)
    except (ConvertError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
