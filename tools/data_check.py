"""Check a folder of the papers' data: ``python tools/data_check.py ROOT [NAME ...]``.

Tells for every file whether it exists, can be read and has the size of the papers' files. Only some rows are
read, so that folders of 40 GB are checked in seconds; ``--full`` reads every number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from row_sources import check_copy, sample_rows

from nclib.common.checks import beyond, check_choice
from nclib.common.files import digest
from nclib.common.npy import read_npy
from nclib.data import category_features, load, tokeniser
from nclib.data import feature_files as files
from nclib.data.dataset import Captions
from nclib.data.feature_files import HALF, LAYOUTS, PER_CAPTION, FileLayout, Part, Reading
from nclib.data.rows import RowFile
from nclib.data.vocabulary import Vocabulary
from nclib.noise import PUBLISHED, Mismatch

sys.path.append(str(Path(__file__).resolve().parents[1] / "book"))  # where ncbook is not installed
from baselines.prepared import PIXELS, boxes_file, pixel_layout, read_boxes, without_boxes
from baselines.weights import PLACE, WEIGHTS, problem

GOOD, MISSING, WRONG, OTHER = "ok", "missing", "wrong", "other size"
KNOWN = 0.5  # least share of known words; a vocabulary made for the data knows nearly all
TO_DO = {
    MISSING: "put the published file there, or make it (tools/data_convert.py or nclib data prepare, --help)",
    WRONG: "get the file again, from one package with the others, or convert it again with --replace; "
    "where permission was denied: chmod u+r",
    OTHER: "not the numbers of the papers' package; --any-size accepts it here. Runs take other sizes of "
    "region features, and of category features with data_options sizes=any",
}
ROWS = 256  # feature rows read at a time, or in all without --full
CAPTIONS = 1000  # captions that are looked up in the vocabulary
PAIRS = dict(LAYOUTS)
PAIRS |= {f"{name}_{form}": pixel_layout(name, form) for name in ("f30k", "coco") for form in PIXELS}


@dataclass(frozen=True)
class Line:
    """Result for one file: a state ("ok", "missing", "wrong" or "other size"), and content or problem."""

    state: str
    file: str
    text: str

    def __str__(self) -> str:
        return f"  {self.state:<10}  {self.file:<28}  {self.text}".rstrip()


@dataclass(frozen=True)
class Report:
    """Result for one data set: its name, the folder of its files or that was searched, and their lines.

    ``training`` holds the images of the training split and captions of each, where its files are good; a
    noise file of these data must fit them.
    """

    name: str
    folder: Path
    lines: tuple[Line, ...]
    training: tuple[int, int] | None = None

    @property
    def found(self) -> bool:
        """Whether any file of this data set exists; a vocabulary alone may belong to another one."""
        return any(line.state != MISSING and not line.file.endswith("_vocab.json") for line in self.lines)

    def complete(self, *, any_size: bool = False) -> bool:
        """Return whether a run can start; other sizes than the published ones count where allowed."""
        allowed = {GOOD, OTHER} if any_size else {GOOD}
        return all(line.state in allowed for line in self.lines)

    def __str__(self) -> str:
        state = "not complete" if self.found else "not there"
        if self.complete(any_size=True):
            state = "complete" if self.complete() else "complete, in other sizes than published"
        states = dict.fromkeys(line.state for line in self.lines if line.state != GOOD)
        advice = [f"  -> {state}: {TO_DO[state]}" for state in states]
        return "\n".join([f"{self.name}: {state}, {self.folder}", *map(str, self.lines), *advice])


def check(
    name: str, root: str | Path, *, full: bool = False, half: bool = False, boxes: bool = False
) -> Report:
    """Check the files of one data set.

    Parameters
    ----------
    name : str
        A data set of the papers, or prepared pictures such as ``f30k_square224``.
    root : path
        Value of ``data_options={"root": ...}``.
    full : bool
        Read every feature instead of some rows.
    half : bool
        Look for the float16 copies in the place of the features, as ``half=True`` of the data sets does.
    boxes : bool
        List missing boxes of the regions too, which ``boxes=True`` of the data sets needs.

    Raises
    ------
    ValueError
        For another name, or a root that is neither a folder nor a file.
    """
    check_choice("name", name, tuple(CHECKS))
    place = Path(root).expanduser()
    if not place.exists():
        raise ValueError(f"root={str(root)!r}: there is no such folder")
    return CHECKS[name](name, place, full, Reading(half=half), boxes)


def _pairs(name: str, root: Path, full: bool, reading: Reading, boxes: bool) -> Report:
    """Check region features and captions of three splits, and the vocabulary."""
    layout = PAIRS[name]
    splits = tuple(layout.images)
    if not root.is_dir():
        return Report(name, root, (Line(MISSING, layout.stem, "root must be a folder for this data"),))
    folder = files.find_folder(layout, root, splits)
    if layout.marker and not (folder / layout.marker).is_file():
        text = "nclib data prepare writes it last" if layout.number is np.float32 else layout.source
        return Report(name, folder, (Line(MISSING, layout.marker, text),))
    missing = [text.split(" ")[0] for text in files.missing_files(layout, folder, splits, reading)]
    missing += without_boxes(folder, splits) if boxes else []
    lines: list[Line] = []
    parts: dict[str, Part] = {}
    for split in splits:
        absent = [file for file in missing if file.startswith(f"{split}_")]
        lines += [Line(MISSING, file, _wanted(layout, split, file)) for file in absent]
        if not set(absent) - {boxes_file(split)}:
            parts[split] = files.read_split(layout, folder, split, Reading(half=reading.half))
    first = next((part for part in parts.values() if part.features is not None), None)
    for part in parts.values():
        lines += _split_lines(layout, part, full, first)
        if not reading.half:
            lines += _copy_lines(part, full)
        lines += _box_lines(layout, part)
    lines.append(_vocabulary(layout, folder, [t for part in parts.values() for t in part.texts[:CAPTIONS]]))
    train = parts.get("train")
    good = train is not None and train.features is not None and not train.problems
    each = layout.captions_per_image
    return Report(name, folder, tuple(lines), (len(train.texts) // each, each) if good and train else None)


def _wanted(layout: FileLayout, split: str, file: str) -> str:
    n, each = layout.images[split], layout.captions_per_image
    if file == boxes_file(split):
        return f"float32 (a row for each row of features, {layout.row[0] if layout.row else 'regions'}, 4)"
    if file.endswith(".npy"):
        kind = "float16" if file.endswith(HALF) else np.dtype(layout.number).name
        row = ", ".join(map(str, layout.row or ()))
        return f"{kind} ({n:,} or {n * each:,} rows, {row})" if each > 1 else f"{kind} ({n:,}, {row})"
    return f"{n * each:,} lines"


def _split_lines(layout: FileLayout, part: Part, full: bool, first: Part | None) -> Iterator[Line]:
    """Describe one split; its rows must have the shape of those in ``first``."""
    for file in dict.fromkeys(file for file, _ in part.problems):
        yield Line(WRONG, file, "; ".join(text for name, text in part.problems if name == file))
    if first is not None and part.features is not None and not part.problems:
        assert first.features is not None
        images, row, other = len(part.features), part.features.shape[1:], first.features.shape[1:]
        text = f"{images:,} images of {_shape(row)}, {part.layout}, {_size(part.path)}"
        if bad := _unsquarable(part.features, full):
            yield Line(WRONG, part.path.name, bad)
        elif row != other:
            yield Line(WRONG, part.path.name, f"{text}; but {_shape(other)} in split {first.split}")
        elif images != layout.images[part.split]:
            yield Line(OTHER, part.path.name, f"{text}; published: {layout.images[part.split]:,} images")
        elif layout.row not in (None, row):
            yield Line(OTHER, part.path.name, f"{text}; published: {_shape(layout.row or ())}")
        else:
            yield Line(GOOD, part.path.name, text)
    if part.texts:
        empty = [number for number, text in enumerate(part.texts, 1) if not text]
        text = f"{len(part.texts):,} captions"
        text += " (one image per 5 rows)" if part.layout == PER_CAPTION else ""
        text += f"; {len(empty)} empty lines, first line {empty[0]}" if empty else ""
        yield Line(WRONG if empty else GOOD, f"{part.split}_{layout.captions_file}", text)


def _shape(row: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" for n in row)


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1e9:.2f} GB"


def _copy_lines(part: Part, full: bool) -> Iterator[Line]:
    """Compare a float16 copy of the features with its original."""
    path = files.features_file(part.path.parent, part.split, half=True)
    if path is None:
        return
    try:
        array = files.open_features(path, np.float16)
        check_copy(array, part.path)
        bad = _unsquarable(array, full)
    except (OSError, ValueError) as error:
        bad = files.sentence(error)
    yield Line(WRONG if bad else GOOD, path.name, bad or f"float16 copy, {_size(path)}")


def _box_lines(layout: FileLayout, part: Part) -> Iterator[Line]:
    """Check the boxes of the regions."""
    path = part.path.parent / boxes_file(part.split)
    if part.features is None or not path.is_file():
        return
    rows = len(part.features) * (layout.captions_per_image if part.layout == PER_CAPTION else 1)
    try:
        read_boxes(path, (rows, part.features.shape[1]))
        yield Line(GOOD, path.name, f"boxes of {rows:,} rows of features")
    except ValueError as error:
        yield Line(WRONG, path.name, str(error))


def _unsquarable(features: RowFile, full: bool) -> str | None:
    """Return the first image that cannot be squared, in all rows or in evenly spaced ones."""
    n = len(features)
    starts = range(0, n, ROWS) if full else ()
    blocks = [np.arange(start, min(start + ROWS, n)) for start in starts]
    blocks = blocks or [sample_rows(n, min(n, ROWS))]
    for rows in blocks:
        try:
            bad = beyond(features.take(rows))
        except OSError as error:
            return str(error)
        if bad.any():
            return f"image {rows[int(np.argmax(bad))]} holds NaN, infinite or huge values"
    return None


def _vocabulary(layout: FileLayout, folder: Path, texts: Sequence[str]) -> Line:
    file = layout.vocabulary_file
    path = files.find_vocabulary(layout, folder)
    if path is None:
        return Line(MISSING, file, "in the folder, beside it, or under vocab; or build_vocabulary=True")
    try:
        words = Vocabulary.from_json(path, tokenise=tokeniser.tokenise)
    except (ValueError, OSError) as error:
        return Line(WRONG, file, str(error))
    known, of = Captions(*words.encode_all(texts), words).coverage()
    if (share := known.sum() / max(1, of.sum())) < KNOWN:
        text = f"knows {share:.0%} of the words of these captions; is it made for other data?"
        return Line(WRONG, file, text)
    same = layout.words in (None, words.size)
    text = f"{words.size:,} words" + ("" if same else f"; published: {layout.words:,}")
    return Line(GOOD if same else OTHER, file, text)


def _category(name: str, root: Path, full: bool, *_: object) -> Report:
    """Check feature files of category retrieval, which are small enough to be read whole."""
    known = category_features.SETS[name]
    sizes = " / ".join(f"{n:,}" for n in known.sizes)
    try:
        data = load(name, root=root, sizes="any")
    except FileNotFoundError:
        file = Path(known.hdf5).name
        return Report(name, root, (Line(MISSING, file, f"{sizes} pairs; or {name}.npz"),))
    except (ValueError, OSError, ImportError, KeyError) as error:
        return Report(name, root, (Line(WRONG, name, str(error)),))
    found = " / ".join(f"{len(split):,}" for split in data.splits.values())
    text = f"{found} pairs, features {data.image_dim} and {data.text_dim}, {data.n_classes} classes"
    text += "" if found == sizes else f"; published: {sizes} pairs"
    return Report(name, root, (Line(GOOD if found == sizes else OTHER, str(data.details["file"]), text),))


CHECKS: dict[str, Callable[[str, Path, bool, Reading, bool], Report]] = {
    **dict.fromkeys(PAIRS, _pairs),
    **dict.fromkeys(category_features.SETS, _category),
}


def check_all(root: str | Path, *, full: bool = False, half: bool = False) -> list[Report]:
    """Check every data set of which a file exists below ``root``; options as for :func:`check`.

    The files of Flickr30K and MS-COCO have the same names. Where ``root`` itself holds such files, they count
    for one of the two: the one that the folder is named after, else the first that is complete.
    """
    found = [r for r in (check(name, root, full=full, half=half) for name in CHECKS) if r.found]
    place = Path(root).expanduser().resolve()
    alike = [r for r in found if r.name in PAIRS and r.folder.resolve() == place]

    def fits(r: Report) -> tuple[bool, ...]:
        named = place.name == PAIRS[r.name].stem or place.parts[-2:] == (r.name, "precomp")
        return named, r.complete(), r.complete(any_size=True)

    best = max(alike, key=fits, default=None)
    return [r for r in found if r not in alike or r is best or (best and not any(fits(best)))]


def check_more(root: str | Path) -> list[Line]:
    """Describe what further runs read below ``root``: weights, missing boxes, missing prepared pictures."""
    lines = []
    for name, known in WEIGHTS.items():
        said = problem(Path(root).expanduser() / PLACE / name)
        state = (MISSING if said.startswith(MISSING) else WRONG) if said else GOOD
        file = f"{PLACE}/{name}"
        lines.append(Line(state, file, said.removeprefix(f"{MISSING}: ") or known.publisher))
    for layout in (LAYOUTS["f30k"], LAYOUTS["coco"]) if Path(root).expanduser().is_dir() else ():
        folder = files.find_folder(layout, Path(root).expanduser(), tuple(layout.images))
        for file in without_boxes(folder, layout.images):
            lines.append(Line(MISSING, f"{layout.stem}/{file}", "boxes of the regions, for TERAN"))
    forms = [layout for layout in PAIRS.values() if layout.number is not np.float32]
    absent = [layout for layout in forms if not (Path(root).expanduser() / layout.stem).is_dir()]
    return lines + [Line(MISSING, layout.stem, layout.source) for layout in absent]


def noise_files(root: str | Path, training: Sequence[tuple[int, int]] = ()) -> list[Line]:
    """Describe every ``*noise*.npy`` or ``*inx*.npy`` file in or one level below ``root``.

    Files of the official codes are recognised by their checksums; runs read them with ``noise_file``. A file
    must fit one of the ``training`` splits, images and captions of each; without any, its type is checked.
    """
    place = Path(root).expanduser()
    paths = [p for pattern in ("*.npy", "*/*.npy") for p in sorted(place.glob(pattern))]
    return [
        _noise_line(path, training)
        for path in paths
        if ("noise" in path.name or "inx" in path.name) and path.is_file()
    ]


def _noise_line(path: Path, training: Sequence[tuple[int, int]]) -> Line:
    try:
        index = read_npy(path)
    except ValueError as error:
        return Line(WRONG, path.name, str(error).removeprefix(f"{path} "))
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        text = f"must be one row of whole numbers, got {index.dtype} {index.shape}"
        return Line(WRONG, path.name, text)
    if index.size and index.min() < 0:
        return Line(WRONG, path.name, f"names image row {index.min()}; rows run from 0")
    who = PUBLISHED.get(digest(path)[:16])
    source = f"published: {who[0]}, rate {who[1]:g}" if who else "not a file of the official codes"
    problems = []
    for images, each in training:
        try:
            Mismatch.from_file(path, np.arange(images * each) // each)
        except (ValueError, TypeError) as error:
            problems.append(str(error))
    if problems and len(problems) == len(training) and not who:
        return Line(WRONG, path.name, "; ".join(dict.fromkeys(problems)))
    return Line(GOOD, path.name, f"noise index of {len(index):,} entries, {source}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a folder; return 0 when all is complete, else 1."""
    parser = argparse.ArgumentParser(description="Check a folder of the papers' data.")
    parser.add_argument("root", type=Path, help="the folder that data_options root will name")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; else what is there"
    )
    parser.add_argument("--full", action="store_true", help="read every feature, not some rows")
    parser.add_argument("--half", action="store_true", help="float16 copies in the place of the features")
    parser.add_argument("--any-size", action="store_true", help="accept other numbers than the published")
    options = parser.parse_args(arguments)
    try:
        how = {"full": options.full, "half": options.half}
        named = [check(name, options.root, **how) for name in options.names]
        shown = named or check_all(options.root, **how)
    except ValueError as error:
        parser.error(str(error))
    for report in shown:
        print(report)
    training = [r.training for r in shown if r.training is not None]
    noise = noise_files(options.root, training) if options.root.is_dir() else []
    if noise:
        print("noise files:", *noise, sep="\n")
    known = bool(shown) or (options.root / PLACE).is_dir()
    more = check_more(options.root) if known and not options.names else []
    if more:
        print("networks, boxes and pictures, which some runs of the papers' tables read:", *more, sep="\n")
    if not shown:
        print(f"{options.root}: nothing that is known. Name one of {', '.join(CHECKS)} to see what it needs.")
    good = bool(shown) and all(r.complete(any_size=options.any_size) for r in shown)
    good = good and all(line.state != WRONG for line in more)
    return 0 if good and all(line.state == GOOD for line in noise) else 1


if __name__ == "__main__":
    sys.exit(main())
