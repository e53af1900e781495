"""The bundled set: scenes of emoji drawings with captions whose truth is known.

Drawings by three designers and names and keywords from Unicode (``ATTRIBUTION.md`` lists authors and
licences), arranged by seed into small scenes. Everything is generated on the reader's machine from two
small files and kept in the cache folder.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.files import digest
from nclib.data.cache import cached
from nclib.data.dataset import Captions, Dataset, Split
from nclib.data.registry import check_choice, check_count, datasets

SIZES = {"small": 4000, "medium": 10000, "default": 16000}
N_VAL, N_TEST = 500, 1000
MOST_REGIONS = 36
LICENCE = (
    "drawings: Noto Emoji (OFL-1.1, Apache-2.0), Twemoji (CC-BY-4.0), Fluent Emoji (MIT); "
    "words: Unicode licence; see nclib/data/emoji/ATTRIBUTION.md"
)


@datasets.register("emoji", summary="bundled scenes of emoji drawings with captions of known truth")
def emoji(
    *,
    size: str = "default",
    regions: int = 12,
    features: str = "regions",
    variant: str = "standard",
    seed: int = 0,
    n_train: int | None = None,
    n_val: int = N_VAL,
    n_test: int = N_TEST,
    progress: bool | None = None,
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
    features : {"regions", "pixels"}
        What an image is: its boxes' numbers, or the picture itself as 96 rows of 288 numbers in [0, 1] (red,
        green, blue of each pixel in turn) for models that read pixels; ``regions`` then counts for nothing.
    variant : {"standard", "holdout"}
        With ``holdout`` the test pictures draw every concept by a designer that training and validation
        never use for it.
    seed : int
        Another seed gives other scenes of the same concepts.
    n_train, n_val, n_test : int, optional
        Other numbers of pictures, for tests and trials.
    progress : bool, optional
        Show a progress bar while generating; default: when standard error is a terminal.

    Returns
    -------
    Dataset
        With pictures, boxes, relevance, and the classifications ``group`` (5 classes, the default labels),
        ``class`` (10) and ``subgroup`` of the main, that is the largest, object. ``split.details`` holds
        ``scenes`` (what is where) and ``facts`` (what each caption states); ``details`` of the dataset
        the names of concepts and phrases.

    Raises
    ------
    ValueError, TypeError
        When an option is out of range; nothing is generated then.
    OSError
        When the cache folder cannot be written.
    """
    check_choice("size", size, tuple(SIZES))
    check_choice("features", features, ("regions", "pixels"))
    check_choice("variant", variant, ("standard", "holdout"))
    from nclib.data.emoji import generate as make

    options = make.Options(
        n_train=check_count("n_train", SIZES[size] if n_train is None else n_train, low=1),
        n_val=check_count("n_val", n_val, low=1),
        n_test=check_count("n_test", n_test, low=1),
        regions=check_count("regions", regions, low=4, high=MOST_REGIONS),
        variant=variant,
        seed=check_count("seed", seed, low=0),
    )
    build = functools.partial(make.generate, options=options, progress=progress)
    folder, facts = cached("emoji", make.cache_key(options), build)
    if features == "regions":
        return _open(folder, facts)
    from nclib.data.emoji import pixels

    scenes = {name: np.load(folder / f"{name}_scenes.npy") for name in options.pictures()}
    painted, content = cached(
        "emoji_pixels", pixels.cache_key(folder.name), functools.partial(pixels.paint_all, scenes=scenes)
    )
    return _open(folder, {**facts, "checksum": digest([facts["checksum"], content["checksum"]])}, painted)


def _open(folder: Path, facts: dict[str, Any], painted: Path | None = None) -> Dataset:
    from nclib.data.emoji.assets import read_names
    from nclib.data.emoji.compose import TINTS
    from nclib.data.emoji.grammar import CAPTIONS_PER_IMAGE, RELATIONS, make_lexicon
    from nclib.data.emoji.relevance import Truth

    names = read_names()
    lexicon = make_lexicon(names.names, names.keywords)

    def split(name: str) -> Split:
        images, boxes = (np.load(folder / f"{name}_{key}.npy", mmap_mode="r") for key in ("images", "boxes"))
        if painted is not None:
            images, boxes = np.load(painted / f"{name}_pixels.npy", mmap_mode="r"), None
        rest = ("scenes", "tokens", "offsets", "facts")
        scenes, tokens, offsets, stated = (np.load(folder / f"{name}_{key}.npy") for key in rest)
        main = scenes["concept"][:, 0]
        return Split(
            name=name,
            images=images,
            captions=Captions(tokens, offsets, lexicon.vocabulary),
            image_of=np.arange(len(offsets) - 1) // CAPTIONS_PER_IMAGE,
            captions_per_image=CAPTIONS_PER_IMAGE,
            boxes=boxes,
            label_sets={key: labels[main] for key, labels in names.labels.items()},
            picture_source=lambda row: picture(scenes[row : row + 1]),
            relevance_source=Truth(scenes, stated, lexicon),
            details={"scenes": scenes, "facts": stated},
        )

    return Dataset(
        name="emoji",
        train=split("train"),
        val=split("val"),
        test=split("test"),
        vocabulary=lexicon.vocabulary,
        checksum=facts["checksum"],
        licence=LICENCE,
        label_names=names.label_names,
        details={
            "options": facts["options"],
            "concepts": names.names,
            "emoji": names.emoji,
            "phrases": lexicon.phrases,
            "relations": RELATIONS,
            "tints": tuple(TINTS),
        },
    )


def picture(scene: np.ndarray) -> np.ndarray:
    """Draw one scene again.

    Parameters
    ----------
    scene : ndarray, (1,)
        A row of ``split.details["scenes"]``.

    Returns
    -------
    ndarray, uint8, (96, 96, 3)
    """
    return np.ascontiguousarray(_painter().paint(scene)[0].transpose(1, 2, 0))


@functools.cache
def _painter() -> Any:
    from nclib.data.emoji.assets import read_drawings
    from nclib.data.emoji.render import Painter

    return Painter(read_drawings())
