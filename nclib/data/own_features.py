"""Pairs of one's own as files in the layout of the data set ``region_files``: splits, captions, features."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.checks import beyond
from nclib.common.row_writer import ConvertError, RowSource
from nclib.data import pictures
from nclib.data.prepare import (
    Selection,
    Texts,
    picture_features,
    say_left_out,
    selection_of,
    table_of,
    write_splits,
)
from nclib.data.split_lists import SPLITS, draw_splits
from nclib.readers import Listing
from nclib.readers.network import load_network
from nclib.readers.pictures import MISSING, unreadable

EMBEDDED = "embeddings as they are, 1"  # the recipe where there are no pictures


def write_listing(listing: Listing, out: Path, each: int | None, seed: int) -> None:
    """Write the pairs of a listing as a data set, or those files that an earlier attempt did not reach."""
    # 1. find the pictures that cannot be used; 2. decide pictures and captions of each split; 3. their
    # features: the embeddings, or what the network makes of the pictures (slow, resumable).
    names = listing.pictures or [str(row) for row in range(int(listing.image_of.max()) + 1)]
    texts, split_of = table_of(listing, names)
    row_of = {name: row for row, name in enumerate(names)}

    def opener(name: str) -> Any:
        return listing.open(row_of[name])

    if listing.images is not None:
        bad = np.flatnonzero(beyond(listing.images)).tolist()
        unusable = {names[row]: "the embedding is NaN, infinite or huge" for row in bad}
        plan, recipe = _plan(texts, split_of, unusable, each, seed), EMBEDDED
        rows = {s: np.array([row_of[name] for name in chosen]) for s, chosen in plan.pictures.items()}
        sources = {split: _embedded(listing.images, of) for split, of in rows.items()}
    else:
        network, recipe = load_network(), pictures.RECIPE
        unusable = unreadable(opener, texts)
        plan = _plan(texts, split_of, unusable, each, seed)
        sources = picture_features(opener, plan, out, network, listing.stamp())
    reasons = [
        listing.problems.get(row, unusable.get(names[of])) for row, of in enumerate(listing.image_of.tolist())
    ]
    about = {"name": "own", "recipe": recipe, "content": plan.content, "note": _note(reasons)}
    write_splits(out, plan, sources, {**about, **plan.facts()}, "region_files_vocab.json")


def _embedded(images: np.ndarray, rows: np.ndarray) -> RowSource:
    """Return rows of embeddings as features of one region, float32 (pictures, 1, D)."""

    def made(first: int, last: int) -> np.ndarray:
        return np.asarray(images[rows[first:last]], np.float32)[:, None]

    return RowSource((len(rows), 1, images.shape[1]), np.float32, made, [EMBEDDED])


def _note(reasons: list[str | None]) -> str:
    """Return how many pairs are left out, and most often why; empty where none is."""
    counts = Counter(filter(None, reasons))
    if not counts:
        return ""
    (reason, n), *_ = counts.most_common(1)
    total = f"{counts.total():,} of {len(reasons):,} pairs are left out"
    return f"{total}; most frequent reason ({n:,}): {reason}"


def _plan(
    texts: Texts, split_of: Mapping[str, str], unusable: Mapping[str, str], each: int | None, seed: int
) -> Selection:
    """Return the pictures and captions of each split, without those that are unusable.

    ``each`` captions a picture, by default as many as all have. Splits are drawn where the source has none.
    """
    usable = [name for name in texts if name not in unusable]
    if not usable:
        name, reason = next(iter(unusable.items()))
        raise ConvertError(f"none of the pictures can be read, such as {name}: {reason}")
    absent = [name for name, reason in unusable.items() if reason == MISSING]
    broken = [name for name, reason in unusable.items() if reason != MISSING]
    say_left_out(absent, "missing pictures")
    say_left_out(broken, "broken pictures")
    if each is not None:
        say_left_out([name for name in usable if len(texts[name]) < each], f"with fewer than {each} captions")
        usable = [name for name in usable if len(texts[name]) >= each]
    origin = "table" if split_of else f"drawn, seed {seed}"
    split_of = split_of or draw_splits(usable, seed)
    chosen = {name: split_of[name] for name in usable}
    if empty := [split for split in SPLITS if split not in chosen.values()]:
        raise ConvertError(f"no pictures for {', '.join(empty)}; train, dev and test are needed")
    each = each or min(len(texts[name]) for name in chosen)
    n = sum(len(texts[name]) - each for name in chosen)
    if n:
        print(f"left out: {n} captions beyond {each} of a picture", file=sys.stderr)
    notes = {"splits": origin, "missing": absent, "broken": broken, "captions_left_out": n}
    return selection_of(texts, chosen, each, **notes)
