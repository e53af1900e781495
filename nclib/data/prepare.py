"""Photographs as data sets: ``nclib data prepare f8k|own --images DIR --captions FILE --out DIR``.

Features are those of :mod:`nclib.data.pictures`. A preparation that was stopped continues when the same
command is given again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nclib.common.checks import beyond, check_choice, check_count
from nclib.common.files import content_digest, digest, write_atomically
from nclib.common.row_writer import ConvertError, RowSource, some, write_rows
from nclib.data import pictures
from nclib.data.feature_files import F8K, LAYOUTS, MANIFEST, build_words, read_manifest
from nclib.data.flickr8k import summarise
from nclib.data.split_lists import SPLITS, draw_splits, read_lists
from nclib.readers.network import load_network
from nclib.readers.pictures import MISSING, unreadable

if TYPE_CHECKING:
    from nclib.readers import Listing

EVERY = 2  # pictures of the training split whose cells determine the axes: every second one
EMBEDDED = "embeddings as they are, 1"  # the recipe where there are no pictures
F8K_EACH = 5
OWN_WORDS = "region_files_vocab.json"
FEW_BATCHES, BATCH_SIZE = 8, 32  # with fewer batches of this size, the suggested command has smaller ones
F8K_LISTS = {split: f"Flickr_8k.{split}Images.txt" for split in SPLITS}
SPLIT_WORDS = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("dev", "val", "valid", "validation"), "dev"),
}


Texts = dict[str, list[str]]
"""Captions of pictures by name, in the order of the table."""


@dataclass(frozen=True)
class Selection:
    """Pictures and captions of every split.

    Parameters
    ----------
    pictures : dict of str to list of str
        Names of the files, by split.
    captions : dict of str to list of str
        ``each`` consecutive captions for a picture, by split.
    each : int
        Captions per picture.
    notes : dict of str to value
        What was left out, and where the splits come from.
    """

    pictures: dict[str, list[str]]
    captions: dict[str, list[str]]
    each: int
    notes: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Return captions per picture, pictures per split and the notes, for the manifest."""
        counts = {split: len(names) for split, names in self.pictures.items()}
        return {"captions_per_image": self.each, "pictures": counts, **self.notes}


Decide = Callable[[Texts, Mapping[str, str], Mapping[str, str]], Selection]


