"""Mismatched pairs: captions attached to wrong images, with the ground truth.

Two protocols of the field are both called "20 % noise"; their results must never be compared:

- ``images``: a share of the *images* change places, and the five captions of an image move together to the
  same wrong image (L2RM, DECL, RCL). The harder one.
- ``captions``: a share of the single *captions* change places, so that nearly every image keeps a right
  caption (NCR, BiCro, MSCN).

Both can leave a chosen pair as it was, since a random permutation has fixed points. Two more have none, so
that exactly the chosen share is wrong:

- ``pairs``: single captions, as ``captions``.
- ``near``: images, as ``images``, but each changes places with one of those that look like it: wrong captions
  are half right, as mistakes within a class or a series are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check_choice
from nclib.common.files import digest, replacing
from nclib.common.npy import read_npy
from nclib.noise.checks import Index, Seed, generator, share, vector
from nclib.noise.published import PUBLISHED

NEAR = 8  # images that look alike and change places under ``near``
_SWAPS = 24  # rounds of random exchanges; about log2 of the number of pairs mixes them


def _images(image_of: Index, rate: float, rng: np.random.Generator) -> Index:
    images, position = np.unique(image_of, return_inverse=True)
    chosen = rng.choice(images.size, share(rate, images.size), replace=False)
    moved = images.copy()
    moved[chosen] = images[rng.permutation(chosen)]
    return moved[position]


def _captions(image_of: Index, rate: float, rng: np.random.Generator, *, all_wrong: bool = False) -> Index:
    chosen = rng.choice(image_of.size, share(rate, image_of.size), replace=False)
    noisy = image_of.copy()
    if all_wrong:
        noisy[chosen] = _exchange(image_of[chosen], np.unique(image_of), rng)
    else:
        noisy[chosen] = image_of[rng.permutation(chosen)]
    return noisy


def _exchange(rows: Index, images: Index, rng: np.random.Generator) -> Index:
    """Return as many images as ``rows`` has, none equal to the row at its place."""
    if rows.size == 0:
        return rows
    if images.size < 2:
        raise ValueError("image_of names a single image, so no caption can get a wrong one")
    names, group, sizes = np.unique(rows, return_inverse=True, return_counts=True)
    if 2 * sizes.max() > rows.size:
        # One image has most of the chosen captions: no exchange among themselves can free them all.
        own = np.searchsorted(images, rows)
        return images[(own + rng.integers(1, images.size, rows.size)) % images.size]
    # 1. Sort by image and rotate by the size of the largest group: no caption keeps its own image.
    # 2. Swap random pairs of places whenever both stay wrong, until the arrangement is random.
    order = np.lexsort((rng.random(rows.size), rng.permutation(names.size)[group]))
    drawn = np.empty_like(rows)
    drawn[order] = np.roll(rows[order], int(sizes.max()))
    half = rows.size // 2
    for _ in range(_SWAPS):
        i, j = np.split(rng.permutation(rows.size)[: 2 * half], 2)
        fine = (drawn[i] != rows[j]) & (drawn[j] != rows[i])
        i, j = i[fine], j[fine]
        drawn[i], drawn[j] = drawn[j], drawn[i]
    return drawn


def _near(image_of: Index, rate: float, rng: np.random.Generator, *, features: Any) -> Index:
    images, position = np.unique(image_of, return_inverse=True)
    x = np.asarray(features)
    if x.ndim != 2 or len(x) <= images[-1]:
        raise ValueError(
            f"features must have a row of numbers for each of {images[-1] + 1} images, got shape {x.shape}"
        )
    chosen = rng.choice(images.size, share(rate, images.size), replace=False)
    x = x[images[chosen]].astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)
    moved = images.copy()
    for group in _alike(x, rng):
        order = rng.permutation(chosen[group])
        moved[order] = images[np.roll(order, 1)]
    return moved[position]


def _alike(x: NDArray[np.float64], rng: np.random.Generator) -> Iterator[Index]:
    """Divide unit vectors into groups of eight: a random one of those left, and the nearest seven of them.

    The last group has up to fifteen; a single vector forms none. Cosines are rounded, so that every machine
    finds the same groups.
    """
    free = np.ones(len(x), dtype=bool)
    left = len(x)
    for first in rng.permutation(len(x)):
        if left < 2 * NEAR:
            break
        if free[first]:
            cosine = np.where(free, (x @ x[first]).round(6), -np.inf)
            cosine[first] = np.inf
            group = np.argsort(-cosine, kind="stable")[:NEAR]
            yield group
            free[group] = False
            left -= NEAR
    if left > 1:
        yield np.flatnonzero(free)


PROTOCOLS: dict[str, Callable[..., Index]] = {
    "images": _images,
    "captions": _captions,
    "pairs": partial(_captions, all_wrong=True),
    "near": _near,
}
"""Protocol name to the function that draws it."""


def mismatch(
    image_of: Any, rate: float, *, seed: Seed, protocol: str = "images", features: Any = None
) -> Index:
    """Draw mismatched pairs.

    Parameters
    ----------
    image_of : array of int, (n_captions,)
        Image row that each caption truly describes.
    rate : float in [0, 1]
        Share of the images (protocols ``images`` and ``near``) or of the captions (else) that is chosen; the
        count is ``floor(rate * n)`` exactly.
    seed : int >= 0, or a sequence of them
        Seed of this draw; nothing else is random.
    protocol : {"images", "captions", "pairs", "near"}
        ``images``: the chosen images change places among themselves, all captions of an image move together.
        ``captions``: the chosen captions exchange their images. Both are uniform random permutations, so a
        few chosen stay as they were. ``pairs``: the chosen captions exchange their images such that every
        one of them gets a different image (if one image has more than half of the chosen captions, which
        happens in tiny sets only, wrong images are drawn uniformly from all others instead). ``near``: the
        chosen images are divided into groups of eight that look alike, and change places within their group
        in one random cycle, so that each of them gets a different image.
    features : array of float, (n_images, F), optional
        Vector of every image, compared by cosine. For ``near``, which needs it.

    Returns
    -------
    ndarray, int64, (n_captions,)
        Image row that each caption is paired with now. Captions never move.

    Raises
    ------
    ValueError
        Naming the argument, what was given and what is allowed.

    Examples
    --------
    >>> from nclib.noise import mismatch
    >>> mismatch([0, 0, 1, 1, 2, 2, 3, 3], 0.5, seed=0)
    array([0, 0, 1, 1, 3, 3, 2, 2])
    """
    return Mismatch.draw(image_of, rate, seed=seed, protocol=protocol, features=features).image_of


@dataclass(frozen=True, eq=False)
class Mismatch:
    """A named set of mismatched pairs, with its ground truth.

    Parameters
    ----------
    protocol : str
        A key of :data:`PROTOCOLS`; of a file, ``images`` if the captions of every image stayed
        together and ``captions`` otherwise.
    rate : float or None
        Nominal rate; None for a file of unknown rate.
    seed : int, sequence of int, or None
        None for a file.
    image_of : ndarray, int64, (n_captions,)
        Image row that each caption is paired with.
    matched : ndarray, bool, (n_captions,)
        Whether that is the image which the caption truly describes.
    source : str
        Where it comes from, as a phrase.

    Attributes
    ----------
    moved : int
        Captions that are really mismatched.
    true_rate : float
        ``moved / n_captions``.
    checksum : str
        First 16 hex digits of the SHA-256 of ``image_of`` (int64, little-endian), which saving keeps.
    """

    protocol: str
    rate: float | None
    seed: Seed | None
    image_of: Index
    matched: NDArray[np.bool_]
    source: str
    moved: int = field(init=False)
    true_rate: float = field(init=False)
    checksum: str = field(init=False)

    def __post_init__(self) -> None:
        moved = int(self.matched.size - np.count_nonzero(self.matched))
        object.__setattr__(self, "moved", moved)
        object.__setattr__(self, "true_rate", moved / self.matched.size)
        object.__setattr__(self, "checksum", digest(self.image_of.astype("<i8").tobytes())[:16])

    def __len__(self) -> int:
        return self.image_of.size

    @classmethod
    def draw(
        cls, image_of: Any, rate: float, *, seed: Seed, protocol: str = "images", features: Any = None
    ) -> Self:
        """Draw mismatched pairs; parameters and errors as :func:`mismatch`.

        Examples
        --------
        >>> from nclib.noise import Mismatch
        >>> noise = Mismatch.draw([0, 0, 1, 1, 2, 2, 3, 3], 0.5, seed=0, protocol="pairs")
        >>> noise.moved, noise.true_rate, noise.protocol
        (4, 0.5, 'pairs')
        """
        check_choice("protocol", protocol, tuple(PROTOCOLS))
        true = vector(image_of, "image_of", "iu", low=0)
        if (protocol == "near") != (features is not None):
            raise ValueError(
                "features, a vector of every image, are for the protocol 'near' and needed there; "
                f"protocol is {protocol!r}, and features are {'not ' if features is None else ''}given"
            )
        about = {} if features is None else {"features": features}
        noisy = PROTOCOLS[protocol](true, rate, generator(seed), **about)
        return cls(protocol, float(rate), seed, noisy, noisy == true, f"drawn with seed {seed}")

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], image_of: Any, *, captions_per_image: int | None = None
    ) -> Self:
        """Read a published noise-index file (.npy, integers).

        Two formats exist and are told apart by length. *Image-level* (DECL, RCL): one entry per image row,
        the image shown for that row's captions; a permutation. *Caption-level* (NCR, BiCro, MSCN, L2RM):
        one entry per caption, its image row; every image is used as often as before.

        Parameters
        ----------
        path : path
            A missing file is an error; nothing is drawn in its place.
        image_of : array of int, (n_captions,)
            Image row that each caption truly describes.
        captions_per_image : int, optional
            Checked against ``image_of`` if given.

        Returns
        -------
        Mismatch
            With the nominal rate where the file is one that a paper published, recognised by its checksum.

        Raises
        ------
        FileNotFoundError, ValueError
            If there is no such file; if it is not a ``.npy`` file of whole numbers, fits neither format, fits
            both in different ways, or is not a permutation.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no noise-index file at {path}; nothing is drawn instead. "
                "Use Mismatch.draw(image_of, rate, seed=..., protocol=...) to draw one."
            )
        true = vector(image_of, "image_of", "iu", low=0)
        n_images = int(true.max()) + 1
        if captions_per_image is not None and n_images * captions_per_image != true.size:
            raise ValueError(
                f"captions_per_image is {captions_per_image}, but image_of has {true.size} captions of "
                f"{n_images} image rows"
            )
        index = vector(read_npy(path), f"the noise index in {path.name}", "iu", low=0)
        noisy = _read(index, true, n_images, path.name)
        sha256 = digest(path)[:16]
        name, rate = PUBLISHED.get(sha256, (None, None))
        source = f"file {path.name}, sha256 {sha256}" + (f", published: {name}, rate {rate}" if name else "")
        protocol = "images" if _together(noisy, true) else "captions"
        return cls(protocol, rate, None, noisy, noisy == true, source)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``image_of`` as a caption-level index file that :meth:`from_file` and official code read.

        ``path`` ends in ``.npy`` and is returned; an existing file is replaced at once or not at all.
        """
        path = Path(path)
        if path.suffix != ".npy":
            raise ValueError(f"path must end in .npy, got {path.name!r}")
        with replacing(path) as file:
            np.save(file, self.image_of, allow_pickle=False)
        return path

    def describe(self) -> str:
        """Return one line for records and figures: protocol, rate, what really moved, source, checksum."""
        nominal = "unknown" if self.rate is None else f"{self.rate:g}"
        return (
            f"{self.protocol} mismatch, nominal rate {nominal}: {self.moved:,} of {len(self):,} captions "
            f"moved ({100 * self.true_rate:.2f} %), {self.source}, checksum {self.checksum}"
        )


def _read(index: Index, true: Index, n_images: int, name: str) -> Index:
    """Return the noisy image row of every caption, whichever format ``index`` has."""
    fits = {"image": index.size == n_images, "caption": index.size == true.size}
    if not any(fits.values()):
        raise ValueError(
            f"{name} has {index.size} entries and fits neither format: the data have {n_images} images "
            f"(image-level) and {true.size} captions (caption-level). Is it made for other data?"
        )
    vector(index, f"the image rows in {name}", "iu", high=n_images - 1)
    if all(fits.values()) and not np.array_equal(index[true], index):
        raise ValueError(
            f"{name} is ambiguous: images and captions are equally many ({n_images}), and the two formats "
            "give different pairs because image_of is not 0, 1, 2, ..."
        )
    used = np.bincount(index, minlength=n_images)
    wanted = np.ones_like(used) if fits["image"] else np.bincount(true, minlength=n_images)
    if not np.array_equal(used, wanted):
        row = int(np.flatnonzero(used != wanted)[0])
        raise ValueError(
            f"{name} is not a permutation of the images of the {'images' if fits['image'] else 'captions'}: "
            f"image row {row} is used {int(used[row])} times, must be {int(wanted[row])}"
        )
    return index[true] if fits["image"] else index


def _together(noisy: Index, true: Index) -> bool:
    """Return whether all captions of every image were given one image."""
    order = np.argsort(true, kind="stable")
    rows, shown = true[order], noisy[order]
    return bool(((rows[1:] != rows[:-1]) | (shown[1:] == shown[:-1])).all())
