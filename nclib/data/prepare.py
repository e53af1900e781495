"""Photographs of Flickr8K as data: ``nclib data prepare f8k --images DIR --captions FILE --out DIR``.

Features are those of :mod:`nclib.data.pictures`. A preparation that was stopped continues when the same
command is given again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nclib.common.files import content_digest, digest, write_atomically
from nclib.common.row_writer import ConvertError, RowSource, some, write_rows
from nclib.data import pictures
from nclib.data.feature_files import F8K, LAYOUTS, MANIFEST, build_words, read_manifest
from nclib.data.flickr8k import EACH, summarise
from nclib.data.split_lists import SPLITS, read_lists
from nclib.readers.network import Network, load_network
from nclib.readers.pictures import Opener

if TYPE_CHECKING:
    from nclib.readers import Listing

EVERY = 2  # pictures of the training split whose cells determine the axes: every second one
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

    @property
    def content(self) -> str:
        """Digest of pictures and captions."""
        return digest(json.dumps([self.pictures, self.captions]))

    def facts(self) -> dict[str, Any]:
        """Return captions per picture, pictures per split and the notes, for the manifest."""
        counts = {split: len(names) for split, names in self.pictures.items()}
        return {"captions_per_image": self.each, "pictures": counts, **self.notes}


def prepare(
    *,
    images: str | Path,
    captions: str | Path,
    out: str | Path,
    splits: str | Path | None = None,
) -> Path:
    """Make the features of Flickr8K's photographs, and write them with their captions as a data set.

    Parameters
    ----------
    images : path
        Folder of the pictures; names in the table are relative to it.
    captions : path
        Table of captions, or another source of :func:`nclib.readers.list_pairs`.
    out : path
        Folder for ``{train,dev,test}_ims.npy``, float32 (pictures, 16, 256), ``{split}_caps.txt``,
        ``{split}_ids.txt`` and ``prepared.json``. Load it with ``nclib.data.load("f8k", root=out)``.
    splits : path, optional
        Folder with the lists ``Flickr_8k.{train,dev,test}Images.txt``; by default the folder of ``captions``.

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
        As :func:`nclib.readers.list_pairs`.
    """
    from nclib.readers import list_pairs

    images, out = Path(images).expanduser(), Path(out).expanduser()
    if not images.is_dir():
        raise ConvertError(f"--images {images} is not a folder")
    if out.resolve().is_relative_to(images.resolve()):
        raise ConvertError(f"--out {out} is the folder of the pictures or lies in it; choose another --out")
    listing = list_pairs(captions, folder=images)
    if listing.file is None or listing.texts is None:
        raise ConvertError(f"--captions {captions} must name pictures and hold their captions")
    say_left_out([*listing.problems.values()], "pairs")
    row_of = {os.path.relpath(name, images): row for row, name in enumerate(listing.pictures or ())}
    texts, _ = table_of(listing, [*row_of])
    lists = Path(splits).expanduser() if splits else Path(captions).expanduser().parent
    plan, network = _official(texts, images, lists), load_network()
    manifest = {"name": "f8k", "recipe": pictures.RECIPE, "content": plan.content, **plan.facts()}
    if begin(out, manifest):

        def opener(name: str) -> Any:
            return listing.open(row_of[name])

        sources = picture_features(opener, plan, out, network, listing.stamp())
        write_splits(out, plan, sources, manifest, LAYOUTS["f8k"].vocabulary_file)
    return out


def picture_features(
    opener: Opener, plan: Selection, out: Path, network: Network, origin: str
) -> dict[str, RowSource]:
    """Return the features of the pictures of each split; their cells are written into ``out`` before.

    An earlier attempt, of pictures from the same ``origin``, is continued.
    """
    for split, chosen in plan.pictures.items():  # slow
        if not (path := out / f"{split}_cells.npy").exists():
            write_rows(path, pictures.cells_of(opener, chosen, network, origin))
    cells = {s: np.load(out / f"{s}_cells.npy", mmap_mode="r", allow_pickle=False) for s in SPLITS}
    mean, axes = pictures.principal_axes(cells["train"][::EVERY], pictures.AXES)
    return {split: pictures.features_of(of, mean, axes) for split, of in cells.items()}


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


def _official(texts: Texts, images: Path, lists: Path) -> Selection:
    """Return the official splits of Flickr8K, all of whose pictures must be there."""
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
    if few := [name for name in split_of if len(texts.get(name, ())) != EACH]:
        raise ConvertError(f"{len(few)} pictures of Flickr8K do not have {EACH} captions: {some(few)}")
    if absent := [name for name in split_of if not (images / name).is_file()]:
        raise ConvertError(f"{images} lacks {len(absent)} pictures of Flickr8K: {some(absent)}")
    return selection_of(
        texts, split_of, EACH, splits="official", in_no_split=len(texts.keys() - split_of.keys())
    )


def selection_of(texts: Texts, split_of: Mapping[str, str], each: int, **notes: Any) -> Selection:
    """Return the pictures of every split with the first ``each`` of their captions."""
    pictures = {s: [name for name, split in split_of.items() if split == s] for s in SPLITS}
    captions = {s: [text for p in names for text in texts[p][:each]] for s, names in pictures.items()}
    return Selection(pictures, captions, each, notes)


def say_left_out(names: Sequence[str], what: str) -> None:
    """Say on the screen what is not used."""
    if names:
        print(f"left out: {len(names):,} {what}, {some(names)}", file=sys.stderr)


# -- the command --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Make features of Flickr8K's photographs, and a data set of them.

    Errors are those of :func:`prepare`.
    """
    parser = argparse.ArgumentParser("nclib data prepare", description="Make features of photographs.")
    parser.add_argument("name", choices=("f8k",), help="Flickr8K; pairs of your own are the data set own")
    parser.add_argument("--images", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--captions", type=Path, required=True, help="table: columns image and caption")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--splits", type=Path, help="folder with the lists of the splits")
    options = vars(parser.parse_args(arguments))
    del options["name"]
    folder = prepare(**options)
    print(folder, f"nclib run l2rm --dataset f8k --data_options.root {shlex.quote(str(folder))}", sep="\n")
    return 0
