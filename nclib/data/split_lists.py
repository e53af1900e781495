"""Which picture is in which split: lists of names, or a draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from nclib.common.row_writer import ConvertError

SPLITS = ("train", "dev", "test")
SHARE = 0.1  # of the pictures for validation and for test, where no split is given
LARGEST = 1000  # pictures of a drawn validation or test split


def read_lists(files: Mapping[str, Path]) -> dict[str, str]:
    """Read the pictures of each split, one name per line.

    Parameters
    ----------
    files : mapping of {"train", "dev", "test"} to Path

    Returns
    -------
    dict of str to str
        Split by picture, in order of the files.

    Raises
    ------
    ConvertError
        When a file cannot be read, or a picture is in two splits.
    """
    split_of: dict[str, str] = {}
    for split, path in files.items():
        try:
            names = path.read_text("utf8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise ConvertError(f"{path} cannot be read ({error})") from error
        for name in names:
            if split_of.setdefault(name, split) != split:
                raise ConvertError(f"{name} is in two splits, {split_of[name]} and {split} ({path})")
    return split_of


def draw_splits(pictures: Iterable[str], seed: int) -> dict[str, str]:
    """Draw a validation and a test split: a tenth of the pictures each, at most 1,000.

    Parameters
    ----------
    pictures : iterable of str
    seed : int

    Returns
    -------
    dict of str to str
        Split by picture, in the given order.

    Raises
    ------
    ConvertError
        With fewer than ten pictures.
    """
    names = list(pictures)
    if len(names) < 1 / SHARE:
        raise ConvertError(f"{len(names)} pictures are too few to draw splits from; give a column split")
    n = min(int(len(names) * SHARE), LARGEST)
    order = np.random.default_rng(seed).permutation(len(names))
    kind = {int(i): "dev" for i in order[:n]} | {int(i): "test" for i in order[n : 2 * n]}
    return {name: kind.get(i, "train") for i, name in enumerate(names)}
