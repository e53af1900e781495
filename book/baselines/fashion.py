"""Product photographs with their titles, as features: sets on which methods are judged and never tuned.

No command makes these features: the recorded runs of the book are on them, and grids load this module.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nclib.data.category_data import CategoryData
from nclib.data.category_features import category_file
from nclib.data.dataset import Dataset
from nclib.data.feature_files import PathLike
from nclib.data.region_features import region_files
from nclib.data.registry import register
from nclib.runs.presets import DRAWN_RATES

SHOP = "Fashion Product Images (Aggarwal, Kaggle)"
DRAWN_RATES |= {"fashion44k": 0.6, "fashion_category": 0.4}
PAIRS, CATEGORY_PAIRS = (42072, 1000, 1000), (8000, 2000, 2000)  # for training, validation and testing


@register("fashion44k", summary="product photographs, one title each; needs root=", paper=SHOP)
def fashion44k(*, root: PathLike) -> Dataset:
    """Load product photographs with titles (42,072 / 1,000 / 1,000 photographs of 2 x 2 cells).

    Parameters
    ----------
    root : path
        The folder in the layout of ``region_files``, with float16 features, or one that holds it as
        ``fashion44k``.

    Returns
    -------
    Dataset
        One caption per photograph; images stay on disk. The pairs of the shop count as matched.

    Raises
    ------
    FileNotFoundError, ValueError
        When files are missing, do not fit together or hold other numbers of pairs.
    """
    folder = _below(root, "fashion44k")
    pairs = region_files(root=folder, captions_per_image=1, half=True)
    _check_sizes(folder, tuple(split.n_images for split in (pairs.train, pairs.val, pairs.test)), PAIRS)
    return replace(pairs, name="fashion44k", details={**pairs.details, "pairs_as_found": False})


@register("fashion_category", task="categories", summary="products of 20 types; needs root=", paper=SHOP)
def fashion_category(*, root: PathLike) -> CategoryData:
    """Load product photographs and titles of 20 article types (8,000 / 2,000 / 2,000 pairs).

    Parameters
    ----------
    root : path
        The folder that holds ``fashion_category.npz`` in the layout of ``category_file``, or one that holds
        this folder as ``fashion_category``.

    Raises
    ------
    FileNotFoundError, ValueError
        When the file is missing, cannot be read or holds other numbers of pairs.
    """
    file = _below(root, "fashion_category") / "fashion_category.npz"
    data = category_file(root=file)
    _check_sizes(file, tuple(map(len, (data.train, data.val, data.test))), CATEGORY_PAIRS)
    return replace(data, name="fashion_category")


def _below(root: PathLike, name: str) -> Path:
    folder = Path(root).expanduser()
    return folder / name if (folder / name).is_dir() else folder


def _check_sizes(place: Path, sizes: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if sizes != wanted:
        raise ValueError(
            f"{place} holds {sizes} pairs for training, validation and testing, the recorded runs have "
            f"{wanted}; load other data as region_files or category_file"
        )
