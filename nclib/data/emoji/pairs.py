"""The data set ``emoji``: generated pictures with five captions each, as fragments."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nclib.common.checks import check_choice, check_count, check_counts
from nclib.common.files import digest
from nclib.data.cache import from_cache
from nclib.data.dataset import Captions, Dataset, Split
from nclib.data.emoji.compose import MOST_REGIONS, box_corners
from nclib.data.emoji.features import FEATURE_DIM
from nclib.data.emoji.generate import SPLITS, blocks, cache_key, picture, words
from nclib.data.emoji.grammar import CAPTIONS_PER_IMAGE, RELATIONS
from nclib.data.emoji.relevance import Relevance
from nclib.data.registry import register

SIZES = {"small": 4000, "medium": 10000, "default": 16000}
N_VAL, N_TEST = 500, 1000


@register("emoji", summary="bundled scenes of emoji drawings with captions of known truth")
def emoji(
    *,
    size: str = "default",
    regions: int = 12,
    seed: int = 0,
    n_train: int | None = None,
    n_val: int = N_VAL,
    n_test: int = N_TEST,
) -> Dataset:
    """Load the bundled set, generating it the first time.

    A picture is 96 x 96 pixels in one of eight tints and shows two to four of 200 concepts, each by one of
    three designers. A fragment is a box: responses of its quarters to a codebook of 48 patches (192 numbers,
    learned without labels, fixed) and its place (4 numbers).
    Five captions per picture name objects, sometimes how they lie, sometimes the background.

    Parameters
    ----------
    size : {"default", "medium", "small"}
        16,000, 10,000 or 4,000 training pictures; the smaller sets are prefixes of the larger, validation
        and test pictures are the same.
    regions : int
        Boxes per picture, 4 to 36; 12 is the usual choice, the papers use 36. Fewer boxes are a prefix.
    seed : int
        Another seed gives other scenes of the same concepts.
    n_train, n_val, n_test : int, optional
        Other numbers of pictures, for tests and trials.

    Returns
    -------
    Dataset
        With pictures, boxes and relevance. ``split.details`` holds ``scenes`` (what is where) and ``facts``
        (what each caption states); ``details`` of the dataset the names of concepts, phrases and relations.

    Raises
    ------
    ValueError, TypeError, OSError
        When an option is out of range (nothing is generated then), or the cache folder cannot be written.
    """
    check_choice("size", size, tuple(SIZES))
    options = {
        **check_counts(n_train=SIZES[size] if n_train is None else n_train, n_val=n_val, n_test=n_test),
        "regions": check_count("regions", regions, low=4, high=MOST_REGIONS),
        "seed": check_count("seed", seed, low=0),
    }
    build = functools.partial(_build, options=options)
    folder, facts = from_cache("emoji", cache_key(options), build)
    return _open(folder, facts)


def _build(folder: Path, *, options: dict[str, Any]) -> dict[str, Any]:
    """Write ``{split}_{images,boxes,scenes,tokens,offsets,facts}.npy``; return checksum and options."""
    content = ""
    total = sum(options[f"n_{split}"] for split in SPLITS)
    own = {key: options[key] for key in ("seed", "regions")}
    with tqdm(total=total, desc="emoji scenes", unit="picture", disable=None, leave=False) as bar:
        for split in SPLITS:
            n, done = options[f"n_{split}"], 0
            images = _create(folder / f"{split}_images.npy", np.float32, (n, own["regions"], FEATURE_DIM))
            boxes = _create(folder / f"{split}_boxes.npy", np.float32, (n, own["regions"], 4))
            made = []
            for block in blocks(split, n, **own):
                place = slice(done, done + len(block.scenes))
                images[place], boxes[place] = block.features, box_corners(block.boxes)
                made.append((block.scenes, block.tokens, block.lengths, block.facts))
                bar.update(len(block.scenes))
                done = place.stop
            scenes, tokens, lengths, facts = map(np.concatenate, zip(*made, strict=True))
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            small = {"scenes": scenes, "tokens": tokens, "offsets": offsets, "facts": facts}
            for key, array in small.items():
                np.save(folder / f"{split}_{key}.npy", array, allow_pickle=False)
            content += digest([images, boxes, tokens, offsets])
            images.flush()
            boxes.flush()
    return {"checksum": digest(content)}


def _create(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _open(folder: Path, facts: Mapping[str, Any]) -> Dataset:
    _, lexicon = words()

    def split(name: str) -> Split:
        images, boxes = (np.load(folder / f"{name}_{key}.npy", mmap_mode="r") for key in ("images", "boxes"))
        rest = ("scenes", "tokens", "offsets", "facts")
        scenes, tokens, offsets, stated = (np.load(folder / f"{name}_{key}.npy") for key in rest)
        return Split(
            name,
            images,
            Captions(tokens, offsets, lexicon.vocabulary),
            np.arange(len(offsets) - 1) // CAPTIONS_PER_IMAGE,
            CAPTIONS_PER_IMAGE,
            boxes=boxes,
            picture_source=functools.partial(picture, scenes),
            relevance_source=Relevance(scenes, stated, lexicon),
            details={"scenes": scenes, "facts": stated},
        )

    return Dataset(
        name="emoji",
        **{name: split(name) for name in SPLITS},
        vocabulary=lexicon.vocabulary,
        checksum=facts["checksum"],
        details={"concepts": lexicon.names, "phrases": lexicon.phrases, "relations": RELATIONS},
    )
