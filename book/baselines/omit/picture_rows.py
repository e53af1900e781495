"""Pictures of Flickr30K and MS-COCO as data: ``python book/baselines/omit/picture_rows.py f30k|coco ...``.

The pictures lie in a folder, their captions and the usual splits in the JSON file of Karpathy and Fei-Fei
(CVPR 2015), ``dataset_flickr30k.json`` or ``dataset_coco.json``. They are scaled to one size and written as
bytes, in the layout that the option ``pixels`` of the data reads. A preparation that was stopped
continues when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baselines.prepared import PIXELS, pixel_layout
from nclib.common.files import digest
from nclib.common.row_writer import ConvertError, RowSource, some, write_rows
from nclib.data.feature_files import FileLayout
from nclib.data.prepare import Selection, begin, finish, texts_of
from nclib.readers import UnreadableError, open_picture
from nclib.readers.captions_table import one_line

RECIPE = "bilinear squares, bicubic crops, 1"
EACH = 5
ROLES = {"train": "train", "restval": "train", "val": "dev", "test": "test"}  # splits of the JSON file


def pictures(
    name: str, *, images: str | Path, captions: str | Path, out: str | Path, pixels: str = "square224"
) -> Path:
    """Write the pictures of Flickr30K or MS-COCO with their captions as a data set.

    Parameters
    ----------
    name : {"f30k", "coco"}
    images : path
        Folder of the pictures; of MS-COCO the one that holds ``train2014`` and ``val2014``.
    captions : path
        ``dataset_flickr30k.json`` or ``dataset_coco.json``, with the usual splits.
    out : path
        Folder for ``{train,dev,test}_ims.npy`` (``testall`` for MS-COCO), uint8 (pictures, side, 3 side),
        ``*_caps.txt``, ``*_ids.txt``, the vocabulary and ``prepared.json``. It should be called
        ``{name}_{pixels}`` and lie beside the other data.
    pixels : {"square224", "square512", "crop224"}
        Scaled to a square of this side whatever the shape, or scaled at the shorter side and cut around the
        centre, as CLIP prepares pictures.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ConvertError
        When the JSON file or a picture is missing or damaged, a picture has fewer than five captions, or the
        folder holds other data.
    """
    layout = pixel_layout(name, pixels)
    folder, out = Path(images).expanduser(), Path(out).expanduser()
    if not folder.is_dir():
        raise ConvertError(f"--images {folder} is not a folder")
    if out.resolve() == folder.resolve():
        raise ConvertError(f"--out {out} is the folder of the pictures; choose another --out")
    listed = _listed(Path(captions).expanduser(), layout)
    for split, entries in listed.items():
        absent = [file for file, _ in entries if not (folder / file).is_file()]
        if absent:
            raise ConvertError(f"{folder} lacks {len(absent):,} pictures of {split}: {some(absent)}")
    plan = Selection(
        {split: [file for file, _ in entries] for split, entries in listed.items()},
        {split: [text for _, five in entries for text in five] for split, entries in listed.items()},
        EACH,
        {"pixels": pixels},
    )
    content = digest(json.dumps(listed))
    manifest = {"name": name, "recipe": RECIPE, "content": content, **plan.facts()}
    if begin(out, manifest):
        for split, files in plan.pictures.items():
            path = out / f"{split}_ims.npy"
            if not path.exists():
                write_rows(path, _rows(folder, files, pixels), beside=texts_of(out, plan, split))
        finish(out, plan, manifest, layout.vocabulary_file)
    return out


def _listed(path: Path, layout: FileLayout) -> dict[str, list[tuple[str, list[str]]]]:
    """Return the file and the five captions of every picture, by split as the data set names it."""
    try:
        entries = json.loads(path.read_text("utf8"))["images"]
        rows = [
            (
                "/".join(filter(None, (entry.get("filepath", ""), entry["filename"]))),
                entry["split"],
                [one_line(sentence["raw"]) for sentence in entry["sentences"][:EACH]],
            )
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ConvertError(
            f"--captions {path} is not a file of splits such as dataset_{layout.name}.json ({said})"
        ) from None
    if odd := sorted({split for _, split, _ in rows if split not in ROLES}):
        raise ConvertError(f"--captions {path}: split {some(odd)} is not one of {', '.join(ROLES)}")
    if few := [file for file, _, texts in rows if len([text for text in texts if text]) < EACH]:
        raise ConvertError(
            f"--captions {path}: {len(few)} pictures have fewer than {EACH} captions: {some(few)}"
        )
    last = next(split for split in layout.images if split.startswith("test"))
    found: dict[str, list[tuple[str, list[str]]]] = {"train": [], "dev": [], last: []}
    for file, split, texts in rows:
        role = ROLES[split]
        found[last if role == "test" else role].append((file, texts))
    if empty := [split for split, entries in found.items() if not entries]:
        raise ConvertError(f"--captions {path} has no pictures for {', '.join(empty)}")
    return found


def _square(picture: Any, side: int) -> Any:
    from PIL import Image

    return picture.resize((side, side), Image.Resampling.BILINEAR)


def _crop(picture: Any, side: int) -> Any:
    """Scale the shorter side, and cut a square around the centre."""
    from PIL import Image

    short = min(picture.size)
    sides = [side * length // short for length in picture.size]
    picture = picture.resize(sides, Image.Resampling.BICUBIC)
    left, top = (round((length - side) / 2) for length in sides)
    return picture.crop((left, top, left + side, top + side))


FORMS: dict[str, Callable[[Any, int], Any]] = {"square": _square, "crop": _crop}


def _rows(folder: Path, files: Sequence[str], pixels: str) -> RowSource:
    """Return rows of pictures of a folder, uint8 (pictures, side, 3 side), in a form of ``PIXELS``."""
    side, form = PIXELS[pixels], FORMS[pixels.rstrip("0123456789")]

    def read(first: int, last: int) -> np.ndarray:
        rows = np.empty((last - first, side, 3 * side), np.uint8)
        for row, name in zip(rows, files[first:last], strict=True):
            try:
                picture = open_picture(folder / name)
            except UnreadableError as error:
                raise ConvertError(f"{folder / name}: {error}; get the picture again") from error
            row[:] = np.asarray(form(picture, side)).reshape(row.shape)
        return rows

    return RowSource((len(files), side, 3 * side), np.uint8, read, [RECIPE, pixels, *files])


def main(words: Sequence[str] | None = None) -> int:
    """Write the pictures of a data set; return 0, 1 after an error, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="Scale pictures to one size, and write them as rows of pixels."
    )
    parser.add_argument("name", choices=("f30k", "coco"))
    parser.add_argument("--images", type=Path, required=True, help="folder of the pictures")
    about = "dataset_flickr30k.json, dataset_coco.json"
    parser.add_argument("--captions", type=Path, required=True, help=about)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--pixels", choices=tuple(PIXELS), default="square224", help="form of the pictures")
    try:
        print(pictures(**vars(parser.parse_args(words))))
    except (ConvertError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
