"""Writes the arrays of the bundled set into a folder."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.files import digest
from nclib.data.emoji import assets, compose, fragments, grammar, render

CHUNK = 50  # pictures per matrix product: small enough for the processor's cache
RECIPE = (assets, compose, fragments, grammar, render)


@dataclass(frozen=True)
class Options:
    """What the arrays depend on, apart from the shipped files and the code."""

    n_train: int
    n_val: int
    n_test: int
    regions: int
    variant: str
    seed: int

    def pictures(self) -> dict[str, int]:
        """Return the pictures per split."""
        return {"train": self.n_train, "val": self.n_val, "test": self.n_test}


def cache_key(options: Options) -> str:
    """Return the checksum of options, shipped files and the modules that make the arrays."""
    code = [Path(str(module.__file__)).read_bytes() for module in RECIPE] + [Path(__file__).read_bytes()]
    shipped = [*assets.asset_bytes().values(), fragments.CODEBOOK.read_bytes()]
    return digest([json.dumps(asdict(options), sort_keys=True), *code, *shipped])


def generate(folder: Path, options: Options, *, progress: bool | None = None) -> dict[str, Any]:
    """Make all splits and write them as ``.npy`` files.

    Parameters
    ----------
    folder : Path
        Empty folder; gets ``{split}_{images,boxes,scenes,tokens,offsets,facts}.npy``.
    options : Options
    progress : bool, optional
        Show a progress bar; default: when standard error is a terminal.

    Returns
    -------
    dict
        ``{"checksum": sha256 over features, boxes and captions}``.
    """
    from tqdm import tqdm

    data = assets.read_names()
    lexicon = grammar.make_lexicon(data.names, data.keywords)
    painter = render.Painter(assets.read_drawings())
    make = functools.partial(_block, options, len(data.names), painter)
    content = ""
    total = sum(options.pictures().values())
    hide = None if progress is None else not progress
    with tqdm(total=total, desc="emoji scenes", unit="picture", disable=hide, leave=False) as bar:
        for split, n in options.pictures().items():
            images = _create(
                folder, f"{split}_images", np.float32, (n, options.regions, fragments.FEATURE_DIM)
            )
            corners = _create(folder, f"{split}_boxes", np.float32, (n, options.regions, 4))
            scenes = np.empty(n, compose.SCENE)
            written = []
            for block, start in enumerate(range(0, n, compose.BLOCK)):
                size = min(compose.BLOCK, n - start)
                place = slice(start, start + size)
                whole, boxes, crops = make(split, block, size)
                scenes[place] = whole[:size]
                images[place] = fragments.features(crops[:size], boxes[:size])
                corners[place] = compose.box_corners(boxes[:size])
                tokens, lengths, facts = grammar.write_captions(
                    whole, lexicon, seed=options.seed, split=split, block=block
                )
                lengths = lengths[: size * grammar.CAPTIONS_PER_IMAGE]
                written.append((tokens[: lengths.sum()], lengths, facts[: len(lengths)]))
                bar.update(size)
            tokens, lengths, facts = (np.concatenate(parts) for parts in zip(*written, strict=True))
            arrays = {
                "scenes": scenes,
                "tokens": tokens,
                "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                "facts": facts,
            }
            for key, array in arrays.items():
                np.save(folder / f"{split}_{key}.npy", array, allow_pickle=False)
            content += digest([images, corners, arrays["tokens"], arrays["offsets"]])
            images.flush()
            corners.flush()
    return {"checksum": digest(content), "options": asdict(options)}


def _name(options: Options, split: str, block: int) -> dict[str, Any]:
    return {"seed": options.seed, "split": split, "block": block, "variant": options.variant}


def _block(
    options: Options, n_concepts: int, painter: render.Painter, split: str, block: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the scenes of a whole block, and the boxes and crops of its first ``size`` pictures."""
    whole = compose.compose(n_concepts, **_name(options, split, block))
    boxes = compose.draw_boxes(whole, seed=options.seed, split=split, block=block)[:, : options.regions]
    crops = np.empty((size, options.regions, 3, render.CROP, render.CROP), np.float32)
    for start in range(0, size, CHUNK):
        part = slice(start, min(start + CHUNK, size))
        crops[part] = render.crop(painter.paint(whole[part]), boxes[part])
    return whole, boxes[:size], crops


def _create(folder: Path, name: str, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
