"""Check a folder of the papers' data: ``python -m nclib.data.check ROOT [NAME ...]``.

Says for every file whether it is there, readable and of the published size, and what is missing. Nothing is
loaded whole, so that folders of 40 GB are checked in seconds; ``--full`` reads every number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nclib.data import precomputed
from nclib.data.category import published
from nclib.data.precomputed import PER_CAPTION, Layout, Part
from nclib.data.vocabulary import Vocabulary

GOOD, MISSING, WRONG, OTHER = "ok", "missing", "wrong", "other size"
ROWS = 256  # feature rows read at a time, or in all where not everything is read


@dataclass(frozen=True)
class Line:
    """What was found about one file.

    Parameters
    ----------
    state : {"ok", "missing", "wrong", "other size"}
    file : str
    text : str
        Content or problem, in words.
    """

    state: str
    file: str
    text: str

    def __str__(self) -> str:
        return f"  {self.state:<10}  {self.file:<28}  {self.text}".rstrip()


@dataclass(frozen=True)
class Report:
    """What was found about one data set.

    Parameters
    ----------
    name : str
        As in :func:`nclib.data.available`.
    folder : Path
        Where its files lie, or were looked for.
    lines : tuple of Line
    """

    name: str
    folder: Path
    lines: tuple[Line, ...]

    @property
    def found(self) -> bool:
        """Whether any file of this data set is there; a vocabulary alone may be beside another one."""
        return any(line.state != MISSING and not line.file.endswith("_vocab.json") for line in self.lines)

    def complete(self, *, any_size: bool = False) -> bool:
        """Return whether a run can start; other sizes than the published ones count where allowed."""
        allowed = {GOOD, OTHER} if any_size else {GOOD}
        return all(line.state in allowed for line in self.lines)

    def __str__(self) -> str:
        state = "not complete" if self.found else "not there"
        if self.complete(any_size=True):
            state = "complete" if self.complete() else "complete, in other sizes than published"
        return "\n".join([f"{self.name}: {state}, {self.folder}", *map(str, self.lines)])


@dataclass(frozen=True)
class Expected:
    """A published package of region features: its layout and its numbers of images and words."""

    layout: Layout
    images: dict[str, int]
    words: int | None = None


PAIRS = {
    "f30k": Expected(
        Layout("f30k", "Flickr30K", 5, "caps.txt"), {"train": 29000, "dev": 1014, "test": 1000}, 8481
    ),
    "coco": Expected(
        Layout("coco", "MS-COCO", 5, "caps.txt"), {"train": 113287, "dev": 1000, "testall": 5000}, 11353
    ),
    "cc152k": Expected(
        Layout("cc152k", "CC152K", 1, "caps.tsv"), {"train": 150000, "dev": 1000, "test": 1000}
    ),
}


def check(name: str, root: str | Path, *, full: bool = False) -> Report:
    """Look at the files of one data set.

    Parameters
    ----------
    name : str
        ``f30k``, ``coco``, ``cc152k``, ``wikipedia``, ``nuswide`` or ``xmedianet``.
    root : path
        What ``data_options={"root": ...}`` will be.
    full : bool
        Read every feature instead of some rows.

    Raises
    ------
    ValueError
        For another name, or a root that is neither a folder nor a file.
    """
    if name not in CHECKS:
        raise ValueError(f"name must be one of {', '.join(CHECKS)}, got {name!r}")
    place = Path(root).expanduser()
    if not place.exists():
        raise ValueError(f"root={str(root)!r}: there is no such folder")
    return CHECKS[name](name, place, full)


def _pairs(name: str, root: Path, full: bool) -> Report:
    """Region features and captions of three splits, and the vocabulary."""
    expected = PAIRS[name]
    layout, splits = expected.layout, tuple(expected.images)
    if not root.is_dir():
        return Report(name, root, (Line(MISSING, layout.stem, "root must be a folder for this data"),))
    folder = precomputed._find_folder(layout, root, splits)
    missing = precomputed._missing(layout, folder, splits)
    lines = []
    for split in splits:
        absent = [file for file in missing if file.startswith(f"{split}_")]
        lines += [Line(MISSING, file, _wanted(expected, split, file)) for file in absent]
        if not absent:
            part = precomputed._read(layout, folder, split)
            lines += _split_lines(expected, part, folder, full)
    lines.append(_vocabulary(expected, folder))
    return Report(name, folder, tuple(lines))


def _wanted(expected: Expected, split: str, file: str) -> str:
    n, each = expected.images[split], expected.layout.captions_per_image
    if file.endswith(".npy"):
        return f"float32 ({n:,} or {n * each:,} rows, 36, 2048)" if each > 1 else f"float32 ({n:,}, 36, 2048)"
    return f"{n * each:,} lines"


def _split_lines(expected: Expected, part: Part, folder: Path, full: bool) -> Iterator[Line]:
    layout = expected.layout
    path = precomputed._features_file(folder, part.split)
    assert path is not None
    captions = f"{part.split}_{layout.captions_file}"
    if part.problems or part.features is None:
        yield Line(WRONG, path.name, "; ".join(part.problems))
        return
    images, published_images = len(part.features), expected.images[part.split]
    shape = " x ".join(f"{n:,}" for n in part.features.shape[1:])
    size = path.stat().st_size / 1e9
    words = f"{images:,} images of {shape}, {part.layout}, {size:.2f} GB"
    bad = _not_finite(part.features, full)
    if bad is not None:
        yield Line(WRONG, path.name, f"image {bad} holds NaN or infinite values")
    elif images != published_images:
        yield Line(OTHER, path.name, f"{words}; published: {published_images:,} images")
    else:
        yield Line(GOOD, path.name, words)
    empty = sum(not text for text in part.texts)
    rows = " (one image per 5 rows)" if part.layout == PER_CAPTION else ""
    text = f"{len(part.texts):,} captions{rows}"
    yield Line(WRONG if empty else GOOD, captions, f"{text}; {empty} empty lines" if empty else text)


def _not_finite(features: np.ndarray, full: bool) -> int | None:
    """First image with a value that is not finite; of evenly spaced ones unless ``full``."""
    n = len(features)
    if not full:
        rows = np.unique(np.linspace(0, n - 1, min(n, ROWS)).astype(np.int64))
        blocks: Iterable[np.ndarray] = (rows,)
    else:
        blocks = (np.arange(start, min(start + ROWS, n)) for start in range(0, n, ROWS))
    for rows in blocks:
        good = np.isfinite(np.asarray(features[rows])).all(axis=(1, 2))
        if not good.all():
            return int(rows[int(np.argmin(good))])
    return None


def _vocabulary(expected: Expected, folder: Path) -> Line:
    file = f"{expected.layout.stem}_vocab.json"
    path = precomputed._find_vocabulary(expected.layout, folder, None)
    if path is None:
        return Line(MISSING, file, "in the folder, beside it, or under vocab; or build_vocabulary=True")
    try:
        size = Vocabulary.from_json(path).size
    except ValueError as error:
        return Line(WRONG, file, str(error))
    if expected.words is not None and size != expected.words:
        return Line(OTHER, file, f"{size:,} words; published: {expected.words:,}")
    return Line(GOOD, file, f"{size:,} words")


def _category(name: str, root: Path, full: bool) -> Report:
    """Feature files of category retrieval: small enough to be read whole."""
    known = published.SETS[name]
    sizes = " / ".join(f"{n:,}" for n in known.sizes)
    try:
        data = published.category_datasets.build(name, root=root, sizes="any")
    except FileNotFoundError:
        file = Path(known.hdf5).name
        return Report(name, root, (Line(MISSING, file, f"{sizes} pairs; or {name}.npz, {name}.mat"),))
    except (ValueError, OSError, ImportError, KeyError) as error:
        return Report(name, root, (Line(WRONG, name, str(error)),))
    found = " / ".join(f"{len(split):,}" for split in data.splits.values())
    text = f"{found} pairs, features {data.image_dim} and {data.text_dim}, {data.n_classes} classes"
    same = found == sizes
    state = GOOD if same else OTHER
    line = Line(state, str(data.details["file"]), text if same else f"{text}; published: {sizes} pairs")
    return Report(name, root, (line,))


CHECKS: dict[str, Callable[[str, Path, bool], Report]] = {
    **dict.fromkeys(PAIRS, _pairs),
    **dict.fromkeys(published.SETS, _category),
}


def noise_files(root: str | Path) -> list[Line]:
    """Say of every ``*noise*.npy`` or ``*inx*.npy`` file in or one level below ``root`` what it is.

    The names of published files are known by their checksums; the package reads them with ``noise_file``.
    """
    from nclib.noise._published import PUBLISHED

    place = Path(root).expanduser()
    paths = [p for pattern in ("*.npy", "*/*.npy") for p in sorted(place.glob(pattern))]
    return [
        _noise_line(path, PUBLISHED)
        for path in paths
        if ("noise" in path.name or "inx" in path.name) and path.is_file()
    ]


def _noise_line(path: Path, known: dict[str, tuple[str, float]]) -> Line:
    import hashlib

    try:
        index = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        return Line(WRONG, path.name, f"cannot be read ({error})")
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        text = f"must be one row of whole numbers, got {index.dtype} {index.shape}"
        return Line(WRONG, path.name, text)
    who = known.get(hashlib.sha256(path.read_bytes()).hexdigest()[:16])
    source = f"published: {who[0]}, rate {who[1]:g}" if who else "not among the published files"
    return Line(GOOD, path.name, f"noise index of {len(index):,} entries, {source}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the reports; return 0 when everything asked for is complete."""
    parser = argparse.ArgumentParser(
        prog="python -m nclib.data.check", description="Check a folder of the papers' data."
    )
    parser.add_argument("root", type=Path, help="the folder that data_options root will name")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; else what is there"
    )
    parser.add_argument("--full", action="store_true", help="read every feature, not some rows")
    parser.add_argument("--any-size", action="store_true", help="accept other numbers than the published")
    options = parser.parse_args(arguments)
    try:
        reports = [check(name, options.root, full=options.full) for name in options.names or CHECKS]
    except ValueError as error:
        parser.error(str(error))
    shown: list[Any] = reports if options.names else [r for r in reports if r.found]
    for report in shown:
        print(report)
    noise = noise_files(options.root) if options.root.is_dir() else []
    if noise:
        print("noise files:", *noise, sep="\n")
    if not shown:
        print(f"{options.root}: nothing that is known. Name one of {', '.join(CHECKS)} to see what it needs.")
    good = bool(shown) and all(r.complete(any_size=options.any_size) for r in shown)
    return 0 if good and all(line.state == GOOD for line in noise) else 1


if __name__ == "__main__":
    sys.exit(main())
