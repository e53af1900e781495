"""The generator of the bundled data: pictures, fragment features and captions, block by block."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nclib.common.files import digest
from nclib.data.emoji import assets, compose, features, grammar, render

#: Version of everything that decides the arrays: this module and those that it imports. Raise it when an
#: array changes (a test with stored checksums tells), so that the cache makes the data again.
RECIPE = 1
CHUNK = 50  # pictures per matrix product: small enough for the processor's cache
SPLITS = ("train", "val", "test")


class SceneBlock(NamedTuple):
    """Pictures of one block, n of them, with R fragments each."""

    scenes: np.ndarray  # compose.SCENE, (n,)
    boxes: np.ndarray  # int32, (n, R, 3): x, y, side in sixteenths of a pixel
    features: np.ndarray  # float32, (n, R, 196)
    tokens: np.ndarray  # int32, (n_tokens,)
    lengths: np.ndarray  # int64, (5 n,): tokens per caption
    facts: np.ndarray  # grammar.FACTS, (5 n,)


def cache_key(options: Mapping[str, Any], *parts: Any) -> str:
    """Digest of options (values that JSON can hold), recipe version, shipped files and further parts."""
    shipped = [*assets.asset_bytes().values(), features.CODEBOOK.read_bytes()]
    return digest([json.dumps(dict(options), sort_keys=True), f"recipe {RECIPE}", *shipped, *parts])


@functools.cache
def words() -> tuple[assets.Names, grammar.Lexicon]:
    """Return the names of the concepts and the lexicon of the captions."""
    names = assets.read_names()
    return names, grammar.make_lexicon(names.names, names.keywords, assets.read_wording())


def blocks(
    split: str,
    n: int,
    *,
    seed: int,
    regions: int,
    change: Callable[[np.ndarray, int], None] | None = None,
) -> Iterator[SceneBlock]:
    """Make the pictures of a split, in blocks of up to 1,000; a smaller ``n`` gives a prefix of a larger one.

    Options as for :func:`nclib.data.emoji.pairs.emoji`. ``change`` changes the scenes of a whole block in
    place, given its number, before anything is drawn.
    """
    names, lexicon = words()
    painter = render.Painter(assets.read_drawings())
    for block, start in enumerate(range(0, n, compose.BLOCK)):
        size = min(compose.BLOCK, n - start)
        whole = compose.compose(len(names.names), seed=seed, split=split, block=block)
        if change is not None:
            change(whole, block)
        scenes = whole[:size]
        boxes = compose.draw_boxes(whole, seed=seed, split=split, block=block)[:size, :regions]
        made = [
            features.features(render.crop(painter.paint(scenes[rows]), boxes[rows]), boxes[rows])
            for rows in (slice(first, first + CHUNK) for first in range(0, size, CHUNK))
        ]
        tokens, lengths, facts = grammar.write_captions(whole, lexicon, seed=seed, split=split, block=block)
        lengths = lengths[: size * grammar.CAPTIONS_PER_IMAGE]
        tokens = tokens[: lengths.sum()]
        yield SceneBlock(scenes, boxes, np.concatenate(made), tokens, lengths, facts[: len(lengths)])


def picture(scenes: np.ndarray, row: int) -> np.ndarray:
    """Draw one of the scenes of ``split.details["scenes"]`` again, uint8 (96, 96, 3)."""
    return np.ascontiguousarray(_painter().paint(scenes[row : row + 1])[0].transpose(1, 2, 0))


@functools.cache
def _painter() -> render.Painter:
    return render.Painter(assets.read_drawings())
