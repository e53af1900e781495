"""The shape of category data: pairs of image and text features with classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nclib.common.checks import check_array, check_squares, check_within
from nclib.data.dataset import Picture


@dataclass(frozen=True, eq=False)
class CategorySplit:
    """Pairs of an image and a text as feature vectors, with their true classes.

    Parameters
    ----------
    name : str
    images : ndarray, float32, (n, d_v)
    texts : ndarray, float32, (n, d_t)
        Row i belongs to image i.
    labels : ndarray, int64, (n,)
        True class of the pair.
    picture_source, text_source : callable, optional
        Behind :meth:`picture` and :meth:`text`.
    details : mapping
        Further facts about the pairs, by name.

    Raises
    ------
    ValueError
        When shapes or types do not fit together, or a feature is NaN, infinite or too large to be
        squared; the message names the argument and the row.
        From :meth:`picture` and :meth:`text`: when the data have features only.
    """

    name: str
    images: np.ndarray
    texts: np.ndarray
    labels: np.ndarray
    picture_source: Picture | None = None
    text_source: Callable[[int], str] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, where = len(self.labels), f"split {self.name!r}: "
        check_array(f"{where}labels", self.labels, "int64", "n")
        for key, value in (("images", self.images), ("texts", self.texts)):
            check_array(f"{where}{key}", value, "float32", n, "d")
            check_squares(f"{where}{key}, row", value)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_pictures(self) -> bool:
        """Whether :meth:`picture` and :meth:`text` can be called."""
        return self.picture_source is not None and self.text_source is not None

    def picture(self, row: int) -> np.ndarray:
        """Return image ``row`` as pixels, uint8 (H, W, 3)."""
        if self.picture_source is None:
            raise ValueError(f"split {self.name!r} has no pictures, only features; check has_pictures first")
        return self.picture_source(int(row))

    def text(self, row: int) -> str:
        """Return text ``row`` as a string."""
        if self.text_source is None:
            raise ValueError(f"split {self.name!r} has no texts, only features; check has_pictures first")
        return self.text_source(int(row))


@dataclass(frozen=True, eq=False)
class CategoryData:
    """Training, validation and test pairs with the same features and classes.

    Parameters
    ----------
    name, checksum, details
        As for :class:`~nclib.data.Dataset`.
    train, val, test : CategorySplit
    label_names : tuple of str
        Names of the K classes; a class may have no pair.

    Raises
    ------
    ValueError
        When the splits differ in feature widths, or a label is out of range.

    Examples
    --------
    >>> from nclib import data
    >>> data.load("planted_category", n_train=50)
    CategoryData('planted_category': train 50, val 200, test 400 pairs; features 200 and 100; 10 classes; ...)
    """

    name: str
    train: CategorySplit
    val: CategorySplit
    test: CategorySplit
    label_names: tuple[str, ...]
    checksum: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        widths = {(s.images.shape[1], s.texts.shape[1]) for s in self.splits.values()}
        if len(widths) != 1:
            raise ValueError(f"data {self.name!r}: splits must have features of the same width, got {widths}")
        for split in self.splits.values():
            check_within(f"data {self.name!r}: labels of split {split.name!r}", split.labels, self.n_classes)

    @property
    def splits(self) -> dict[str, CategorySplit]:
        """The three splits by role."""
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return len(self.label_names)

    @property
    def image_dim(self) -> int:
        """Width of the image features, d_v."""
        return int(self.train.images.shape[1])

    @property
    def text_dim(self) -> int:
        """Width of the text features, d_t."""
        return int(self.train.texts.shape[1])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{key} {len(split)}" for key, split in self.splits.items())
        return (
            f"CategoryData({self.name!r}: {sizes} pairs; features {self.image_dim} and {self.text_dim}; "
            f"{self.n_classes} classes; {self.checksum[:12]})"
        )
