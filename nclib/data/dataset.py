"""The shape of image-caption data: image fragments with packed captions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nclib.common.checks import check_array, check_count, check_rows, check_squares, check_within, describe
from nclib.data.rows import RowFile
from nclib.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

    from nclib.common.tokens import Tokens

Picture = Callable[[int], np.ndarray]
Relevance = Callable[[np.ndarray, np.ndarray], np.ndarray]
BLOCK = 64  # images that are checked together
BOX_NUMBERS = 5  # x0, y0, x1, y1 and area


@dataclass(frozen=True, eq=False)
class Captions:
    """Captions packed end to end.

    Parameters
    ----------
    tokens : ndarray, int32, (n_tokens,)
        Ids of all captions, ``<start>`` and ``<end>`` included, without padding.
    offsets : ndarray, int64, (n_captions + 1,)
        Caption ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``.
    vocabulary : Vocabulary
    texts : sequence of str, optional
        The captions as written, when they hold more than the known words.

    Raises
    ------
    ValueError
        When offsets do not run from 0 to ``n_tokens`` upwards, a caption is empty, or an id is unknown.
    TypeError, IndexError
        From the methods: when ``i`` is not one integer, ``index`` not a flat list, or a number out of range.

    Examples
    --------
    >>> words = Vocabulary.from_texts(["a dog runs", "a cat"])
    >>> captions = Captions(*words.encode_all(["a dog", "a cat runs"]), words)
    >>> len(captions), captions.text(1), captions.ids(1)
    (2, 'a cat runs', array([1, 4, 5, 7, 2], dtype=int32))
    >>> captions.batch([1, 0]).ids
    tensor([[1, 4, 5, 7, 2],
            [1, 4, 6, 2, 0]])
    """

    tokens: np.ndarray
    offsets: np.ndarray
    vocabulary: Vocabulary
    texts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", np.asarray(self.tokens))
        object.__setattr__(self, "offsets", np.asarray(self.offsets))
        n = len(self.tokens)
        check_array("tokens", self.tokens, "int32", n)
        check_array("offsets", self.offsets, "int64", "n_captions + 1")
        if self.offsets[0] != 0 or self.offsets[-1] != n or self.lengths.min(initial=1) < 1:
            raise ValueError(
                f"offsets must run from 0 to {n} (the number of tokens) and rise at every caption, got "
                f"{self.offsets[0]} to {self.offsets[-1]}, lengths from {self.lengths.min(initial=n)}"
            )
        check_within("tokens", self.tokens, self.vocabulary.size)
        if self.texts is not None:
            check_rows("texts", len(self.texts), captions=len(self))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per caption, int64 (n_captions,), start and end token included."""
        return np.diff(self.offsets)

    def ids(self, i: int) -> np.ndarray:
        """Return the token ids of caption ``i``, int32 (length,), ``<start>`` and ``<end>`` included."""
        i = int(_rows(i, len(self), "i"))
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def text(self, i: int) -> str:
        """Return caption ``i`` as written, or without ``texts`` the words of its ids."""
        ids = self.ids(i)
        return self.vocabulary.decode(ids) if self.texts is None else self.texts[int(i)]

    def coverage(self, taught: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Count the words of each caption; marks without letters are none.

        Parameters
        ----------
        taught : ndarray of bool, (words of the vocabulary,), optional
            Words that count as known; by default all of the vocabulary.

        Returns
        -------
        known, words : ndarray, int64, (n_captions,)
            Known words, and all words.
        """
        is_word = self.vocabulary.is_word
        known = (is_word if taught is None else is_word & taught)[self.tokens]
        words = is_word[self.tokens] | (self.tokens == self.vocabulary.unknown_id)
        known, words = (np.add.reduceat(x, self.offsets[:-1], dtype=np.int64) for x in (known, words))
        return known, words

    def batch(self, index: Any) -> Tokens:
        """Return captions as padded ids, without a loop over captions.

        Parameters
        ----------
        index : array-like of int, (C,), or of bool, (n_captions,)
            Which captions, in which order; repeats are allowed.

        Returns
        -------
        Tokens
            ``ids`` int64 (C, longest of these captions) padded with 0 on the right.
        """
        import torch

        from nclib.common.tokens import Tokens

        index = _rows(index, len(self), "index", ndim=1)
        first = self.offsets[index]
        lengths = self.offsets[index + 1] - first
        width = int(lengths.max(initial=0))
        inside = np.arange(width) < lengths[:, None]  # (C, W)
        ids = np.zeros(inside.shape, np.int64)
        at = np.arange(width) + first[:, None]  # (C, W)
        ids[inside] = self.tokens[at[inside]]
        return Tokens(torch.from_numpy(ids), tuple(lengths.tolist()))

    def take(self, index: Any) -> Captions:
        """Return a copy of some captions as a new packed set; ``index`` as for :meth:`batch`."""
        index = _rows(index, len(self), "index", ndim=1)
        lengths = self.lengths[index]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[index] - offsets[:-1], lengths)
        texts = None if self.texts is None else [self.texts[i] for i in index.tolist()]
        return Captions(self.tokens[at], offsets, self.vocabulary, texts)


@dataclass(frozen=True, eq=False)
class Split:
    """Images and the captions that truly describe them.

    Parameters
    ----------
    name : str
    images : ndarray, memmap or RowFile, float32, float16 or uint8, (n_images, R, F)
        One row per image: R fragments of F numbers. Large ones stay on disk in a
        :class:`~nclib.data.rows.RowFile`.
    captions : Captions
        Grouped by image: captions ``i * captions_per_image`` and following describe image ``i``.
    image_of : ndarray, int64, (n_captions,)
        Row of ``images`` that each caption truly describes.
    captions_per_image : int
    boxes : ndarray, float32, (n_images, R, 4), optional
        Fragment boxes x0, y0, x1, y1 in [0, 1], origin at the upper left.
    picture_source, relevance_source : callable, optional
        Behind :meth:`picture` and :meth:`relevance`.
    details : mapping
        Further facts about the images and captions, by name.
    boxes_in_features : bool
        Whether :meth:`features` has five more numbers per fragment: its box, and the area of the box.

    Raises
    ------
    ValueError
        When shapes, types or row numbers do not fit together; the message names the argument.
    TypeError, IndexError
        From the methods: when row numbers have another type or shape, or are out of range.

    Examples
    --------
    >>> from nclib import data
    >>> train = data.load("planted", n_train=8).train
    >>> train.n_images, train.n_captions, train.image_of[:7].tolist()
    (8, 40, [0, 0, 0, 0, 0, 1, 1])
    >>> train.features([0, 3]).shape
    torch.Size([2, 12, 32])
    >>> train.relevance([0, 1], [0, 7])  # share of each caption's statements that hold
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    name: str
    images: np.ndarray | RowFile
    captions: Captions
    image_of: np.ndarray
    captions_per_image: int
    boxes: np.ndarray | None = None
    picture_source: Picture | None = None
    relevance_source: Relevance | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    boxes_in_features: bool = False

    def __post_init__(self) -> None:
        n, each, where = len(self.images), self.captions_per_image, f"split {self.name!r}: "
        object.__setattr__(self, "image_of", np.asarray(self.image_of))
        check_array(f"{where}images", self.images, "float32 or float16 or uint8", n, "R", "F")
        check_count(f"{where}captions_per_image", each)
        check_rows(f"{where}captions", len(self.captions), **{f"{each} of each image": n * each})
        check_array(f"{where}image_of", self.image_of, "int64", n * each)
        if not np.array_equal(self.image_of, np.arange(n * each) // each):
            raise ValueError(f"{where}image_of must group captions by image (0 {each} times, then 1, ...)")
        if self.boxes is not None or self.boxes_in_features:
            check_array(f"{where}boxes", self.boxes, "float32", *self.images.shape[:2], 4)

    @property
    def feature_dim(self) -> int:
        """Numbers per fragment in :meth:`features`."""
        return int(self.images.shape[2]) + BOX_NUMBERS * self.boxes_in_features

    @property
    def n_images(self) -> int:
        """Number of unique images."""
        return len(self.images)

    @property
    def n_captions(self) -> int:
        """Number of captions."""
        return len(self.captions)

    @property
    def on_disk(self) -> bool:
        """Whether :meth:`features` reads a large file, so that reading ahead in a thread pays."""
        return isinstance(self.images, RowFile)

    def features(self, rows: Any, *, pinned: bool = False) -> Tensor:
        """Return the fragments of some images.

        Parameters
        ----------
        rows : array-like of int, (B,), or of bool, (n_images,)
            Repeats are allowed.
        pinned : bool
            Put them into page-locked memory, from which a GPU copies without waiting.

        Returns
        -------
        Tensor, float32, (B, R, F)
            A copy on the CPU; bytes are scaled to [0, 1].

        Raises
        ------
        ValueError
            When a value is NaN, infinite or too large to be squared; names split, file, image and value.
        """
        import torch

        rows = _rows(rows, self.n_images, "rows", ndim=1)
        values = self._read(rows, pinned and not self.boxes_in_features)
        if self.boxes_in_features:
            out = torch.empty(*values.shape[:2], self.feature_dim, pin_memory=pinned)
            values = torch.cat([values, self.box_numbers(rows)], -1, out=out)
        path = f", {self.images.path}" if isinstance(self.images, RowFile) else ""
        check_squares(f"split {self.name!r}{path}: image", values.numpy(), rows)
        return values

    def mean_regions(self) -> np.ndarray:
        """Return the mean region of every image, float64 (n_images, F); reads each image once."""
        blocks = np.split(np.arange(self.n_images), range(BLOCK, self.n_images, BLOCK))
        return np.concatenate([self.features(rows).numpy().mean(1, dtype=np.float64) for rows in blocks])

    def check_finite(self) -> None:
        """Read all features once; a ValueError as of :meth:`features`."""
        for start in range(0, self.n_images, BLOCK):
            self.features(np.arange(start, min(start + BLOCK, self.n_images)))

    def _read(self, rows: np.ndarray, pinned: bool) -> Tensor:
        import torch

        images, shape = self.images, (len(rows), *self.images.shape[1:])
        # NumPy asks the system for large pages, torch does not: a third of the time.
        out = torch.empty(shape, pin_memory=True) if pinned else torch.from_numpy(np.empty(shape, np.float32))
        if images.dtype != np.float32:
            out.copy_(torch.from_numpy(np.asarray(images[rows])))
            return out.div_(255) if images.dtype == np.uint8 else out
        if isinstance(images, RowFile):
            images.take(rows, out.numpy())
        else:  # "clip": NumPy writes to a buffer of its own first where it must check the rows
            np.take(images, rows, 0, out.numpy(), mode="clip")
        return out

    def box_numbers(self, rows: np.ndarray) -> Tensor:
        """Return box and area of the fragments of some images, float32 (B, R, 5); ``rows`` int64 (B,)."""
        import torch

        assert self.boxes is not None  # as __post_init__ has checked
        box = torch.from_numpy(self.boxes[rows])  # (B, R, 4)
        return torch.cat([box, (box[..., 2:] - box[..., :2]).prod(-1, keepdim=True)], -1)

    def part(self, start: int, stop: int) -> Split:
        """Return images ``start`` to ``stop - 1`` (as views, counted from 0) with their captions as a split.

        ``details`` stays that of the whole split.

        Raises
        ------
        ValueError
            Unless 0 <= start < stop <= n_images.
        """
        if not 0 <= start < stop <= self.n_images:
            raise ValueError(f"part({start}, {stop}) must be a range within 0..{self.n_images}")
        d, picture, relevance = self.captions_per_image, self.picture_source, self.relevance_source
        return replace(
            self,
            images=self.images[start:stop],
            captions=self.captions.take(np.arange(start * d, stop * d)),
            image_of=self.image_of[start * d : stop * d] - start,
            boxes=None if self.boxes is None else self.boxes[start:stop],
            picture_source=None if picture is None else _Shifted(picture, (start,)),
            relevance_source=None if relevance is None else _Shifted(relevance, (start, start * d)),
        )

    @property
    def has_pictures(self) -> bool:
        """Whether :meth:`picture` can be called."""
        return self.picture_source is not None

    def picture(self, row: int) -> np.ndarray:
        """Return image ``row`` as pixels, uint8 (H, W, 3).

        Raises
        ------
        ValueError
            When the dataset has features only.
        """
        if self.picture_source is None:
            raise ValueError(f"split {self.name!r} has no pictures, only features; check has_pictures first")
        return self.picture_source(int(_rows(row, self.n_images, "row")))

    @property
    def has_relevance(self) -> bool:
        """Whether :meth:`relevance` can be called."""
        return self.relevance_source is not None

    def relevance(self, image_rows: Any = None, caption_rows: Any = None) -> np.ndarray:
        """Return how much of each caption is true of each image.

        Parameters
        ----------
        image_rows, caption_rows : array-like of int or bool, optional
            Default: all.

        Returns
        -------
        ndarray, float32, (image rows, caption rows), in [0, 1]
            Share of the caption's statements that hold; 1 for the image that the caption was made for.

        Raises
        ------
        ValueError
            When the content of the images is not known.
        """
        if self.relevance_source is None:
            raise ValueError(
                f"split {self.name!r} has no ground-truth relevance; check has_relevance first "
                "(the sets 'emoji' and 'planted' have it)"
            )
        chosen = (
            np.arange(size) if rows is None else _rows(rows, size, name, ndim=1)
            for name, rows, size in (
                ("image_rows", image_rows, self.n_images),
                ("caption_rows", caption_rows, self.n_captions),
            )
        )
        return self.relevance_source(*chosen)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test split with one vocabulary.

    Parameters
    ----------
    name : str
    train, val, test : Split
    vocabulary : Vocabulary
    checksum : str
        SHA-256 of the content, hexadecimal; part of every record.
    details : mapping
        Further facts, by name (row layouts, folds of the test set, options).

    Raises
    ------
    ValueError
        When the splits differ in their shape or use another vocabulary.
    """

    name: str
    train: Split
    val: Split
    test: Split
    vocabulary: Vocabulary
    checksum: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shapes = {split.name: split.images.shape[1:] for split in self.splits.values()}
        if len(set(shapes.values())) != 1:
            raise ValueError(f"dataset {self.name!r}: splits must share (regions, features), got {shapes}")
        for split in self.splits.values():
            if split.captions.vocabulary != self.vocabulary:
                raise ValueError(f"dataset {self.name!r}: split {split.name!r} uses another vocabulary")

    @property
    def splits(self) -> dict[str, Split]:
        """The three splits by role."""
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def feature_dim(self) -> int:
        """F, the numbers per fragment."""
        return self.train.feature_dim

    @property
    def n_regions(self) -> int:
        """R, the fragments per image."""
        return int(self.train.images.shape[1])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{k} {s.n_images}x{s.captions_per_image}" for k, s in self.splits.items())
        return (
            f"Dataset({self.name!r}: {sizes} captions; {self.n_regions} regions of {self.feature_dim}; "
            f"{self.vocabulary.size} words; {self.checksum[:12]})"
        )


@dataclass(frozen=True)
class _Shifted:
    """A source of a whole split, asked for rows that are counted from the starts of a part."""

    source: Callable[..., Any]
    starts: tuple[int, ...]

    def __call__(self, *rows: Any) -> Any:
        return self.source(*(own + start for own, start in zip(rows, self.starts, strict=True)))


def _rows(rows: Any, size: int, name: str, ndim: int = 0) -> np.ndarray:
    """Return row numbers as int64 after a check of type and range."""
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (size,):
        return np.flatnonzero(rows)
    if rows.ndim != ndim or not (np.issubdtype(rows.dtype, np.integer) or rows.size == 0):
        wanted = "one integer" if ndim == 0 else f"a flat list of integers, or {size} booleans"
        raise TypeError(f"{name} must be {wanted}, got {describe(rows)}")
    check_within(name, rows, size, IndexError)
    return rows.astype(np.int64, copy=False)