def prepare(
    name: str,
    *,
    images: str | Path,
    captions: str | Path,
    out: str | Path,
    splits: str | Path | None = None,
    captions_per_image: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Path:
    """Make the features of pictures, and write them with their captions as a data set.

    Parameters
    ----------
    name : {"f8k", "own"}
        Flickr8K with its official splits, or pictures of one's own.
    images : path
        Folder of the pictures; names in the table are relative to it.
    captions : path
        Table of captions, or another source of :func:`nclib.readers.list_pairs`.
    out : path
        Folder for ``{train,dev,test}_ims.npy``, float32 (pictures, 16, 256), ``{split}_caps.txt``,
        ``{split}_ids.txt`` and ``prepared.json``. Load it with ``nclib.data.load("f8k", root=out)``, or
        ``nclib.data.load("region_files", root=out)`` for pictures of one's own.
    splits : path, optional
        Folder with the lists ``Flickr_8k.{train,dev,test}Images.txt``; by default the folder of ``captions``.
        For pictures of one's own: ``{train,dev,test}.txt``; by default the column ``split`` of the table, or
        a draw of a tenth of the pictures each (at most 1,000) for validation and test.
    captions_per_image : int, optional
        Captions taken of each picture; pictures with fewer are left out. By default the smallest number that
        a picture has; 5 for Flickr8K.
    seed : int
        Seed of drawn splits.
    device : str
        Where the network runs.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ConvertError
        When pictures or captions are missing, a picture cannot be read, or ``out`` holds other data or lies
        in ``images``.
    ImportError
        Without the extra ``pictures``.
    ValueError
        For an unknown name; as :func:`nclib.readers.list_pairs`.
    """
    from nclib.readers import list_pairs

    check_choice("name", name, ("f8k", "own"))
    if name == "f8k" and captions_per_image not in (None, F8K_EACH):
        raise ConvertError(f"--captions-per-image {captions_per_image}: Flickr8K has {F8K_EACH} a picture")
    images, out = Path(images).expanduser(), Path(out).expanduser()
    if not images.is_dir():
        raise ConvertError(f"--images {images} is not a folder")
    if out.resolve().is_relative_to(images.resolve()):
        raise ConvertError(f"--out {out} is the folder of the pictures or lies in it; choose another --out")
    listing = list_pairs(captions, folder=images)
    if listing.file is None or listing.texts is None:
        raise ConvertError(f"--captions {captions} must name pictures and hold their captions")
    _left_out([*listing.problems.values()], "pairs")
    names = [os.path.relpath(name, images) for name in listing.pictures or ()]
    lists = Path(splits).expanduser() if splits else None
    decide: Decide
    if name == "f8k":
        decide = partial(_plan_f8k, images=images, lists=lists or Path(captions).expanduser().parent)
    else:
        decide = partial(plan_own, lists=lists, each=captions_per_image, seed=seed)
    write_listing(listing, names, out, decide, name=name, device=device)
    return out


def write_listing(
    listing: Listing,
    names: Sequence[str],
    out: Path,
    decide: Decide,
    *,
    name: str = "own",
    device: str = "cpu",
    other_content: bool = True,
) -> None:
    """Write the pairs of a listing as a data set, or those files that an earlier attempt did not reach.

    Embeddings of the pictures are their features, one region each; else the pictures go through the network.

    Parameters
    ----------
    listing : Listing
        With captions, and with pictures or embeddings of them.
    names : sequence of str
        Of its pictures, in the files.
    out : Path
    decide : callable
        Makes the plan from the captions of pictures, from the splits of these, empty where the listing has
        none, and from the pictures that cannot be used, each with the reason.
    name : {"f8k", "own"}
        The pictures of Flickr8K are taken as they are: all of them must be there.
    device : str
        Where the network runs.
    other_content : bool
        Whether ``out`` may hold something else, which is a ConvertError; False for a place that is named by
        the content, where damaged files are written again.
    """
    # 1. decide pictures and captions of each split, and list everything missing; 2. cells of each picture
    # (slow, resumable); 3. principal axes of the training cells; 4. features = cells on these axes.
    texts, split_of = table_of(listing, names)
    row_of = {picture: row for row, picture in enumerate(names)}

    def opener(picture: str) -> Any:
        return listing.open(row_of[picture])

    reasons: dict[str, str] = {}
    if listing.images is not None:
        bad = np.flatnonzero(beyond(listing.images)).tolist()
        reasons = {names[row]: "the embedding is NaN, infinite or huge" for row in bad}
    else:
        network = load_network(device)
        if name != "f8k":
            reasons = unreadable(opener, texts)
    plan = decide(texts, split_of, reasons)
    manifest = {
        "name": name,
        "recipe": pictures.RECIPE if listing.images is None else EMBEDDED,
        "content": digest(json.dumps([plan.pictures, plan.captions])),
        "note": _note(
            [listing.problems.get(row, reasons.get(names[of])) for row, of in enumerate(listing.image_of)]
        ),
        **plan.facts(),
    }
    if other_content and not begin(out, manifest):
        return
    if listing.images is not None:
        rows = {s: np.array([row_of[picture] for picture in chosen]) for s, chosen in plan.pictures.items()}
        sources = {split: _embedded(listing.images, of) for split, of in rows.items()}
    else:
        for split, chosen in plan.pictures.items():
            if not (path := out / f"{split}_cells.npy").exists():
                write_rows(path, pictures.cells_of(opener, chosen, network, device, listing.stamp()))
        cells = {s: np.load(out / f"{s}_cells.npy", mmap_mode="r", allow_pickle=False) for s in SPLITS}
        mean, axes = pictures.principal_axes(cells["train"][::EVERY], pictures.AXES)
        sources = {split: pictures.features_of(of, mean, axes) for split, of in cells.items()}
    write_splits(out, plan, sources, manifest, LAYOUTS["f8k"].vocabulary_file if name == "f8k" else OWN_WORDS)


def _note(reasons: Sequence[str | None]) -> str:
    """Return how many pairs are left out, and most often why; empty where none is."""
    counts = Counter(filter(None, reasons))
    if not counts:
        return ""
    (reason, n), *_ = counts.most_common(1)
    left_out = f"{counts.total():,} of {len(reasons):,} pairs are left out"
    return f"{left_out}; most frequent reason ({n:,}): {reason}"


def _embedded(images: np.ndarray, rows: np.ndarray) -> RowSource:
    """Return rows of embeddings as features of one region, float32 (pictures, 1, D)."""

    def made(first: int, last: int) -> np.ndarray:
        return np.asarray(images[rows[first:last]], np.float32)[:, None]

    return RowSource((len(rows), 1, images.shape[1]), np.float32, made, [EMBEDDED])


def begin(out: Path, manifest: Mapping[str, Any]) -> bool:
    """Note a preparation in its folder; False where it is finished. Other content is a ConvertError."""
    path, files = out / MANIFEST, [out / f"{split}_ims.npy" for split in manifest["pictures"]]
    try:
        before = json.loads(path.read_text("utf8")) if path.exists() else None
    except ValueError:
        raise ConvertError(f"{path} is damaged; remove its folder, or choose another --out") from None
    there = [file for file in files if file.exists()]
    if before is None and there:
        raise ConvertError(
            f"{out} holds {some(p.name for p in there)} of another origin; choose another --out"
        )
    about = ("name", "recipe", "pixels", "content")
    if before is not None and any(before.get(key) != manifest.get(key) for key in about):
        raise ConvertError(f"{out} holds features of other pictures or captions; choose another --out")
    if there == files and read_manifest(out) is not None:
        print(f"{out} is prepared already", file=sys.stderr)
        return False
    write_atomically(path, json.dumps({**manifest, "finished": False}, indent=1))
    return True


def texts_of(out: Path, plan: Selection, split: str) -> dict[Path, str]:
    """Return the files of captions and of names of pictures of a split."""
    lines = {"caps": plan.captions[split], "ids": plan.pictures[split]}
    return {out / f"{split}_{kind}.txt": "".join(f"{x}\n" for x in of) for kind, of in lines.items()}


def write_splits(
    out: Path, plan: Selection, sources: Mapping[str, RowSource], manifest: Mapping[str, Any], vocabulary: str
) -> None:
    """Write a plan with the rows of its pictures, its vocabulary and at last its manifest into ``out``."""
    summary = {}
    for split, source in sources.items():
        path = out / f"{split}_ims.npy"
        write_rows(path, source, beside=texts_of(out, plan, split), replace=True)
        summary[split] = summarise(np.load(path, mmap_mode="r"))
    finish(out, plan, {**manifest, "summary": summary}, vocabulary)
    for split in sources:
        (out / f"{split}_cells.npy").unlink(missing_ok=True)


def finish(out: Path, plan: Selection, manifest: Mapping[str, Any], vocabulary: str) -> None:
    """Write the vocabulary of prepared captions, and the manifest with the digests of all files."""
    build_words([*plan.captions["train"], *plan.captions["dev"]]).to_json(out / vocabulary)
    made = [out / vocabulary]
    for split in plan.pictures:
        made += [out / f"{split}_ims.npy", *texts_of(out, plan, split)]
    files = {path.name: content_digest(path) for path in made}
    write_atomically(out / MANIFEST, json.dumps({**manifest, "finished": True, "files": files}, indent=1))


# -- which pictures and captions ----------------------------------------------------------------------------


def table_of(listing: Listing, names: Sequence[str]) -> tuple[Texts, dict[str, str]]:
    """Return captions and splits of the pictures in a listing, without its problems.

    Parameters
    ----------
    listing : Listing
    names : sequence of str
        Of its pictures.

    Raises
    ------
    ConvertError
        When a split is unknown, or a picture is in none or two of them.
    """
    captions: Texts = {}
    split_of: dict[str, str] = {}
    words, texts = listing.splits or [""] * len(listing.ids), listing.texts or []
    for row, (of, caption, word) in enumerate(zip(listing.image_of.tolist(), texts, words, strict=True)):
        if row in listing.problems:
            continue
        captions.setdefault(names[of], []).append(caption)
        if not (split := word.strip().lower()):
            continue
        if split not in SPLIT_WORDS:
            raise ConvertError(f"pair {row + 1}: split {split!r} is not one of {', '.join(SPLIT_WORDS)}")
        if (before := split_of.setdefault(names[of], SPLIT_WORDS[split])) != SPLIT_WORDS[split]:
            both = f"{before} and {SPLIT_WORDS[split]}"
            raise ConvertError(f"pair {row + 1}: {names[of]} is in two splits, {both}")
    if split_of and (missing := next((name for name in captions if name not in split_of), None)):
        raise ConvertError(f"{missing} has no split; give one for every picture, or no column split")
    return captions, split_of


def _plan_f8k(texts: Texts, _: Any, __: Any, *, images: Path, lists: Path) -> Selection:
    files = {split: lists / name for split, name in F8K_LISTS.items()}
    if absent := [str(path) for path in files.values() if not path.is_file()]:
        raise ConvertError(
            f"the official splits are missing: {', '.join(absent)}; they come with the published captions, "
            "give their folder as --splits"
        )
    split_of = read_lists(files)
    counts = {split: list(split_of.values()).count(split) for split in SPLITS}
    if counts != F8K:
        raise ConvertError(f"the lists in {lists} name {counts} pictures; Flickr8K has {F8K}")
    if few := [name for name in split_of if len(texts.get(name, ())) != F8K_EACH]:
        raise ConvertError(f"{len(few)} pictures of Flickr8K do not have {F8K_EACH} captions: {some(few)}")
    if absent := [name for name in split_of if not (images / name).is_file()]:
        raise ConvertError(f"{images} lacks {len(absent)} pictures of Flickr8K: {some(absent)}")
    left_out = len(texts.keys() - split_of.keys())
    return _plan(texts, split_of, F8K_EACH, {"splits": "official", "in_no_split": left_out})


def plan_own(
    texts: Texts,
    split_of: Mapping[str, str],
    unusable: Mapping[str, str],
    *,
    lists: Path | None = None,
    each: int | None = None,
    seed: int = 0,
) -> Selection:
    """Decide the splits and captions of pictures of one's own.

    Parameters
    ----------
    texts, split_of : Texts, mapping of str to {"train", "dev", "test"}
        By picture; no splits where the table has none.
    unusable : mapping of str to str
        Pictures that are left out, and why.
    lists : Path, optional
        Folder of ``{train,dev,test}.txt``; by default the splits of the table, or a draw by ``seed``.
    each : int, optional
        Captions per picture; pictures with fewer are left out. By default as many as all have.
    seed : int

    Returns
    -------
    Selection

    Raises
    ------
    ConvertError
        When a split is left without pictures.
    """
    usable = [name for name in texts if name not in unusable]
    if not usable:
        name, reason = next(iter(unusable.items()))
        raise ConvertError(f"none of the pictures can be read, such as {name}: {reason}")
    absent = [name for name, reason in unusable.items() if reason == MISSING]
    broken = [name for name, reason in unusable.items() if reason != MISSING]
    _left_out(absent, "missing pictures")
    _left_out(broken, "broken pictures")
    if each is not None:
        check_count("captions_per_image", each, low=1)
        _left_out([name for name in usable if len(texts[name]) < each], f"with fewer than {each} captions")
        usable = [name for name in usable if len(texts[name]) >= each]
    if lists:
        split_of, origin = read_lists({split: lists / f"{split}.txt" for split in SPLITS}), "lists"
    elif split_of:
        origin = "table"
    else:
        split_of, origin = draw_splits(usable, seed), f"drawn, seed {seed}"
    chosen = {name: split_of[name] for name in usable if name in split_of}
    if empty := [split for split in SPLITS if split not in chosen.values()]:
        raise ConvertError(f"no pictures for {', '.join(empty)}; train, dev and test are needed")
    each = each or min(len(texts[name]) for name in chosen)
    n = sum(len(texts[name]) - each for name in chosen)
    if n:
        print(f"left out: {n} captions beyond {each} of a picture", file=sys.stderr)
    notes = {"splits": origin, "missing": absent, "broken": broken, "captions_left_out": n}
    return _plan(texts, chosen, each, notes)


def _left_out(names: Sequence[str], what: str) -> None:
    if names:
        print(f"left out: {len(names):,} {what}, {some(names)}", file=sys.stderr)


def _plan(texts: Texts, split_of: Mapping[str, str], each: int, notes: dict[str, Any]) -> Selection:
    pictures = {s: [name for name, split in split_of.items() if split == s] for s in SPLITS}
    captions = {s: [text for p in names for text in texts[p][:each]] for s, names in pictures.items()}
    return Selection(pictures, captions, each, notes)


# -- the command --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``nclib data prepare``.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command line after ``prepare``; that of the process if not given.

    Returns
    -------
    int
        Exit status: 0 when the files are written, 1 after an error, 130 after Ctrl-C.

    Raises
    ------
    SystemExit
        With status 2 after a wrong argument, 0 after ``--help``.
    """
    parser = argparse.ArgumentParser(
        prog="nclib data prepare", description="Make the features of pictures, and a data set of them."
    )
    parser.add_argument("name", choices=("f8k", "own"), help="Flickr8K, or your own")
    parser.add_argument("--images", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--captions", type=Path, required=True, help="table: columns image and caption")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--splits", type=Path, help="folder with the lists of the splits")
    parser.add_argument("--captions-per-image", type=int, help="captions taken of each picture")
    parser.add_argument("--seed", type=int, default=0, help="of drawn splits")
    parser.add_argument("--device", default="cpu", help="where the network runs")
    options = vars(parser.parse_args(arguments))
    try:
        folder = prepare(**options)
    except (ConvertError, ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    print("\n".join([str(folder), *_summary(folder, options["name"])]))
    return 0


def _summary(folder: Path, name: str) -> list[str]:
    """Return the sizes of the splits of a prepared folder, and a command that trains on it."""
    manifest = read_manifest(folder)
    assert manifest is not None  # just written
    each, counts = manifest["captions_per_image"], manifest["pictures"]
    sizes = [f"{split}: {n:,} pictures, {n * each:,} captions" for split, n in counts.items()]
    dataset = "f8k" if name == "f8k" else "region_files"
    command = f"nclib run l2rm --dataset {dataset} --data_options.root {shlex.quote(str(folder))}"
    pairs = counts["train"] * each
    if pairs < FEW_BATCHES * BATCH_SIZE:
        command += f" --batch_size {max(2, pairs // FEW_BATCHES)}"
    return [*sizes, command]
